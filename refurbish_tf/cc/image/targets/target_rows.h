// Rows of numbers that say where something is in an image: boxes, key points.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "refurbish_tf/cc/image/targets/places.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"

namespace refurbish_tf {

// The type in which boxes and key points are stored. Layers compute with them
// in double.
struct NumberType {
  // Rounds to the nearest number of the type, half to even.
  double (*rounded)(double number);
  // The distance from 1 to the next number; 0 for integer types.
  double epsilon;
  // The largest number of the type.
  double highest;
};

// The numbers are rounded to the stored type after each layer, so it makes no
// difference which layers are in one op.
class TargetRows : public TargetCanvas {
 public:
  // `numbers`: `count` rows of `columns`; must outlive this.
  TargetRows(NumberType type, ImageSize size, int64_t count, int columns,
             double* numbers)
      : type_(type),
        count_(count),
        columns_(columns),
        numbers_(numbers),
        size_(size) {}

  ImageSize size() const override { return size_; }
  void Crop(const Box& part, Border border, FillColor color) override;
  void Flip(bool vertically) override;
  void Transpose() override {
    Projection to;
    to.yy = to.xx = 0;
    to.yx = to.xy = 1;
    MoveTo(to, {size_.width, size_.height});
  }
  void Resize(const Box& part, ImageSize size, bool antialias) override;
  void Displace(const Displacement& displacement) override {
    if (count_ == 0) return;
    const DisplacementField field(displacement, size_);
    MoveTo([&](ImagePlace place) { return field.Inverse(place); }, size_,
           /*bends=*/true);
  }

  // Checks the rows, clips boxes, and hides key points outside the image. Must
  // be called before any layer. An error is about row `refused()`, and its text
  // continues "they must ".
  absl::Status Begin();
  int64_t refused() const { return refused_; }
  // Whether the type can hold the sides of all images so far.
  bool fits() const { return fits_; }

 protected:
  const NumberType& type() const { return type_; }
  int columns() const { return columns_; }
  double longest_side() const;
  double* at(int64_t row) const { return numbers_ + row * columns_; }
  // Calls `work` with each row that is not padding.
  template <class Work>
  void ForEachRow(const Work& work) const {
    for (int64_t i = 0; i < count_; ++i) {
      double* const row = at(i);
      if (!IsPadding(row)) work(row);
    }
  }

 private:
  void MoveBy(const PreparedDistortion& distortion) override {
    MoveTo(SourceOf(distortion, size_).Inverse(), size_);
  }
  // Moves each place to `to(place)`, in an image of size `made`.
  void MoveTo(PlaceMap to, ImageSize made, bool bends = false) {
    const ImageSize before = size_;
    size_ = made;
    fits_ &= longest_side() <= type_.highest;
    ForEachRow([&](double* row) { MoveRow(to, before, bends, row); });
  }
  // Rows of -1 are padding, except rows of two numbers: a key point may move to
  // (-1, -1).
  bool IsPadding(const double* row) const;
  // Does what `Begin` says for a row of finite numbers that is not padding.
  virtual absl::Status BeginRow(double* row) = 0;
  // `before`: the size of the image before the move. `bends`: whether straight
  // lines may be bent.
  virtual void MoveRow(PlaceMap to, ImageSize before, bool bends,
                       double* row) = 0;

  const NumberType type_;
  const int64_t count_;
  const int columns_;
  double* const numbers_;
  ImageSize size_;
  int64_t refused_ = 0;
  bool fits_ = true;
};

}  // namespace refurbish_tf

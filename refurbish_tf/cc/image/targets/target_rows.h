// Rows of numbers that say where something is in an image: boxes, key points.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "refurbish_tf/cc/image/targets/places.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"

namespace refurbish_tf {

// The type in which boxes and key points are stored, for code that computes
// with them in double.
struct NumberType {
  // To the nearest number of the type, half to even.
  double (*rounded)(double number);
  // The distance from 1 to the next number; of whole numbers 0.
  double epsilon;
  // The largest number.
  double highest;
};

// After each layer the numbers are what would be stored, so that it makes no
// difference where layers are split.
class TargetRows : public TargetCanvas {
 public:
  // `numbers`: `columns` for each of `count` rows in an image of this size;
  // must outlive this.
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
  void Transpose() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;

  // Checks them, and makes of them what they are in the image. To be called
  // before any layer. An error, of row `refused()`, goes on from "they must ".
  absl::Status Begin();
  int64_t refused() const { return refused_; }
  // Whether the type holds the sides of all images.
  bool fits() const { return fits_; }

 protected:
  const NumberType& type() const { return type_; }
  int columns() const { return columns_; }
  double longest_side() const;
  // Calls it with each row that is no padding.
  template <class Work>
  void ForEachRow(const Work& work) const {
    for (int64_t i = 0; i < count_; ++i) {
      double* const row = numbers_ + i * columns_;
      if (!IsPadding(row)) work(row);
    }
  }

 private:
  void MoveBy(const PreparedDistortion& distortion) override;
  // What was at a place is now at `to(place)`, in an image of size `made`.
  void MoveTo(const Projection& to, ImageSize made);
  // Rows of -1 stay. A place alone, of two numbers, may have come to be there.
  bool IsPadding(const double* row) const;
  // The same of one row of finite numbers, which is no padding.
  virtual absl::Status BeginRow(double* row) = 0;
  // `before`: the size of the image that it was in.
  virtual void MoveRow(const Projection& to, ImageSize before, double* row) = 0;

  const NumberType type_;
  const int64_t count_;
  const int columns_;
  double* const numbers_;
  ImageSize size_;
  int64_t refused_ = 0;
  bool fits_ = true;
};

}  // namespace refurbish_tf

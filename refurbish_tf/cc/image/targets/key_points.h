// Moves key points as layers move their image. (0, 0) is the middle of its
// first pixel, of relative points its corner.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "refurbish_tf/cc/image/places.h"
#include "refurbish_tf/cc/image/targets/number_type.h"

namespace refurbish_tf {

// After each layer the numbers are what would be stored, so that it makes no
// difference where layers are split.
class KeyPoints : public PlaceCanvas {
 public:
  // `numbers`: x, y and, if `columns` is 3, visibility of each of `count`
  // points in an image of this size; must outlive this.
  KeyPoints(bool is_relative, NumberType type, ImageSize size, int64_t count,
            int columns, double* numbers)
      : PlaceCanvas(size),
        is_relative_(is_relative),
        type_(type),
        count_(count),
        columns_(columns),
        numbers_(numbers) {}

  // To be called before any layer. An error, of point `refused()`, goes on from
  // "key points must ".
  absl::Status Begin();
  int64_t refused() const { return refused_; }

 private:
  void Move(const Affine& to, ImageSize before) override;
  ImagePlace Read(const double* point, ImageSize size) const;
  // What is outside of the image is not visible.
  void Hide(ImagePlace place, double* point) const;
  // Rows of -1, visibility included: a place alone may have come to be there.
  bool IsPadding(const double* point) const;

  const bool is_relative_;
  const NumberType type_;
  const int64_t count_;
  const int columns_;
  double* const numbers_;
  int64_t refused_ = 0;
};

}  // namespace refurbish_tf

// Moves key points as layers move their image. (0, 0) is the middle of its
// first pixel, of relative points its corner.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/targets/target_rows.h"

namespace refurbish_tf {

class KeyPoints : public TargetRows {
 public:
  // `numbers`: x, y and, if `columns` is 3, visibility of each point.
  KeyPoints(bool is_relative, NumberType type, ImageSize size, int64_t count,
            int columns, double* numbers)
      : TargetRows(type, size, count, columns, numbers),
        is_relative_(is_relative) {}

 private:
  absl::Status BeginRow(double* point) override;
  void MoveRow(const Affine& to, ImageSize before, double* point) override;
  ImagePlace Read(const double* point, ImageSize size) const;
  // What is outside of the image is not visible.
  void Hide(double* point) const;

  const bool is_relative_;
};

}  // namespace refurbish_tf

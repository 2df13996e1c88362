// Moves key points as layers move their image. (0, 0) is the middle of the
// first pixel; for relative points, it is the corner of the image.
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

  ImagePlace place(int64_t row) const { return Read(at(row), size()); }

 private:
  absl::Status BeginRow(double* point) override {
    Hide(point);
    return absl::OkStatus();
  }
  void MoveRow(PlaceMap to, ImageSize before, bool /*bends*/,
               double* point) override {
    ImagePlace moved = to(Read(point, before));
    if (is_relative_) {
      moved.y /= static_cast<double>(size().height);
      moved.x /= static_cast<double>(size().width);
    } else {
      moved.y -= 0.5;
      moved.x -= 0.5;
    }
    point[0] = type().rounded(moved.x);
    point[1] = type().rounded(moved.y);
    Hide(point);
  }
  ImagePlace Read(const double* point, ImageSize size) const {
    if (!is_relative_) return {point[1] + 0.5, point[0] + 0.5};
    return {point[1] * static_cast<double>(size.height),
            point[0] * static_cast<double>(size.width)};
  }
  // Marks a point outside the image as not visible.
  void Hide(double* point) const {
    const ImagePlace place = Read(point, size());
    const bool is_inside = place.y >= 0 && place.x >= 0 &&
                           place.y <= static_cast<double>(size().height) &&
                           place.x <= static_cast<double>(size().width);
    if (columns() == 3 && !is_inside) point[2] = 0;
  }

  const bool is_relative_;
};

}  // namespace refurbish_tf

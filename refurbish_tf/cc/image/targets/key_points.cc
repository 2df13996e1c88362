#include "refurbish_tf/cc/image/targets/key_points.h"

namespace refurbish_tf {

absl::Status KeyPoints::BeginRow(double* point) {
  Hide(point);
  return absl::OkStatus();
}

ImagePlace KeyPoints::Read(const double* point, ImageSize size) const {
  if (!is_relative_) return {point[1] + 0.5, point[0] + 0.5};
  return {point[1] * static_cast<double>(size.height),
          point[0] * static_cast<double>(size.width)};
}

void KeyPoints::Hide(double* point) const {
  const ImagePlace place = Read(point, size());
  const bool is_inside = place.y >= 0 && place.x >= 0 &&
                         place.y <= static_cast<double>(size().height) &&
                         place.x <= static_cast<double>(size().width);
  if (columns() == 3 && !is_inside) point[2] = 0;
}

void KeyPoints::MoveRow(const Affine& to, ImageSize before, double* point) {
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

}  // namespace refurbish_tf

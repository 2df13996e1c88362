#include "refurbish_tf/cc/image/targets/key_points.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace refurbish_tf {

absl::Status KeyPoints::Begin() {
  for (int64_t i = 0; i < count_; ++i) {
    double* const point = numbers_ + i * columns_;
    if (!std::all_of(point, point + columns_,
                     [](double number) { return std::isfinite(number); })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "be finite numbers, got [",
          absl::StrJoin(absl::MakeConstSpan(point, columns_), ", "),
          "] in row ", i));
    }
    if (!IsPadding(point)) Hide(Read(point, size()), point);
  }
  return absl::OkStatus();
}

bool KeyPoints::IsPadding(const double* point) const {
  return std::all_of(point, point + columns_, [](double n) { return n == -1; });
}

Place KeyPoints::Read(const double* point, ImageSize size) const {
  double y = point[1], x = point[0];
  if (is_relative_) {
    y *= static_cast<double>(size.height);
    x *= static_cast<double>(size.width);
  }
  return {y + 0.5, x + 0.5};
}

void KeyPoints::Hide(Place place, double* point) const {
  const bool is_inside = place.y >= 0 && place.x >= 0 &&
                         place.y < static_cast<double>(size().height) &&
                         place.x < static_cast<double>(size().width);
  if (columns_ == 3 && !is_inside) point[2] = 0;
}

void KeyPoints::Move(const Affine& to, ImageSize before) {
  for (int64_t i = 0; i < count_; ++i) {
    double* const point = numbers_ + i * columns_;
    if (IsPadding(point)) continue;
    const Place moved = to(Read(point, before));
    double y = moved.y - 0.5, x = moved.x - 0.5;
    if (is_relative_) {
      y /= static_cast<double>(size().height);
      x /= static_cast<double>(size().width);
    }
    point[0] = type_.rounded(x);
    point[1] = type_.rounded(y);
    Hide(Read(point, size()), point);
  }
}

}  // namespace refurbish_tf

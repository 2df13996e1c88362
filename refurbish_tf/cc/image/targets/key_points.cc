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
    refused_ = i;
    if (!std::all_of(point, point + columns_,
                     [](double number) { return std::isfinite(number); })) {
      return absl::InvalidArgumentError(absl::StrCat(
          "be finite numbers, got [",
          absl::StrJoin(absl::MakeConstSpan(point, columns_), ", "), "]"));
    }
    if (!IsPadding(point)) Hide(Read(point, size()), point);
  }
  return absl::OkStatus();
}

bool KeyPoints::IsPadding(const double* point) const {
  return columns_ == 3 &&
         std::all_of(point, point + columns_, [](double n) { return n == -1; });
}

ImagePlace KeyPoints::Read(const double* point, ImageSize size) const {
  if (!is_relative_) return {point[1] + 0.5, point[0] + 0.5};
  return {point[1] * static_cast<double>(size.height),
          point[0] * static_cast<double>(size.width)};
}

void KeyPoints::Hide(ImagePlace place, double* point) const {
  const bool is_inside = place.y >= 0 && place.x >= 0 &&
                         place.y <= static_cast<double>(size().height) &&
                         place.x <= static_cast<double>(size().width);
  if (columns_ == 3 && !is_inside) point[2] = 0;
}

void KeyPoints::Move(const Affine& to, ImageSize before) {
  for (int64_t i = 0; i < count_; ++i) {
    double* const point = numbers_ + i * columns_;
    if (IsPadding(point)) continue;
    const ImagePlace moved = to(Read(point, before));
    point[0] =
        type_.rounded(is_relative_ ? moved.x / static_cast<double>(size().width)
                                   : moved.x - 0.5);
    point[1] = type_.rounded(is_relative_
                                 ? moved.y / static_cast<double>(size().height)
                                 : moved.y - 0.5);
    Hide(Read(point, size()), point);
  }
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/targets/target_rows.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {

double TargetRows::longest_side() const {
  return static_cast<double>(std::max(size().height, size().width));
}

bool TargetRows::IsPadding(const double* row) const {
  return columns_ > 2 &&
         std::all_of(row, row + columns_, [](double n) { return n == -1; });
}

absl::Status TargetRows::Begin() {
  fits_ &= longest_side() <= type_.highest;
  for (refused_ = 0; refused_ < count_; ++refused_) {
    double* const row = numbers_ + refused_ * columns_;
    if (IsPadding(row)) continue;
    const absl::Status status =
        std::all_of(row, row + columns_,
                    [](double number) { return std::isfinite(number); })
            ? BeginRow(row)
            : InvalidArgument("be finite numbers");
    if (!status.ok()) {
      return InvalidArgument(
          status.message(), ", got [",
          absl::StrJoin(absl::MakeConstSpan(row, columns_), ", "), "]");
    }
  }
  return absl::OkStatus();
}

void TargetRows::Crop(const Box& part, Border /*border*/, FillColor /*color*/) {
  Projection to;
  to.y = static_cast<double>(-part.y);
  to.x = static_cast<double>(-part.x);
  MoveTo(to, {part.height, part.width});
}

void TargetRows::Flip(bool vertically) {
  Projection to;
  if (vertically) {
    to.yy = -1;
    to.y = static_cast<double>(size_.height);
  } else {
    to.xx = -1;
    to.x = static_cast<double>(size_.width);
  }
  MoveTo(to, size_);
}

void TargetRows::Resize(const Box& part, ImageSize size, bool /*antialias*/) {
  Projection to;
  to.yy = static_cast<double>(size.height) / static_cast<double>(part.height);
  to.xx = static_cast<double>(size.width) / static_cast<double>(part.width);
  to.y = -to.yy * static_cast<double>(part.y);
  to.x = -to.xx * static_cast<double>(part.x);
  MoveTo(to, size);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/targets/boxes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace refurbish_tf {
namespace {

constexpr int kNumbers = 4;

bool IsPadding(const double* box) {
  return std::all_of(box, box + kNumbers, [](double n) { return n == -1; });
}

}  // namespace

absl::Status Boxes::Begin() {
  const double height = static_cast<double>(size().height);
  const double width = static_cast<double>(size().width);
  for (int64_t i = 0; i < count_; ++i) {
    double* const box = numbers_ + i * kNumbers;
    if (IsPadding(box)) continue;
    refused_ = i;
    if (absl::Status status = Check(i); !status.ok()) return status;
    const Edges edges = Read(box, size());
    // The edges of what was clipped and stored may lie as much beyond.
    const double beyond =
        type_.epsilon == 0 ? 1 : 2 * type_.epsilon * std::max(height, width);
    const bool is_inside = edges.top >= -beyond && edges.left >= -beyond &&
                           edges.bottom <= height + beyond &&
                           edges.right <= width + beyond;
    const bool has_area = edges.bottom > edges.top && edges.right > edges.left;
    if (!is_inside || !has_area) Write(edges, box);
  }
  fits_ = std::max(height, width) <= type_.highest;
  return absl::OkStatus();
}

absl::Status Boxes::Check(int64_t i) const {
  const double* const box = numbers_ + i * kNumbers;
  const auto refused = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat(why..., ", got [",
                     absl::StrJoin(absl::MakeConstSpan(box, kNumbers), ", "),
                     "] in row ", i));
  };
  if (!std::all_of(box, box + kNumbers,
                   [](double number) { return std::isfinite(number); })) {
    return refused("be finite numbers");
  }
  const Edges edges = Read(box, size());
  const double longest =
      static_cast<double>(std::max(size().height, size().width));
  // What rounding can do, and annotators.
  const double rounding = 4 * type_.epsilon * longest;
  if (edges.bottom < edges.top - rounding ||
      edges.right < edges.left - rounding) {
    return refused("have no negative height or width");
  }
  const double beyond = 1 + rounding;
  if (edges.top < -beyond || edges.left < -beyond ||
      edges.bottom > static_cast<double>(size().height) + beyond ||
      edges.right > static_cast<double>(size().width) + beyond) {
    return refused("lie in their image of ", size().height, " x ", size().width,
                   " pixels");
  }
  return absl::OkStatus();
}

Boxes::Edges Boxes::Read(const double* box, ImageSize size) const {
  double y = box[1], x = box[0], height = box[3], width = box[2];
  if (kind_.y_first) {
    std::swap(y, x);
    std::swap(height, width);
  }
  if (kind_.is_relative) {
    y *= static_cast<double>(size.height);
    x *= static_cast<double>(size.width);
    height *= static_cast<double>(size.height);
    width *= static_cast<double>(size.width);
  }
  switch (kind_.form) {
    case TargetKind::Form::kCornerAndSize:
      return {y, x, y + height, x + width};
    case TargetKind::Form::kCenterAndSize:
      return {y - height / 2, x - width / 2, y + height / 2, x + width / 2};
    default:
      return {y, x, height, width};
  }
}

void Boxes::Write(Edges edges, double* box) const {
  const double image_height = static_cast<double>(size().height);
  const double image_width = static_cast<double>(size().width);
  const double top = std::clamp(edges.top, 0.0, image_height);
  const double left = std::clamp(edges.left, 0.0, image_width);
  const double bottom = std::clamp(edges.bottom, 0.0, image_height);
  const double right = std::clamp(edges.right, 0.0, image_width);
  double y = top, x = left, height = bottom, width = right;
  if (kind_.form != TargetKind::Form::kCorners) {
    height = bottom - top;
    width = right - left;
  }
  if (kind_.form == TargetKind::Form::kCenterAndSize) {
    y = (top + bottom) / 2;
    x = (left + right) / 2;
  }
  if (kind_.is_relative) {
    y /= image_height;
    x /= image_width;
    height /= image_height;
    width /= image_width;
  }
  if (kind_.y_first) {
    std::swap(y, x);
    std::swap(height, width);
  }
  const double numbers[kNumbers] = {x, y, width, height};
  for (int i = 0; i < kNumbers; ++i) box[i] = type_.rounded(numbers[i]);
  const Edges stored = Read(box, size());
  if (!(stored.bottom > stored.top && stored.right > stored.left)) {
    std::fill_n(box, kNumbers, 0.0);
  }
}

void Boxes::Move(const Affine& to, ImageSize before) {
  const double longest =
      static_cast<double>(std::max(size().height, size().width));
  fits_ &= longest <= type_.highest;
  for (int64_t i = 0; i < count_; ++i) {
    double* const box = numbers_ + i * kNumbers;
    if (IsPadding(box)) continue;
    const Edges edges = Read(box, before);
    const ImagePlace corners[] = {
        to({edges.top, edges.left}), to({edges.top, edges.right}),
        to({edges.bottom, edges.left}), to({edges.bottom, edges.right})};
    Edges moved = {corners[0].y, corners[0].x, corners[0].y, corners[0].x};
    for (const ImagePlace& corner : corners) {
      moved.top = std::min(moved.top, corner.y);
      moved.left = std::min(moved.left, corner.x);
      moved.bottom = std::max(moved.bottom, corner.y);
      moved.right = std::max(moved.right, corner.x);
    }
    // Zeros have no place.
    if (edges.bottom > edges.top && edges.right > edges.left) {
      Write(moved, box);
    }
  }
}

}  // namespace refurbish_tf

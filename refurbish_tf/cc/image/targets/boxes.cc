#include "refurbish_tf/cc/image/targets/boxes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

// Whether the edges are at most `beyond` pixels outside an image.
bool AreIn(ImageSize image, const Edges& edges, double beyond) {
  return edges.top >= -beyond && edges.left >= -beyond &&
         edges.bottom <= static_cast<double>(image.height) + beyond &&
         edges.right <= static_cast<double>(image.width) + beyond;
}

}  // namespace

std::vector<Edges> Boxes::boxes() const {
  std::vector<Edges> boxes;
  ForEachRow([&](const double* box) {
    const Edges edges = Read(box, size());
    if (edges.HasArea()) boxes.push_back(edges);
  });
  return boxes;
}

void Boxes::KeepWithin(const Box& part) {
  const Edges edges = Edges::Of(part);
  ForEachRow([&](double* box) {
    if (!edges.HasMiddleOf(Read(box, size()))) std::fill_n(box, kNumbers, 0.0);
  });
}

absl::Status Boxes::BeginRow(double* box) {
  const Edges edges = Read(box, size());
  // Twice the possible rounding error of the sum of two numbers.
  const double rounding = 4 * type().epsilon * longest_side();
  if (edges.bottom < edges.top - rounding ||
      edges.right < edges.left - rounding) {
    return InvalidArgument("have no negative height or width");
  }
  // One pixel outside is allowed, because annotators round to whole pixels.
  if (!AreIn(size(), edges, 1 + rounding)) {
    return InvalidArgument("be within their image of ", size(), " pixels");
  }
  // Rounding may put the edges of a stored box this far outside. Such a box is
  // not clipped again, so that it stays the same.
  const double stored_beyond = type().epsilon == 0 ? 1 : rounding / 2;
  if (!AreIn(size(), edges, stored_beyond) || !edges.HasArea()) {
    Write(edges, box);
  }
  return absl::OkStatus();
}

Edges Boxes::Read(const double* box, ImageSize size) const {
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
  for (int i = 0; i < kNumbers; ++i) box[i] = type().rounded(numbers[i]);
  if (!Read(box, size()).HasArea()) std::fill_n(box, kNumbers, 0.0);
}

void Boxes::MoveRow(PlaceMap to, ImageSize before, bool bends, double* box) {
  const auto [top, left, bottom, right] = Read(box, before);
  // A box that was dropped stays all zeros.
  if (!Edges{top, left, bottom, right}.HasArea()) return;
  const ImagePlace corner = to({top, left});
  Edges moved = {corner.y, corner.x, corner.y, corner.x};
  const double longer = std::max(bottom - top, right - left);
  const double pieces = bends ? std::ceil(longer) : 1;
  for (double i = 0; i <= pieces; ++i) {
    const double part = i / pieces;
    const double y = (1 - part) * top + part * bottom;
    const double x = (1 - part) * left + part * right;
    for (const ImagePlace& place :
         {ImagePlace{y, left}, {y, right}, {top, x}, {bottom, x}}) {
      const ImagePlace at = to(place);
      moved = {std::min(moved.top, at.y), std::min(moved.left, at.x),
               std::max(moved.bottom, at.y), std::max(moved.right, at.x)};
    }
  }
  Write(moved, box);
}

}  // namespace refurbish_tf

// What may follow an image: maps of its height and width, a second image, boxes
// and key points.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

struct TargetKind {
  enum class Form {
    // [height, width] or [height, width, channels].
    kMask,
    kBlendedMap,
    // [height, width, 2]: vectors, x before y.
    kFlow,
    // [height, width, 3]: x, y and z, or [height, width, 2 * n]: of n vectors.
    kVectors,
    // [height, width] or [height, width, 1]: of two views beside each other.
    kDisparity,
    // [height, width, channels] of the image, or the same multiple of both.
    kImage,
    // [4] or [number, 4].
    kCorners,
    kCornerAndSize,
    kCenterAndSize,
    // [2], [3], [number, 2] or [number, 3]; of several people these once more.
    kKeyPoints,
    // What no one has named: it stays, and must not look like a map.
    kUnnamed,
  };

  // By the name that `targets=` has for it, or "unnamed".
  static absl::StatusOr<TargetKind> Named(absl::string_view name);

  bool is_map() const { return form <= Form::kDisparity; }
  bool is_boxes() const {
    return form == Form::kCorners || form == Form::kCornerAndSize ||
           form == Form::kCenterAndSize;
  }

  // How many dimensions it has, without those of a batch and of frames.
  int least_dims() const {
    return form == Form::kFlow || form == Form::kVectors || form == Form::kImage
               ? 3
           : is_map() ? 2
                      : 1;
  }
  int most_dims() const { return is_boxes() ? 2 : 3; }

  Form form;
  // Whether y stands before x, and the height before the width.
  bool y_first = false;
  // Whether 1 is the height or the width of the image.
  bool is_relative = false;
};

}  // namespace refurbish_tf

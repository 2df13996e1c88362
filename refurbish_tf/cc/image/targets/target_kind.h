// The kinds of targets: maps as large as the image, images, boxes, key points.
#pragma once

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {

struct TargetKind {
  enum class Form {
    // [height, width] or [height, width, channels].
    kMask,
    kBlendedMap,
    // [height, width, 2]: vectors, x before y.
    kFlow,
    // [height, width, 3]: x, y and z; or [height, width, 2 * n]: n vectors.
    kVectors,
    // [height, width] or [height, width, 1], of two side-by-side views.
    kDisparity,
    // [height, width, channels]: as large as the image, or a multiple of that.
    kImage,
    // [4] or [number, 4].
    kCorners,
    kCornerAndSize,
    kCenterAndSize,
    // [2], [3], [number, 2] or [number, 3]; several people add a dimension.
    kKeyPoints,
    // Not named by `targets=`: it stays as it is, and must not look like a map.
    kUnnamed,
  };

  // The kind of this name in `targets=`, or "unnamed".
  static absl::StatusOr<TargetKind> Named(absl::string_view name);

  bool is_map() const { return form <= Form::kDisparity; }
  bool is_boxes() const {
    return form == Form::kCorners || form == Form::kCornerAndSize ||
           form == Form::kCenterAndSize;
  }

  // The least and most dimensions, without the dimensions for batch and frames.
  int least_dims() const {
    return form == Form::kFlow || form == Form::kVectors || form == Form::kImage
               ? 3
           : is_map() ? 2
                      : 1;
  }
  int most_dims() const { return is_boxes() ? 2 : 3; }

  Form form;
  // Whether y comes before x, and height before width.
  bool y_first = false;
  // Whether numbers are fractions of the image's height or width.
  bool is_relative = false;
};

struct NamedKind {
  absl::string_view name;
  TargetKind kind;
};

// Boxes have the same names as in Keras.
inline constexpr NamedKind kKinds[] = {
    {"mask", {TargetKind::Form::kMask}},
    {"bilinear", {TargetKind::Form::kBlendedMap}},
    {"flow", {TargetKind::Form::kFlow}},
    {"vectors", {TargetKind::Form::kVectors}},
    {"disparity", {TargetKind::Form::kDisparity}},
    {"image", {TargetKind::Form::kImage}},
    {"xyxy", {TargetKind::Form::kCorners}},
    {"yxyx", {TargetKind::Form::kCorners, true}},
    {"xywh", {TargetKind::Form::kCornerAndSize}},
    {"center_xywh", {TargetKind::Form::kCenterAndSize}},
    {"center_yxhw", {TargetKind::Form::kCenterAndSize, true}},
    {"rel_xyxy", {TargetKind::Form::kCorners, false, true}},
    {"rel_yxyx", {TargetKind::Form::kCorners, true, true}},
    {"rel_xywh", {TargetKind::Form::kCornerAndSize, false, true}},
    {"rel_center_xywh", {TargetKind::Form::kCenterAndSize, false, true}},
    {"xy", {TargetKind::Form::kKeyPoints}},
    {"rel_xy", {TargetKind::Form::kKeyPoints, false, true}},
    {"unnamed", {TargetKind::Form::kUnnamed}}};

inline absl::StatusOr<TargetKind> TargetKind::Named(absl::string_view name) {
  for (const NamedKind& known : kKinds) {
    if (name == known.name) return known.kind;
  }
  return InvalidArgument(
      "The kind of a target must be one of ",
      absl::StrJoin(kKinds, ", ",
                    [](std::string* text, const NamedKind& known) {
                      absl::StrAppend(text, known.name);
                    }),
      ", got ", name, ".");
}

}  // namespace refurbish_tf

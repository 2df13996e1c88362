#include "refurbish_tf/cc/image/targets/target_kind.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

using Form = TargetKind::Form;

struct NamedKind {
  absl::string_view name;
  TargetKind kind;
};

// Boxes have the same names as in Keras.
constexpr NamedKind kKinds[] = {
    {"mask", {Form::kMask}},
    {"bilinear", {Form::kBlendedMap}},
    {"flow", {Form::kFlow}},
    {"vectors", {Form::kVectors}},
    {"disparity", {Form::kDisparity}},
    {"image", {Form::kImage}},
    {"xyxy", {Form::kCorners}},
    {"yxyx", {Form::kCorners, true}},
    {"xywh", {Form::kCornerAndSize}},
    {"center_xywh", {Form::kCenterAndSize}},
    {"center_yxhw", {Form::kCenterAndSize, true}},
    {"rel_xyxy", {Form::kCorners, false, true}},
    {"rel_yxyx", {Form::kCorners, true, true}},
    {"rel_xywh", {Form::kCornerAndSize, false, true}},
    {"rel_center_xywh", {Form::kCenterAndSize, false, true}},
    {"xy", {Form::kKeyPoints}},
    {"rel_xy", {Form::kKeyPoints, false, true}},
    {"unnamed", {Form::kUnnamed}}};

}  // namespace

absl::StatusOr<TargetKind> TargetKind::Named(absl::string_view name) {
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

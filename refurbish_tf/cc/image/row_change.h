// What may become of the rows of an image. Two views of a scene, taken beside
// each other, show the same in them, so that a disparity can say how far apart.
#pragma once

#include "absl/strings/string_view.h"

namespace refurbish_tf {

enum class RowChange { kKept, kMirrored, kTurned };

// Goes on from "a layer may ". Nothing if rows are kept.
constexpr absl::string_view TextOf(RowChange change) {
  switch (change) {
    case RowChange::kMirrored:
      return "mirror left and right, which makes the left view the right one";
    case RowChange::kTurned:
      return "move pixels out of their rows, in which both views show the same";
    default:
      return "";
  }
}

}  // namespace refurbish_tf

// How a layer may change the rows of an image. Two side-by-side views show the
// same things in the same rows, and a disparity says how far apart.
#pragma once

#include "absl/strings/string_view.h"

namespace refurbish_tf {

enum class RowChange { kKept, kMirrored, kTurned };

// Continues "a layer may ". Empty if rows are kept.
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

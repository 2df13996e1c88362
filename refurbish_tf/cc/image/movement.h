// How a layer may move pixels. Two side-by-side views show the same things in
// the same rows, and a disparity says how far apart.
#pragma once

#include "absl/strings/string_view.h"

namespace refurbish_tf {

enum class Movement { kNone, kKeepsRows, kMirrors, kTurns };

// Continues "a layer may ". Empty if rows are kept.
constexpr absl::string_view TextOf(Movement movement) {
  switch (movement) {
    case Movement::kMirrors:
      return "mirror left and right, which makes the left view the right one";
    case Movement::kTurns:
      return "move pixels out of their rows, in which both views show the same";
    default:
      return "";
  }
}

}  // namespace refurbish_tf

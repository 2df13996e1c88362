// How a layer may move pixels, which matters for disparities: they say how far
// apart two side-by-side views show the same thing in the same row.
#pragma once

#include "absl/strings/string_view.h"

namespace refurbish_tf {

// `kBlends`: it blends moved copies, so an object is in several places.
enum class Movement { kNone, kKeepsRows, kMirrors, kTurns, kBends, kBlends };

// Continues "a layer may ". Empty if rows are kept.
constexpr absl::string_view TextOf(Movement movement) {
  switch (movement) {
    case Movement::kMirrors:
      return "mirror left and right, which makes the left view the right one";
    case Movement::kTurns:
      return "move pixels out of their rows, in which both views show the same";
    case Movement::kBends:
      return "bend straight lines, which vectors and disparities cannot follow";
    case Movement::kBlends:
      return "blend moved copies, so that an object is in several places";
    default:
      return "";
  }
}

}  // namespace refurbish_tf

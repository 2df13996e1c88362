// The error of a checkpoint that no pipeline of this package has saved.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

// `stage` is its name in messages, "refurbish" or "echo"; `what` is put
// together as by `StrCat` and ends without a full stop.
template <class... Parts>
absl::Status DamagedCheckpoint(absl::string_view stage, const Parts&... what) {
  return absl::DataLossError(absl::StrCat(
      "The checkpoint of ", stage, " is damaged: ", what...,
      ". Use another checkpoint, or start the epoch over without this part of "
      "it."));
}

}  // namespace refurbish_tf

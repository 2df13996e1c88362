// Text for error messages.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {

// Replaces each byte that is not valid UTF-8 by an escape such as \xff, like
// Python's "backslashreplace". A file name may hold any bytes, but Python
// decodes error messages as UTF-8, and loses a message that it cannot decode.
std::string Printable(absl::string_view text);

absl::Status Printable(const absl::Status& status);

// Advice for an error about a store on disk that does not fit the pipeline.
inline constexpr char kStartEmpty[] =
    "start with an empty store, store=rtf.CacheStore(path, overwrite=True), or "
    "with another directory";

// The error for a checkpoint whose content this package cannot have saved.
// `stage` is "refurbish", "echo" or another stage. `what` is the reason, in
// parts for `StrCat`, and has no full stop.
template <class... Parts>
absl::Status DamagedCheckpoint(absl::string_view stage, const Parts&... what) {
  return DataLoss(
      "The checkpoint of ", stage, " is damaged: ", what...,
      ". Use another checkpoint, or start the epoch over without this part of "
      "it.");
}

}  // namespace refurbish_tf

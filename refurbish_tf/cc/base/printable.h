// Text for error messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

// Writes each byte that is not valid UTF-8 as an escape such as \xff, like
// Python's "backslashreplace". A file name may hold any bytes, and Python
// decodes messages as UTF-8: an error that it cannot decode is lost.
std::string Printable(absl::string_view text);

// The same for the message of a status.
absl::Status Printable(const absl::Status& status);

// What to do with a store on disk that does not fit: a part of a sentence.
inline constexpr char kStartEmpty[] =
    "start with an empty store, by store=rtf.CacheStore(path, overwrite=True) or "
    "in another directory";

// The error for a checkpoint that no pipeline of this package has saved.
// `stage` is the name in the message, "refurbish" or "echo". `what` is joined
// as by `StrCat` and ends without a full stop.
template <class... Parts>
absl::Status DamagedCheckpoint(absl::string_view stage, const Parts&... what) {
  return absl::DataLossError(absl::StrCat(
      "The checkpoint of ", stage, " is damaged: ", what...,
      ". Use another checkpoint, or start the epoch over without this part of "
      "it."));
}

}  // namespace refurbish_tf

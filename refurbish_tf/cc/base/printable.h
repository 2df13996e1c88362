// Text for error messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

// Writes each byte that is not valid UTF-8 as an escape such as \xff, like
// Python's "backslashreplace". A file name may hold any bytes, and Python
// decodes messages as UTF-8: an error that it cannot decode is lost.
std::string Printable(absl::string_view text);

// The same for the message of a status.
absl::Status Printable(const absl::Status& status);

}  // namespace refurbish_tf

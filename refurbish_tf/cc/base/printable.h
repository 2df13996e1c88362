// Text for error messages.
#ifndef REFURBISH_TF_CC_BASE_PRINTABLE_H_
#define REFURBISH_TF_CC_BASE_PRINTABLE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {

// The text with each byte that is not of UTF-8 written as Python's
// "backslashreplace" does, \xff. The name of a file may be of any bytes, and Python
// reads messages as UTF-8: an error that it cannot read never arrives.
std::string Printable(absl::string_view text);

// The same of a message.
absl::Status Printable(const absl::Status& status);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_BASE_PRINTABLE_H_

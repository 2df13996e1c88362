// Errors, and macros to return them early, for code without TensorFlow.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace refurbish_tf {

template <class... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

}  // namespace refurbish_tf

// Returns from the function if this `absl::Status` is an error.
#define RTF_RETURN_IF_ERROR(...)                                     \
  if (absl::Status status_or_ok = (__VA_ARGS__); !status_or_ok.ok()) \
  return status_or_ok

// Sets `target`, which may be a declaration, to the value of an
// `absl::StatusOr`, or returns its error.
#define RTF_ASSIGN_OR_RETURN(target, ...) \
  RTF_ASSIGN_FROM(RTF_JOINED(value_or_error, __LINE__), target, __VA_ARGS__)
#define RTF_ASSIGN_FROM(result, target, ...)           \
  auto result = (__VA_ARGS__);                         \
  if (!result.ok()) return std::move(result).status(); \
  target = *std::move(result)
#define RTF_JOINED(a, b) RTF_JOINED_AS_GIVEN(a, b)
#define RTF_JOINED_AS_GIVEN(a, b) a##b

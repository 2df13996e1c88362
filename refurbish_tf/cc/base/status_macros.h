// Errors, and macros to return them early.
#pragma once

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace refurbish_tf {

// Defines functions that make an error of a kind from parts for `StrCat`.
#define RTF_ERROR_OF_PARTS(Kind)                      \
  template <class... Parts>                           \
  absl::Status Kind(const Parts&... parts) {          \
    return absl::Kind##Error(absl::StrCat(parts...)); \
  }
RTF_ERROR_OF_PARTS(AlreadyExists)
RTF_ERROR_OF_PARTS(DataLoss)
RTF_ERROR_OF_PARTS(FailedPrecondition)
RTF_ERROR_OF_PARTS(Internal)
RTF_ERROR_OF_PARTS(InvalidArgument)
RTF_ERROR_OF_PARTS(NotFound)
RTF_ERROR_OF_PARTS(OutOfRange)
RTF_ERROR_OF_PARTS(ResourceExhausted)
RTF_ERROR_OF_PARTS(Unavailable)
RTF_ERROR_OF_PARTS(Unimplemented)
#undef RTF_ERROR_OF_PARTS

// The error of the last system call.
template <class... Parts>
absl::Status ErrnoError(const Parts&... parts) {
  return absl::ErrnoToStatus(errno, absl::StrCat(parts...));
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

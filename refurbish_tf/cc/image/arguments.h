// Parses the text of a layer in an op's attribute: `name argument=value ...`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {

// The caller must read each argument exactly once, then call `Check`. A read
// that fails returns a valid placeholder, and `Check` returns the first error:
// an argument that is missing, malformed or unknown.
class Arguments {
 public:
  // `text` must outlive this object.
  explicit Arguments(absl::string_view text);

  absl::string_view name() const {
    return words_.empty() ? absl::string_view() : words_[0];
  }

  bool Has(absl::string_view key) const;
  absl::string_view Text(absl::string_view key);
  std::vector<absl::string_view> Texts(absl::string_view key);
  int64_t Integer(absl::string_view key, int64_t lowest, int64_t highest);
  bool Boolean(absl::string_view key) { return Integer(key, 0, 1) != 0; }
  std::vector<double> Numbers(absl::string_view key);
  // Two numbers, the smaller one first. By default, both must be above 0.
  std::array<double, 2> Range(
      absl::string_view key,
      double lowest = std::numeric_limits<double>::denorm_min(),
      double highest = std::numeric_limits<double>::max());

  // `why`: parts for `StrCat`.
  template <class... Parts>
  void Fail(const Parts&... why) {
    if (!status_.ok()) return;
    status_ = InvalidArgument("Invalid layer '", text_, "': ", why..., ".");
  }
  absl::Status Check() {
    if (num_asked_for_ + 1 != words_.size()) Fail("it has unknown arguments");
    return status_;
  }

 private:
  const absl::string_view text_;
  std::vector<absl::string_view> words_;
  size_t num_asked_for_ = 0;
  absl::Status status_;
};

}  // namespace refurbish_tf

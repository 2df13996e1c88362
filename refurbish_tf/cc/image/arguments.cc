#include "refurbish_tf/cc/image/arguments.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace refurbish_tf {

Arguments::Arguments(absl::string_view text) : text_(text) {
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    words_.push_back(word);
  }
}

bool Arguments::Has(absl::string_view key) const {
  return absl::StrContains(text_, absl::StrCat(" ", key, "="));
}

absl::string_view Arguments::Text(absl::string_view key) {
  for (size_t i = 1; i < words_.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> argument =
        absl::StrSplit(words_[i], absl::MaxSplits('=', 1));
    if (argument.first == key) {
      ++num_asked_for_;
      return argument.second;
    }
  }
  Fail(key, " is missing");
  return "";
}

std::vector<absl::string_view> Arguments::Texts(absl::string_view key) {
  return absl::StrSplit(Text(key), ',');
}

int64_t Arguments::Integer(absl::string_view key, int64_t lowest,
                           int64_t highest) {
  const absl::string_view text = Text(key);
  int64_t value;
  if (!absl::SimpleAtoi(text, &value) || value < lowest || value > highest) {
    Fail(key, " must be a whole number from ", lowest, " to ", highest);
    return lowest;
  }
  return value;
}

std::vector<double> Arguments::Numbers(absl::string_view key) {
  std::vector<double> values;
  for (absl::string_view text : Texts(key)) {
    values.push_back(0);
    if (!absl::SimpleAtod(text, &values.back()) ||
        !std::isfinite(values.back())) {
      Fail(key, " must consist of finite numbers");
    }
  }
  return values;
}

std::array<double, 2> Arguments::Range(absl::string_view key, double lowest,
                                       double highest) {
  const std::vector<double> values = Numbers(key);
  if (values.size() != 2 || !(values[0] >= lowest) ||
      !(values[1] >= values[0]) || !(values[1] <= highest)) {
    Fail(key, " must be a range from ", lowest, " to ", highest);
    return {lowest, highest};
  }
  return {values[0], values[1]};
}

}  // namespace refurbish_tf

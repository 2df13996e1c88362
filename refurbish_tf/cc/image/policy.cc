#include "refurbish_tf/cc/image/policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/draws.h"
#include "refurbish_tf/cc/image/philox.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kMaxEnd = (int64_t{1} << 31) - 1;

struct NamedDistortion {
  absl::string_view name;
  Distortion distortion;
  // What its parameter may be.
  double lowest, highest;
};

constexpr NamedDistortion kDistortions[] = {
    {"identity", Distortion::kIdentity, 0, 0},
    {"auto_contrast", Distortion::kAutoContrast, 0, 0},
    {"equalize", Distortion::kEqualize, 0, 0},
    {"invert", Distortion::kInvert, 0, 0},
    {"color", Distortion::kColor, 0, 100},
    {"contrast", Distortion::kContrast, 0, 100},
    {"brightness", Distortion::kBrightness, 0, 100},
    {"sharpness", Distortion::kSharpness, 0, 100},
    {"solarize", Distortion::kSolarize, 0, 256},
    {"posterize", Distortion::kPosterize, 1, 8},
    {"rotate", Distortion::kRotate, -360, 360},
    {"shear_x", Distortion::kShearX, -1, 1},
    {"shear_y", Distortion::kShearY, -1, 1},
    {"translate_x", Distortion::kTranslateX, -1, 1},
    {"translate_y", Distortion::kTranslateY, -1, 1},
};
constexpr std::pair<absl::string_view, RandomOperation> kRandomOperations[] = {
    {"random_flip", RandomOperation::kFlip},
    {"random_crop", RandomOperation::kCrop},
    {"random_cutout", RandomOperation::kCutout},
    {"random_resized_crop", RandomOperation::kResizedCrop},
};

PolicyOutcome OutcomeOf(absl::string_view name, double parameter, Turn turn,
                        Arguments& arguments) {
  PolicyOutcome outcome;
  outcome.parameter = parameter;
  for (const NamedDistortion& known : kDistortions) {
    if (name != known.name) continue;
    if (parameter < known.lowest || parameter > known.highest) {
      arguments.Fail(absl::StrCat("parameters of ", name, " must be from ",
                                  known.lowest, " to ", known.highest));
    } else {
      outcome.distortion =
          PreparedDistortion(known.distortion, parameter, turn);
    }
    return outcome;
  }
  for (const auto& [known, random] : kRandomOperations) {
    if (name == known) {
      outcome.random = random;
      if (parameter < 0 || parameter > Policy::kMaxSide) {
        arguments.Fail(absl::StrCat("parameters of ", name,
                                    " must be from 0 to ", Policy::kMaxSide));
      }
      return outcome;
    }
  }
  arguments.Fail(absl::StrCat("unknown operation ", name));
  return outcome;
}

}  // namespace

int PolicyOutcome::NumMoreDraws() const {
  switch (random) {
    case RandomOperation::kNone:
      return 0;
    case RandomOperation::kFlip:
      return 1;
    case RandomOperation::kCrop:
    case RandomOperation::kCutout:
      return 2;
    case RandomOperation::kResizedCrop:
      return 4;
  }
  return 0;
}

int64_t PolicyOutcome::EndOfMore() const {
  switch (random) {
    case RandomOperation::kNone:
      return 1;
    case RandomOperation::kFlip:
      return 2;
    case RandomOperation::kCrop:
      return 2 * static_cast<int64_t>(parameter) + 1;
    case RandomOperation::kCutout:
      return kMaxEnd;
    case RandomOperation::kResizedCrop:
      // The fraction bits of a float32.
      return 1 << 23;
  }
  return 1;
}

Policy::Policy(Arguments& arguments)
    : end_(static_cast<int32_t>(arguments.Integer("end", 1, kMaxEnd))),
      group_(static_cast<int32_t>(arguments.Integer("group", 1, end_))),
      goes_on_(arguments.Boolean("goes_on")),
      fill_(static_cast<uint8_t>(arguments.Integer("fill", 0, 255))) {
  if (end_ % group_ != 0) arguments.Fail("end must be a multiple of group");
  const Turn turn =
      arguments.Boolean("exact_turns") ? Turn::kExact : Turn::kRounded;
  const std::vector<absl::string_view> names = arguments.Texts("operations");
  const std::vector<double> parameters = arguments.Numbers("parameters");
  const std::vector<double> edges = arguments.Numbers("edges");
  if (parameters.size() != names.size() || edges.size() != names.size()) {
    arguments.Fail(
        "operations, parameters and edges must be of the same number");
    return;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    outcomes_.push_back(OutcomeOf(names[i], parameters[i], turn, arguments));
    num_draws_ = std::max(num_draws_, 1 + outcomes_.back().NumMoreDraws());
    if (!(edges[i] >= (i == 0 ? 0 : edges[i - 1]) && edges[i] <= end_)) {
      arguments.Fail("edges must not decrease, nor be above end");
      return;
    }
    edges_.push_back(static_cast<int32_t>(edges[i]));
  }
  if (edges_.back() != end_) arguments.Fail("the last edge must be the end");
}

const PolicyOutcome& Policy::At(int32_t draw) const {
  return outcomes_[std::upper_bound(edges_.begin(), edges_.end(), draw) -
                   edges_.begin()];
}

void Policy::Draw(const std::array<int64_t, 2>& seed, const int32_t* before,
                  int32_t* draws) const {
  const int32_t end = goes_on_ ? group_ : end_;
  draws[0] = static_cast<int32_t>(FirstWords(seed[0], seed[1])[0] %
                                  static_cast<uint32_t>(end));
  if (goes_on_ && before != nullptr) draws[0] += *before / group_ * group_;
  if (num_draws_ == 1) return;
  std::fill(draws + 1, draws + num_draws_, 0);
  const PolicyOutcome& outcome = At(draws[0]);
  if (outcome.NumMoreDraws() == 0) return;
  // Another seed than the one that drew the operation, so that the draws are
  // independent.
  const std::array<int64_t, 2> other = {~seed[0], ~seed[1]};
  if (outcome.random == RandomOperation::kFlip) {
    draws[1] = ImageSeed(other[0], other[1]).Below(0, 2);
    return;
  }
  const PhiloxWords words = FirstWords(other[0], other[1]);
  const uint32_t below = static_cast<uint32_t>(outcome.EndOfMore());
  for (int i = 0; i < outcome.NumMoreDraws(); ++i) {
    // A power of two leaves the lowest bits, as TensorFlow's floats do.
    draws[1 + i] = static_cast<int32_t>(words[i] % below);
  }
}

}  // namespace refurbish_tf

// A layer of RandAugment or (Deep) AutoAugment: draws one of its operations.
#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/bicubic.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kMaxEnd = (int64_t{1} << 31) - 1;
// The mean color of ImageNet, which Deep AutoAugment uses as its fill.
constexpr FillColor kMeanColor = {125, 123, 114, 0};

// TensorFlow's stateless random numbers: the Philox generator (Salmon et al.,
// *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011), seeded as in
// `tf.raw_ops.StatelessRandomUniform*`. Policies thus draw the same numbers on
// every machine and in every version of TensorFlow.
using PhiloxWords = std::array<uint32_t, 4>;

PhiloxWords Philox(PhiloxWords counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{0xd2511f53} * counter[0];
    const uint64_t second = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(first)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

// The first four random words of a seed. A layer uses as many as it needs.
PhiloxWords FirstWords(int64_t first, int64_t second) {
  const uint64_t low = first, high = second;
  const PhiloxWords mixed =
      Philox({static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
              static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)},
             {0x3ec8f720, 0x02461e29});
  return Philox({0, 0, mixed[2], mixed[3]}, {mixed[0], mixed[1]});
}

// The random operations of Deep AutoAugment, which draw further numbers.
enum class RandomOperation { kNone, kFlip, kCrop, kCutout, kResizedCrop };

// A distortion or a random operation.
struct PolicyOutcome {
  PreparedDistortion distortion{Distortion::kIdentity};
  RandomOperation random = RandomOperation::kNone;
  double parameter = 0;
  // How many numbers the random operation draws, and the limit they are below.
  int num_more_draws = 0;
  int64_t end_of_more = 1;

  bool ChangesNothing() const {
    return random == RandomOperation::kNone && distortion.changes_nothing;
  }
  Movement movement() const {
    if (random == RandomOperation::kFlip) return Movement::kMirrors;
    if (random == RandomOperation::kCutout) return Movement::kNone;
    if (random != RandomOperation::kNone) return Movement::kKeepsRows;
    const Distortion kind = distortion.distortion;
    if (!MovesPixels(kind)) return Movement::kNone;
    const bool turns =
        kind == Distortion::kRotate || kind == Distortion::kShearY;
    return turns && parameter != 0 ? Movement::kTurns : Movement::kKeepsRows;
  }
};

struct NamedOperation {
  absl::string_view name;
  Distortion distortion;
  double lowest, highest;
  // As in PolicyOutcome, but an `end_of_more` of 0 means 2 * parameter + 1.
  RandomOperation random = RandomOperation::kNone;
  int num_more_draws = 0;
  int64_t end_of_more = 1;
};
constexpr NamedOperation kOperations[] = {
    {"identity", Distortion::kIdentity, 0, 0},
    {"auto_contrast", Distortion::kAutoContrast, 0, 0},
    {"equalize", Distortion::kEqualize, 0, 0},
    {"invert", Distortion::kInvert, 0, 0},
    {"color", Distortion::kColor, 0, 100},
    {"contrast", Distortion::kContrast, 0, 100},
    {"brightness", Distortion::kBrightness, 0, 100},
    {"sharpness", Distortion::kSharpness, 0, 100},
    {"solarize", Distortion::kSolarize, 0, 256},
    {"posterize", Distortion::kPosterize, 0, 8},
    {"rotate", Distortion::kRotate, -360, 360},
    {"shear_x", Distortion::kShearX, -1, 1},
    {"shear_y", Distortion::kShearY, -1, 1},
    {"translate_x", Distortion::kTranslateX, -1, 1},
    {"translate_y", Distortion::kTranslateY, -1, 1},
    {"truncate_x", Distortion::kTranslateX, -1, 1},
    {"truncate_y", Distortion::kTranslateY, -1, 1},
    {"move_x", Distortion::kMoveX, -kMaxFixedSide, kMaxFixedSide},
    {"move_y", Distortion::kMoveY, -kMaxFixedSide, kMaxFixedSide},
    {"random_flip", Distortion::kIdentity, 0, kMaxFixedSide,
     RandomOperation::kFlip, 1, 2},
    {"random_crop", Distortion::kIdentity, 0, kMaxFixedSide,
     RandomOperation::kCrop, 2, 0},
    {"random_cutout", Distortion::kIdentity, 0, kMaxFixedSide,
     RandomOperation::kCutout, 2, kMaxEnd},
    // 2^23, because TensorFlow draws the 23 fraction bits of a float32.
    {"random_resized_crop", Distortion::kIdentity, 0, kMaxFixedSide,
     RandomOperation::kResizedCrop, 4, 1 << 23},
};

PolicyOutcome OutcomeOf(absl::string_view name, double parameter, Turn turn,
                        Arguments& arguments) {
  PolicyOutcome outcome;
  for (const NamedOperation& known : kOperations) {
    if (name != known.name) continue;
    if (parameter < known.lowest || parameter > known.highest) {
      arguments.Fail("parameters of ", name, " must be from ", known.lowest,
                     " to ", known.highest);
      return outcome;
    }
    outcome.distortion = PreparedDistortion(known.distortion, parameter, turn);
    outcome.distortion.truncates = absl::StartsWith(name, "truncate");
    outcome.random = known.random;
    outcome.parameter = parameter;
    outcome.num_more_draws = known.num_more_draws;
    outcome.end_of_more = known.end_of_more > 0
                              ? known.end_of_more
                              : 2 * static_cast<int64_t>(parameter) + 1;
    return outcome;
  }
  arguments.Fail("unknown operation ", name);
  return outcome;
}

// The first draw selects an outcome: each outcome has a range of numbers.
class PolicyLayer : public Layer {
 public:
  explicit PolicyLayer(Arguments& arguments)
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
      num_draws_ = std::max(num_draws_, 1 + outcomes_.back().num_more_draws);
      if (!(edges[i] >= (i == 0 ? 0 : edges[i - 1]) && edges[i] <= end_)) {
        arguments.Fail("edges must not decrease, nor be above end");
        return;
      }
      edges_.push_back(static_cast<int32_t>(edges[i]));
    }
    if (edges_.back() != end_) arguments.Fail("the last edge must be the end");
  }

  // One draw selects the outcome. The others are for its random operation.
  int num_draws() const override { return num_draws_; }
  // Draws from the seed as TensorFlow's stateless operations do.
  void Draw(const ImageSeed& seed, const int32_t* before,
            int32_t* draws) const override {
    const auto [first, second] = seed.numbers();
    const int32_t end = goes_on_ ? group_ : end_;
    draws[0] = static_cast<int32_t>(FirstWords(first, second)[0] %
                                    static_cast<uint32_t>(end));
    if (goes_on_ && before != nullptr) draws[0] += *before / group_ * group_;
    if (num_draws_ == 1) return;
    std::fill(draws + 1, draws + num_draws_, 0);
    const PolicyOutcome& outcome = At(draws[0]);
    if (outcome.num_more_draws == 0) return;
    // This seed is not the first draw's, so the draws are independent.
    const ImageSeed other(~first, ~second);
    if (outcome.random == RandomOperation::kFlip) {
      draws[1] = other.Below(0, 2);
      return;
    }
    const PhiloxWords words = FirstWords(~first, ~second);
    const uint32_t below = static_cast<uint32_t>(outcome.end_of_more);
    for (int i = 0; i < outcome.num_more_draws; ++i) {
      // If `below` is a power of two, these are the lowest bits, which
      // TensorFlow also uses for its floats.
      draws[1 + i] = static_cast<int32_t>(words[i] % below);
    }
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    return i == 0 ? end_ : At(draws[0]).end_of_more;
  }
  bool ChangesNothing(const int32_t* draws) const override {
    return At(draws[0]).ChangesNothing();
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const PolicyOutcome& outcome = At(draws[0]);
    const int64_t whole = static_cast<int64_t>(outcome.parameter);
    const ImageSize size = canvas->size();
    switch (outcome.random) {
      case RandomOperation::kNone:
        if (!outcome.distortion.changes_nothing) {
          canvas->Distort(outcome.distortion, fill_);
        }
        return;
      case RandomOperation::kFlip:
        if (draws[1] != 0) canvas->Flip(/*vertically=*/false);
        return;
      case RandomOperation::kCrop:
        canvas->Crop(
            {draws[1] - whole, draws[2] - whole, size.height, size.width},
            Border::kEmpty, kMeanColor);
        return;
      case RandomOperation::kCutout: {
        const int64_t top = draws[1] % size.height - whole / 2;
        const int64_t left = draws[2] % size.width - whole / 2;
        const int64_t side = whole / 2 * 2 + 1;
        canvas->CutOut({top, left, side, side}, kMeanColor);
        return;
      }
      case RandomOperation::kResizedCrop:
        canvas->ResizeBicubic(BicubicBox(draws + 1, size));
        return;
    }
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_ASSIGN_OR_RETURN(const ImageSpec made, OfThreeColors(image));
    RTF_RETURN_IF_ERROR(CheckSides(made));
    return made;
  }
  // A layer that continues the previous one needs the same end and groups.
  absl::Status MayFollow(const Layer* before) const override {
    if (!goes_on_ || before == nullptr) return absl::OkStatus();
    const auto* const policy = dynamic_cast<const PolicyLayer*>(before);
    if (policy != nullptr && policy->end_ == end_ && policy->group_ == group_) {
      return absl::OkStatus();
    }
    return InvalidArgument("it goes on from no policy of its end and group");
  }
  Movement movement() const override {
    Movement most = Movement::kNone;
    for (const PolicyOutcome& outcome : outcomes_) {
      most = std::max(most, outcome.movement());
    }
    return most;
  }
  bool is_policy() const override { return true; }
  bool NeedsTable(const int32_t* draws) const override {
    const PolicyOutcome& outcome = At(draws[0]);
    const Distortion distortion = outcome.distortion.distortion;
    return outcome.random == RandomOperation::kNone &&
           (distortion == Distortion::kAutoContrast ||
            distortion == Distortion::kEqualize);
  }

 private:
  const PolicyOutcome& At(int32_t draw) const {
    return outcomes_[std::upper_bound(edges_.begin(), edges_.end(), draw) -
                     edges_.begin()];
  }

  int32_t end_;
  // The numbers of one AutoAugment sub-policy are a group of this size. If
  // `goes_on_`, the layer draws a number within the previous layer's group.
  int32_t group_;
  bool goes_on_;
  uint8_t fill_;
  int num_draws_ = 1;
  std::vector<PolicyOutcome> outcomes_;
  // Outcome i has the numbers from edges_[i - 1] to below edges_[i].
  std::vector<int32_t> edges_;
};

const LayerType<PolicyLayer> kPolicy("policy");

}  // namespace
}  // namespace refurbish_tf

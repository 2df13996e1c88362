// A layer of RandAugment, AutoAugment or Deep AutoAugment: which operation an
// image gets for each number that the layer may draw.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/distortions.h"

namespace refurbish_tf {

// The random operations of Deep AutoAugment. They take numbers of their own.
enum class RandomOperation { kNone, kFlip, kCrop, kCutout, kResizedCrop };

// Distorts, or does a random operation.
struct PolicyOutcome {
  PreparedDistortion distortion{Distortion::kIdentity};
  RandomOperation random = RandomOperation::kNone;
  double parameter = 0;

  bool ChangesNothing() const {
    return random == RandomOperation::kNone && distortion.changes_nothing;
  }
  int NumMoreDraws() const;
  // The numbers that a random operation draws are below this.
  int64_t EndOfMore() const;
};

class Policy {
 public:
  // The longest side of an image whose coordinates fit into Pillow's 16
  // fraction bits.
  static constexpr int64_t kMaxSide = 32767;

  // Errors are told to `arguments`.
  explicit Policy(Arguments& arguments);

  // Whether this may follow a layer, null if that is no policy: if it goes on,
  // from the same groups. What is drawn is below `end()` then.
  bool MayFollow(const Policy* before) const {
    return !goes_on_ || (before != nullptr && before->end_ == end_ &&
                         before->group_ == group_);
  }
  int32_t end() const { return end_; }
  uint8_t fill() const { return fill_; }
  // 1, and those for random operations.
  int num_draws() const { return num_draws_; }
  const PolicyOutcome& At(int32_t draw) const;

  // Writes `num_draws()` numbers, as TensorFlow's stateless operations draw
  // them from the seed. `before` is the number of the layer before, or null.
  void Draw(const std::array<int64_t, 2>& seed, const int32_t* before,
            int32_t* draws) const;

 private:
  int32_t end_;
  // AutoAugment's second layer keeps the sub-policy of the layer before, a
  // group of numbers, and draws one of it.
  int32_t group_;
  bool goes_on_;
  uint8_t fill_;
  int num_draws_ = 1;
  std::vector<PolicyOutcome> outcomes_;
  // PolicyOutcome i is for the numbers below edges_[i], from the edge before.
  std::vector<int32_t> edges_;
};

}  // namespace refurbish_tf

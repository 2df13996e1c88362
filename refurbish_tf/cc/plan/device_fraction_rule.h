// Which fraction of each batch an accelerator finishes in place of the CPU.
//
// The idea is FusionFlow's (Kim et al., VLDB 2023, section 5.2.2): the side
// that has time to spare gets more. The fraction rises by an eighth while
// training waits for batches, and falls by an eighth while batches wait for
// training.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace refurbish_tf {

// Counts in eighths. Reads no clock: the fractions depend only on the arguments
// of `Record`. Not thread-safe.
class DeviceFractionRule {
 public:
  static constexpr int kAutotuned = -1;
  // The fractions of one batch that an accelerator can do. Other fractions are
  // averages over batches that use different ones of these.
  static constexpr std::array<int, 5> kEighths = {0, 1, 2, 4, 8};

  // `fraction`: how many eighths of all batches, or kAutotuned.
  explicit DeviceFractionRule(int fraction)
      : is_autotuned_(fraction == kAutotuned),
        fraction_(std::max(fraction, 0)) {}

  struct Batch {
    int fraction = 0;  // The target when the batch was begun.
    int eighths = 0;   // For this batch: one of kEighths.
  };
  // Plans the next batch.
  Batch Begin() {
    owed_ += fraction_;
    const int eighths =
        *std::find_if(kEighths.rbegin(), kEighths.rend(),
                      [this](int possible) { return possible <= owed_; });
    owed_ -= eighths;
    return {fraction_, eighths};
  }

  // A batch was handed over. `since`: the nanoseconds since the same iterator
  // handed over its previous batch; empty for its first one. `waited`: for how
  // many of these nanoseconds training waited.
  void Record(const Batch& batch, std::optional<int64_t> since,
              int64_t waited) {
    if (!is_autotuned_) return;
    // A new iterator has prefetched nothing, so training waits in any case.
    if (!since.has_value()) Forget();
    // Batches that were begun before the last change say nothing about it.
    if (!since.has_value() || batch.fraction != fraction_) return;
    time_ += *since;
    waited_ += waited;
    if (++num_batches_ < kWindow) return;
    if (waited_ > time_ / kMuch && fraction_ < kEighths.back()) {
      // If this takes back a fall, the next fall must wait twice as long.
      if (has_fallen_) patience_ = std::min(2 * patience_, kMostPatience);
      Move(1);
    }
    num_punctual_ = waited_ < time_ / kLittle ? num_punctual_ + 1 : 0;
    if (num_punctual_ >= patience_ && fraction_ > 0) {
      if (has_fallen_) patience_ = 1;
      Move(-1);
    }
    Forget();
  }

 private:
  // A decision looks at kWindow batches. The fraction rises if training waited
  // for more than 1 / kMuch of their time. It may fall if training waited for
  // less than 1 / kLittle of it.
  static constexpr int kWindow = 8;
  static constexpr int kMuch = 8;
  static constexpr int kLittle = 16;
  static constexpr int kMostPatience = 8;

  void Forget() { num_batches_ = time_ = waited_ = 0; }
  void Move(int step) {
    has_fallen_ = step < 0;
    fraction_ += step;
    owed_ = num_punctual_ = 0;
  }

  const bool is_autotuned_;
  int fraction_;
  int owed_ = 0;  // By how much earlier batches fell short of `fraction_`.
  // The batches since the last decision: their number, how long they took, and
  // for how much of that time training waited.
  int num_batches_ = 0;
  int64_t time_ = 0;
  int64_t waited_ = 0;
  // In how many consecutive windows batches waited for training, and how many
  // of these it takes for the fraction to fall.
  int num_punctual_ = 0;
  int patience_ = 1;
  bool has_fallen_ = false;  // Whether the last change was a fall.
};

}  // namespace refurbish_tf

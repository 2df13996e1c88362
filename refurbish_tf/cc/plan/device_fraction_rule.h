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

// Counts in eighths. Reads no clock: the fractions depend only on what is
// recorded. Not thread-safe.
class DeviceFractionRule {
 public:
  static constexpr int kAutotuned = -1;
  // The fractions of one batch that an accelerator can do. Any other fraction
  // is made by alternating between batches of the two nearest ones.
  static constexpr std::array<int, 5> kEighths = {0, 1, 2, 4, 8};

  // `fraction`: of all batches, in eighths, or kAutotuned.
  explicit DeviceFractionRule(int fraction)
      : is_autotuned_(fraction == kAutotuned),
        fraction_(std::max(fraction, 0)) {}

  struct Batch {
    int fraction = 0;  // Of all batches, when this one was begun.
    int eighths = 0;   // Of this batch: one of kEighths.
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

  // A batch was handed over. `since`: nanoseconds since the previous one of the
  // same iterator, if any. `waited`: for how many of them training waited.
  void Record(const Batch& batch, std::optional<int64_t> since,
              int64_t waited) {
    if (!is_autotuned_) return;
    // Nothing is prefetched yet, so training waits for the next batches anyway.
    if (!since.has_value()) Forget();
    // Batches that were begun before a change say nothing about it.
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
  // How many batches a decision looks at. Training waits if it does so for more
  // than `time_ / kMuch`; batches wait if it does so for less than `time_ /
  // kLittle`.
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
  int owed_ = 0;  // The eighths that earlier batches fell short of it.
  // Batches of this fraction since the last decision: their number, how long
  // they took, and for how much of that training waited.
  int num_batches_ = 0;
  int64_t time_ = 0;
  int64_t waited_ = 0;
  // How often in a row batches waited, and how often they must before a fall.
  int num_punctual_ = 0;
  int patience_ = 1;
  bool has_fallen_ = false;  // The last change was a fall.
};

}  // namespace refurbish_tf

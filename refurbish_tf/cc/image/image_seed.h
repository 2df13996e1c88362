#pragma once

#include <array>
#include <cstdint>

namespace refurbish_tf {

// Numbers in [0, 1) are drawn as whole numbers below this.
inline constexpr int64_t kEndOfFraction = int64_t{1} << 31;

// A seed as in `tf.random.stateless_*`.
//
// Image b of a batch has the seed s = `seed_at(seed, b)`, and the layer at
// `position` in `compose` has `seed_at(s, position)`. What a layer draws
// therefore does not depend on the thread or device that draws it.
class ImageSeed {
 public:
  ImageSeed(int64_t first, int64_t second)
      : numbers_{first, second},
        key_(Finalize(Finalize(static_cast<uint64_t>(first) + kGolden) +
                      static_cast<uint64_t>(second))) {}

  // The seed of image or layer `index`: as two int32, like Python's `seed_at`.
  std::array<int32_t, 2> At(uint64_t index) const {
    const uint64_t word = Finalize(key_ + (index + 1) * kGolden);
    return {static_cast<int32_t>(word), static_cast<int32_t>(word >> 32)};
  }
  ImageSeed SeedAt(uint64_t index) const {
    const auto [first, second] = At(index);
    return ImageSeed(first, second);
  }
  // The k-th random word of this seed.
  uint32_t Word(uint64_t k) const {
    return static_cast<uint32_t>(
        Finalize((key_ ^ kWords) + (k + 1) * kGolden) >> 32);
  }
  // The k-th word, scaled to a whole number below `end`.
  int32_t Below(uint64_t k, uint64_t end) const {
    return static_cast<int32_t>((Word(k) * end) >> 32);
  }
  // The k-th word as a number in [0, 1), in units of 2^-31.
  int32_t Fraction(uint64_t k) const { return Below(k, kEndOfFraction); }
  void Fractions(int number, int32_t* draws) const {
    for (int k = 0; k < number; ++k) draws[k] = Fraction(k);
  }
  // The seed itself, for layers that draw numbers as TensorFlow does.
  const std::array<int64_t, 2>& numbers() const { return numbers_; }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  // Keeps the draws of a seed independent of the seeds derived from it.
  static constexpr uint64_t kWords = 0x6a09e667f3bcc909;

  // The finalizer of SplitMix64 (Steele et al., 2014).
  static uint64_t Finalize(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    return word ^ (word >> 31);
  }

  std::array<int64_t, 2> numbers_;
  uint64_t key_;
};

// A result of `Fraction` as a number in [0, 1), or between two ends.
inline double UnitOf(int32_t fraction) { return fraction / 2147483648.0; }
inline double Between(const std::array<double, 2>& ends, int32_t fraction) {
  return ends[0] + (ends[1] - ends[0]) * UnitOf(fraction);
}
// A fraction or a multiple of a side in whole pixels, rounded down.
inline int64_t PixelsOf(int64_t side, double part) {
  return static_cast<int64_t>(static_cast<double>(side) * part);
}

}  // namespace refurbish_tf

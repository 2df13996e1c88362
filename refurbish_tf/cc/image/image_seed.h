// What the draws of layers are made of.
#pragma once

#include <array>
#include <cstdint>

namespace refurbish_tf {

// A seed as for `tf.random.stateless_*`, hashed: all draws depend on the hash
// alone.
//
// Image b of a batch has the seed `seed_at(seed, b)`, and a layer of `compose`
// `seed_at(·, position)` of that: what is drawn does not depend on who draws
// it.
class ImageSeed {
 public:
  // Raised whenever seeds, or their words, become other ones.
  static constexpr int kVersion = 2;

  ImageSeed(int64_t first, int64_t second);

  // The seed of image or layer `index`; `At` as the int32 numbers that
  // `seed_at` returns in Python.
  std::array<int32_t, 2> At(uint64_t index) const;
  ImageSeed SeedAt(uint64_t index) const;
  // The k-th random word of this seed.
  uint32_t Word(uint64_t k) const;
  // The k-th word as a number below `end`.
  int32_t Below(uint64_t k, uint64_t end) const;
  // The k-th word as a number in [0, 1), in units of 2^-31.
  int32_t Fraction(uint64_t k) const {
    return static_cast<int32_t>(Word(k) >> 1);
  }
  // The seed itself.
  const std::array<int64_t, 2>& numbers() const { return numbers_; }

 private:
  std::array<int64_t, 2> numbers_;
  uint64_t key_;
};

// What `Fraction` draws, as a number in [0, 1); and as one between two.
inline double UnitOf(int32_t fraction) { return fraction / 2147483648.0; }
inline double Between(const std::array<double, 2>& ends, int32_t fraction) {
  return ends[0] + (ends[1] - ends[0]) * UnitOf(fraction);
}

}  // namespace refurbish_tf

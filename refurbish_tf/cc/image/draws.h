// What layers draw from a seed: a pure function, the same on every machine.
#pragma once

#include <array>
#include <cstdint>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

// A seed as for `tf.random.stateless_*`, hashed: all draws depend on the hash
// alone.
//
// Image b of a batch has the seed `seed_at(seed, b)`, and a layer of `compose`
// `seed_at(·, position)` of that: what is drawn does not depend on who draws
// it.
class ImageSeed {
 public:
  ImageSeed(int64_t first, int64_t second);

  // The seed of image or layer `index`; `At` as the int32 numbers that
  // `seed_at` returns in Python.
  std::array<int32_t, 2> At(uint64_t index) const;
  ImageSeed SeedAt(uint64_t index) const;
  // The k-th random word of this seed.
  uint32_t Word(uint64_t k) const;
  // The k-th word as a number below `end`.
  int32_t Below(uint64_t k, uint64_t end) const;
  // The seed itself.
  const std::array<int64_t, 2>& numbers() const { return numbers_; }

 private:
  std::array<int64_t, 2> numbers_;
  uint64_t key_;
};

// Writes the `chain.num_draws()` numbers that the layers draw from a seed.
void Draw(const LayerChain& chain, const ImageSeed& seed, int32_t* draws);

}  // namespace refurbish_tf

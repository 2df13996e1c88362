// What layers draw from a seed: a pure function, the same on every machine.
#ifndef REFURBISH_TF_CC_IMAGE_DRAWS_H_
#define REFURBISH_TF_CC_IMAGE_DRAWS_H_

#include <array>
#include <cstdint>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {

// A seed as for `tf.random.stateless_*`, hashed: all that is drawn is of the key.
class ImageSeed {
 public:
  ImageSeed(int64_t first, int64_t second);

  // The seed of image or layer `index` of many: int32, as it is handed out.
  std::array<int32_t, 2> At(uint64_t index) const;
  ImageSeed SeedAt(uint64_t index) const;
  // Word k of those that this seed stands for.
  uint32_t Word(uint64_t k) const;

 private:
  uint64_t key_;
};

// Writes the `run.num_draws()` numbers that the layers draw from a seed.
void Draw(const LayerRun& run, const ImageSeed& seed, int32_t* draws);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_DRAWS_H_

#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
// Makes the draws of a seed independent of the seeds that are derived from it.
constexpr uint64_t kWords = 0x6a09e667f3bcc909;

// The finalizer of SplitMix64 (Steele et al., 2014).
inline uint64_t Finalize(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

}  // namespace

ImageSeed::ImageSeed(int64_t first, int64_t second)
    : numbers_{first, second},
      key_(Finalize(Finalize(static_cast<uint64_t>(first) + kGolden) +
                    static_cast<uint64_t>(second))) {}

std::array<int32_t, 2> ImageSeed::At(uint64_t index) const {
  const uint64_t word = Finalize(key_ + (index + 1) * kGolden);
  return {static_cast<int32_t>(word), static_cast<int32_t>(word >> 32)};
}

ImageSeed ImageSeed::SeedAt(uint64_t index) const {
  const std::array<int32_t, 2> seed = At(index);
  return ImageSeed(seed[0], seed[1]);
}

uint32_t ImageSeed::Word(uint64_t k) const {
  return static_cast<uint32_t>(Finalize((key_ ^ kWords) + (k + 1) * kGolden) >>
                               32);
}

int32_t ImageSeed::Below(uint64_t k, uint64_t end) const {
  return static_cast<int32_t>((Word(k) * end) >> 32);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/draws.h"

#include "refurbish_tf/cc/image/policy.h"

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

// A number in [0, 1), in units of 2^-31.
inline int32_t Fraction(const ImageSeed& seed, uint64_t k) {
  return static_cast<int32_t>(seed.Word(k) >> 1);
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

void Draw(const LayerChain& chain, const ImageSeed& seed, int32_t* draws) {
  const int32_t* before = nullptr;
  for (const Layer& layer : chain.layers()) {
    const int num_draws = layer.NumDraws();
    const ImageSeed own =
        layer.position < 0 ? seed : seed.SeedAt(layer.position);
    switch (layer.kind) {
      case LayerKind::kRandomCrop:
        draws[0] = own.Below(0, 2 * layer.padding + 1);
        draws[1] = own.Below(1, 2 * layer.padding + 1);
        break;
      case LayerKind::kRandomFlip:
        draws[0] = own.Below(0, 2);
        break;
      case LayerKind::kRandomResizedCrop:
      case LayerKind::kCutout:
        for (int i = 0; i < num_draws; ++i) draws[i] = Fraction(own, i);
        break;
      case LayerKind::kPolicy:
        layer.policy->Draw(own.numbers(), before, draws);
        break;
      case LayerKind::kResize:
      case LayerKind::kNormalize:
        break;
    }
    before = draws;
    draws += num_draws;
  }
}

}  // namespace refurbish_tf

// Random numbers that are a pure function of their seeds, the same with every
// compiler and standard library (std::shuffle and the std:: distributions are
// not).
#pragma once

#include <array>
#include <cstdint>
#include <utility>

namespace refurbish_tf {

// What a derived random stream is for. Streams of different purposes are
// independent of each other although they come from one stage seed.
enum class Purpose : uint64_t {
  kEviction = 1,
  kOrder = 2,
  kPhase = 3,
  kPartialFunction = 4,
  kFinalFunction = 5,
  kShuffleBuffer = 6,
  kEcho = 7,
  kKept = 8,
};

// The finalizer of SplitMix64 (Steele et al., 2014): a bijection of the 64-bit
// words whose output bits each depend on all input bits.
inline uint64_t Mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15ULL;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

inline uint64_t DeriveKey(uint64_t seed, Purpose purpose,
                          uint64_t counter = 0) {
  return Mix(Mix(Mix(seed) ^ static_cast<uint64_t>(purpose)) ^ counter);
}

// A seed for `tf.random.stateless_*`. For one stage seed and purpose, different
// (counter, index) pairs give different seeds, because every step is a
// bijection. `counter` and `index` must be below 2^32.
inline std::array<int32_t, 2> StatelessSeed(uint64_t seed, Purpose purpose,
                                            uint64_t counter, uint64_t index) {
  const uint64_t word =
      Mix(((index << 32) | counter) ^ DeriveKey(seed, purpose));
  return {static_cast<int32_t>(word >> 32), static_cast<int32_t>(word)};
}

class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : state_(key) {}

  uint64_t Next() {
    const uint64_t word = Mix(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return word;
  }

  // Uniform in [0, bound), without bias (Lemire, 2019), for a positive bound.
  uint32_t Below(uint32_t bound) {
    uint64_t product = (Next() >> 32) * bound;
    if (static_cast<uint32_t>(product) < bound) {
      const uint32_t threshold = -bound % bound;
      while (static_cast<uint32_t>(product) < threshold) {
        product = (Next() >> 32) * bound;
      }
    }
    return static_cast<uint32_t>(product >> 32);
  }

 private:
  uint64_t state_;
};

template <class Iterator>
void ShuffleRange(Iterator begin, Iterator end, RandomStream& random) {
  for (uint32_t size = static_cast<uint32_t>(end - begin); size > 1; --size) {
    std::swap(begin[size - 1], begin[random.Below(size)]);
  }
}

}  // namespace refurbish_tf

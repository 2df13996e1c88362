// TensorFlow's stateless random numbers: the Philox generator (Salmon et al.,
// *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011) as
// `tf.raw_ops.StatelessRandomUniform*` seed it. What policies draw depends on
// it, on every machine and in every version of TensorFlow.
#pragma once

#include <array>
#include <cstdint>

namespace refurbish_tf {

using PhiloxWords = std::array<uint32_t, 4>;

inline PhiloxWords Philox(PhiloxWords counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{0xd2511f53} * counter[0];
    const uint64_t second = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(first)};
    key[0] += 0x9e3779b9;
    key[1] += 0xbb67ae85;
  }
  return counter;
}

// The first four words for a seed, which the ops take as they need them.
inline PhiloxWords FirstWords(int64_t first, int64_t second) {
  const uint64_t low = first, high = second;
  const PhiloxWords mixed =
      Philox({static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
              static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)},
             {0x3ec8f720, 0x02461e29});
  return Philox({0, 0, mixed[2], mixed[3]}, {mixed[0], mixed[1]});
}

}  // namespace refurbish_tf

// Chooses which samples are kept if not all fit. All possible samples are
// ranked, so the ranking does not depend on how many there are or how many fit.
//
// The source is divided into chunks of 2^16 samples. Each chunk has its own
// permutation, which gives each sample a row. Every chunk keeps its first rows.
// To reach the exact number, the first few chunks keep one more row. The last
// chunk has fewer samples, so some of its rows are empty.
#pragma once

#include <cstdint>
#include <vector>

namespace refurbish_tf {

// The samples with the smallest keys are kept. The lower half of a key is the
// index, so all keys of one seed differ.
uint64_t KeptKey(uint64_t seed, uint32_t index);

// How many of the first `num_samples` samples have a key below `key`. The time
// does not grow with `num_samples`.
uint32_t NumKeysBelow(uint64_t seed, uint32_t num_samples, uint64_t key);

// Numbers samples so that the kept ones come first.
class KeptSamples {
 public:
  KeptSamples() = default;
  // `num_kept` must be at most `num_samples`.
  KeptSamples(uint64_t seed, uint32_t num_samples, uint32_t num_kept);

  // The number of a sample: below `num_kept` if the sample is kept.
  uint32_t NumberOf(uint32_t index) const;
  uint32_t At(uint32_t number) const;
  int64_t bytes() const { return 4 * last_.size(); }

 private:
  struct Chunk {
    uint32_t num_kept;
    // The numbers of the chunk's first kept and first other sample.
    uint32_t first_kept, first_other;
  };
  Chunk ChunkAt(uint32_t chunk) const;

  uint64_t seed_ = 0;
  uint32_t num_kept_ = 0;
  bool divides_ = false;  // False if all or none are kept.
  // How many chunks have 2^16 samples, how many rows each of these keeps, and
  // how many of them keep one more row.
  uint32_t num_full_ = 0, num_rows_ = 0, num_longer_ = 0;
  // The last chunk: its samples in the order of their rows, the position of
  // each in this order, and how many are kept.
  std::vector<uint16_t> last_, place_in_last_;
  uint32_t num_last_kept_ = 0;
};

}  // namespace refurbish_tf

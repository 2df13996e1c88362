// Which samples are kept where not all can be: it is fixed before it is known
// how many there are, and how many fit.
//
// The source is divided into chunks of 2^16 samples. A permutation of its own
// gives each sample of a chunk a row, and those of the first rows are kept: all
// of the first rows, of the next one those of the first chunks. The last chunk
// has fewer samples, and so not every row.
#pragma once

#include <cstdint>
#include <vector>

namespace refurbish_tf {

// Of samples of a source, those with the smallest keys are kept. Its lower half
// is the index, so all keys of one seed differ.
uint64_t KeptKey(uint64_t seed, uint32_t index);

// How many of the first `num_samples` samples have a smaller key. Takes no time
// that grows with them.
uint32_t NumKeysBelow(uint64_t seed, uint32_t num_samples, uint64_t key);

// Numbers samples so that the kept ones come first.
class KeptSamples {
 public:
  KeptSamples() = default;
  // At most `num_samples` can be kept.
  KeptSamples(uint64_t seed, uint32_t num_samples, uint32_t num_kept);

  // Below `num_kept` if the sample is kept.
  uint32_t NumberOf(uint32_t index) const;
  uint32_t At(uint32_t number) const;
  int64_t bytes() const { return 4 * last_.size(); }

 private:
  struct Chunk {
    uint32_t num_kept;
    // The numbers of its first kept and of its first other sample.
    uint32_t first_kept, first_other;
  };
  Chunk ChunkAt(uint32_t chunk) const;

  uint64_t seed_ = 0;
  uint32_t num_kept_ = 0;
  bool divides_ = false;  // Else all or none are kept.
  // How many chunks are full, how many of their rows are kept, and in how many
  // of them one more.
  uint32_t num_full_ = 0, num_rows_ = 0, num_longer_ = 0;
  // Of the last chunk: its samples in the order of their rows, where each is in
  // that order, and how many are kept.
  std::vector<uint16_t> last_, place_in_last_;
  uint32_t num_last_kept_ = 0;
};

}  // namespace refurbish_tf

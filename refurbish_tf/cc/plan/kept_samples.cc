#include "refurbish_tf/cc/plan/kept_samples.h"

#include <algorithm>

#include "refurbish_tf/cc/plan/permutation.h"

namespace refurbish_tf {
namespace {

constexpr int kChunkBits = 16;
constexpr uint32_t kChunkSize = 1 << kChunkBits;

FeistelNetwork RowsOf(uint64_t seed, uint32_t chunk) {
  return {DeriveKey(seed, Purpose::kKept, chunk), kChunkSize};
}

uint32_t InChunk(uint32_t index) { return index % kChunkSize; }

}  // namespace

uint64_t KeptKey(uint64_t seed, uint32_t index) {
  const FeistelNetwork rows = RowsOf(seed, index >> kChunkBits);
  return uint64_t{rows.Forward(InChunk(index))} << 32 | index;
}

uint32_t NumKeysBelow(uint64_t seed, uint32_t num_samples, uint64_t key) {
  const auto row =
      static_cast<uint32_t>(std::min<uint64_t>(key >> 32, kChunkSize));
  const uint32_t num_full = num_samples >> kChunkBits;
  uint32_t number = num_full * row;
  if (row < kChunkSize) {
    number += std::min(num_full, static_cast<uint32_t>(key) >> kChunkBits);
  }
  for (uint32_t i = num_full << kChunkBits; i < num_samples; ++i) {
    number += KeptKey(seed, i) < key;
  }
  return number;
}

KeptSamples::KeptSamples(uint64_t seed, uint32_t num_samples, uint32_t num_kept)
    : seed_(seed),
      num_kept_(num_kept),
      divides_(num_kept > 0 && num_kept < num_samples) {
  if (!divides_) return;
  num_full_ = num_samples >> kChunkBits;
  const uint32_t num_last = InChunk(num_samples);
  place_in_last_.resize(num_last);
  const FeistelNetwork rows = RowsOf(seed, num_full_);
  for (uint32_t row = 0; row < kChunkSize; ++row) {
    const uint64_t before = uint64_t{num_full_} * row + last_.size();
    if (before <= num_kept) {
      num_rows_ = row;
      num_last_kept_ = last_.size();
      num_longer_ = num_kept - static_cast<uint32_t>(before);
    }
    const uint32_t sample = rows.Backward(row);
    if (sample >= num_last) continue;
    place_in_last_[sample] = last_.size();
    last_.push_back(sample);
  }
}

KeptSamples::Chunk KeptSamples::ChunkAt(uint32_t chunk) const {
  const uint32_t num_before = chunk * num_rows_ + std::min(chunk, num_longer_);
  return {
      chunk == num_full_ ? num_last_kept_ : num_rows_ + (chunk < num_longer_),
      num_before, num_kept_ + (chunk << kChunkBits) - num_before};
}

uint32_t KeptSamples::NumberOf(uint32_t index) const {
  if (!divides_) return index;
  const uint32_t chunk = index >> kChunkBits;
  const uint32_t place = chunk == num_full_
                             ? place_in_last_[InChunk(index)]
                             : RowsOf(seed_, chunk).Forward(InChunk(index));
  const Chunk of = ChunkAt(chunk);
  return place < of.num_kept ? of.first_kept + place
                             : of.first_other + place - of.num_kept;
}

uint32_t KeptSamples::At(uint32_t number) const {
  if (!divides_) return number;
  const bool kept = number < num_kept_;
  // How many samples of this kind, kept or not, a full chunk has, and how many
  // the first chunks have, which keep one more row.
  const uint32_t each = kept ? num_rows_ : kChunkSize - num_rows_;
  const uint64_t each_first = kept ? each + 1 : each - 1;
  const uint64_t nth = kept ? number : number - num_kept_;
  const uint64_t num_in_first = num_longer_ * each_first;
  uint32_t chunk = num_full_;
  if (nth < num_in_first) {
    chunk = static_cast<uint32_t>(nth / each_first);
  } else if (each > 0) {
    chunk = static_cast<uint32_t>(std::min<uint64_t>(
        num_full_, num_longer_ + (nth - num_in_first) / each));
  }
  const Chunk of = ChunkAt(chunk);
  const uint32_t place =
      kept ? number - of.first_kept : number - of.first_other + of.num_kept;
  return chunk << kChunkBits |
         (chunk == num_full_ ? last_[place]
                             : RowsOf(seed_, chunk).Backward(place));
}

}  // namespace refurbish_tf

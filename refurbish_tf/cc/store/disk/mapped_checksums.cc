#include "refurbish_tf/cc/store/disk/mapped_checksums.h"

#include <utility>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/store_files.h"

namespace refurbish_tf {

bool MappedChecksums::Set(uint64_t index, uint64_t platform, uint32_t sum) {
  if (no_room_.load(std::memory_order_relaxed)) return false;
  Index* const words = Words(/*make=*/true);
  if (words == nullptr || !words->Reserve(index).ok()) {
    no_room_ = true;
    return false;
  }
  const uint64_t noted = WordOf(index, platform, sum);
  uint64_t word = words->Load(index);
  while (word != noted && !words->CompareExchange(index, &word, noted)) {
  }
  return true;
}

uint32_t MappedChecksums::Find(uint64_t index, uint64_t platform) {
  Index* const words = Words(/*make=*/false);
  const uint64_t word = words == nullptr ? 0 : words->Load(index);
  const auto sum = static_cast<uint32_t>(word);
  return sum != 0 && word == WordOf(index, platform, sum) ? sum : 0;
}

void MappedChecksums::Forget(uint64_t index) {
  Index* const words = Words(/*make=*/false);
  if (words == nullptr) return;
  uint64_t word = words->Load(index);
  while (word != 0 && !words->CompareExchange(index, &word, 0)) {
  }
}

Index* MappedChecksums::Words(bool make) {
  Index* const opened = opened_.load(std::memory_order_acquire);
  if (opened != nullptr) return opened;
  std::lock_guard<std::mutex> lock(opening_);
  if (words_ == nullptr &&
      (make || directory_.FileBytes(kSourceChecksumsFile) > 0)) {
    absl::StatusOr<std::unique_ptr<Index>> words =
        Index::Open(&directory_, kSourceChecksumsFile);
    if (words.ok()) words_ = *std::move(words);
    opened_.store(words_.get(), std::memory_order_release);
  }
  return words_.get();
}

}  // namespace refurbish_tf

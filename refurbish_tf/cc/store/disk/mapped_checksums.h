#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/source_checks/source_checksums.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/store_files.h"

namespace refurbish_tf {

// Checksums in a file that all processes map. A word is a checksum and 32 bits
// that tie it to the store's id, the sample and the platform. If these bits are
// wrong, the word is damaged or foreign, and the checksum counts as unknown.
//
// The file is made when the first checksum is stored. If there is no room for
// it, none is stored. Thread-safe.
class MappedChecksums : public SourceChecksums {
 public:
  MappedChecksums(const Directory* directory, uint64_t store_id)
      : directory_(*directory), store_id_(store_id) {}

  const std::string& path() const override { return directory_.path(); }
  bool is_there() override { return Words(/*make=*/false) != nullptr; }
  bool Set(uint64_t index, uint64_t platform, uint32_t sum) override {
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
  uint32_t Find(uint64_t index, uint64_t platform) override {
    Index* const words = Words(/*make=*/false);
    const uint64_t word = words == nullptr ? 0 : words->Load(index);
    const auto sum = static_cast<uint32_t>(word);
    return sum != 0 && word == WordOf(index, platform, sum) ? sum : 0;
  }
  void Forget(uint64_t index) {
    Index* const words = Words(/*make=*/false);
    if (words == nullptr) return;
    uint64_t word = words->Load(index);
    while (word != 0 && !words->CompareExchange(index, &word, 0)) {
    }
  }
  void ForgetAll() {
    Index* const words = Words(/*make=*/false);
    if (words == nullptr) return;
    words->ForEach([this](uint64_t index, uint64_t) { Forget(index); });
  }

 private:
  // Null if there is no file and `make` is false, or if none can be made.
  Index* Words(bool make) {
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
  uint64_t WordOf(uint64_t index, uint64_t platform, uint32_t sum) const {
    const uint64_t tied[] = {store_id_, index, platform, sum};
    return uint64_t{Crc32c(tied, sizeof(tied))} << 32 | sum;
  }

  const Directory& directory_;
  const uint64_t store_id_;
  std::mutex opening_;
  std::unique_ptr<Index> words_;  // Set once.
  std::atomic<Index*> opened_{nullptr};
  std::atomic<bool> no_room_{false};
};

}  // namespace refurbish_tf

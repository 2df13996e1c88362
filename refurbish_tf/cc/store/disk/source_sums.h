#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "refurbish_tf/cc/store/disk/directory.h"
#include "refurbish_tf/cc/store/disk/index.h"

namespace refurbish_tf {

// For each sample a checksum of the source's element that it was prepared from,
// in a file that all processes map. A word is the checksum and 32 bits that tie
// it to the store's id, the sample and `platform`, what the element was
// computed on. A word that is torn, damaged or foreign is not tied so, and
// counts as unknown.
//
// The file is made when the first checksum is noted. Where there is no room for
// it nothing is known.
//
// Thread-safe.
class SourceSums {
 public:
  SourceSums(const Directory* directory, uint64_t store_id)
      : directory_(*directory), store_id_(store_id) {}

  // Of the store.
  const std::string& path() const { return directory_.path(); }

  // Whether there may be any.
  bool is_there() { return Words(/*make=*/false) != nullptr; }
  // Notes a checksum, not 0. False if there is no room.
  bool Set(uint64_t index, uint64_t platform, uint32_t sum);
  // 0 if none is known.
  uint32_t Find(uint64_t index, uint64_t platform);
  void Forget(uint64_t index);
  void ForgetAll();

 private:
  // Null if there is no file, and none can be made or is to be.
  Index* Words(bool make);
  uint32_t SumOf(uint64_t index, uint64_t platform, uint64_t word) const;
  uint64_t WordOf(uint64_t index, uint64_t platform, uint32_t sum) const;

  const Directory& directory_;
  const uint64_t store_id_;
  std::mutex opening_;
  std::unique_ptr<Index> words_;  // Set once.
  std::atomic<Index*> opened_{nullptr};
  std::atomic<bool> no_room_{false};
};

}  // namespace refurbish_tf

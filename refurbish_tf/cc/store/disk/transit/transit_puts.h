#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "refurbish_tf/cc/store/disk/index.h"
#include "refurbish_tf/cc/store/disk/records.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// Records in transit that were put but are not in the file of the ring yet. Any
// thread puts them; the writer's thread writes them in batches. Unlike in
// WriteBuffer, a put never waits: a sample in transit only saves preparing it
// again, so it is given up if the disk is too busy. A put neither compares it
// with kept samples nor evicts any. Thread-safe.
class TransitPuts {
 public:
  // For the last three arguments, see WriteBuffer.
  TransitPuts(TransitRing* ring, Index* claims, Records* records, StoreEnv* env,
              size_t enough, std::chrono::milliseconds delay,
              std::function<void()> wake)
      : ring_(ring),
        claims_(claims),
        records_(records),
        env_(env),
        enough_(enough),
        delay_(delay),
        wake_(std::move(wake)) {}

  // For any thread -----------------------------------------------------------

  // `make` returns the record, of `space` bytes, or an empty one if there is no
  // memory. Releases the sample's claim at once if the result is not kStored,
  // and otherwise when the record is in the ring or given up.
  PutResult Put(uint32_t index, Generation generation, uint64_t space,
                const std::function<RecordBuffer()>& make)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Release(uint32_t index, Generation generation) {
    env_->BeforeSharedWrite();
    SharedState::Release(claims_, index, generation);
  }

  // For the writer -----------------------------------------------------------

  std::chrono::steady_clock::time_point DueAt() const ABSL_LOCKS_EXCLUDED(mu_);
  // Writes all that is in memory. Calls `failed` for each record that could not
  // be written.
  void WriteBatch(const std::function<void(const absl::Status& why)>& failed)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Called when the writer has ended: from now on puts fail.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
  }

 private:
  struct Entry {
    uint32_t index;
    Generation generation;
    TransitRing::Span span;
    RecordBuffer record;
  };
  using Entries = std::vector<Entry>;

  // The limit on the bytes in memory. There is always room for a few records.
  static constexpr size_t kMostBytes = 8 << 20;
  static constexpr size_t kLeastRecords = 4;

  bool Reserve(uint64_t space) ABSL_LOCKS_EXCLUDED(mu_);
  void Unreserve(size_t records, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    num_records_ -= records;
    bytes_ -= bytes;
  }
  // Writes adjacent records with one call.
  absl::Status Write(const Entry* begin, const Entry* end);
  void EndWrite(const Entry& entry, bool written);

  TransitRing* const ring_;
  Index* const claims_;
  Records* const records_;
  StoreEnv* const env_;
  const size_t enough_;
  const std::chrono::milliseconds delay_;
  const std::function<void()> wake_;

  mutable std::mutex mu_;
  Entries filling_ ABSL_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point filling_since_ ABSL_GUARDED_BY(mu_);
  size_t filling_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // All records in memory, including those that are being made or written.
  size_t num_records_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refurbish_tf

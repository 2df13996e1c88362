// How many bytes a store in memory may hold: its limit, or less while the
// memory of the process is short.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "refurbish_tf/cc/base/memory.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// While less than the reserve (`Memory::reserve`) is free, the store is
// limited to the bytes that it held when the shortage began. The limit ends
// when twice the reserve is free. While less than half of the reserve is free,
// samples are dropped.
//
// No thread watches the memory. A thread that uses the store reads how much is
// free when a reading is due: at first, after puts of a certain fraction of
// what was free, and after a tenth of a second, because others also use memory.
class MemoryPressureLimit {
 public:
  using ReadFunction = std::function<Memory()>;
  using WarnFunction = std::function<void(const std::string& text)>;

  MemoryPressureLimit(int64_t max_bytes, ReadFunction read, WarnFunction warn)
      : max_bytes_(max_bytes),
        read_(std::move(read)),
        warn_(std::move(warn)),
        bytes_(max_bytes) {}

  // Call these without holding the lock of the store.

  bool due() const { return due_.load(kRelaxed); }
  // How much memory is left; nothing if it is too early to read. Does I/O.
  // After a reading, call `Rest`. Until then no other thread reads: samples
  // that were dropped but not freed yet would look like another shortage.
  std::optional<Memory> Read();
  void Rest();
  // Warns once, if a sample was dropped or not kept because memory is short.
  void Warn(const Memory& memory, const SampleMapStats& held);

  // Call these with the store's lock held.

  // Counts a use of the store. After some uses, `Read` checks the clock, which
  // would be too slow at each use.
  void Count() {
    if (++uses_ % kUsesForAClock == 0) due_.store(true, kRelaxed);
  }
  // Counts the bytes of a put. Needs no atomic addition under the store's lock.
  void CountBytes(int64_t bytes) {
    put_.store(put_.load(kRelaxed) + bytes, kRelaxed);
    if (IsEnoughPut()) due_.store(true, kRelaxed);
  }
  // Whether the store may hold `bytes`, including a new sample, or why not.
  PutResult Offer(int64_t bytes) {
    if (bytes <= bytes_.load(kRelaxed)) return PutResult::kStored;
    if (bytes > max_bytes_) return PutResult::kNoRoom;
    lost_ = true;
    return PutResult::kMemoryShort;
  }
  // Updates the limit after a reading. Returns the fraction of the `held` bytes
  // that must be dropped.
  double Adjust(const Memory& memory, int64_t held);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kUsesForAClock = 32;
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

  bool IsEnoughPut() const {
    return put_.load(kRelaxed) > enough_.load(kRelaxed);
  }

  const int64_t max_bytes_;
  const ReadFunction read_;
  const WarnFunction warn_;
  std::atomic<bool> due_{true};
  // Bytes put since the last reading, and how many make another one due.
  std::atomic<int64_t> put_{0};
  std::atomic<int64_t> enough_{0};
  std::atomic<Clock::rep> next_{0};
  std::atomic<bool> looking_{false};
  // How long the last reading took. Used only by the thread that reads.
  Clock::duration took_{0};
  // Whether a sample was dropped, or not kept, because memory is short.
  std::atomic<bool> lost_{false};
  std::atomic<bool> warned_{false};
  uint32_t uses_ = 0;
  // The current limit. It and `is_short_` change under the store's lock.
  std::atomic<int64_t> bytes_;
  std::atomic<bool> is_short_{false};
};

}  // namespace refurbish_tf

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
#include "refurbish_tf/cc/base/python_warning.h"
#include "refurbish_tf/cc/store/cache_store.h"

namespace refurbish_tf {

// When less than the reserve is free, the bytes held then become the limit,
// until twice the reserve is free. Below half of the reserve samples must go.
//
// No thread watches: a reading is due at first, after puts of a part of what
// was free, and, as others use memory too, after a tenth of a second. The next
// user of the store does it.
class MemoryRoom {
 public:
  using ReadFunction = std::function<Memory()>;
  using WarnFunction = std::function<void(const std::string& text)>;

  MemoryRoom(int64_t max_bytes, ReadFunction read, WarnFunction warn)
      : max_bytes_(max_bytes),
        read_(std::move(read)),
        warn_(std::move(warn)),
        bytes_(max_bytes) {}

  // To be called with no lock of the store held.

  bool due() const { return due_.load(kRelaxed); }
  // How much memory is left, unless it is early after all. Does I/O. Until
  // `Rest` nobody else reads: samples that were dropped but not freed yet would
  // seem to be short again.
  std::optional<Memory> Read();
  void Rest();
  // Warns, the first time that memory is short for a sample.
  void Warn(const Memory& memory, const CacheStoreStats& held);

  // To be called with the store's lock held.

  // Counts a use of the store. The clock takes longer than that.
  void Count() {
    if (++uses_ % kUsesForAClock == 0) due_.store(true, kRelaxed);
  }
  // Counts the bytes of a put. No atomic addition is needed.
  void CountBytes(int64_t bytes) {
    put_.store(put_.load(kRelaxed) + bytes, kRelaxed);
    if (IsEnoughPut()) due_.store(true, kRelaxed);
  }
  // Whether the store may hold so many bytes, with those of a new sample.
  PutResult Offer(int64_t bytes) {
    if (bytes <= bytes_.load(kRelaxed)) return PutResult::kStored;
    if (bytes > max_bytes_) return PutResult::kNoRoom;
    lost_ = true;
    return PutResult::kMemoryShort;
  }
  // Takes note of a reading. Returns which part of the bytes held must go.
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
  // Bytes since the last reading, and how many make one due.
  std::atomic<int64_t> put_{0};
  std::atomic<int64_t> enough_{0};
  std::atomic<Clock::rep> next_{0};
  std::atomic<bool> looking_{false};
  // How long reading took. Of who looks.
  Clock::duration took_{0};
  // Whether a sample was dropped, or not kept, because memory is short.
  std::atomic<bool> lost_{false};
  std::atomic<bool> warned_{false};
  uint32_t uses_ = 0;
  // The limit now. Changes, like `is_short_`, with the store's lock held.
  std::atomic<int64_t> bytes_;
  std::atomic<bool> is_short_{false};
};

}  // namespace refurbish_tf

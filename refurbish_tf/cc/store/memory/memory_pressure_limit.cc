#include "refurbish_tf/cc/store/memory/memory_pressure_limit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/python_warning.h"

namespace refurbish_tf {
namespace {

constexpr std::chrono::milliseconds kInterval{100};
// The pause between readings is at least this many times as long as a reading.
constexpr int kPause = 10;
// Memory is read again after puts of 1 / kPart of what was free.
constexpr int64_t kPart = 16;

}  // namespace

std::optional<Memory> MemoryPressureLimit::Read() {
  if (!due_.exchange(false)) return std::nullopt;
  const Clock::duration now = Clock::now().time_since_epoch();
  if (!IsEnoughPut() && now.count() < next_) return std::nullopt;
  if (looking_.exchange(true)) return std::nullopt;
  put_ = 0;
  Memory memory = read_();
  // The allocator may still hold memory that was freed in small pieces.
  // Returning that to the system may be enough.
  if (bytes_ > 0 && memory.free < memory.reserve() / (is_short_ ? 2 : 1)) {
    ReturnFreedMemory();
    memory = read_();
  }
  took_ = Clock::now().time_since_epoch() - now;
  enough_ = std::max(memory.free, memory.reserve() / 2) / kPart;
  return memory;
}

void MemoryPressureLimit::Rest() {
  next_ = (Clock::now().time_since_epoch() +
           std::max<Clock::duration>(kInterval, kPause * took_))
              .count();
  looking_ = false;
}

double MemoryPressureLimit::Adjust(const Memory& memory, int64_t held) {
  const int64_t reserve = memory.reserve();
  if (!is_short_ && memory.free < reserve) {
    is_short_ = true;
    bytes_ = std::min(max_bytes_, held);
  } else if (memory.free >=
             reserve + std::min(reserve, (memory.limit - reserve) / 2)) {
    is_short_ = false;
    lost_ = false;
    bytes_ = max_bytes_;
  }
  const int64_t surplus = std::min(reserve / 2 - memory.free, held);
  if (surplus <= 0) return 0;
  lost_ = true;
  bytes_ = std::min<int64_t>(bytes_, held - surplus);
  return static_cast<double>(surplus) / held;
}

void MemoryPressureLimit::Warn(const Memory& memory,
                               const SampleMapStats& held) {
  if (!lost_ || warned_.exchange(true)) return;
  warn_(absl::StrCat(
      "Memory is short: this process can still use ", memory.free >> 20,
      " MiB. A cache store in memory keeps the ", held.entries, " samples (",
      held.bytes >> 20,
      " MiB) that it holds, and all others are prepared again "
      "at each use. store=rtf.CacheStore(max_bytes=...) spreads these evenly "
      "over the epoch, and a directory on a local disk as store keeps them. ",
      kSilence));
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/cooperation/store_room.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {
namespace {

// The ring gets a fiftieth of all samples. It must hold more than all jobs have
// under way, also ahead of a slow sample: at least `kUnderWay`, or a quarter of
// the room if that is less.
constexpr int64_t kSamplesOfRing = 50;
constexpr int64_t kUnderWay = 1024;
constexpr int64_t kRoomOfUnderWay = 4;
// A smaller ring is of no use.
constexpr int64_t kLeastInTransit = 8;

// The ring gets 1 / kBytesOfRing while it is unknown how many samples fit.
constexpr int64_t kBytesOfRing = 16;

// Whether nothing is kept, because only other jobs could use it. The ring then
// gets all the room, so the room's size must be known.
bool KeepsNone(const RoomOptions& options) {
  return MayShare(options) && options.schedule.reuse_factor == 1 &&
         options.random_access &&
         (options.max_bytes != kUnlimited || options.sample_bytes > 0);
}

}  // namespace

int64_t RoomOfShard(int64_t max_bytes, int64_t num_shards) {
  if (max_bytes == kUnlimited) return max_bytes;
  int64_t here = 0;
  const char* const local = std::getenv("LOCAL_WORLD_SIZE");
  if (local == nullptr || !absl::SimpleAtoi(local, &here)) here = num_shards;
  return max_bytes / std::clamp<int64_t>(here, 1, num_shards);
}

std::optional<uint32_t> NumKept(const RoomOptions& options) {
  const int64_t num_samples = options.num_samples;
  if (num_samples < 0) return std::nullopt;
  if (KeepsNone(options)) return 0;
  if (options.max_bytes == kUnlimited || options.sample_bytes == 0) {
    return num_samples;
  }
  if (options.sample_bytes < 0) return std::nullopt;
  const int64_t room = options.max_bytes / options.sample_bytes;
  if (room >= num_samples) return num_samples;
  if (!MayShare(options)) return room;
  const int64_t in_transit = std::min(
      room, std::max((num_samples + kSamplesOfRing - 1) / kSamplesOfRing,
                     std::min(kUnderWay, room / kRoomOfUnderWay)));
  return in_transit < kLeastInTransit ? room : room - in_transit;
}

int64_t TransitBytes(const RoomOptions& options, const Schedule* schedule) {
  if (!MayShare(options)) return 0;
  if (schedule == nullptr || options.sample_bytes < 0) {
    if (options.max_bytes == kUnlimited) return 0;
    if (KeepsNone(options)) return options.max_bytes;
    // With r = 1, a stream has no ring: it keeps what fits, for other jobs.
    return options.schedule.reuse_factor == 1
               ? 0
               : options.max_bytes / kBytesOfRing;
  }
  // The ring needs no more room than all samples that are not kept.
  const int64_t bytes = options.sample_bytes;
  const int64_t num_kept = schedule->capacity();
  const int64_t left = std::min(options.max_bytes - num_kept * bytes,
                                (schedule->num_samples() - num_kept) * bytes);
  return left < kLeastInTransit * bytes ? 0 : left;
}

}  // namespace refurbish_tf

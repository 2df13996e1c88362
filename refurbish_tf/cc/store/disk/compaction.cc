#include "refurbish_tf/cc/store/disk/compaction.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace refurbish_tf {
namespace {

constexpr int64_t kLeastChange = 1 << 20;
constexpr int64_t kCompactionsOfLive = 16;
// Segments are emptied while the sealed ones take more than this many times
// their live bytes. Small active segments and frequent compactions keep the sum
// of all segments below twice the live bytes.
constexpr double kMostOverhead = 1.6;

// Chooses the segments to empty.
std::set<SegmentKey> SegmentsToEmpty(Records* records) {
  std::map<SegmentKey, uint64_t> live;
  for (const SegmentKey& key : records->segments().ListSealed()) live[key] = 0;
  records->index().ForEach([&](uint64_t, uint64_t word) {
    const Location location = DecodeLocation(word);
    const auto found = live.find({location.large, location.segment});
    if (found != live.end()) found->second += location.size;
  });
  const auto disk_bytes = [records](const SegmentKey& key) {
    return std::max<uint64_t>(records->segments().DiskBytes(key), 1);
  };
  std::set<SegmentKey> chosen;
  uint64_t total = 0;
  uint64_t total_live = 0;
  std::vector<std::pair<double, SegmentKey>> candidates;
  for (const auto& [key, alive] : live) {
    if (alive == 0) {
      chosen.insert(key);
      continue;
    }
    const uint64_t bytes = disk_bytes(key);
    total += bytes;
    total_live += alive;
    candidates.emplace_back(static_cast<double>(alive) / bytes, key);
  }
  // Segments with the smallest live fraction first.
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [alive, key] : candidates) {
    if (total <= kMostOverhead * total_live) break;
    chosen.insert(key);
    total -= std::min(total, disk_bytes(key));
    total_live -= live[key];
  }
  return chosen;
}

// Moves a record to another segment. False if it must stay for now.
bool MoveRecord(Records* records, uint64_t index, uint64_t word) {
  const Location from = DecodeLocation(word);
  if (records->index().Load(index) != word) return true;  // It has died.
  RecordBuffer record;
  switch (records->Read(index, word, /*anew=*/false, &record)) {
    case Records::ReadResult::kRight:
      break;
    case Records::ReadResult::kWrong:
      records->MakeAbsent(index, word);
      return true;
    case Records::ReadResult::kNotNow:
      return false;
  }
  const size_t size = sizeof(RecordHeader) + record.payload_size();
  std::memset(record.data() + size, 0, record.size() - size);
  absl::StatusOr<Location> to =
      records->Append(from.large, from.size, {{record.data(), record.size()}});
  if (!to.ok()) return false;
  to->tag = from.tag;
  // Points the index to the moved record, unless a put has replaced it.
  if (records->index().CompareExchange(index, &word, EncodeLocation(*to))) {
    records->counts().bytes_moved += from.size;
  } else {
    records->Dispose(EncodeLocation(*to));
  }
  return true;
}

}  // namespace

bool IsCompactionDue(const SharedState& state, uint64_t began_at) {
  const uint64_t changed = state.changed();
  // The counter is 0 again if the file that holds it was cut.
  return changed < began_at ||
         changed - began_at >=
             static_cast<uint64_t>(std::max<int64_t>(
                 kLeastChange, state.bytes() / kCompactionsOfLive));
}

void CompactSegments(Records* records, const std::function<bool()>& go_on) {
  records->segments().CloseDeleted();
  records->segments().Adopt();
  const std::set<SegmentKey> chosen = SegmentsToEmpty(records);
  if (chosen.empty()) return;
  using Record = std::pair<uint64_t, uint64_t>;  // Its word and index.
  std::map<SegmentKey, std::vector<Record>> to_move;
  for (const SegmentKey& key : chosen) to_move[key];
  records->index().ForEach([&](uint64_t index, uint64_t word) {
    const Location location = DecodeLocation(word);
    const auto found = to_move.find({location.large, location.segment});
    if (found != to_move.end()) found->second.emplace_back(word, index);
  });
  for (auto& [key, of_segment] : to_move) {
    // In file order, so that they are read sequentially.
    std::sort(of_segment.begin(), of_segment.end(),
              [](const Record& a, const Record& b) {
                return DecodeLocation(a.first).offset <
                       DecodeLocation(b.first).offset;
              });
    bool all_moved = true;
    for (const auto& [word, index] : of_segment) {
      if (!go_on()) return;
      all_moved = MoveRecord(records, index, word);
      if (!all_moved) break;  // The next compaction tries again.
    }
    // A segment stays if a record could not be moved: the disk may be full.
    if (!all_moved) continue;
    records->segments().Delete(key);
    records->counts().compactions += !of_segment.empty();
  }
}

}  // namespace refurbish_tf

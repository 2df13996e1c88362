#include "refurbish_tf/cc/store/disk/allocator.h"

#include <algorithm>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kLeastSegment = 1 << 20;
// The limit of a segment is the live bytes divided by this, so that active
// segments, which are not compacted, count little.
constexpr int64_t kSegmentsOfLive = 16;
// All records are scanned again when the live bytes divided by this have
// changed.
constexpr uint64_t kLooksOfLive = 16;
// How many records `MakeRoom` tries.
constexpr int kMostTries = 16;

}  // namespace

absl::StatusOr<SegmentPosition> Allocator::Append(bool large, uint64_t space,
                                                  std::vector<iovec> parts) {
  Segments& segments = records_->segments();
  SharedState& state = records_->state();
  if (!adopted_) {
    adopted_ = true;
    segments.Adopt();
  }
  const uint64_t limit = std::min<uint64_t>(
      most_[large], std::max(kLeastSegment, state.bytes() / kSegmentsOfLive));
  absl::StatusOr<SegmentPosition> position =
      segments.Append(large, space, limit);
  if (!position.ok()) return position;
  absl::Status written =
      env_->Write(position->file->fd(), position->offset, std::move(parts));
  if (!written.ok()) {
    segments.UndoAppend(large, *position);
    return written;
  }
  state.AddChanged(space);
  helps_[large] = true;
  if (!large && reusing_) {
    // There is room again.
    reusing_ = false;
    dead_.clear();
    Forget();
  }
  return position;
}

absl::StatusOr<Location> Allocator::Write(bool large, uint64_t space,
                                          Generation generation,
                                          const std::vector<iovec>& parts) {
  if (full_[large].ok()) {
    const absl::StatusOr<SegmentPosition> position =
        Append(large, space, parts);
    if (position.ok()) {
      return Location{large, position->segment, position->offset, space,
                      TagOf(generation)};
    }
    full_[large] = position.status();
  }
  if (large || !IsFull(full_[large])) return full_[large];
  reusing_ = true;
  std::optional<Dead> dead = ReuseDead(space);
  if (!dead.has_value() && Look()) dead = ReuseDead(space);
  if (!dead.has_value()) return full_[large];
  RTF_ASSIGN_OR_RETURN(const std::shared_ptr<File> file,
                       records_->segments().OpenOwn({false, dead->segment}));
  RTF_RETURN_IF_ERROR(env_->Write(file->fd(), dead->offset, parts));
  records_->state().AddChanged(space);
  helps_[false] = true;
  return Location{false, dead->segment, dead->offset, space, TagOf(generation)};
}

std::optional<Allocator::Dead> Allocator::ReuseDead(uint64_t space) {
  const auto found = dead_.lower_bound(space);
  if (found == dead_.end()) return std::nullopt;
  const auto [size, dead] = *found;
  dead_.erase(found);
  if (size > space) {
    dead_.emplace(size - space, Dead{dead.segment, dead.offset + space});
  }
  return dead;
}

bool Allocator::Look() {
  const uint64_t changed = records_->state().changed();
  const uint64_t worth = records_->state().bytes() / kLooksOfLive;
  if (looked_at_ != 0 && changed - looked_at_ < worth) return false;
  looked_at_ = changed;
  using Range = std::pair<uint64_t, uint64_t>;  // Offset, size.
  std::map<SegmentKey, std::vector<Range>> live;
  const std::vector<Segments::Segment> own = records_->segments().ListOwn();
  for (const Segments::Segment& segment : own) {
    if (closed_.count(segment.key) == 0) live[segment.key];
  }
  for (auto& heap : live_) heap.clear();
  const std::shared_ptr<const Records::Ranks> ranks = records_->ranks();
  records_->index().ForEach([&](uint64_t index, uint64_t word) {
    const Location location = DecodeLocation(word);
    const auto found = live.find({location.large, location.segment});
    if (found == live.end()) return true;
    if (!location.large) {
      found->second.emplace_back(location.offset, location.size);
    }
    live_[location.large].emplace_back((*ranks)(index), index);
    return true;
  });
  for (auto& heap : live_) std::make_heap(heap.begin(), heap.end());
  dead_.clear();
  for (const Segments::Segment& segment : own) {
    const auto found = live.find(segment.key);
    if (found == live.end() || segment.key.first) continue;
    // A damaged word may point anywhere.
    found->second.emplace_back(segment.end, 0);
    std::sort(found->second.begin(), found->second.end());
    uint64_t end = 0;
    for (const auto& [offset, size] : found->second) {
      if (offset > segment.end) break;
      if (offset > end) {
        dead_.emplace(offset - end, Dead{segment.key.second, end});
      }
      end = std::max(end, offset + size);
    }
  }
  return true;
}

void Allocator::Release(uint64_t word) {
  if (word == 0) return;
  const Location location = DecodeLocation(word);
  const SegmentKey key(location.large, location.segment);
  if (location.large || !reusing_) {
    records_->Dispose(word);
    full_[location.large] = absl::OkStatus();
  } else if (closed_.count(key) == 0 && records_->segments().IsOwn(key)) {
    dead_.emplace(location.size, Dead{location.segment, location.offset});
  }
}

bool Allocator::MakeRoom(uint32_t index, bool large, uint64_t space) {
  Look();
  auto& live = live_[large];
  const uint32_t rank = (*records_->ranks())(index);
  for (int tries = 0; tries < kMostTries && !live.empty(); ++tries) {
    const auto [least, other] = live.front();
    if (least <= rank) return false;
    std::pop_heap(live.begin(), live.end());
    live.pop_back();
    const uint64_t word = records_->index().Load(other);
    const Location location = DecodeLocation(word);
    const SegmentKey key(large, location.segment);
    if (word == 0 || location.large != large || location.size < space ||
        closed_.count(key) != 0 || !records_->segments().IsOwn(key)) {
      continue;
    }
    Release(records_->Remove(other, /*evict=*/true));
    return true;
  }
  return false;
}

void Allocator::Published(uint32_t index, bool large) {
  if (looked_at_ == 0) return;
  // A replaced record's sample is in the heap twice for some time.
  if (static_cast<int64_t>(live_[large].size()) >
      2 * records_->state().entries() + kMostTries) {
    return Forget();
  }
  live_[large].emplace_back((*records_->ranks())(index), index);
  std::push_heap(live_[large].begin(), live_[large].end());
}

void Allocator::Forget() {
  looked_at_ = 0;
  for (auto& heap : live_) heap = {};
}

void Allocator::Close(std::set<SegmentKey> segments) {
  closed_ = std::move(segments);
  for (auto dead = dead_.begin(); dead != dead_.end();) {
    dead = closed_.count({false, dead->second.segment}) != 0 ? dead_.erase(dead)
                                                             : std::next(dead);
  }
}

}  // namespace refurbish_tf

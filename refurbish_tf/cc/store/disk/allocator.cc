#include "refurbish_tf/cc/store/disk/allocator.h"

#include <algorithm>
#include <utility>

namespace refurbish_tf {
namespace {

constexpr int64_t kLeastSegment = 1 << 20;
// The limit of a segment is the live bytes divided by this, so that active
// segments, which are not compacted, count little.
constexpr int64_t kSegmentsOfLive = 16;

}  // namespace

absl::StatusOr<Location> Allocator::Append(bool large, uint64_t space,
                                           std::vector<iovec> parts) {
  Segments& segments = records_->segments();
  SharedState& state = records_->state();
  if (!adopted_) {
    adopted_ = true;
    segments.Adopt();
  }
  const uint64_t limit = std::min<uint64_t>(
      most_[large], std::max(kLeastSegment, state.bytes() / kSegmentsOfLive));
  const absl::StatusOr<SegmentPosition> position =
      segments.Append(large, space, limit);
  if (!position.ok()) return position.status();
  absl::Status written =
      env_->Write(position->file->fd(), position->offset, std::move(parts));
  if (!written.ok()) {
    segments.UndoAppend(large, *position);
    return written;
  }
  state.AddChanged(space);
  return Location{large, position->segment, position->offset, space};
}

}  // namespace refurbish_tf

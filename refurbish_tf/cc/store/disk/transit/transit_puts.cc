#include "refurbish_tf/cc/store/disk/transit/transit_puts.h"

#include <sys/uio.h>

#include <algorithm>
#include <optional>

#include "refurbish_tf/cc/store/disk/shared_state.h"

namespace refurbish_tf {

using Clock = std::chrono::steady_clock;

bool TransitPuts::Reserve(uint64_t space) {
  std::lock_guard<std::mutex> lock(mu_);
  if (closed_ ||
      (num_records_ >= kLeastRecords && bytes_ + space > kMostBytes)) {
    return false;
  }
  ++num_records_;
  bytes_ += space;
  return true;
}

PutResult TransitPuts::Put(uint32_t index, Generation generation,
                           uint64_t space,
                           const std::function<RecordBuffer()>& make) {
  if (!ring_->IsOpen() || !Reserve(space)) {
    Release(index, generation);
    return PutResult::kNoRoom;
  }
  Entry entry{index, generation, {}, make()};
  std::optional<TransitRing::Span> span;
  if (entry.record.data() != nullptr) {
    span = ring_->Append(index, generation, space);
  }
  if (!span.has_value()) {
    Release(index, generation);
    std::lock_guard<std::mutex> lock(mu_);
    Unreserve(1, space);
    return PutResult::kNoRoom;
  }
  entry.span = *span;
  bool wake;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (filling_.empty()) filling_since_ = Clock::now();
    const bool was_enough = filling_bytes_ >= enough_;
    wake = filling_.empty();
    filling_bytes_ += space;
    wake |= !was_enough && filling_bytes_ >= enough_;
    filling_.push_back(std::move(entry));
  }
  if (wake) wake_();
  return PutResult::kStored;
}

Clock::time_point TransitPuts::DueAt() const {
  std::lock_guard<std::mutex> lock(mu_);
  if (filling_.empty()) return Clock::time_point::max();
  return filling_bytes_ >= enough_ ? Clock::time_point::min()
                                   : filling_since_ + delay_;
}

void TransitPuts::WriteBatch(
    const std::function<void(const absl::Status& why)>& failed) {
  Entries batch;
  size_t bytes;
  {
    std::lock_guard<std::mutex> lock(mu_);
    batch.swap(filling_);
    bytes = std::exchange(filling_bytes_, 0);
  }
  if (batch.empty()) return;
  std::sort(batch.begin(), batch.end(), [](const Entry& a, const Entry& b) {
    return a.span.offset < b.span.offset;
  });
  const Entry* const end = batch.data() + batch.size();
  bool together = true;
  for (const Entry* first = batch.data(); first < end;) {
    // Other processes may have taken the record's place in the ring since.
    if (!ring_->IsOwn(first->span)) {
      EndWrite(*first++, /*written=*/false);
      continue;
    }
    const Entry* next = first + 1;
    while (together && next < end && ring_->IsOwn(next->span) &&
           next->span.offset == next[-1].span.offset + next[-1].record.size()) {
      ++next;
    }
    absl::Status written = Write(first, next);
    if (!written.ok() && next - first > 1) {
      // The disk may have room for some of them. From here on, writes singly.
      together = false;
      next = first + 1;
      written = Write(first, next);
    }
    for (; first < next; ++first) EndWrite(*first, written.ok());
    if (!written.ok()) failed(written);
  }
  std::lock_guard<std::mutex> lock(mu_);
  Unreserve(batch.size(), bytes);
}

absl::Status TransitPuts::Write(const Entry* begin, const Entry* end) {
  std::vector<iovec> parts;
  for (const Entry* entry = begin; entry < end; ++entry) {
    parts.push_back({entry->record.data(), entry->record.size()});
  }
  return env_->Write(ring_->records()->fd(), begin->span.offset,
                     std::move(parts));
}

void TransitPuts::EndWrite(const Entry& entry, bool written) {
  if (written) {
    ring_->Publish(entry.span);
    records_->counts().transit_bytes_put += entry.record.size();
  } else {
    ring_->Drop(entry.span);
  }
  Release(entry.index, entry.generation);
}

}  // namespace refurbish_tf

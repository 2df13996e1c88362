#include "refurbish_tf/cc/store/disk/write_buffer.h"

#include <cstring>

namespace refurbish_tf {

using Clock = std::chrono::steady_clock;

PutResult WriteBuffer::Put(uint32_t index, Generation generation,
                           size_t record_size, RecordBuffer record) {
  if (IsForked()) return PutResult::kFailed;
  const auto space = static_cast<int64_t>(record.size());
  bool wake;
  {
    std::unique_lock<std::mutex> lock(mu_);
    while (filling_bytes_ + batch_bytes_ >= kMostBatches * enough_ &&
           !closed_) {
      written_.wait(lock);
    }
    if (closed_) return PutResult::kFailed;
    const auto found = newest_.find(index);
    Entry* const older = found == newest_.end() ? nullptr : found->second;
    if (older != nullptr) {
      // Another thread may have put the sample first.
      if (older->generation == generation) return PutResult::kStored;
      if (older->generation > generation) return PutResult::kNewerKept;
    }
    const uint64_t word = records_->index().Load(index);
    const int64_t on_disk = DecodeLocation(word).size;
    const int64_t replaced = older == nullptr ? on_disk : older->space();
    const int64_t max_bytes = max_bytes_;
    if (max_bytes != kUnlimited &&
        records_->state().bytes() + new_bytes_ - replaced + space > max_bytes) {
      return PutResult::kNoRoom;
    }
    // An older entry that is being written stays. Later, the new record
    // replaces it on the disk.
    const bool is_written = older != nullptr && older->being_written;
    if (older != nullptr && !is_written) Forget(older);
    auto entry = std::make_unique<Entry>();
    entry->index = index;
    entry->generation = generation;
    entry->record_size = record_size;
    entry->record = std::move(record);
    entry->new_entries = !is_written && word == 0;
    entry->new_bytes = space - (is_written ? replaced : on_disk);
    new_entries_ += entry->new_entries;
    new_bytes_ += entry->new_bytes;
    newest_[index] = entry.get();
    if (filling_.empty()) filling_since_ = Clock::now();
    const bool was_enough = filling_bytes_ >= enough_;
    wake = filling_.empty();
    filling_bytes_ += entry->space();
    wake |= !was_enough && filling_bytes_ >= enough_;
    filling_.push_back(std::move(entry));
  }
  if (wake) wake_();
  return PutResult::kStored;
}

bool WriteBuffer::Get(uint64_t index, GenerationRange wanted,
                      RecordBuffer* record) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = newest_.find(index);
  if (found == newest_.end() || !wanted.Contains(found->second->generation)) {
    return false;
  }
  const Entry& entry = *found->second;
  *record = RecordBuffer(entry.record_size);
  if (record->data() == nullptr) return false;
  std::memcpy(record->data(), entry.record.data(), entry.record_size);
  return true;
}

void WriteBuffer::Forget(Entry* entry) {
  if (entry->dropped) return;
  entry->dropped = true;
  new_entries_ -= entry->new_entries;
  new_bytes_ -= entry->new_bytes;
  const auto found = newest_.find(entry->index);
  if (found != newest_.end() && found->second == entry) newest_.erase(found);
}

bool WriteBuffer::Drop(uint64_t index) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = newest_.find(index);
  if (found == newest_.end()) return false;
  // An older entry may be in the batch that is being written.
  for (const std::unique_ptr<Entry>& entry : batch_) {
    if (entry->index == index) Forget(entry.get());
  }
  const auto filling = newest_.find(index);
  if (filling != newest_.end()) Forget(filling->second);
  return true;
}

const WriteBuffer::Batch& WriteBuffer::BeginBatch() {
  std::lock_guard<std::mutex> lock(mu_);
  batch_ = std::move(filling_);
  filling_.clear();
  for (const std::unique_ptr<Entry>& entry : batch_)
    entry->being_written = true;
  batch_bytes_ = filling_bytes_;
  filling_bytes_ = 0;
  return batch_;
}

Clock::time_point WriteBuffer::DueAt() const {
  std::lock_guard<std::mutex> lock(mu_);
  if (filling_.empty()) return Clock::time_point::max();
  return filling_bytes_ >= enough_ ? Clock::time_point::min()
                                   : filling_since_ + delay_;
}

std::vector<uint64_t> WriteBuffer::Publish(const Entry& entry,
                                           const Location& location) {
  const uint64_t word = EncodeLocation(location);
  // With the lock held, so that the record is always counted exactly once.
  std::lock_guard<std::mutex> lock(mu_);
  if (entry.dropped) return {word};
  uint64_t dead;
  std::vector<uint64_t> all_dead;
  if (records_->Publish(entry.index, entry.generation, location, max_bytes_,
                        &dead) == PutResult::kNoRoom) {
    // Other processes have used up the limit since the put. As in a put without
    // room, the older generation is removed.
    all_dead.push_back(
        records_->Remove(entry.index, /*evict=*/true, entry.generation));
  }
  all_dead.push_back(dead);
  Forget(const_cast<Entry*>(&entry));
  return all_dead;
}

void WriteBuffer::EndBatch() {
  Batch batch;  // Freed without the lock.
  {
    std::lock_guard<std::mutex> lock(mu_);
    batch = std::move(batch_);
    batch_.clear();
    batch_bytes_ = 0;
  }
  written_.notify_all();
}

void WriteBuffer::Close() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
  }
  written_.notify_all();
}

}  // namespace refurbish_tf

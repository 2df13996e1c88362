#include "refurbish_tf/cc/store/disk/read_ahead.h"

#include <utility>

namespace refurbish_tf {
namespace {

// The most memory for reads: enough for 64 photographs in float32.
constexpr size_t kMostBytes = 64 << 20;

// How many reads one `Start` begins. Few, because a `Get` of one of these waits
// until all have begun.
constexpr size_t kStartedAtOnce = 8;

}  // namespace

DiskReadAhead::~DiskReadAhead() {
  Entries entries;
  {
    std::lock_guard<std::mutex> lock(mu_);
    entries.swap(entries_);
  }
  for (auto& [ticket, entry] : entries) {
    if (entry->state != State::kStarted) continue;
    store_->records().read_queue().Wait(&entry->read);
  }
}

size_t DiskReadAhead::Room() const {
  // One more batch may be queued while all possible reads are under way.
  const size_t most = store_->reads_in_flight() + kStartedAtOnce;
  std::lock_guard<std::mutex> lock(mu_);
  if (entries_.size() + kStartedAtOnce > most) return 0;
  return most - entries_.size();
}

void DiskReadAhead::Want(const std::vector<WantedSample>& wanted) {
  std::lock_guard<std::mutex> lock(mu_);
  for (const WantedSample& sample : wanted) {
    auto entry = std::make_unique<Entry>();
    entry->wanted = sample;
    entries_.emplace(sample.ticket, std::move(entry));
    wanted_.push_back(sample.ticket);
  }
  any_wanted_ = true;
}

void DiskReadAhead::Start() {
  if (!any_wanted_.load(std::memory_order_relaxed)) return;
  std::unique_lock<std::mutex> lock(mu_);
  if (starting_) return;
  starting_ = true;
  const std::vector<Entry*> batch = NextBatch();
  lock.unlock();
  std::vector<Read*> reads;
  for (Entry* const entry : batch) {
    if (Open(entry)) reads.push_back(&entry->read);
  }
  if (!reads.empty()) {
    store_->records().read_queue().Start(reads.data(), reads.size());
  }
  lock.lock();
  for (Entry* const entry : batch) {
    if (entry->file != nullptr) {
      entry->state = State::kStarted;
    } else {
      Remove(entries_.find(entry->wanted.ticket));
    }
  }
  if (waiting_ > 0) started_.notify_all();
  starting_ = false;
  any_wanted_ = !wanted_.empty();
}

std::vector<DiskReadAhead::Entry*> DiskReadAhead::NextBatch() {
  std::vector<Entry*> batch;
  while (!wanted_.empty() && batch.size() < kStartedAtOnce &&
         bytes_ <= kMostBytes) {
    const auto found = entries_.find(wanted_.front());
    wanted_.pop_front();
    if (found == entries_.end()) continue;
    Entry* const entry = found->second.get();
    if (!Locate(entry)) {
      entries_.erase(found);
      continue;
    }
    entry->state = State::kStarting;
    bytes_ += entry->read.size;
    batch.push_back(entry);
  }
  return batch;
}

bool DiskReadAhead::Locate(Entry* entry) const {
  const WantedSample& wanted = entry->wanted;
  if (wanted.position.has_value()) {
    if (store_->transit() == nullptr) return false;
    const TransitRing::Entry there = store_->transit()->At(*wanted.position);
    entry->read.offset = there.offset;
    entry->read.size = there.size;
    return there.state == TransitRing::Entry::State::kThere &&
           there.index == wanted.index;
  }
  entry->word = store_->records().Locate(wanted.index, wanted.generations);
  const Location location = DecodeLocation(entry->word);
  entry->read.offset = location.offset;
  entry->read.size = location.size;
  return entry->word != 0;
}

bool DiskReadAhead::Open(Entry* entry) {
  absl::StatusOr<Segments::Opened> opened =
      entry->wanted.position.has_value()
          ? Segments::Opened{store_->transit()->records(), /*foreign=*/true}
          : store_->records().segments().OpenToRead(DecodeLocation(entry->word),
                                                    /*anew=*/false);
  entry->buffer = RecordBuffer(entry->read.size);
  if (!opened.ok() || entry->buffer.data() == nullptr) return false;
  entry->buffer.foreign = opened->foreign;
  entry->file = std::move(opened->file);
  entry->read.fd = entry->file->fd();
  entry->read.data = entry->buffer.data();
  return true;
}

std::unique_ptr<DiskReadAhead::Entry> DiskReadAhead::Remove(
    Entries::iterator position) {
  std::unique_ptr<Entry> entry = std::move(position->second);
  entries_.erase(position);
  if (entry->state != State::kWanted) bytes_ -= entry->read.size;
  return entry;
}

bool DiskReadAhead::Get(const WantedSample& wanted, RecordBuffer* record) {
  Records& records = store_->records();
  std::unique_ptr<Entry> entry;
  {
    std::unique_lock<std::mutex> lock(mu_);
    auto found = entries_.find(wanted.ticket);
    while (found != entries_.end() &&
           found->second->state == State::kStarting) {
      ++waiting_;
      started_.wait(lock);
      --waiting_;
      found = entries_.find(wanted.ticket);
    }
    if (found != entries_.end()) {
      entry = Remove(found);
      if (entry->state == State::kWanted) entry = nullptr;
    }
  }
  const bool in_transit = wanted.position.has_value();
  if (entry == nullptr && in_transit) {
    entry = std::make_unique<Entry>();
    entry->wanted = wanted;
    if (Locate(entry.get()) && Open(entry.get())) {
      Read* const read = &entry->read;
      records.read_queue().Start(&read, 1);
    } else {
      entry = nullptr;
    }
  }
  // A miss if the record has been removed since it was located. A sample in
  // transit is also missed if another record has replaced it or is being
  // written there.
  bool hit = false;
  if (entry != nullptr) {
    const int64_t bytes = records.read_queue().Wait(&entry->read);
    hit = bytes >= 0 &&
          (in_transit || records.index().Load(wanted.index) == entry->word) &&
          entry->buffer.Verify(records.store_id(), wanted.index, bytes) &&
          wanted.generations.Contains(entry->buffer.header().generation);
  }
  if (!hit && !in_transit) {
    return store_->Get(wanted.index, wanted.generations, record);
  }
  ++(hit ? records.counts().hits : records.counts().misses);
  if (!hit) return false;
  *record = std::move(entry->buffer);
  records.counts().from_other_jobs += record->foreign;
  return true;
}

}  // namespace refurbish_tf

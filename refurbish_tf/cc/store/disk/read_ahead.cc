#include "refurbish_tf/cc/store/disk/read_ahead.h"

#include <utility>

namespace refurbish_tf {
namespace {

constexpr size_t kMostBytes = 16 << 20;

}  // namespace

DiskReadAhead::~DiskReadAhead() {
  std::unordered_map<uint64_t, std::unique_ptr<Entry>> entries;
  {
    std::lock_guard<std::mutex> lock(mu_);
    entries.swap(entries_);
  }
  for (auto& [ticket, entry] : entries) {
    store_->records().read_queue().Wait(&entry->read);
  }
}

size_t DiskReadAhead::Room() const {
  const size_t most = store_->reads_in_flight();
  std::lock_guard<std::mutex> lock(mu_);
  // In batches, as each costs a system call.
  if (entries_.size() > most / 2 || bytes_ > kMostBytes / 2) return 0;
  return most - entries_.size();
}

void DiskReadAhead::Start(const std::vector<WantedSample>& wanted) {
  Records& records = store_->records();
  std::vector<std::pair<uint64_t, std::unique_ptr<Entry>>> started;
  std::vector<Read*> reads;
  size_t bytes;
  {
    std::lock_guard<std::mutex> lock(mu_);
    bytes = bytes_;
  }
  for (const WantedSample& sample : wanted) {
    const uint64_t word = records.Locate(sample.index, sample.generations);
    if (word == 0 || bytes > kMostBytes) continue;
    const Location location = DecodeLocation(word);
    auto entry = std::make_unique<Entry>();
    absl::StatusOr<std::shared_ptr<File>> file = records.segments().OpenToRead(
        location, /*anew=*/false, &entry->foreign);
    entry->buffer = RecordBuffer(location.size);
    if (!file.ok() || entry->buffer.data() == nullptr) continue;
    entry->word = word;
    entry->file = *std::move(file);
    entry->read.fd = entry->file->fd();
    entry->read.offset = location.offset;
    entry->read.data = entry->buffer.data();
    entry->read.size = location.size;
    bytes += location.size;
    reads.push_back(&entry->read);
    started.emplace_back(sample.ticket, std::move(entry));
  }
  if (reads.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [ticket, entry] : started) {
      bytes_ += entry->read.size;
      entries_.emplace(ticket, std::move(entry));
    }
  }
  // None of them is got before this returns: that is for who starts them to see
  // to.
  records.read_queue().Start(reads.data(), reads.size());
}

bool DiskReadAhead::Get(const WantedSample& wanted, RecordBuffer* record) {
  Records& records = store_->records();
  std::unique_ptr<Entry> entry;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = entries_.find(wanted.ticket);
    if (found != entries_.end()) {
      entry = std::move(found->second);
      entries_.erase(found);
      bytes_ -= entry->read.size;
    }
  }
  if (entry == nullptr) {
    return store_->Get(wanted.index, wanted.generations, record);
  }
  const int64_t bytes = records.read_queue().Wait(&entry->read);
  // Not if it has been removed since.
  const bool hit =
      bytes >= 0 && records.index().Load(wanted.index) == entry->word &&
      entry->buffer.Verify(records.store_id(), wanted.index, bytes) &&
      wanted.generations.Contains(entry->buffer.header().generation);
  if (!hit) return store_->Get(wanted.index, wanted.generations, record);
  *record = std::move(entry->buffer);
  ++records.counts().hits;
  records.counts().foreign_hits += entry->foreign;
  return true;
}

}  // namespace refurbish_tf

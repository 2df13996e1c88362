#include "refurbish_tf/cc/store/disk/writer.h"

#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace refurbish_tf {
namespace {

using Clock = std::chrono::steady_clock;

// How often an idle process looks for work that others have left it. Only it
// can empty its segments, and the space of segments that others have deleted is
// not freed while they are open here.
constexpr std::chrono::seconds kLookAfter(5);

}  // namespace

Writer::Writer(const Directory* directory, Records* records, Index* claims,
               TransitRing* ring, const Options& options)
    : directory_(directory),
      records_(records),
      claims_(claims),
      ring_(ring),
      write_buffer_(options.write_buffer),
      compaction_(records),
      buffer_(records, options.max_bytes, options.write_buffer,
              options.write_delay, [this] { Wake(); }),
      transit_(ring, claims, &directory->env(), options.write_buffer,
               options.write_delay, [this] { Wake(); }) {}

absl::Status Writer::Start() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Cannot start a thread for the cache store ", directory_->path(), ": ",
        error.what(), ". Give the process more memory or threads."));
  }
  return absl::OkStatus();
}

Writer::~Writer() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Writer::Wake() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    woken_ = true;
  }
  wake_.notify_all();
}

void Writer::Flush() {
  if (buffer_.IsForked()) return;
  std::unique_lock<std::mutex> lock(mu_);
  const uint64_t own = ++flushes_;
  woken_ = true;
  wake_.notify_all();
  while (flushed_ < own && !stopping_) written_.wait(lock);
}

void Writer::Compact(bool all) {
  if (buffer_.IsForked()) return;
  std::unique_lock<std::mutex> lock(mu_);
  all_asked_ |= all;
  const uint64_t own = ++asked_;
  wake_.notify_all();
  while (answered_ < own && !stopping_) compacted_.wait(lock);
}

bool Writer::IsStopping() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stopping_;
}

bool Writer::Await(Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopping_ && asked_ == answered_) {
    woken_ = false;
    lock.unlock();
    const Clock::time_point due = std::min(DueAt(), until);
    const bool now = due <= Clock::now() || compaction_.IsDue();
    lock.lock();
    if (now) break;
    if (!woken_ && !stopping_ && asked_ == answered_)
      wake_.wait_until(lock, due);
  }
  return !stopping_;
}

void Writer::Run() {
  try {
    WriteUntilTheEnd();
  } catch (const std::bad_alloc&) {
    WriteFailed(absl::ResourceExhaustedError("there is no memory to write"), 1);
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  buffer_.Close();
  transit_.Close();
  written_.notify_all();
  compacted_.notify_all();
}

void Writer::WriteUntilTheEnd() {
  Clock::time_point look_at = Clock::now() + kLookAfter;
  while (Await(look_at)) {
    MendFiles();
    if (DueAt() <= Clock::now()) WriteBatch();
    uint64_t asked, answered;
    bool all;
    {
      std::lock_guard<std::mutex> lock(mu_);
      asked = asked_;
      answered = answered_;
      all = std::exchange(all_asked_, false);
    }
    if (all) records_->segments().Seal();
    if (asked != answered || compaction_.IsDue()) {
      RunCompaction();
    }
    if (look_at <= Clock::now()) {
      records_->segments().CloseDeleted();
      look_at = Clock::now() + kLookAfter;
    }
    {
      std::lock_guard<std::mutex> lock(mu_);
      answered_ = asked;
    }
    compacted_.notify_all();
  }
  WriteBatch();
}

void Writer::RunCompaction() {
  int64_t written_at = compaction_.bytes_moved();
  int64_t batch_bytes = 0;
  compaction_.Run([&] {
    // Records put in the meantime are also written, but only half as fast as
    // records are moved. Otherwise the compaction might never end.
    const int64_t moved = compaction_.bytes_moved();
    if (moved - written_at >= 2 * batch_bytes && DueAt() <= Clock::now()) {
      const int64_t before = records_->counts().bytes_put;
      WriteBatch();
      batch_bytes = records_->counts().bytes_put - before;
      written_at = moved;
    }
    return !IsStopping();
  });
}

Clock::time_point Writer::DueAt() const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (flushed_ < flushes_) return Clock::time_point::min();
  }
  return std::min(buffer_.DueAt(), transit_.DueAt());
}

void Writer::WriteBatch() {
  uint64_t flushes;
  {
    std::lock_guard<std::mutex> lock(mu_);
    flushes = flushes_;
  }
  WriteBatchOfKept();
  const auto [num_failed, failed] = transit_.WriteBatch();
  if (num_failed > 0) WriteFailed(failed, num_failed);
  {
    std::lock_guard<std::mutex> lock(mu_);
    flushed_ = flushes;
  }
  written_.notify_all();
}

void Writer::WriteBatchOfKept() {
  const WriteBuffer::Batch& batch = buffer_.BeginBatch();
  if (batch.empty()) return;
  // Small records are written together.
  Entries together;
  Entries alone;
  uint64_t space = 0;
  for (const auto& entry : batch) {
    if (buffer_.WasDropped(*entry)) continue;
    if (entry->large()) {
      alone.push_back(entry.get());
      continue;
    }
    if (space + entry->space() > write_buffer_) {
      WriteTogether(together, space, &alone);
      together.clear();
      space = 0;
    }
    together.push_back(entry.get());
    space += entry->space();
  }
  WriteTogether(together, space, &alone);
  absl::Status failed;
  int64_t num_failed = 0;
  for (const WriteBuffer::Entry* entry : alone) {
    absl::Status written = WriteOne(*entry);
    if (written.ok()) continue;
    buffer_.Fail(*entry);
    failed = std::move(written);
    ++num_failed;
  }
  if (num_failed > 0) WriteFailed(failed, num_failed);
  buffer_.EndBatch();
}

void Writer::WriteTogether(const Entries& entries, uint64_t space,
                           Entries* left) {
  if (entries.empty()) return;
  std::vector<iovec> parts;
  parts.reserve(entries.size());
  for (const WriteBuffer::Entry* entry : entries) {
    parts.push_back({entry->record.data(), entry->space()});
  }
  absl::StatusOr<Location> location =
      records_->Append(/*large=*/false, space, std::move(parts));
  if (!location.ok()) {
    left->insert(left->end(), entries.begin(), entries.end());
    return;
  }
  for (const WriteBuffer::Entry* entry : entries) {
    location->size = entry->space();
    Publish(*entry, *location);
    location->offset += entry->space();
  }
}

absl::Status Writer::WriteOne(const WriteBuffer::Entry& entry) {
  // Writes all of its space, so that the file's length says where the next
  // record may begin.
  const std::vector<iovec> parts = {{entry.record.data(), entry.space()}};
  const absl::StatusOr<Location> location =
      records_->Append(entry.large(), entry.space(), parts);
  if (!location.ok()) {
    if (StoreEnv::IsFull(location.status())) {
      // As at `max_bytes`, the older generation is removed: it is used up, and
      // the disk may then have room again.
      records_->Dispose(
          records_->Remove(entry.index, /*evict=*/true, entry.generation));
    }
    return location.status();
  }
  Publish(entry, *location);
  return absl::OkStatus();
}

void Writer::Publish(const WriteBuffer::Entry& entry, Location location) {
  location.tag = TagOf(entry.generation);
  for (const uint64_t dead : buffer_.Publish(entry, location)) {
    records_->Dispose(dead);
  }
}

void Writer::WriteFailed(const absl::Status& status, int64_t times) {
  failed_writes_ += times;
  if (!directory_->IsInPlace()) {
    gone_warning_.Say(directory_->path(),
                      "its directory was deleted. Samples are prepared again "
                      "when they are needed.");
    return;
  }
  SharedState& state = records_->state();
  failure_warning_.Say(
      directory_->path(),
      absl::StrCat(status.message(), ". The ", state.entries(), " samples (",
                   state.bytes() >> 10,
                   " KiB) that it holds stay in use until they are evicted. "
                   "The others are prepared again, until there is room."));
}

void Writer::MendFiles() {
  Index& index = records_->index();
  SharedState& state = records_->state();
  if (!index.WasCut() && !state.WasCut() && !claims_->WasCut() &&
      !ring_->WasCut()) {
    return;
  }
  const int64_t before = state.entries();
  absl::Status mended = index.Mend();
  if (mended.ok()) mended = state.Mend();
  if (mended.ok()) mended = claims_->Mend();
  if (mended.ok()) mended = ring_->Mend();
  if (!mended.ok()) return WriteFailed(mended, 1);
  records_->Recount();
  const int64_t lost = std::max<int64_t>(before - state.entries(), 0);
  records_->counts().corrupt += lost;
  lost_warning_.Say(
      directory_->path(),
      absl::StrCat("one of its files was truncated or replaced. ",
                   lost > 0 ? absl::StrCat(lost, " samples were lost and are")
                            : "Lost samples are",
                   " prepared again."));
}

}  // namespace refurbish_tf

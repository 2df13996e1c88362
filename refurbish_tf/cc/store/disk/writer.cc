#include "refurbish_tf/cc/store/disk/writer.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

using Clock = std::chrono::steady_clock;

// How often an idle process checks what other processes have done: they may
// have replaced the records in its segments, which only it can delete, or
// deleted segments, whose space is not freed while they are open here.
constexpr std::chrono::seconds kLookAfter(5);

}  // namespace

Writer::Writer(const Directory* directory, Records* records, Index* claims,
               TransitRing* ring, const Options& options)
    : directory_(directory),
      records_(records),
      claims_(claims),
      ring_(ring),
      write_buffer_(options.write_buffer),
      buffer_(records, options.max_bytes, options.write_buffer,
              options.write_delay, [this] { Wake(); }),
      transit_(ring, claims, records, &directory->env(), options.write_buffer,
               options.write_delay, [this] { Wake(); }) {}

absl::Status Writer::Start() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return ResourceExhausted("Cannot start a thread for the cache store ",
                             directory_->path(), ": ", error.what(),
                             ". Give the process more memory or threads.");
  }
  return absl::OkStatus();
}

void Writer::Wake() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    woken_ = true;
  }
  wake_.notify_all();
}

void Writer::Ask(Requests* requests) {
  if (buffer_.IsForked()) return;
  std::unique_lock<std::mutex> lock(mu_);
  const uint64_t own = ++requests->asked;
  woken_ = true;
  wake_.notify_all();
  while (requests->answered < own && !stopping_) answered_.wait(lock);
}

void Writer::Answer(Requests* requests, uint64_t asked) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    requests->answered = asked;
  }
  answered_.notify_all();
}

bool Writer::Await(Clock::time_point until) {
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopping_ && compactions_.asked == compactions_.answered) {
    woken_ = false;
    lock.unlock();
    const Clock::time_point due = std::min(DueAt(), until);
    const bool now = due <= Clock::now() || CompactionIsDue();
    lock.lock();
    if (now) break;
    if (!woken_) wake_.wait_until(lock, due);
  }
  return !stopping_;
}

void Writer::Run() {
  try {
    WriteUntilTheEnd();
  } catch (const std::bad_alloc&) {
    WriteFailed(ResourceExhausted("there is no memory to write"));
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  buffer_.Close();
  transit_.Close();
  answered_.notify_all();
}

void Writer::WriteUntilTheEnd() {
  Clock::time_point look_at = Clock::now() + kLookAfter;
  uint64_t answered = 0;
  while (Await(look_at)) {
    MendFiles();
    if (DueAt() <= Clock::now()) WriteBatch();
    const uint64_t asked = NumAsked(compactions_);
    if (seal_.exchange(false)) records_->segments().Seal();
    if (asked != answered || CompactionIsDue()) RunCompaction();
    if (look_at <= Clock::now()) {
      records_->segments().CloseDeleted();
      look_at = Clock::now() + kLookAfter;
    }
    answered = asked;
    Answer(&compactions_, asked);
  }
  WriteBatch();
}

void Writer::RunCompaction() {
  const Records::Counts& counts = records_->counts();
  int64_t written_at = counts.bytes_moved;
  int64_t batch_bytes = 0;
  compacted_at_ = records_->state().changed();
  CompactSegments(records_, [&] {
    // Also writes the records that are put during a compaction, but only half
    // as fast as records are moved. Otherwise the compaction might never end.
    const int64_t moved = counts.bytes_moved;
    if (moved - written_at >= 2 * batch_bytes && DueAt() <= Clock::now()) {
      const int64_t before = counts.bytes_put;
      WriteBatch();
      batch_bytes = counts.bytes_put - before;
      written_at = moved;
    }
    return !stopping_;
  });
}

Clock::time_point Writer::DueAt() const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (flushes_.answered < flushes_.asked) return Clock::time_point::min();
  }
  return std::min(buffer_.DueAt(), transit_.DueAt());
}

void Writer::WriteBatch() {
  const uint64_t asked = NumAsked(flushes_);
  WriteBatchOfKept();
  absl::Status failed;
  int64_t num_failed = 0;
  transit_.WriteBatch([&](const absl::Status& why) {
    failed = why;
    ++num_failed;
  });
  if (num_failed > 0) WriteFailed(failed, num_failed);
  Answer(&flushes_, asked);
}

void Writer::WriteBatchOfKept() {
  const WriteBuffer::Batch& batch = buffer_.BeginBatch();
  if (batch.empty()) return;
  // Small records are written together.
  Entries together;
  Entries alone;
  uint64_t space = 0;
  const auto write_together = [&] {
    if (!together.empty() && !Write(together, space).ok()) {
      alone.insert(alone.end(), together.begin(), together.end());
    }
    together.clear();
    space = 0;
  };
  for (const auto& entry : batch) {
    if (buffer_.WasDropped(*entry)) continue;
    if (entry->large()) {
      alone.push_back(entry.get());
      continue;
    }
    if (space + entry->space() > write_buffer_) write_together();
    together.push_back(entry.get());
    space += entry->space();
  }
  write_together();
  absl::Status failed;
  int64_t num_failed = 0;
  for (const WriteBuffer::Entry* entry : alone) {
    absl::Status written = Write({entry}, entry->space());
    if (written.ok()) continue;
    if (StoreEnv::IsFull(written)) {
      // As at `max_bytes`, the older generation is removed: it is used up, and
      // the disk may then have room again.
      records_->Dispose(
          records_->Remove(entry->index, /*evict=*/true, entry->generation));
    }
    buffer_.Fail(*entry);
    failed = std::move(written);
    ++num_failed;
  }
  if (num_failed > 0) WriteFailed(failed, num_failed);
  buffer_.EndBatch();
}

absl::Status Writer::Write(const Entries& entries, uint64_t space) {
  // Includes padding, so that the next record can begin at the file's end.
  std::vector<iovec> parts;
  parts.reserve(entries.size());
  for (const WriteBuffer::Entry* entry : entries) {
    parts.push_back({entry->record.data(), entry->space()});
  }
  RTF_ASSIGN_OR_RETURN(
      Location location,
      records_->Append(entries[0]->large(), space, std::move(parts)));
  for (const WriteBuffer::Entry* entry : entries) {
    location.size = entry->space();
    location.tag = TagOf(entry->generation);
    for (const uint64_t dead : buffer_.Publish(*entry, location)) {
      records_->Dispose(dead);
    }
    location.offset += entry->space();
  }
  return absl::OkStatus();
}

void Writer::WriteFailed(const absl::Status& status, int64_t times) {
  records_->counts().failed_writes += times;
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
  SharedState& state = records_->state();
  std::vector<MappedFile*> files = {&records_->index().file(), &state.file(),
                                    &claims_->file()};
  if (Index* const words = ring_->words()) files.push_back(&words->file());
  const auto was_cut = [](const MappedFile* file) { return file->WasCut(); };
  if (std::none_of(files.begin(), files.end(), was_cut)) return;
  const int64_t before = state.entries();
  for (MappedFile* const file : files) {
    const absl::Status mended = file->Mend();
    if (!mended.ok()) return WriteFailed(mended);
  }
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

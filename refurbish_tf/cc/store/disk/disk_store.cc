#include "refurbish_tf/cc/store/disk/disk_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <thread>

#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/store_files.h"

namespace refurbish_tf {
namespace {

size_t PayloadOf(absl::Span<const iovec> parts) {
  size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

bool LockWhole(int fd, int operation) {
  return TEMP_FAILURE_RETRY(flock(fd, operation)) == 0;
}

// Takes a shared lock. Tries for a while, because the locks of a killed process
// are freed one after another: its exclusive lock may still be there.
bool ShareWhole(int fd) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (LockWhole(fd, LOCK_SH | LOCK_NB)) return true;
    if (errno != EWOULDBLOCK) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  errno = EWOULDBLOCK;
  return false;
}

// The byte of the lock file that a process locks while it opens the store or
// checks whether it is alone. The first byte is for the settings.
constexpr uint64_t kOpeningByte = 1;

absl::Status CannotLock(const Directory& directory) {
  if (errno == EWOULDBLOCK) {
    return directory.Unusable(absl::StrCat(
        "its ", kLockFile,
        " is locked by a process that uses it as a different file, perhaps "
        "because files were renamed. Nothing was changed. End the processes "
        "that have it open, or give another directory."));
  }
  return ErrnoError("Cannot lock ", directory.path(), "/", kLockFile,
                    ". A cache store on disk needs locks, which network file "
                    "systems often lack. Choose a directory on a local disk");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskStore>> DiskStore::Open(
    const std::string& path, DiskStoreOptions options) try {
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<Directory> directory,
                       Directory::Open(path, options.env));
  const Directory& opened = *directory;
  // Checked before any file is made in the directory.
  absl::StatusOr<std::vector<std::string>> names = ListOwnFiles(opened);
  if (!names.ok()) {
    // Another version of the package may have other files. The error then names
    // the format of that version.
    const absl::Status other = SettingsFile(&opened).Read().status();
    return absl::IsUnimplemented(other) ? other : names.status();
  }
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<File> lock_file,
                       opened.OpenFile(kLockFile, O_CREAT));
  std::unique_ptr<DiskStore> store(
      new DiskStore(std::move(directory), std::move(lock_file), options));
  const int lock_fd = store->lock_file_->fd();
  // Two locks. Under the first, processes open the store one at a time. So a
  // process that also gets the second exclusively stays alone until it is done.
  bool alone = false;
  if (!LockByte(lock_fd, F_OFD_SETLKW, kOpeningByte, F_WRLCK).has_value() ||
      !((alone = LockWhole(lock_fd, LOCK_EX | LOCK_NB)) ||
        ShareWhole(lock_fd))) {
    return CannotLock(opened);
  }
  RTF_RETURN_IF_ERROR(store->OpenFiles(std::move(options), alone));
  if (alone && !ShareWhole(lock_fd)) return CannotLock(opened);
  opened.env().Unlock(lock_fd, kOpeningByte);
  return store;
} catch (const std::bad_alloc&) {
  return ResourceExhausted("Not enough memory to open the cache store ", path);
}

DiskStore::~DiskStore() {
  if (writer_ == nullptr || !writer_->buffer().IsForked()) return;
  // This is a child made by fork(). It leaks these objects, because the threads
  // that their destructors would join exist only in the parent.
  writer_.release();
  ring_.release();
  records_.release();
}

absl::Status DiskStore::OpenFiles(DiskStoreOptions options, bool alone) {
  const Directory& directory = *directory_;
  if (options.overwrite) {
    if (!alone) {
      return directory.Unusable(
          "overwrite=True, but another process has it open. Wait until it ends, "
          "or give another directory.");
    }
    RTF_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         ListOwnFiles(directory));
    RTF_RETURN_IF_ERROR(DeleteFiles(directory, names));
  }
  RTF_ASSIGN_OR_RETURN(
      StoreContents contents,
      ReadOrMakeContents(directory, alone && !options.must_exist));
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<Index> index,
                       Index::Open(&directory, kIndexFile));
  RTF_ASSIGN_OR_RETURN(claims_, Index::Open(&directory, kClaimsFile));
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<SharedState> state,
                       SharedState::Open(&directory, kStateFile));
  source_sums_ = std::make_unique<MappedChecksums>(&directory, contents.id);
  records_ = std::make_unique<Records>(
      &directory, contents.id, &segments_, std::move(index), std::move(state),
      options.read_queue != nullptr
          ? std::move(options.read_queue)
          : std::make_unique<ReadQueue>(reads_in_flight_));
  {
    std::lock_guard<std::mutex> lock(settings_mu_);
    settings_ = std::move(contents.settings);
  }
  // A process that died may have left the counts wrong.
  if (alone) records_->Recount();
  ring_ = std::make_unique<TransitRing>(&directory, &records_->state());
  writer_ = std::make_unique<Writer>(
      &directory, records_.get(), claims_.get(), ring_.get(),
      Writer::Options{max_bytes_, options.write_buffer,
                      std::chrono::milliseconds(options.write_delay_ms)});
  LimitKept();
  return writer_->Start();
}

absl::Status DiskStore::CheckDirectory() const {
  if (directory_->IsInPlace() && directory_->IsNamed(*lock_file_, kLockFile)) {
    return absl::OkStatus();
  }
  return FailedPrecondition(
      "The directory of the cache store ", directory(),
      " was deleted while the store was in use in this process. Drop the "
      "CacheStore and the datasets that use it first (del, gc.collect()), or "
      "give another directory.");
}

absl::Status DiskStore::Agree(const Settings& settings, bool replace,
                              std::chrono::milliseconds patience) {
  RTF_ASSIGN_OR_RETURN(const Settings agreed,
                       SettingsFile(directory_.get())
                           .Agree(settings, replace, kLockFile, patience));
  // Agreed settings change only by `replace`, so the order of concurrent calls
  // does not matter.
  std::lock_guard<std::mutex> lock(settings_mu_);
  for (const auto& [name, value] : agreed) settings_[name] = value;
  return absl::OkStatus();
}

Settings DiskStore::settings() const {
  std::lock_guard<std::mutex> lock(settings_mu_);
  return settings_;
}

bool DiskStore::Get(uint64_t index, GenerationRange wanted,
                    RecordBuffer* record) {
  if (writer_->buffer().Get(index, wanted, record)) {
    ++records_->counts().hits;
    return true;
  }
  if (records_->Get(index, wanted, record)) return true;
  ++records_->counts().misses;
  return false;
}

bool DiskStore::Contains(uint64_t index, GenerationRange wanted) {
  if (records_->Locate(index, wanted) != 0 ||
      writer_->buffer().Contains(index, wanted) ||
      // The record may have moved from the buffer to the disk in between.
      records_->Locate(index, wanted) != 0) {
    return true;
  }
  ++records_->counts().misses;
  return false;
}

PutResult DiskStore::Put(uint64_t index, Generation generation,
                         absl::Span<const iovec> parts) {
  const size_t payload = PayloadOf(parts);
  if (!CanStore(index, generation, payload)) return PutResult::kFailed;
  if (const uint64_t word = records_->index().Load(index); word != 0) {
    const Generation stored = NearestGeneration(TagOfWord(word), generation);
    if (stored > generation) return PutResult::kNewerKept;
    // Whichever process prepares it, a generation has the same content.
    if (stored == generation) return PutResult::kStored;
  }
  absl::Status reserved = records_->index().Reserve(index);
  if (!reserved.ok()) {
    writer_->WriteFailed(reserved);
    return PutResult::kFailed;
  }
  RecordBuffer record = MakeRecord(index, generation, parts, payload);
  if (record.data() == nullptr) return PutResult::kFailed;
  const PutResult result = writer_->buffer().Put(
      index, generation, sizeof(RecordHeader) + payload, std::move(record));
  // Removes the older generation that this put should have replaced.
  if (result == PutResult::kNoRoom) Remove(index, /*evict=*/true);
  return result;
}

bool DiskStore::CanStore(uint64_t index, Generation generation,
                         size_t payload) {
  if (index < Index::kMaxSamples && generation != kNoGeneration &&
      payload <= kMaxRecord - sizeof(RecordHeader)) {
    return true;
  }
  refused_warning_.Say(
      directory(),
      absl::StrCat("sample ", index, " of ", payload,
                   " bytes cannot be kept: its index must be below ",
                   Index::kMaxSamples, " and its record at most ", kMaxRecord,
                   " bytes. Such samples are prepared again at each use."));
  return false;
}

RecordBuffer DiskStore::MakeRecord(uint64_t index, Generation generation,
                                   absl::Span<const iovec> parts,
                                   size_t payload) {
  const size_t record_size = sizeof(RecordHeader) + payload;
  RecordBuffer record(RecordSpace(record_size));
  if (record.data() == nullptr) return record;
  uint32_t crc = 0;
  char* to = record.data() + sizeof(RecordHeader);
  for (const auto& [data, size] : parts) {
    if (size == 0) continue;  // `data` may be null.
    crc = Crc32c(data, size, crc);
    std::memcpy(to, data, size);
    to += size;
  }
  const RecordHeader header =
      MakeRecordHeader(records_->store_id(), index, generation, payload, crc);
  std::memcpy(record.data(), &header, sizeof(header));
  std::memset(to, 0, record.size() - record_size);
  return record;
}

absl::Status DiskStore::PlanTransit(int64_t bytes, int64_t record_bytes) {
  std::lock_guard<std::mutex> lock(plan_mu_);
  // The ring gets only the room that is left by the samples already kept.
  if (max_bytes_ != kUnlimited) {
    bytes = std::min(bytes, max_bytes_ - records_->state().bytes());
  }
  if (bytes <= 0 || ring_->IsOpen()) return absl::OkStatus();
  const int lock_fd = lock_file_->fd();
  // While this process holds the opening byte, no other opens the store, so a
  // process that is alone stays alone until the ring is there. If another
  // process holds the byte, this one does not wait: the other may be suspended.
  const bool asked = directory_->env().TryLock(lock_fd, kOpeningByte);
  const bool alone = asked && LockWhole(lock_fd, LOCK_EX | LOCK_NB);
  absl::Status planned = ring_->Plan(bytes, record_bytes, alone);
  // Takes the shared lock again: even a refused exclusive lock releases it.
  if (asked && !ShareWhole(lock_fd)) planned = CannotLock(*directory_);
  if (asked) directory_->env().Unlock(lock_fd, kOpeningByte);
  LimitKept();
  if (StoreEnv::IsFull(planned) || absl::IsUnavailable(planned)) {
    no_ring_warning_.Say(directory(),
                         absl::StrCat(planned.message(),
                                      ". So this job neither uses nor provides "
                                      "samples in transit."));
    return absl::OkStatus();
  }
  return planned;
}

void DiskStore::LimitKept() {
  if (max_bytes_ == kUnlimited) return;
  writer_->buffer().Limit(
      std::max(max_bytes_ - ring_->bytes(),
               std::min(max_bytes_, records_->state().bytes())));
}

PutResult DiskStore::PutInTransit(uint64_t index, Generation generation,
                                  absl::Span<const iovec> parts) {
  TransitPuts& puts = writer_->transit();
  const size_t payload = PayloadOf(parts);
  if (writer_->buffer().IsForked() || !CanStore(index, generation, payload)) {
    puts.Release(index, generation);
    return PutResult::kFailed;
  }
  return puts.Put(
      index, generation, RecordSpace(sizeof(RecordHeader) + payload),
      [&] { return MakeRecord(index, generation, parts, payload); });
}

bool DiskStore::Remove(uint64_t index, bool evict) {
  // The next sample at this index may be prepared from another source.
  if (!evict) source_sums_->Forget(index);
  const bool was_in_memory = writer_->buffer().Drop(index);
  const uint64_t word = records_->Remove(index, evict);
  if (word == 0) {
    records_->counts().evictions += was_in_memory && evict;
    return was_in_memory;
  }
  records_->Dispose(word);
  writer_->RecordsDied();
  return true;
}

void DiskStore::Clear() {
  writer_->buffer().DropAll();
  ring_->Clear();
  Flush();  // Waits for writes under way.
  source_sums_->ForgetAll();
  records_->index().ForEach([this](uint64_t index, uint64_t) {
    records_->Remove(index, /*evict=*/false);
  });
  writer_->Compact(/*all=*/true);
}

std::vector<uint64_t> DiskStore::Indices() const {
  std::vector<uint64_t> indices = writer_->buffer().Indices();
  records_->index().ForEach(
      [&](uint64_t index, uint64_t) { indices.push_back(index); });
  return indices;
}

SampleMapStats DiskStore::Stats() const {
  SampleMapStats stats;
  const auto [entries, bytes] = writer_->buffer().Live();
  // The shared counts may be damaged, and then negative.
  stats.entries = std::max<int64_t>(0, entries);
  stats.bytes = std::max<int64_t>(0, bytes);
  const Records::Counts& counts = records_->counts();
  stats.hits = counts.hits;
  stats.misses = counts.misses;
  stats.evictions = counts.evictions;
  return stats;
}

std::pair<int64_t, int64_t> DiskStore::Verify() {
  Flush();
  std::pair<int64_t, int64_t> counts = {0, 0};
  records_->index().ForEach([&](uint64_t index, uint64_t word) {
    RecordBuffer record;
    // `anew`, because the segment may have been deleted and made again.
    switch (records_->Read(index, word, /*anew=*/true, &record)) {
      case Records::ReadResult::kRight:
        ++counts.first;
        break;
      case Records::ReadResult::kWrong:
        if (records_->index().Load(index) != word) break;
        records_->MakeAbsent(index, word);
        ++counts.second;
        break;
      case Records::ReadResult::kNotNow:
        break;
    }
  });
  return counts;
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/store/disk/disk_store.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/store/disk/crc32c.h"

namespace refurbish_tf {
namespace {

constexpr char kLockFile[] = "/lock";
constexpr char kSettingsFile[] = "/store";
constexpr char kIndexFile[] = "/index";
constexpr char kClaimsFile[] = "/claims";
constexpr char kStateFile[] = "/state";

constexpr int64_t kLeastSegment = 1 << 20;
// A segment is at most this part of what is live, so that the ones which are
// being filled, and are not compacted, do not count much.
constexpr int64_t kSegmentsOfLive = 16;
// Segments are compacted when the sealed ones take more than this times what is
// live in them. The share of a fresh segment and what is appended between two
// compactions keep the sum of all below twice what is live.
constexpr double kMostOverhead = 1.6;

constexpr size_t kReadAheadBytes = 16 << 20;
constexpr int kReadAttempts = 4;
// So often a process that does nothing looks whether others have left something
// to do for it: it alone can give back the space of its segments.
constexpr std::chrono::seconds kLookAfter(5);

absl::Status Unusable(const std::string& directory, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Cannot use ", directory, " as a cache store: ", why));
}

absl::Status MakeDirectories(const std::string& directory) {
  for (size_t end = directory.find('/', 1);;
       end = directory.find('/', end + 1)) {
    const std::string part = directory.substr(0, end);
    if (!part.empty() && mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("Cannot make the directory ", part,
                              " for a cache store"));
    }
    if (end == std::string::npos) break;
  }
  struct stat status;
  if (stat(directory.c_str(), &status) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot use ", directory));
  }
  if (!S_ISDIR(status.st_mode)) {
    return Unusable(directory,
                    "it is a file. Give a directory, which may not exist yet.");
  }
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("Cannot write into ", directory,
                            ", which a cache store needs. Give a directory of "
                            "your own"));
  }
  return absl::OkStatus();
}

// The names of the files of a store in `directory`, or an error that names one
// which is none.
absl::StatusOr<std::vector<std::string>> ListOwnFiles(
    const std::string& directory) {
  DIR* listing = opendir(directory.c_str());
  if (listing == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot list ", directory));
  }
  std::vector<std::string> names;
  std::string foreign;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (("/" + name) != kLockFile && ("/" + name) != kSettingsFile &&
        ("/" + name) != kIndexFile && ("/" + name) != kClaimsFile &&
        ("/" + name) != kStateFile &&
        !SettingsFile::IsTemporaryName(name) && !Segments::IsSegmentName(name)) {
      foreign = name;
    }
    names.push_back(name);
  }
  closedir(listing);
  if (foreign.empty()) return names;
  return Unusable(directory,
                  absl::StrCat("it holds ", foreign,
                               ", which is not of a cache store. Nothing was "
                               "changed. Give an empty or new directory."));
}

void DeleteFiles(const std::string& directory,
                 const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if ("/" + name == kLockFile) continue;
    unlink((directory + "/" + name).c_str());
  }
}

bool LockWhole(int fd, int operation) {
  while (flock(fd, operation) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// Of the lock file, for whoever is opening the store. The first byte is that of
// the settings.
bool LockOpening(int fd, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = 1;
  lock.l_len = 1;
  while (fcntl(fd, F_OFD_SETLKW, &lock) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

size_t TotalSize(const iovec* parts, int num_parts) {
  size_t size = 0;
  for (int i = 0; i < num_parts; ++i) size += parts[i].iov_len;
  return size;
}

bool WriteAll(int fd, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    const int count = std::min<size_t>(parts.size() - first, IOV_MAX);
    ssize_t written = pwritev(fd, &parts[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    if (written == 0) {
      errno = ENOSPC;
      return false;
    }
    offset += written;
    while (first < parts.size() &&
           static_cast<size_t>(written) >= parts[first].iov_len) {
      written -= parts[first++].iov_len;
    }
    if (written > 0) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + written;
      parts[first].iov_len -= written;
    }
  }
  return true;
}

}  // namespace

DiskStore::DiskStore(std::string directory, DiskStoreOptions options)
    : directory_(std::move(directory)),
      options_(std::move(options)),
      segments_(directory_),
      read_queue_(std::move(options_.read_queue)) {
  if (read_queue_ == nullptr) {
    read_queue_ = ReadQueue::Create(options_.reads_in_flight);
  }
}

absl::StatusOr<std::unique_ptr<DiskStore>> DiskStore::Open(
    const std::string& directory, DiskStoreOptions options) {
  absl::Status status = MakeDirectories(directory);
  if (!status.ok()) return status;
  // Before anything is made in it.
  absl::StatusOr<std::vector<std::string>> names = ListOwnFiles(directory);
  if (!names.ok()) {
    // A newer package may use other files.
    status = SettingsFile(directory + kSettingsFile).Read().status();
    return absl::IsFailedPrecondition(status) ? status : names.status();
  }
  const std::string lock_path = directory + kLockFile;
  std::unique_ptr<DiskStore> store(
      new DiskStore(directory, std::move(options)));
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", lock_path));
  }
  store->lock_file_ = std::make_shared<File>(fd);
  // Two locks: one at a time opens the store, so that whoever is alone knows it
  // stays so, and whoever is not finds it made.
  bool alone = false;
  if (!LockOpening(fd, F_WRLCK) ||
      !((alone = LockWhole(fd, LOCK_EX | LOCK_NB)) || LockWhole(fd, LOCK_SH))) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("Cannot lock ", lock_path,
                            ", which a cache store on disk needs; network file "
                            "systems often cannot. Choose a directory on a local "
                            "disk"));
  }
  if (store->options_.overwrite) {
    if (!alone) {
      return Unusable(directory,
                      "overwrite=True, but another process has it open. Wait "
                      "until it ends, or give another directory.");
    }
    names = ListOwnFiles(directory);
    if (!names.ok()) return names.status();
    DeleteFiles(directory, *names);
  }
  SettingsFile file(directory + kSettingsFile);
  absl::StatusOr<Settings> settings = file.Read();
  if (absl::IsFailedPrecondition(settings.status())) {
    return settings.status();  // Of a newer package.
  }
  if (!settings.ok()) {
    if (!alone || store->options_.must_exist) {
      return Unusable(directory, std::string(settings.status().message()));
    }
    // New, or damaged; then nothing is known of what is there.
    names = ListOwnFiles(directory);
    if (!names.ok()) return names.status();
    if (!absl::IsNotFound(settings.status())) {
      std::fprintf(stderr,
                   "refurbish_tf: %s: %s The cache store begins anew.\n",
                   directory.c_str(),
                   std::string(settings.status().message()).c_str());
    }
    DeleteFiles(directory, *names);
    settings = Settings();
    status = file.Write(*settings);
    if (!status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<Index>> index =
      Index::Open(directory + kIndexFile);
  if (!index.ok()) return index.status();
  absl::StatusOr<std::unique_ptr<Index>> claims =
      Index::Open(directory + kClaimsFile);
  if (!claims.ok()) return claims.status();
  absl::StatusOr<std::unique_ptr<SharedState>> state =
      SharedState::Open(directory + kStateFile);
  if (!state.ok()) return state.status();
  store->index_ = *std::move(index);
  store->claims_ = *std::move(claims);
  store->state_ = *std::move(state);
  {
    std::lock_guard<std::mutex> lock(store->settings_mu_);
    store->settings_ = *std::move(settings);
  }
  if (alone) {
    if (!LockWhole(fd, LOCK_SH)) {
      return absl::ErrnoToStatus(errno, absl::StrCat("Cannot lock ", lock_path));
    }
    // Others open the store when that is done.
    store->recount_ = true;
  } else {
    LockOpening(fd, F_UNLCK);
  }
  store->background_ = std::thread([store = store.get()] {
    store->Background();
  });
  return store;
}

DiskStore::~DiskStore() {
  cancelled_ = true;
  if (background_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      stopping_ = true;
    }
    wake_background_.notify_all();
    background_.join();
    Flush();
  }
}

absl::Status DiskStore::Agree(const Settings& settings) {
  std::lock_guard<std::mutex> lock(settings_mu_);
  SettingsFile file(directory_ + kSettingsFile);
  absl::StatusOr<Settings> agreed =
      file.Agree(settings, directory_ + kLockFile);
  if (!agreed.ok()) return agreed.status();
  settings_ = *std::move(agreed);
  return absl::OkStatus();
}

Settings DiskStore::settings() const {
  std::lock_guard<std::mutex> lock(settings_mu_);
  return settings_;
}

// Reading --------------------------------------------------------------------

uint64_t DiskStore::Locate(uint64_t index, GenerationRange wanted) const {
  const uint64_t word = index_->Load(index);
  return word != 0 && wanted.Contains(GenerationOfWord(word)) ? word : 0;
}

bool DiskStore::GetPending(uint64_t index, GenerationRange wanted,
                           RecordBuffer* record) {
  const auto found = pending_.find(index);
  if (found == pending_.end()) return false;
  const Queued& queued = QueuedOf(found->second);
  if (!wanted.Contains(queued.generation)) return false;
  if (record != nullptr) {
    const WriteBuffer& buffer = found->second.flushing ? flushing_ : filling_;
    *record = RecordBuffer(queued.size);
    std::memcpy(record->data(), &buffer.bytes[queued.offset], queued.size);
  }
  return true;
}

bool DiskStore::Get(uint64_t index, GenerationRange wanted,
                    RecordBuffer* record) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (GetPending(index, wanted, record)) {
      ++hits_;
      return true;
    }
  }
  uint64_t word = Locate(index, wanted);
  for (int attempt = 0; word != 0 && attempt < kReadAttempts; ++attempt) {
    bool foreign;
    const ReadResult result =
        ReadRecord(index, word, /*anew=*/attempt > 0, record, &foreign);
    if (result == ReadResult::kRight) {
      ++hits_;
      foreign_hits_ += foreign;
      return true;
    }
    if (result == ReadResult::kNotNow) break;
    // It may just have been replaced or moved.
    const uint64_t now = Locate(index, wanted);
    if (now == word && attempt > 0) {
      MakeAbsent(index, word);
      break;
    }
    word = now;
  }
  ++misses_;
  return false;
}

DiskStore::ReadResult DiskStore::ReadRecord(uint64_t index, uint64_t word,
                                            bool anew, RecordBuffer* record,
                                            bool* foreign) {
  const Location location = DecodeLocation(word);
  const std::shared_ptr<File> file =
      segments_.OpenToRead(location, anew, foreign);
  if (file == nullptr) {
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM
               ? ReadResult::kNotNow
               : ReadResult::kWrong;
  }
  *record = RecordBuffer(location.size);
  Read read;
  read.fd = file->fd();
  read.offset = location.offset;
  read.data = record->data();
  read.size = location.size;
  Read* const reads[] = {&read};
  read_queue_->Start(reads, 1);
  const int64_t bytes = read_queue_->Wait(&read);
  return bytes >= 0 && record->Verify(index, location.generation, bytes)
             ? ReadResult::kRight
             : ReadResult::kWrong;
}

void DiskStore::Discard(uint64_t index, Generation generation) {
  const uint64_t word = index_->Load(index);
  if (GenerationOfWord(word) == generation) MakeAbsent(index, word);
}

std::vector<uint64_t> DiskStore::Indices() const {
  std::vector<uint64_t> indices;
  index_->ForEach([&](uint64_t index, uint64_t) {
    indices.push_back(index);
    return true;
  });
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [index, pending] : pending_) indices.push_back(index);
  return indices;
}

void DiskStore::MakeAbsent(uint64_t index, uint64_t word) {
  Recount();  // So that it does not miss this.
  // Not disposed of: if it is the word that is damaged, other records are there.
  if (!ClearWord(index, word)) return;
  ++corrupt_;
  WarnOnce(&corrupt_warned_,
           absl::StrCat("sample ", index,
                        " could not be read or its checksum is wrong. Such "
                        "samples are prepared again."));
}

bool DiskStore::Contains(uint64_t index, GenerationRange wanted) {
  if (Locate(index, wanted) != 0) return true;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (GetPending(index, wanted, nullptr)) return true;
  }
  // It may have been written in between.
  if (Locate(index, wanted) != 0) return true;
  ++misses_;
  return false;
}

Generation DiskStore::StoredGeneration(uint64_t index) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = pending_.find(index);
  if (found != pending_.end()) return QueuedOf(found->second).generation;
  return GenerationOfWord(index_->Load(index));
}

// Writing --------------------------------------------------------------------

PutResult DiskStore::Put(uint64_t index, Generation generation,
                         const iovec* parts, int num_parts) {
  const size_t payload = TotalSize(parts, num_parts);
  const size_t record_size = sizeof(RecordHeader) + payload;
  if (index >= Index::kMaxSamples || generation > kMaxGeneration ||
      record_size > kMaxRecord) {
    WarnOnce(&refused_warned_,
             absl::StrCat("sample ", index, " of ", payload,
                          " bytes and generation ", generation,
                          " is beyond what can be kept: indices below ",
                          Index::kMaxSamples, ", ", kMaxRecord,
                          " bytes, generation ", kMaxGeneration,
                          ". Such samples are prepared afresh."));
    return PutResult::kFailed;
  }
  const Generation stored = StoredGeneration(index);
  if (stored != kNoGeneration && stored > generation) {
    return PutResult::kNewerKept;
  }
  // What a generation of a sample is does not depend on who prepares it.
  if (stored == generation) return PutResult::kStored;
  // Whoever writes faster than the background thread can compact has to help.
  if (CompactionIsDue(/*times=*/2)) Compact();
  const uint64_t space = RecordSpace(record_size);
  if (options_.max_bytes != kUnlimited) Recount();
  if (!index_->Reserve(index)) {
    WriteFailed(errno);
    return PutResult::kFailed;
  }
  uint32_t crc = 0;
  for (int i = 0; i < num_parts; ++i) {
    crc = Crc32c(parts[i].iov_base, parts[i].iov_len, crc);
  }
  const RecordHeader header = MakeRecordHeader(index, generation, payload, crc);
  return record_size < kLargeRecord
             ? PutSmall(header, space, parts, num_parts)
             : PutLarge(header, space, parts, num_parts);
}

int64_t DiskStore::ReplacedSpace(uint64_t index) const {
  const auto found = pending_.find(index);
  return found != pending_.end() ? QueuedOf(found->second).size
                                 : DecodeLocation(index_->Load(index)).size;
}

bool DiskStore::HasRoom(uint64_t index, uint64_t space) const {
  return options_.max_bytes == kUnlimited ||
         state_->bytes() + pending_bytes_ - ReplacedSpace(index) +
                 static_cast<int64_t>(space) <=
             options_.max_bytes;
}

void DiskStore::DropQueued(size_t record) {
  Queued& queued = filling_.records[record];
  pending_entries_ -= queued.new_entries;
  pending_bytes_ -= queued.new_bytes;
  queued.size = queued.new_entries = queued.new_bytes = 0;
}

PutResult DiskStore::PutSmall(const RecordHeader& header, uint64_t space,
                              const iovec* parts, int num_parts) {
  std::unique_lock<std::mutex> lock(mu_);
  while (!filling_.bytes.empty() &&
         filling_.bytes.size() + space > options_.write_buffer) {
    lock.unlock();
    Flush();
    lock.lock();
  }
  const auto before = pending_.find(header.index);
  if (before != pending_.end()) {
    // Another thread may have been faster.
    const Generation generation = QueuedOf(before->second).generation;
    if (generation == header.generation) return PutResult::kStored;
    if (generation > header.generation) return PutResult::kNewerKept;
  }
  if (!HasRoom(header.index, space)) {
    lock.unlock();
    // What was to be replaced is of an older generation.
    Remove(header.index, /*evict=*/true);
    return PutResult::kNoRoom;
  }
  int64_t new_entries = 0;
  int64_t new_bytes = space;
  if (before == pending_.end() || !before->second.flushing) {
    if (before != pending_.end()) DropQueued(before->second.record);
    const uint64_t word = index_->Load(header.index);
    new_entries = word == 0;
    new_bytes -= DecodeLocation(word).size;
  } else {
    new_bytes -= QueuedOf(before->second).size;
  }
  if (filling_.bytes.empty()) {
    filling_since_ = std::chrono::steady_clock::now();
    wake_background_.notify_one();
  }
  const size_t offset = filling_.bytes.size();
  filling_.bytes.resize(offset + space);
  char* to = &filling_.bytes[offset];
  std::memcpy(to, &header, sizeof(header));
  to += sizeof(header);
  for (int i = 0; i < num_parts; ++i) {
    if (parts[i].iov_len == 0) continue;  // May be null.
    std::memcpy(to, parts[i].iov_base, parts[i].iov_len);
    to += parts[i].iov_len;
  }
  pending_[header.index] = {filling_.records.size(), false};
  filling_.records.push_back({header.index, header.generation, offset, space,
                              new_entries, new_bytes});
  pending_entries_ += new_entries;
  pending_bytes_ += new_bytes;
  return PutResult::kStored;
}

PutResult DiskStore::PutLarge(const RecordHeader& header, uint64_t space,
                              const iovec* parts, int num_parts) {
  std::vector<iovec> record;
  record.reserve(num_parts + 1);
  record.push_back({const_cast<RecordHeader*>(&header), sizeof(header)});
  record.insert(record.end(), parts, parts + num_parts);
  std::lock_guard<std::mutex> write_lock(write_mu_);
  bool has_room;
  {
    std::lock_guard<std::mutex> lock(mu_);
    has_room = HasRoom(header.index, space);
  }
  Segments::Place place;
  PutResult result = PutResult::kNoRoom;
  if (has_room) {
    if (!Write(std::move(record), space, /*large=*/true, &place)) {
      return PutResult::kFailed;
    }
    uint64_t dead;
    result = Publish(
        header.index,
        {true, place.segment, place.offset, space, header.generation}, &dead);
    Dispose(dead);
    DropPending(header.index, header.generation);
  }
  if (result == PutResult::kNoRoom) RemoveLocked(header.index, /*evict=*/true);
  return result;
}

void DiskStore::Flush() {
  std::lock_guard<std::mutex> write_lock(write_mu_);
  // Nobody changes `flushing_` while that is held.
  std::vector<Queued> records;
  iovec bytes;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (filling_.records.empty()) return;
    std::swap(filling_, flushing_);
    for (auto& [index, pending] : pending_) pending.flushing = true;
    records = flushing_.records;
    bytes = {flushing_.bytes.data(), flushing_.bytes.size()};
  }
  Segments::Place place;
  const bool written = Write({bytes}, bytes.iov_len, /*large=*/false, &place);
  for (const Queued& record : records) {
    if (record.size == 0) continue;
    uint64_t dead = 0;
    {
      // So that it is always counted once.
      std::lock_guard<std::mutex> lock(mu_);
      if (written &&
          Publish(record.index,
                  {false, place.segment, place.offset + record.offset,
                   record.size, record.generation},
                  &dead) == PutResult::kNoRoom) {
        // Other processes were faster, but the limit is the limit.
        dead = RemoveWord(record.index, /*evict=*/true);
      }
      pending_entries_ -= record.new_entries;
      pending_bytes_ -= record.new_bytes;
      const auto found = pending_.find(record.index);
      if (found != pending_.end() && found->second.flushing) {
        pending_.erase(found);
      }
    }
    Dispose(dead);
  }
  std::lock_guard<std::mutex> lock(mu_);
  flushing_.bytes.clear();
  flushing_.records.clear();
}

bool DiskStore::Write(std::vector<iovec> parts, uint64_t space, bool large,
                      Segments::Place* place) {
  if (!adopted_) {
    adopted_ = true;
    segments_.Adopt();
  }
  const uint64_t most = large ? options_.large_segment : options_.small_segment;
  const uint64_t limit = std::min<uint64_t>(
      most, std::max(kLeastSegment, state_->bytes() / kSegmentsOfLive));
  const std::optional<Segments::Place> found =
      segments_.Append(large, space, limit);
  if (!found.has_value()) {
    WriteFailed(errno);
    return false;
  }
  if (!WriteAll(found->file->fd(), std::move(parts), found->offset)) {
    WriteFailed(errno);
    segments_.TakeBack(large, *found);
    return false;
  }
  state_->AddChanged(space);
  WakeForCompaction();
  *place = *found;
  return true;
}

PutResult DiskStore::Publish(uint64_t index, const Location& location,
                             uint64_t* dead) {
  const uint64_t word = EncodeLocation(location);
  uint64_t old = index_->Load(index);
  *dead = word;
  while (true) {
    // A damaged word may be of no generation.
    const Generation generation = GenerationOfWord(old);
    if (generation != kNoGeneration && generation >= location.generation) {
      // Another process was faster.
      return generation == location.generation ? PutResult::kStored
                                               : PutResult::kNewerKept;
    }
    // Growth is counted before and shrinkage after, so that there is never more
    // than is counted.
    const int64_t entries = old == 0;
    const int64_t bytes = static_cast<int64_t>(location.size) -
                          static_cast<int64_t>(DecodeLocation(old).size);
    if (!state_->TryAdd(entries, std::max<int64_t>(bytes, 0),
                        options_.max_bytes)) {
      return PutResult::kNoRoom;
    }
    if (index_->CompareExchange(index, &old, word)) {
      state_->Add(0, std::min<int64_t>(bytes, 0));
      break;
    }
    state_->Add(-entries, -std::max<int64_t>(bytes, 0));
  }
  bytes_put_ += location.size;
  evictions_ += old != 0;
  *dead = old;
  return PutResult::kStored;
}

bool DiskStore::ClearWord(uint64_t index, uint64_t word) {
  if (!index_->CompareExchange(index, &word, 0)) return false;
  const int64_t size = DecodeLocation(word).size;
  state_->Add(-1, -size);
  state_->AddChanged(size);
  return true;
}

uint64_t DiskStore::RemoveWord(uint64_t index, bool evict) {
  uint64_t word;
  do {
    word = index_->Load(index);
    if (word == 0) return 0;
  } while (!ClearWord(index, word));
  evictions_ += evict;
  return word;
}

void DiskStore::Dispose(uint64_t word) {
  if (word == 0) return;
  const Location location = DecodeLocation(word);
  if (location.large) segments_.Punch(location);
}

void DiskStore::WriteFailed(int error) {
  ++failed_writes_;
  WarnOnce(&failure_warned_,
           absl::StrCat("cannot write: ", std::strerror(error),
                        ". What cannot be kept is prepared again when it is "
                        "needed."));
}

bool DiskStore::Remove(uint64_t index, bool evict) {
  std::lock_guard<std::mutex> lock(write_mu_);
  return RemoveLocked(index, evict);
}

bool DiskStore::RemoveLocked(uint64_t index, bool evict) {
  const bool was_pending = DropPending(index, kNoGeneration);
  const uint64_t word = RemoveWord(index, evict);
  if (word != 0) {
    Dispose(word);
    WakeForCompaction();
    return true;
  }
  evictions_ += was_pending && evict;
  return was_pending;
}

bool DiskStore::DropPending(uint64_t index, Generation generation) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = pending_.find(index);
  if (found == pending_.end() ||
      QueuedOf(found->second).generation >= generation) {
    return false;
  }
  // No flush is under way, so it is in `filling_`.
  DropQueued(found->second.record);
  pending_.erase(found);
  return true;
}

void DiskStore::Clear() {
  {
    std::lock_guard<std::mutex> write_lock(write_mu_);
    {
      std::lock_guard<std::mutex> lock(mu_);
      filling_.bytes.clear();
      filling_.records.clear();
      pending_.clear();
      pending_entries_ = 0;
      pending_bytes_ = 0;
    }
    index_->ForEach([this](uint64_t index, uint64_t) {
      RemoveWord(index, /*evict=*/false);
      return true;
    });
    segments_.Seal();
  }
  Compact();
}

// Maintenance ----------------------------------------------------------------

void DiskStore::Recount() {
  if (!recount_) return;
  std::lock_guard<std::mutex> lock(write_mu_);
  if (!recount_) return;
  int64_t entries = 0;
  int64_t bytes = 0;
  index_->ForEach([&](uint64_t, uint64_t word) {
    ++entries;
    bytes += DecodeLocation(word).size;
    return true;
  });
  state_->SetCounts(entries, bytes);
  recount_ = false;
  LockOpening(lock_file_->fd(), F_UNLCK);
}

CacheStoreStats DiskStore::StoreStats() {
  Recount();
  CacheStoreStats stats;
  {
    // No flush is under way, which would count twice.
    std::lock_guard<std::mutex> write_lock(write_mu_);
    std::lock_guard<std::mutex> lock(mu_);
    // Damage to what the processes share must not make it negative.
    stats.entries = std::max<int64_t>(0, state_->entries() + pending_entries_);
    stats.bytes = std::max<int64_t>(0, state_->bytes() + pending_bytes_);
  }
  stats.hits = hits_;
  stats.misses = misses_;
  stats.evictions = evictions_;
  return stats;
}

DiskStore::Counts DiskStore::Stats() {
  Counts counts;
  counts.store = StoreStats();
  const Segments::Usage usage = segments_.TotalUsage();
  counts.disk_bytes = usage.disk_bytes;
  counts.segments = usage.segments;
  counts.compactions = compactions_;
  counts.bytes_put = bytes_put_;
  counts.bytes_moved = bytes_moved_;
  counts.corrupt = corrupt_;
  counts.foreign_hits = foreign_hits_;
  counts.failed_writes = failed_writes_;
  return counts;
}

int DiskStore::Compact() {
  std::lock_guard<std::mutex> maintenance_lock(maintenance_mu_);
  compacted_at_ = state_->changed();
  segments_.CloseDeleted();
  segments_.Adopt();
  std::vector<Segments::Sealed> sealed;
  {
    // What has been appended to them is in the index, then.
    std::lock_guard<std::mutex> lock(write_mu_);
    sealed = segments_.ListSealed();
  }
  std::vector<uint64_t> live(2 * kNumSegments);
  const auto key = [](bool large, uint32_t segment) {
    return large * kNumSegments + segment;
  };
  index_->ForEach([&](uint64_t, uint64_t word) {
    const Location location = DecodeLocation(word);
    live[key(location.large, location.segment)] += location.size;
    return !cancelled_;
  });
  if (cancelled_) return 0;

  int done = 0;
  uint64_t total = 0;
  uint64_t total_live = 0;
  std::vector<std::pair<double, const Segments::Sealed*>> candidates;
  for (const Segments::Sealed& segment : sealed) {
    const uint64_t alive = live[key(segment.large, segment.segment)];
    if (alive == 0) {
      segments_.Delete(segment.large, segment.segment);
      ++done;
      continue;
    }
    total += segment.disk_bytes;
    total_live += alive;
    candidates.emplace_back(
        static_cast<double>(alive) / std::max<uint64_t>(segment.disk_bytes, 1),
        &segment);
  }
  // Those with the least to move first.
  std::sort(candidates.begin(), candidates.end());
  std::map<std::pair<bool, uint32_t>, std::vector<std::pair<uint64_t, uint64_t>>>
      victims;
  for (const auto& [alive, segment] : candidates) {
    if (total <= kMostOverhead * total_live) break;
    victims[{segment->large, segment->segment}];
    total -= segment->disk_bytes;
    total_live -= live[key(segment->large, segment->segment)];
  }
  if (victims.empty()) return done;
  index_->ForEach([&](uint64_t index, uint64_t word) {
    const Location location = DecodeLocation(word);
    const auto victim = victims.find({location.large, location.segment});
    if (victim != victims.end()) victim->second.emplace_back(word, index);
    return !cancelled_;
  });
  for (auto& [segment, records] : victims) {
    // In the order in which they are in the file.
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
      return DecodeLocation(a.first).offset < DecodeLocation(b.first).offset;
    });
    bool emptied = true;
    for (const auto& [word, index] : records) {
      if (cancelled_) return done;
      emptied &= Move(index, word);
      bool flush;
      {
        std::lock_guard<std::mutex> lock(mu_);
        flush = FlushIsDue();
      }
      if (flush) Flush();
    }
    // On a full disk, what could not be moved stays where it is.
    if (!emptied) continue;
    segments_.Delete(segment.first, segment.second);
    ++compactions_;
    ++done;
  }
  return done;
}

bool DiskStore::Move(uint64_t index, uint64_t word) {
  const Location from = DecodeLocation(word);
  RecordBuffer record;
  bool foreign;
  switch (ReadRecord(index, word, /*anew=*/false, &record, &foreign)) {
    case ReadResult::kRight:
      break;
    case ReadResult::kWrong:
      MakeAbsent(index, word);
      return true;
    case ReadResult::kNotNow:
      return false;
  }
  std::lock_guard<std::mutex> lock(write_mu_);
  if (index_->Load(index) != word) return true;  // Dead by now.
  const iovec part = {record.data(),
                      sizeof(RecordHeader) + record.payload_size()};
  Segments::Place place;
  if (!Write({part}, from.size, from.large, &place)) return false;
  Location to = from;
  to.segment = place.segment;
  to.offset = place.offset;
  uint64_t expected = word;
  if (index_->CompareExchange(index, &expected, EncodeLocation(to))) {
    bytes_moved_ += from.size;
  } else {
    Dispose(EncodeLocation(to));
  }
  return true;
}

std::pair<int64_t, int64_t> DiskStore::Verify() {
  Flush();
  std::pair<int64_t, int64_t> counts = {0, 0};
  index_->ForEach([&](uint64_t index, uint64_t word) {
    RecordBuffer record;
    bool foreign;
    // Anew, as a segment of that name may have been deleted and another made.
    switch (ReadRecord(index, word, /*anew=*/true, &record, &foreign)) {
      case ReadResult::kRight:
        ++counts.first;
        break;
      case ReadResult::kWrong:
        if (index_->Load(index) != word) break;
        MakeAbsent(index, word);
        ++counts.second;
        break;
      case ReadResult::kNotNow:
        break;
    }
    return true;
  });
  return counts;
}

bool DiskStore::FlushIsDue() const {
  return !filling_.records.empty() &&
         std::chrono::steady_clock::now() >=
             filling_since_ + std::chrono::milliseconds(options_.write_delay_ms);
}

bool DiskStore::CompactionIsDue(uint64_t times) const {
  return state_->changed() - compacted_at_ >=
         times * std::max<int64_t>(kLeastSegment,
                                   state_->bytes() / kSegmentsOfLive);
}

void DiskStore::WakeForCompaction() {
  if (!CompactionIsDue()) return;
  std::lock_guard<std::mutex> lock(mu_);
  wake_background_.notify_one();
}

void DiskStore::Background() {
  Recount();
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopping_) {
    if (FlushIsDue()) {
      lock.unlock();
      Flush();
      lock.lock();
    } else if (CompactionIsDue()) {
      lock.unlock();
      Compact();
      lock.lock();
    } else if (!filling_.records.empty()) {
      wake_background_.wait_until(
          lock,
          filling_since_ + std::chrono::milliseconds(options_.write_delay_ms));
    } else if (wake_background_.wait_for(lock, kLookAfter) ==
               std::cv_status::timeout) {
      lock.unlock();
      segments_.CloseDeleted();
      lock.lock();
    }
  }
}

void DiskStore::WarnOnce(std::atomic<bool>* warned, const std::string& what) {
  if (warned->exchange(true)) return;
  std::fprintf(stderr, "refurbish_tf: the cache store %s: %s\n",
               directory_.c_str(), what.c_str());
}

// Reading ahead --------------------------------------------------------------

DiskStore::ReadAhead::~ReadAhead() {
  std::lock_guard<std::mutex> lock(mu_);
  for (auto& [ticket, entry] : entries_) {
    store_->read_queue_->Wait(&entry->read);
  }
}

size_t DiskStore::ReadAhead::Room() const {
  const size_t most = store_->options_.reads_in_flight;
  std::lock_guard<std::mutex> lock(mu_);
  // In batches, as each costs a system call.
  if (entries_.size() > most / 2 || bytes_ > kReadAheadBytes / 2) return 0;
  return most - entries_.size();
}

void DiskStore::ReadAhead::Start(const std::vector<Wanted>& wanted) {
  std::vector<Read*> reads;
  std::unique_lock<std::mutex> lock(mu_);
  for (const Wanted& sample : wanted) {
    const uint64_t word = store_->Locate(sample.index, sample.generations);
    if (word == 0 || bytes_ > kReadAheadBytes) continue;
    const Location location = DecodeLocation(word);
    auto entry = std::make_unique<Entry>();
    entry->file = store_->segments_.OpenToRead(location, /*anew=*/false,
                                               &entry->foreign);
    if (entry->file == nullptr) continue;
    entry->word = word;
    entry->buffer = RecordBuffer(location.size);
    entry->read.fd = entry->file->fd();
    entry->read.offset = location.offset;
    entry->read.data = entry->buffer.data();
    entry->read.size = location.size;
    bytes_ += location.size;
    reads.push_back(&entry->read);
    entries_.emplace(sample.ticket, std::move(entry));
  }
  lock.unlock();
  // None of them is got before this returns: that is for who starts them to see
  // to.
  if (!reads.empty()) store_->read_queue_->Start(reads.data(), reads.size());
}

bool DiskStore::ReadAhead::Get(const Wanted& wanted, RecordBuffer* record) {
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
  const int64_t bytes = store_->read_queue_->Wait(&entry->read);
  const Generation generation = GenerationOfWord(entry->word);
  // Not if it has been removed since.
  const bool hit = bytes >= 0 && wanted.generations.Contains(generation) &&
                   store_->index_->Load(wanted.index) == entry->word &&
                   entry->buffer.Verify(wanted.index, generation, bytes);
  if (!hit) return store_->Get(wanted.index, wanted.generations, record);
  *record = std::move(entry->buffer);
  ++store_->hits_;
  store_->foreign_hits_ += entry->foreign;
  return true;
}

}  // namespace refurbish_tf

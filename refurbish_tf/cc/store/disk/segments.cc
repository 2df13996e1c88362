#include "refurbish_tf/cc/store/disk/segments.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>

#include "refurbish_tf/cc/base/entropy.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr char kSmallPrefix[] = "small-";
constexpr char kLargePrefix[] = "large-";
constexpr size_t kDigits = 5;

constexpr uint64_t kLeastSegment = 1 << 20;
// A segment is limited to the live bytes divided by this, so that active
// segments, which are not compacted, count little.
constexpr uint64_t kSegmentsOfLive = 16;

// Each possible segment name has a byte of the lock file, from this one on.
constexpr uint64_t kSegmentLocks = 1 << 20;

std::optional<SegmentKey> ParseName(const std::string& name) {
  for (const bool large : {false, true}) {
    const std::string prefix = large ? kLargePrefix : kSmallPrefix;
    if (name.size() != prefix.size() + kDigits ||
        name.compare(0, prefix.size(), prefix) != 0 ||
        name.find_first_not_of("0123456789", prefix.size()) !=
            std::string::npos) {
      continue;
    }
    const uint32_t number = std::stoul(name.substr(prefix.size()));
    if (number < kNumSegments) return SegmentKey(large, number);
  }
  return std::nullopt;
}

std::string NameOf(const SegmentKey& key) {
  char name[32];
  std::snprintf(name, sizeof(name), "%s%05u",
                key.first ? kLargePrefix : kSmallPrefix, key.second);
  return name;
}

std::vector<SegmentKey> List(const Directory& directory) {
  std::vector<SegmentKey> found;
  const absl::StatusOr<std::vector<std::string>> names = directory.List();
  if (!names.ok()) return found;
  for (const std::string& name : *names) {
    if (const auto key = ParseName(name)) found.push_back(*key);
  }
  return found;
}

uint64_t LockOf(const SegmentKey& key) {
  return kSegmentLocks + key.first * kNumSegments + key.second;
}

uint64_t RoundUp(uint64_t size, uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace

// Numbers begin at random, so that a number that one process has given up is
// not soon used by another. Otherwise, a third process that is about to punch a
// hole in the deleted segment could hit a record of the new one.
Segments::Segments(const Directory* directory, std::shared_ptr<File> lock_file,
                   uint64_t small_segment, uint64_t large_segment)
    : directory_(directory),
      lock_file_(std::move(lock_file)),
      most_{std::min(small_segment, kMaxSmallSegment),
            std::min(large_segment, kMaxLargeSegment)},
      next_number_(NewNumber() % kNumSegments) {}

bool Segments::IsSegmentName(const std::string& name) {
  return ParseName(name).has_value();
}

absl::StatusOr<Segments::Opened> Segments::OpenToRead(const Location& location,
                                                      bool anew) {
  const SegmentKey key(location.large, location.segment);
  Opened opened;
  bool is_own;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto own = own_.find(key);
    is_own = own != own_.end();
    opened.foreign = !is_own || location.offset < own->second.own_from;
  }
  RTF_ASSIGN_OR_RETURN(opened.file, Open(key, anew && !is_own));
  return opened;
}

absl::StatusOr<std::shared_ptr<File>> Segments::Open(const SegmentKey& key,
                                                     bool anew) {
  std::vector<std::shared_ptr<File>> to_close;
  if (!anew) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto open = open_.find(key);
    if (open != open_.end()) return open->second;
  }
  absl::StatusOr<std::shared_ptr<File>> file =
      directory_->OpenFile(NameOf(key));
  if (absl::IsUnavailable(file.status())) {
    // Too many files are open. Close all segments: they can be opened again.
    {
      std::lock_guard<std::mutex> lock(mu_);
      for (auto& [other, open] : open_) to_close.push_back(std::move(open));
      open_.clear();
      opened_.clear();
    }
    to_close.clear();
    file = directory_->OpenFile(NameOf(key));
  }
  if (!file.ok()) return file.status();
  std::lock_guard<std::mutex> lock(mu_);
  // If this process owns the segment by now, the open file is the right one.
  const auto open = open_.find(key);
  if (open != open_.end() && own_.count(key) > 0) return open->second;
  to_close = NoteOpen(key, *file);
  return file;
}

std::vector<std::shared_ptr<File>> Segments::NoteOpen(
    const SegmentKey& key, std::shared_ptr<File> file) {
  std::vector<std::shared_ptr<File>> to_close;
  to_close.push_back(ForgetOpen(key));
  while (opened_.size() >= kMostOpen) {
    to_close.push_back(ForgetOpen(SegmentKey(opened_.front())));
  }
  open_[key] = std::move(file);
  opened_.push_back(key);
  return to_close;
}

std::shared_ptr<File> Segments::ForgetOpen(const SegmentKey& key) {
  const auto open = open_.find(key);
  if (open == open_.end()) return nullptr;
  std::shared_ptr<File> file = std::move(open->second);
  open_.erase(open);
  opened_.erase(std::find(opened_.begin(), opened_.end(), key));
  return file;
}

void Segments::CloseDeleted() {
  // Only segments of other processes. If somebody deletes one of ours, it stays
  // open, because its records can still be read.
  std::map<SegmentKey, std::shared_ptr<File>> others;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [key, file] : open_) {
      if (own_.count(key) == 0) others.emplace(key, file);
    }
  }
  for (const auto& [key, file] : others) {
    struct stat status;
    if (fstat(file->fd(), &status) == 0 && status.st_nlink > 0) continue;
    std::lock_guard<std::mutex> lock(mu_);
    const auto open = open_.find(key);
    if (open != open_.end() && open->second == file) ForgetOpen(key);
  }
}

Segments::Usage Segments::TotalUsage() const {
  Usage usage;
  for (const SegmentKey& key : List(*directory_)) {
    ++usage.segments;
    usage.disk_bytes += directory_->DiskBytes(NameOf(key));
  }
  return usage;
}

// For one thread at a time ----------------------------------------------------

absl::Status Segments::Acquire(const SegmentKey& key, int flags) {
  if (IsOwn(key) || !directory_->env().TryLock(lock_file_->fd(), LockOf(key))) {
    return AlreadyExists("It has an owner.");
  }
  absl::StatusOr<std::shared_ptr<File>> file =
      directory_->OpenFile(NameOf(key), flags);
  struct stat status;
  if (file.ok() && fstat((*file)->fd(), &status) != 0) {
    file = ErrnoError("Cannot stat a segment");
  }
  if (!file.ok()) {
    Unlock(key);
    // Somebody may have planted something there. The name is then taken.
    return absl::IsFailedPrecondition(file.status())
               ? AlreadyExists(file.status().message())
               : file.status();
  }
  std::vector<std::shared_ptr<File>> to_close;
  std::lock_guard<std::mutex> lock(mu_);
  // Replaces a file that was open for reading, but was deleted and made again.
  to_close = NoteOpen(key, *std::move(file));
  Own& own = own_[key];
  // Rounded up, because the last record may be torn.
  own.end = RoundUp(status.st_size, key.first ? kLargeUnit : kSmallUnit);
  own.own_from = own.end;
  own.sealed = active_[key.first].has_value();
  if (!own.sealed) active_[key.first] = key.second;
  return absl::OkStatus();
}

void Segments::Unlock(const SegmentKey& key) {
  directory_->env().Unlock(lock_file_->fd(), LockOf(key));
}

absl::Status Segments::MakeActive(bool large, uint64_t size, uint64_t limit) {
  for (uint32_t tried = 0; tried < kNumSegments; ++tried) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      std::optional<uint32_t>& active = active_[large];
      if (active.has_value()) {
        Own& own = own_[{large, *active}];
        if (own.end == 0 || own.end + size <= limit) return absl::OkStatus();
        own.sealed = true;
        active.reset();
      }
    }
    const SegmentKey key(large, next_number_);
    next_number_ = (next_number_ + 1) % kNumSegments;
    absl::Status made = Acquire(key, O_CREAT | O_EXCL);
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  }
  return ResourceExhausted("all names of segments are taken");
}

absl::StatusOr<Location> Segments::Append(bool large, uint64_t size,
                                          int64_t live,
                                          std::vector<iovec> parts) {
  if (!std::exchange(adopted_, true)) Adopt();
  // The count of live bytes may be negative while its file is cut.
  const uint64_t part = std::max(live, int64_t{0}) / kSegmentsOfLive;
  RTF_RETURN_IF_ERROR(MakeActive(
      large, size, std::min(most_[large], std::max(kLeastSegment, part))));
  SegmentKey key(large, 0);
  {
    std::lock_guard<std::mutex> lock(mu_);
    key.second = *active_[large];
  }
  const absl::StatusOr<std::shared_ptr<File>> file = Open(key, /*anew=*/false);
  uint64_t offset;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Own& own = own_[key];
    if (!file.ok()) {
      if (!absl::IsUnavailable(file.status())) {
        // Somebody has deleted the file.
        own.sealed = true;
        active_[large].reset();
      }
      return file.status();
    }
    offset = std::exchange(own.end, own.end + size);
  }
  StoreEnv& env = directory_->env();
  const int fd = (*file)->fd();
  absl::Status written = env.Write(fd, offset, std::move(parts));
  if (written.ok()) return Location{large, key.second, offset, size};
  {
    std::lock_guard<std::mutex> lock(mu_);
    own_[key].end = offset;
  }
  // Frees the space of the part that was written before the error.
  struct stat status;
  if (fstat(fd, &status) == 0 &&
      static_cast<uint64_t>(status.st_size) > offset) {
    (void)env.Truncate(fd, offset);
  }
  return written;
}

void Segments::Adopt() {
  for (const SegmentKey& key : List(*directory_)) (void)Acquire(key, 0);
}

uint64_t Segments::DiskBytes(const SegmentKey& key) const {
  return directory_->DiskBytes(NameOf(key));
}

std::vector<SegmentKey> Segments::ListSealed() const {
  std::vector<SegmentKey> sealed;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [key, own] : own_) {
    if (own.sealed) sealed.push_back(key);
  }
  return sealed;
}

bool Segments::IsOwn(const SegmentKey& key) const {
  std::lock_guard<std::mutex> lock(mu_);
  return own_.count(key) != 0;
}

void Segments::Seal() {
  std::lock_guard<std::mutex> lock(mu_);
  active_[0].reset();
  active_[1].reset();
  for (auto& [key, own] : own_) own.sealed = true;
}

void Segments::Delete(const SegmentKey& key) {
  (void)directory_->Delete(NameOf(key));
  std::shared_ptr<File> to_close;
  {
    std::lock_guard<std::mutex> lock(mu_);
    own_.erase(key);
    to_close = ForgetOpen(key);
  }
  // From here on, any process may make a segment of this name.
  Unlock(key);
}

}  // namespace refurbish_tf

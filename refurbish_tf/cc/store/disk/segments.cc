#include "refurbish_tf/cc/store/disk/segments.h"

#include <algorithm>
#include <cstdio>

#include <fcntl.h>
#include <sys/stat.h>

#include "refurbish_tf/cc/store/entropy.h"

namespace refurbish_tf {
namespace {

constexpr char kSmallPrefix[] = "small-";
constexpr char kLargePrefix[] = "large-";
constexpr size_t kDigits = 5;
constexpr size_t kMaxReaders = 256;

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

uint64_t RoundUp(uint64_t size, uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace

// Numbers begin somewhere, so that no process soon takes one that another has
// just given up: whoever has yet to give back space there would hit a new record.
Segments::Segments(const Directory* directory)
    : directory_(directory), next_number_(NewNumber() % kNumSegments) {}

bool Segments::IsSegmentName(const std::string& name) {
  return ParseName(name).has_value();
}

absl::StatusOr<std::shared_ptr<File>> Segments::OpenToRead(
    const Location& location, bool anew, bool* foreign) {
  const SegmentKey key(location.large, location.segment);
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto own = own_.find(key);
    *foreign = own == own_.end() || location.offset < own->second.own_from;
    if (own != own_.end()) return own->second.file;
    const auto reader = readers_.find(key);
    if (reader != readers_.end() && !anew) return reader->second;
    full = opened_.size() >= kMaxReaders;
  }
  CloseDeleted();
  absl::StatusOr<std::shared_ptr<File>> file =
      directory_->OpenFile(NameOf(key));
  if (absl::IsUnavailable(file.status())) {
    // Too many files are open: ours are opened again where they are needed.
    {
      std::lock_guard<std::mutex> lock(mu_);
      readers_.clear();
      opened_.clear();
    }
    file = directory_->OpenFile(NameOf(key));
  }
  if (!file.ok()) return file.status();
  std::lock_guard<std::mutex> lock(mu_);
  if (readers_.count(key) == 0) {
    if (full && !opened_.empty()) {
      readers_.erase(opened_.front());
      opened_.pop_front();
    }
    opened_.push_back(key);
  }
  readers_[key] = *file;
  return file;
}

void Segments::CloseDeleted() {
  std::map<SegmentKey, std::shared_ptr<File>> readers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    readers = readers_;
  }
  for (const auto& [key, file] : readers) {
    struct stat status;
    if (fstat(file->fd(), &status) == 0 && status.st_nlink > 0) continue;
    std::lock_guard<std::mutex> lock(mu_);
    const auto reader = readers_.find(key);
    if (reader == readers_.end() || reader->second != file) continue;
    readers_.erase(reader);
    opened_.erase(std::find(opened_.begin(), opened_.end(), key));
  }
}

void Segments::Free(const Location& location) {
  bool foreign;
  const absl::StatusOr<std::shared_ptr<File>> file =
      OpenToRead(location, /*anew=*/false, &foreign);
  if (!file.ok()) return;
  directory_->env().Free((*file)->fd(), location.offset, location.size);
}

Segments::Usage Segments::TotalUsage() const {
  Usage usage;
  for (const SegmentKey& key : List(*directory_)) {
    ++usage.segments;
    usage.disk_bytes += directory_->DiskBytes(NameOf(key));
  }
  return usage;
}

// Of one thread ---------------------------------------------------------------

absl::StatusOr<std::shared_ptr<File>> Segments::Lock(const SegmentKey& key,
                                                     int flags) {
  absl::StatusOr<std::shared_ptr<File>> file =
      directory_->OpenFile(NameOf(key), flags);
  if (!file.ok()) {
    // Also where something of that name was planted that is no file of ours.
    return absl::IsFailedPrecondition(file.status())
               ? absl::AlreadyExistsError(file.status().message())
               : file.status();
  }
  // What was locked must still be the file of that name: its owner may have
  // deleted it before it died.
  if (!directory_->env().TryLock((*file)->fd()) ||
      !directory_->IsNamed(**file, NameOf(key))) {
    return absl::AlreadyExistsError("It is another process's.");
  }
  return file;
}

void Segments::Take(const SegmentKey& key, std::shared_ptr<File> file) {
  struct stat status;
  if (fstat(file->fd(), &status) != 0) return;
  std::lock_guard<std::mutex> lock(mu_);
  Own& own = own_[key];
  own.file = std::move(file);
  // The last record may be torn.
  own.end = RoundUp(status.st_size, key.first ? kLargeUnit : kSmallUnit);
  own.own_from = own.end;
  // Before we could lock a new one somebody may have adopted it, written and died.
  own.sealed = active_[key.first].has_value();
  if (!own.sealed) active_[key.first] = key.second;
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
    absl::StatusOr<std::shared_ptr<File>> file = Lock(key, O_CREAT | O_EXCL);
    if (file.ok()) {
      Take(key, *std::move(file));
    } else if (!absl::IsAlreadyExists(file.status())) {
      return file.status();
    }
  }
  return absl::ResourceExhaustedError("All names of segments are taken");
}

absl::StatusOr<SegmentPlace> Segments::Append(bool large, uint64_t size,
                                       uint64_t limit) {
  limit = std::min(limit, large ? kMaxLargeSegment : kMaxSmallSegment);
  absl::Status made = MakeActive(large, size, limit);
  if (!made.ok()) return made;
  std::lock_guard<std::mutex> lock(mu_);
  const uint32_t segment = *active_[large];
  Own& own = own_[{large, segment}];
  const uint64_t offset = own.end;
  own.end += size;
  return SegmentPlace{own.file, segment, offset};
}

void Segments::TakeBack(bool large, const SegmentPlace& place) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    own_[{large, place.segment}].end = place.offset;
  }
  struct stat status;
  if (fstat(place.file->fd(), &status) == 0 &&
      static_cast<uint64_t>(status.st_size) > place.offset) {
    (void)directory_->env().Truncate(place.file->fd(), place.offset);
  }
}

void Segments::Adopt() {
  for (const SegmentKey& key : List(*directory_)) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (own_.count(key) != 0) continue;
    }
    absl::StatusOr<std::shared_ptr<File>> file = Lock(key, 0);
    if (file.ok()) Take(key, *std::move(file));
  }
}

uint64_t Segments::Segment::disk_bytes() const {
  struct stat status;
  if (fstat(file->fd(), &status) != 0) return 0;
  return std::min<uint64_t>(status.st_size, uint64_t{512} * status.st_blocks);
}

std::vector<Segments::Segment> Segments::ListOwn() const {
  std::vector<Segment> segments;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [key, own] : own_) {
    segments.push_back({key, own.file, own.end, own.sealed});
  }
  return segments;
}

std::shared_ptr<File> Segments::FindOwn(const SegmentKey& key) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto own = own_.find(key);
  return own == own_.end() ? nullptr : own->second.file;
}

void Segments::Seal() {
  std::lock_guard<std::mutex> lock(mu_);
  active_[0].reset();
  active_[1].reset();
  for (auto& [key, own] : own_) own.sealed = true;
}

void Segments::Delete(const SegmentKey& key) {
  (void)directory_->Delete(NameOf(key));
  {
    std::lock_guard<std::mutex> lock(mu_);
    own_.erase(key);
  }
  // It may have been read before it was adopted.
  CloseDeleted();
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/store/disk/segments.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace refurbish_tf {
namespace {

constexpr char kSmallPrefix[] = "small-";
constexpr char kLargePrefix[] = "large-";
constexpr size_t kDigits = 5;
constexpr size_t kMaxReaders = 256;

// The size class and number of a segment file.
std::optional<std::pair<bool, uint32_t>> ParseName(const std::string& name) {
  for (const bool large : {false, true}) {
    const std::string prefix = large ? kLargePrefix : kSmallPrefix;
    if (name.size() != prefix.size() + kDigits ||
        name.compare(0, prefix.size(), prefix) != 0 ||
        name.find_first_not_of("0123456789", prefix.size()) !=
            std::string::npos) {
      continue;
    }
    const uint32_t number = std::stoul(name.substr(prefix.size()));
    if (number < kNumSegments) return std::make_pair(large, number);
  }
  return std::nullopt;
}

std::vector<std::pair<bool, uint32_t>> List(const std::string& directory) {
  std::vector<std::pair<bool, uint32_t>> found;
  DIR* listing = opendir(directory.c_str());
  if (listing == nullptr) return found;
  while (const dirent* entry = readdir(listing)) {
    if (const auto key = ParseName(entry->d_name)) found.push_back(*key);
  }
  closedir(listing);
  return found;
}

uint64_t DiskBytes(const struct stat& status) {
  return std::min<uint64_t>(status.st_size, uint64_t{512} * status.st_blocks);
}

uint64_t RoundUp(uint64_t size, uint64_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace

File::~File() { close(fd_); }

// Numbers begin somewhere, so that no process soon takes one that another has
// just given up: whoever has yet to punch a hole there would hit a new record.
Segments::Segments(std::string directory)
    : directory_(std::move(directory)),
      next_number_(std::random_device()() % kNumSegments) {}

bool Segments::IsSegmentName(const std::string& name) {
  return ParseName(name).has_value();
}

std::string Segments::Path(bool large, uint32_t segment) const {
  char name[32];
  std::snprintf(name, sizeof(name), "/%s%05u",
                large ? kLargePrefix : kSmallPrefix, segment);
  return directory_ + name;
}

std::shared_ptr<File> Segments::OpenToRead(const Location& location, bool anew,
                                           bool* foreign) {
  const Key key(location.large, location.segment);
  std::lock_guard<std::mutex> lock(mu_);
  const auto own = own_.find(key);
  *foreign = own == own_.end() || location.offset < own->second.own_from;
  if (own != own_.end()) return own->second.file;
  const auto reader = readers_.find(key);
  if (reader != readers_.end()) {
    if (!anew) return reader->second;
    readers_.erase(reader);
    opened_.erase(std::find(opened_.begin(), opened_.end(), key));
  }
  CloseDeletedLocked();
  if (opened_.size() >= kMaxReaders) {
    readers_.erase(opened_.front());
    opened_.pop_front();
  }
  const std::string path = Path(location.large, location.segment);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0 && (errno == EMFILE || errno == ENFILE) && !readers_.empty()) {
    readers_.clear();
    opened_.clear();
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  if (fd < 0) return nullptr;
  opened_.push_back(key);
  return readers_[key] = std::make_shared<File>(fd);
}

void Segments::CloseDeleted() {
  std::lock_guard<std::mutex> lock(mu_);
  CloseDeletedLocked();
}

void Segments::CloseDeletedLocked() {
  std::deque<Key> still_there;
  for (const Key& key : opened_) {
    struct stat status;
    if (fstat(readers_[key]->fd(), &status) == 0 && status.st_nlink > 0) {
      still_there.push_back(key);
    } else {
      readers_.erase(key);
    }
  }
  opened_ = std::move(still_there);
}

std::shared_ptr<File> Segments::Lock(bool large, uint32_t segment, int flags) {
  const std::string path = Path(large, segment);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd < 0) return nullptr;
  auto file = std::make_shared<File>(fd);
  // What was locked must still be the file of that name: its owner may have
  // deleted it before it died.
  struct stat locked, named;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) return nullptr;
  if (fstat(fd, &locked) != 0 || stat(path.c_str(), &named) != 0 ||
      locked.st_ino != named.st_ino) {
    errno = EWOULDBLOCK;
    return nullptr;
  }
  return file;
}

Segments::Own* Segments::Take(const Key& key, std::shared_ptr<File> file) {
  struct stat status;
  if (fstat(file->fd(), &status) != 0) return nullptr;
  Own& own = own_[key];
  own.file = std::move(file);
  // The last record may be torn.
  own.end = RoundUp(status.st_size, key.first ? kLargeUnit : kSmallUnit);
  own.own_from = own.end;
  return &own;
}

bool Segments::MakeActive(bool large, uint64_t size, uint64_t limit) {
  std::optional<uint32_t>& active = active_[large];
  if (active.has_value()) {
    Own& own = own_[{large, *active}];
    if (own.end == 0 || own.end + size <= limit) return true;
    own.sealed = true;
    active.reset();
  }
  for (uint32_t tried = 0; tried < kNumSegments; ++tried) {
    const uint32_t number = next_number_;
    next_number_ = (next_number_ + 1) % kNumSegments;
    if (std::shared_ptr<File> file = Lock(large, number, O_CREAT | O_EXCL)) {
      // Before we could lock it somebody may have adopted it, written and died.
      Own* const own = Take({large, number}, std::move(file));
      if (own == nullptr) return false;
      if (own->end == 0) {
        active = number;
        return true;
      }
      own->sealed = true;
      continue;
    }
    // Is there already, or has been adopted and is in use.
    if (errno != EEXIST && errno != EWOULDBLOCK) return false;
  }
  errno = ENOSPC;
  return false;
}

std::optional<Segments::Place> Segments::Append(bool large, uint64_t size,
                                                uint64_t limit) {
  limit = std::min(limit, large ? kMaxLargeSegment : kMaxSmallSegment);
  std::lock_guard<std::mutex> lock(mu_);
  if (!MakeActive(large, size, limit)) return std::nullopt;
  Own& own = own_[{large, *active_[large]}];
  const uint64_t offset = own.end;
  own.end += size;
  return Place{own.file, *active_[large], offset};
}

void Segments::TakeBack(bool large, const Place& place) {
  std::lock_guard<std::mutex> lock(mu_);
  own_[{large, place.segment}].end = place.offset;
  struct stat status;
  if (fstat(place.file->fd(), &status) == 0 &&
      static_cast<uint64_t>(status.st_size) > place.offset) {
    (void)!ftruncate(place.file->fd(), place.offset);
  }
}

int Segments::Adopt() {
  int adopted = 0;
  for (const Key& key : List(directory_)) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (own_.count(key) != 0) continue;
    }
    std::shared_ptr<File> file = Lock(key.first, key.second, 0);
    if (file == nullptr) continue;
    std::lock_guard<std::mutex> lock(mu_);
    Own* const own = Take(key, std::move(file));
    if (own == nullptr) continue;
    if (active_[key.first].has_value()) {
      own->sealed = true;
    } else {
      active_[key.first] = key.second;
    }
    ++adopted;
  }
  return adopted;
}

std::vector<Segments::Sealed> Segments::ListSealed() const {
  std::vector<Sealed> sealed;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [key, own] : own_) {
    struct stat status;
    if (!own.sealed || fstat(own.file->fd(), &status) != 0) continue;
    sealed.push_back({key.first, key.second, DiskBytes(status)});
  }
  return sealed;
}

void Segments::Seal() {
  std::lock_guard<std::mutex> lock(mu_);
  active_[0].reset();
  active_[1].reset();
  for (auto& [key, own] : own_) own.sealed = true;
}

void Segments::Delete(bool large, uint32_t segment) {
  std::lock_guard<std::mutex> lock(mu_);
  unlink(Path(large, segment).c_str());
  own_.erase({large, segment});
  // It may have been read before it was adopted.
  CloseDeletedLocked();
}

void Segments::Punch(const Location& location) {
  bool foreign;
  const std::shared_ptr<File> file =
      OpenToRead(location, /*anew=*/false, &foreign);
  if (file == nullptr) return;
  // Where the file system cannot, the space is free when the segment is.
  (void)fallocate(file->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  location.offset, location.size);
}

Segments::Usage Segments::TotalUsage() const {
  Usage usage;
  for (const auto& [large, segment] : List(directory_)) {
    struct stat status;
    if (stat(Path(large, segment).c_str(), &status) != 0) continue;
    ++usage.segments;
    usage.disk_bytes += DiskBytes(status);
  }
  return usage;
}

}  // namespace refurbish_tf

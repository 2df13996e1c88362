// Computes the states that a disk may be in after a loss of power, from the operations on its files and how far these
// were synchronised, as ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018) do.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/segments.h"
#include "refurbish_tf/cc/store/disk/store_env.h"

namespace refurbish_tf {

// A disk writes a sector as a whole or not at all.
inline constexpr uint64_t kSector = 512;
// The tests use only the first page of each mapped file.
inline constexpr uint64_t kPage = 4096;

struct Operation {
  enum Kind {
    // Operations on names.
    kName,  // The name is created, or taken from another file.
    kUnname,
    // Operations on a file.
    kWrite,
    kAllocate,
    kTruncate,
    kFree,
    // Synchronisation.
    kSync,
    kSyncNames,
  };
  bool OfNames() const { return kind <= kUnname; }
  bool OfAFile() const { return kind > kUnname && kind < kSync; }
  uint64_t end() const { return offset + size; }

  Kind kind;
  int file = -1;  // A renamed file keeps its number.
  std::string name;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::string bytes;
};

// Records changes to files. Mapped pages change without an operation, so each operation checks them for changes.
class RecordingEnv : public StoreEnv {
 public:
  struct Mapped {
    int fd;
    // Versions of the file's first page, each with the number of operations done before it.
    std::vector<std::pair<size_t, std::string>> versions;
  };

  ~RecordingEnv() override {
    for (auto& [file, mapped] : mapped_) close(mapped.fd);
  }

  // Sets the number of the next segment.
  void NumberSegmentsFrom(int number) {
    std::lock_guard<std::mutex> lock(mu_);
    segments_ = number;
  }
  // Sets whether the disk is full, so that files cannot grow.
  void SetFull(bool full) {
    std::lock_guard<std::mutex> lock(mu_);
    full_ = full;
  }
  // The number of operations done.
  size_t Now() {
    std::lock_guard<std::mutex> lock(mu_);
    LookAtMapped();
    return log_.size();
  }

  // Call these only after the last operation, because they take no lock.
  const std::vector<Operation>& log() const { return log_; }
  const std::map<int, Mapped>& mapped() const { return mapped_; }
  // What unwritten blocks of a file may contain: the content of the last deleted file of the same name.
  std::string Stale(int file) const {
    const auto found = stale_.find(file);
    return found == stale_.end() ? "" : found->second;
  }

  absl::StatusOr<int> Open(int directory, const std::string& name, int flags) override {
    std::lock_guard<std::mutex> lock(mu_);
    // Segments usually have random numbers. Here they count up, so that a new store uses the names of the old one.
    if (Segments::IsSegmentName(name) && (flags & O_EXCL) != 0 && std::stoi(name.substr(6)) != segments_) {
      return absl::AlreadyExistsError(name);
    }
    const bool is_new = faccessat(directory, name.c_str(), F_OK, 0) != 0;
    const absl::StatusOr<int> fd = StoreEnv::Open(directory, name, flags);
    if (!fd.ok()) return fd;
    if (is_new) {
      const int file = num_files_++;
      files_[StatusOf(*fd).st_ino] = file;
      stale_[file] = left_[name];
      if (name == "index" || name == "claims" || name == "state") {
        // Opens the file again, because a duplicate of the descriptor would keep the store's locks.
        mapped_[file].fd = openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC);
        mapped_[file].versions = {{0, std::string(kPage, '\0')}};
      }
      segments_ += (flags & O_EXCL) != 0;
      Log(Operation::kName, file, name);
    } else if ((flags & O_TRUNC) != 0) {
      Log(Operation::kTruncate, FileOf(*fd));
    }
    return fd;
  }

  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    std::lock_guard<std::mutex> lock(mu_);
    std::string bytes;
    for (const iovec& part : parts) {
      bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
    }
    const bool fits = !full_ || offset + bytes.size() <= static_cast<uint64_t>(StatusOf(fd).st_size);
    if (!fits) bytes.resize(bytes.size() / 2);
    absl::Status written = StoreEnv::Write(fd, offset, {{bytes.data(), bytes.size()}});
    Log(Operation::kWrite, FileOf(fd), "", offset, bytes.size(), bytes);
    return fits ? written : absl::ResourceExhaustedError("no space");
  }

  absl::Status Allocate(int fd, uint64_t offset, uint64_t size) override {
    std::lock_guard<std::mutex> lock(mu_);
    absl::Status allocated = StoreEnv::Allocate(fd, offset, size);
    Log(Operation::kAllocate, FileOf(fd), "", offset, size);
    return allocated;
  }

  void Free(int fd, uint64_t offset, uint64_t size) override {
    std::lock_guard<std::mutex> lock(mu_);
    StoreEnv::Free(fd, offset, size);
    Log(Operation::kFree, FileOf(fd), "", offset, size);
  }

  absl::Status Truncate(int fd, uint64_t size) override {
    std::lock_guard<std::mutex> lock(mu_);
    absl::Status cut = StoreEnv::Truncate(fd, size);
    Log(Operation::kTruncate, FileOf(fd), "", size);
    return cut;
  }

  absl::Status Sync(int fd) override {
    std::lock_guard<std::mutex> lock(mu_);
    if (S_ISDIR(StatusOf(fd).st_mode)) {
      Log(Operation::kSyncNames);
    } else {
      Log(Operation::kSync, FileOf(fd));
    }
    return absl::OkStatus();
  }

  absl::Status Rename(int directory, const std::string& from, const std::string& to) override {
    std::lock_guard<std::mutex> lock(mu_);
    const int file = FileNamed(directory, from);
    Keep(directory, to);
    absl::Status renamed = StoreEnv::Rename(directory, from, to);
    Log(Operation::kName, file, to);
    return renamed;
  }

  absl::Status Unlink(int directory, const std::string& name) override {
    std::lock_guard<std::mutex> lock(mu_);
    const int file = FileNamed(directory, name);
    Keep(directory, name);
    absl::Status deleted = StoreEnv::Unlink(directory, name);
    if (deleted.ok()) Log(Operation::kUnname, file, name);
    return deleted;
  }

 private:
  static struct stat StatusOf(int fd) {
    struct stat status{};
    fstat(fd, &status);
    return status;
  }
  int FileOf(int fd) const { return files_.at(StatusOf(fd).st_ino); }
  int FileNamed(int directory, const std::string& name) const {
    struct stat status;
    return fstatat(directory, name.c_str(), &status, 0) != 0 ? -1 : files_.at(status.st_ino);
  }

  // Keeps the content of a file that is about to be deleted.
  void Keep(int directory, const std::string& name) {
    const int fd = openat(directory, name.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    std::string& left = left_[name];
    left.resize(64 << 10);
    left.resize(pread(fd, left.data(), left.size(), 0));
    close(fd);
  }

  void LookAtMapped() {
    for (auto& [file, mapped] : mapped_) {
      std::string page(kPage, '\0');
      if (pread(mapped.fd, page.data(), kPage, 0) < 0 || page == mapped.versions.back().second) {
        continue;
      }
      mapped.versions.emplace_back(log_.size(), std::move(page));
    }
  }

  void Log(Operation::Kind kind, int file = -1, const std::string& name = "", uint64_t offset = 0, uint64_t size = 0,
           const std::string& bytes = "") {
    LookAtMapped();
    log_.push_back({kind, file, name, offset, size, bytes});
  }

  std::mutex mu_;
  int segments_ = 0;
  bool full_ = false;
  int num_files_ = 0;
  std::map<ino_t, int> files_;
  std::map<std::string, std::string> left_;
  std::map<int, std::string> stale_;
  std::map<int, Mapped> mapped_;
  std::vector<Operation> log_;
};

// A file on the disk, with zeros after its data.
struct Image {
  bool operator==(const Image& other) const { return data == other.data && size == other.size; }
  void Grow(uint64_t end) {
    size = std::max(size, end);
    if (data.size() < end) data.resize(end);
  }

  std::string data;
  uint64_t size = 0;
};
using State = std::map<std::string, Image>;

// Which part of an unsynchronised operation has reached the disk.
struct Fate {
  bool lost = false;
  // The missing part of a write, as a range of the file.
  uint64_t from = 0;
  uint64_t to = 0;
  bool longer = true;  // The file has the length that it would have without the loss.
  bool stale = false;  // The missing part reads as the old content of its blocks.
};

// The possible states of the disk if the power fails after `done` operations: synchronised names and bytes are there,
// and any part of later changes may be.
class PowerLoss {
 public:
  // `env` must outlive this object, and do no more operations.
  explicit PowerLoss(const RecordingEnv* env) : env_(env) {}

  // The operations whose fate is unknown.
  std::vector<size_t> Unknown(size_t done) const {
    const auto& log = env_->log();
    std::vector<size_t> unknown;
    std::set<int> synced;
    bool names_synced = false;
    std::map<std::string, int> names;
    std::set<int> reachable;
    for (size_t i = done; i-- > 0;) {
      if (log[i].kind == Operation::kSync) synced.insert(log[i].file);
      names_synced |= log[i].kind == Operation::kSyncNames;
      if (log[i].OfNames() && !names_synced) reachable.insert(log[i].file);
      if (log[i].OfNames() ? !names_synced : log[i].OfAFile() && synced.count(log[i].file) == 0) {
        unknown.push_back(i);
      }
    }
    std::reverse(unknown.begin(), unknown.end());
    // The content of a permanently deleted file does not matter.
    for (size_t i = 0; i < done; ++i) {
      if (!log[i].OfNames()) continue;
      if (std::binary_search(unknown.begin(), unknown.end(), i)) break;
      SetName(log[i], &names);
    }
    for (const auto& [name, file] : names) reachable.insert(file);
    unknown.erase(
        std::remove_if(unknown.begin(), unknown.end(), [&](size_t i) { return reachable.count(log[i].file) == 0; }),
        unknown.end());
    return unknown;
  }

  // The operation is lost in `lost_of_16` of 16 cases. A write may also be lost in part.
  static Fate RandomFate(const Operation& operation, uint32_t lost_of_16, std::mt19937* random) {
    Fate fate;
    fate.lost = (*random)() % 16 < lost_of_16;
    if (operation.kind != Operation::kWrite || (*random)() % 4 != 0) return fate;
    const uint64_t first = operation.offset / kSector;
    const uint64_t end = (operation.end() + kSector - 1) / kSector;
    fate.from = (first + (*random)() % (end - first)) * kSector;
    fate.to = (*random)() % 2 == 0 ? end * kSector : fate.from + kSector + (*random)() % (end * kSector - fate.from);
    fate.to = fate.to / kSector * kSector;
    fate.longer = (*random)() % 2 == 0;
    fate.stale = (*random)() % 2 == 0;
    return fate;
  }

  // The state of the disk. Without `random`, mapped pages have their last version.
  State Make(size_t done, const std::map<size_t, Fate>& fates, std::mt19937* random) const {
    std::map<std::string, int> names;
    std::map<int, Image> images;
    for (size_t i = 0; i < done; ++i) {
      const Operation& operation = env_->log()[i];
      const auto found = fates.find(i);
      const Fate fate = found == fates.end() ? Fate() : found->second;
      if (fate.lost) continue;
      if (operation.OfNames()) SetName(operation, &names);
      if (operation.OfAFile()) Apply(operation, fate, &images[operation.file]);
    }
    State state;
    for (const auto& [name, file] : names) {
      Image& image = state[name] = images[file];
      if (env_->mapped().count(file) == 0) continue;
      image.data = PageOf(file, done, random);
      image.data.resize(std::min(image.size, kPage));
    }
    return state;
  }

 private:
  // A file has one name, and a name belongs to one file.
  static void SetName(const Operation& operation, std::map<std::string, int>* names) {
    for (auto name = names->begin(); name != names->end();) {
      name = name->second == operation.file ? names->erase(name) : std::next(name);
    }
    if (operation.kind == Operation::kName) {
      (*names)[operation.name] = operation.file;
    }
  }

  void Apply(const Operation& operation, const Fate& fate, Image* image) const {
    switch (operation.kind) {
      case Operation::kWrite: {
        const uint64_t size = image->size;
        const uint64_t end = operation.end();
        const uint64_t from = std::clamp(fate.from, operation.offset, end);
        const uint64_t to = std::clamp(fate.to, operation.offset, end);
        image->Grow(to == end && !fate.longer ? from : end);
        image->data.replace(operation.offset, from - operation.offset, operation.bytes, 0, from - operation.offset);
        if (to < end) {
          image->data.replace(to, end - to, operation.bytes, to - operation.offset, end - to);
        }
        if (!fate.stale) break;
        const std::string stale = env_->Stale(operation.file);
        for (uint64_t i = std::max(from, size); i < std::min<uint64_t>({to, stale.size(), image->data.size()}); ++i) {
          image->data[i] = stale[i];
        }
        break;
      }
      case Operation::kAllocate:
        image->size = std::max(image->size, operation.end());
        break;
      case Operation::kTruncate:
        image->size = operation.offset;
        image->data.resize(std::min(image->data.size(), image->size));
        break;
      case Operation::kFree:
        for (uint64_t i = operation.offset; i < std::min(operation.end(), image->data.size()); ++i) {
          image->data[i] = '\0';
        }
        break;
      default:
        break;
    }
  }

  // The first page of a mapped file. With `random`, each of its sectors may have any version so far.
  std::string PageOf(int file, size_t done, std::mt19937* random) const {
    const auto& versions = env_->mapped().at(file).versions;
    size_t count = 1;
    while (count < versions.size() && versions[count].first <= done) ++count;
    std::string page = versions[count - 1].second;
    if (random == nullptr) return page;
    for (uint64_t sector = 0; sector < kPage; sector += kSector) {
      if ((*random)() % 2 == 0) continue;
      const size_t version = (*random)() % (count + 1);
      std::string other = version < count ? versions[version].second : env_->Stale(file).substr(0, kPage);
      other.resize(kPage);
      page.replace(sector, kSector, other, sector, kSector);
    }
    return page;
  }

  const RecordingEnv* const env_;
};

}  // namespace refurbish_tf

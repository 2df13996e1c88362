#include "refurbish_tf/cc/sources/open_files.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/sources/record_format.h"

namespace refurbish_tf {
namespace {

// Far fewer than a process may open, which is 1,024 by default.
constexpr size_t kMostOpenFiles = 128;

absl::Status Changed(const IndexedFile& file) {
  return FailedPrecondition(
      file.path,
      " was changed or replaced since its index was made, so its "
      "records are not where they were. Make the dataset again.");
}

absl::Status CheckIdentity(RandomFile* open, const IndexedFile& file) {
  const absl::StatusOr<FileIdentity> identity = open->Identity();
  if (absl::IsNotFound(identity.status())) return Changed(file);
  if (!identity.ok()) return identity.status();
  return *identity == file.identity ? absl::OkStatus() : Changed(file);
}

absl::Status DamagedRecord(const RecordIndex::Location& location,
                           absl::string_view what) {
  return DataLoss(location.file->path, " is damaged: ", what, " (record ",
                  location.record, " at offset ", location.span.offset, ").");
}

}  // namespace

OpenFiles& OpenFiles::Global() {
  static OpenFiles* const files = new OpenFiles(kMostOpenFiles, [] {
    return int64_t{std::chrono::nanoseconds(
                       std::chrono::steady_clock::now().time_since_epoch())
                       .count()};
  });  // Never destroyed.
  return *files;
}

absl::StatusOr<std::shared_ptr<OpenFile>> OpenFiles::Get(
    const IndexedFile& file) {
  // Declared before the lock is taken, so files are closed without it.
  std::vector<std::shared_ptr<OpenFile>> to_close;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = open_.find(file.path);
    if (found != open_.end()) {
      Entry& entry = found->second;
      if (entry.file->identity == file.identity) {
        entry.last_use = ++num_uses_;
        return entry.file;
      }
      to_close.push_back(std::move(entry.file));
      open_.erase(found);
    }
  }
  const int64_t now = clock_();
  absl::StatusOr<std::unique_ptr<RandomFile>> opened =
      file.access->Open(file.path);
  if (absl::IsNotFound(opened.status()) ||
      absl::IsInvalidArgument(opened.status())) {
    return Changed(file);
  }
  if (!opened.ok()) return opened.status();
  RTF_RETURN_IF_ERROR(CheckIdentity(opened->get(), file));
  auto open =
      std::make_shared<OpenFile>(std::move(*opened), file.identity, now);
  std::lock_guard<std::mutex> lock(mu_);
  // If another thread has opened the same file since, this one replaces it.
  Entry& entry = open_[file.path];
  to_close.push_back(std::exchange(entry.file, open));
  entry.last_use = ++num_uses_;
  while (open_.size() > most_) {
    const auto oldest = std::min_element(
        open_.begin(), open_.end(), [](const auto& a, const auto& b) {
          return a.second.last_use < b.second.last_use;
        });
    to_close.push_back(std::move(oldest->second.file));
    open_.erase(oldest);
  }
  return open;
}

absl::Status OpenFiles::CheckUnchanged(const IndexedFile& file, OpenFile* open,
                                       int64_t since) {
  const int64_t believed = file.access->identity_nanos();
  const int64_t now = believed > 0 ? clock_() : 0;
  if (believed > 0) {
    const int64_t looked_at = open->looked_at.load(std::memory_order_relaxed);
    if (looked_at >= since && now - looked_at < believed) {
      return absl::OkStatus();
    }
  }
  RTF_RETURN_IF_ERROR(CheckIdentity(open->file.get(), file));
  if (believed > 0) open->looked_at.store(now, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status ReadRecord(OpenFiles* files, const RecordIndex::Location& location,
                        int64_t since,
                        const std::function<char*(size_t)>& allocate) {
  const IndexedFile& file = *location.file;
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<OpenFile> open, files->Get(file));
  const size_t length = location.span.length;
  char header[kHeaderSize];
  char footer[kFooterSize];
  char* const record = allocate(length);
  RTF_ASSIGN_OR_RETURN(
      size_t read,
      open->file->ReadFramed(location.span.offset, header, sizeof(header),
                             record, length, footer, sizeof(footer)));
  // Checked before the checksums: a changed file explains wrong checksums.
  RTF_RETURN_IF_ERROR(files->CheckUnchanged(file, open.get(), since));
  if (read != length + kFrameSize) return Changed(file);
  uint64_t found;
  if (!ParseHeader(header, &found)) {
    return DamagedRecord(location,
                         "the checksum of a record's length is wrong");
  }
  if (found != length) {
    return DamagedRecord(
        location,
        absl::StrCat("a record has ", found, " bytes, but the index says ",
                     length, "; if the file is right, remove its index"));
  }
  if (Load<uint32_t>(footer) != MaskedCrc(record, length)) {
    return DamagedRecord(location, "the checksum of a record is wrong");
  }
  return absl::OkStatus();
}

}  // namespace refurbish_tf

// Opens a bounded number of files per process, and reads records from them.
//
// The index is not trusted: a record is returned only if its header has the
// index's length and both checksums are correct. A local file is checked for
// changes after each read, through its descriptor, which also shows whether the
// file was replaced. A remote file is checked when an iterator begins, and then
// as often as `FileAccess::identity_nanos` says.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/sources/file_access.h"
#include "refurbish_tf/cc/sources/record_index.h"

namespace refurbish_tf {

struct OpenFile {
  OpenFile(std::unique_ptr<RandomFile> file, FileIdentity identity,
           int64_t looked_at)
      : file(std::move(file)), identity(identity), looked_at(looked_at) {}

  const std::unique_ptr<RandomFile> file;
  const FileIdentity identity;
  // When the file was last found to be in this state (`OpenFiles::Now`).
  std::atomic<int64_t> looked_at;
};

// Thread-safe. No lock is held while a file is opened, closed or checked.
class OpenFiles {
 public:
  using Clock = std::function<int64_t()>;  // In nanoseconds.

  // Keeps at most `most` files open, apart from those that a read still uses.
  OpenFiles(size_t most, Clock clock) : most_(most), clock_(std::move(clock)) {}

  static OpenFiles& Global();

  int64_t Now() const { return clock_(); }

  // Opens the file, unless it is open. FailedPrecondition if its state is not
  // the one that its index was made from.
  absl::StatusOr<std::shared_ptr<OpenFile>> Get(const IndexedFile& file)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Called after a read: FailedPrecondition if the file has changed. A remote
  // file system is asked only if its last answer is too old or was given before
  // `since`.
  absl::Status CheckUnchanged(const IndexedFile& file, OpenFile* open,
                              int64_t since);

  size_t num_open() const ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return open_.size();
  }

 private:
  struct Entry {
    std::shared_ptr<OpenFile> file;
    uint64_t last_use = 0;
  };

  const size_t most_;
  const Clock clock_;
  mutable std::mutex mu_;
  std::unordered_map<std::string, Entry> open_ ABSL_GUARDED_BY(mu_);
  uint64_t num_uses_ ABSL_GUARDED_BY(mu_) = 0;
};

// Reads a record into the memory that `allocate` returns for its length. Checks
// both checksums, and that the file is still the one its index was made from.
//
// DataLoss, with file, record and offset, if the record is damaged; other
// records can still be read. `since`: see `CheckUnchanged`.
absl::Status ReadRecord(OpenFiles* files, const RecordIndex::Location& location,
                        int64_t since,
                        const std::function<char*(size_t)>& allocate);

}  // namespace refurbish_tf

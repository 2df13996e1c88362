// Files that are kept open, within a bound for the whole process.
#ifndef REFURBISH_TF_CC_SOURCES_OPEN_FILES_H_
#define REFURBISH_TF_CC_SOURCES_OPEN_FILES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/sources/file_access.h"
#include "refurbish_tf/cc/sources/record_index.h"

namespace refurbish_tf {

class OpenFile {
 public:
  OpenFile(std::unique_ptr<RandomFile> file, FileIdentity identity,
           int64_t looked_at)
      : file_(std::move(file)), identity_(identity), looked_at_(looked_at) {}

  RandomFile& file() { return *file_; }
  const FileIdentity& identity() const { return identity_; }

 private:
  friend class OpenFiles;

  const std::unique_ptr<RandomFile> file_;
  const FileIdentity identity_;
  std::atomic<int64_t> looked_at_;
};

// Thread-safe. No lock is held while a file is opened, closed or looked at.
class OpenFiles {
 public:
  using Clock = std::function<int64_t()>;  // In nanoseconds.

  // `most` are kept open; those being read may be more.
  OpenFiles(size_t most, Clock clock) : most_(most), clock_(std::move(clock)) {}

  // Of this process.
  static OpenFiles& Global();

  int64_t Now() const { return clock_(); }

  // The file in the state that its index was made of. FailedPrecondition when it is
  // not in that state when it is opened.
  absl::StatusOr<std::shared_ptr<OpenFile>> Get(const IndexedFile& file)
      ABSL_LOCKS_EXCLUDED(mu_);

  // After a read: FailedPrecondition where the file has changed. A file system that
  // is slow to answer is asked again when what it said is too old, or from before
  // `since`.
  absl::Status CheckUnchanged(const IndexedFile& file, OpenFile* open,
                              int64_t since);

  size_t num_kept() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Kept {
    std::string path;
    std::shared_ptr<OpenFile> file;
  };

  const size_t most_;
  const Clock clock_;
  mutable std::mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // That used last is first.
  std::unordered_map<std::string, std::list<Kept>::iterator> by_path_
      ABSL_GUARDED_BY(mu_);
};

// Reads a record of a file into what `allocate` returns for its length, checks
// both checksums, and that the file is still the one its index was made of.
//
// DataLoss, with file, record and offset, for one that is damaged; others are not
// concerned. `since` as in `CheckUnchanged`.
absl::Status ReadRecord(OpenFiles* files, const RecordIndex::Place& place,
                        int64_t since,
                        const std::function<char*(size_t)>& allocate);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SOURCES_OPEN_FILES_H_

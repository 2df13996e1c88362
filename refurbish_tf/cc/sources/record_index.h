// Where the records of many files are.
#ifndef REFURBISH_TF_CC_SOURCES_RECORD_INDEX_H_
#define REFURBISH_TF_CC_SOURCES_RECORD_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/sources/file_access.h"
#include "refurbish_tf/cc/sources/file_index.h"

namespace refurbish_tf {

struct IndexedFile {
  std::string path;
  FileAccess* access = nullptr;
  // When the index was made: it is that of this state of the file.
  FileIdentity identity;
  FileIndex index;
};

// Never changed, for many threads at once.
class RecordIndex {
 public:
  explicit RecordIndex(std::vector<IndexedFile> files);

  int64_t num_records() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<IndexedFile>& files() const { return files_; }

  struct Place {
    const IndexedFile* file;
    uint64_t record;  // Of the file's.
    FileIndex::Place in_file;
  };
  // Of a record from 0 to `num_records()` - 1, counted through all files.
  Place At(int64_t record) const;

 private:
  const std::vector<IndexedFile> files_;
  std::vector<int64_t> ends_;  // By file: how many records are in it and before.
};

struct IndexOptions {
  // Where indices are kept; empty for a directory beside each file.
  std::string directory;
  // How many files are looked at at once.
  int num_threads = 1;
  // Of a path.
  std::function<FileAccess*(const std::string&)> access;
  // Whether to say on stderr how far it is.
  bool progress = false;
};

// Where the index of a file is kept.
std::string IndexPath(const std::string& path, const std::string& directory);

// Reads the indices that are kept and fit their files, and makes the others. One that
// cannot be kept beside its file is made all the same.
absl::StatusOr<std::shared_ptr<const RecordIndex>> LoadOrMakeIndex(
    const std::vector<std::string>& paths, const IndexOptions& options);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SOURCES_RECORD_INDEX_H_

// Where the records of many files are. Each state of a file (`FileIdentity`)
// has its own index.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/sources/file_access.h"
#include "refurbish_tf/cc/sources/file_index.h"

namespace refurbish_tf {

struct IndexedFile {
  std::string path;
  FileAccess* access = nullptr;
  // The state of the file that the index was made from.
  FileIdentity identity;
  FileIndex index;
};

// Immutable, so thread-safe.
class RecordIndex {
 public:
  explicit RecordIndex(std::vector<IndexedFile> files);

  int64_t num_records() const { return ends_.empty() ? 0 : ends_.back(); }
  const std::vector<IndexedFile>& files() const { return files_; }

  struct Location {
    const IndexedFile* file;
    uint64_t record;  // Its number in the file.
    FileIndex::Span span;
  };
  // Finds a record, 0 to `num_records()` - 1: numbers continue from file to
  // file.
  Location At(int64_t record) const;

 private:
  const std::vector<IndexedFile> files_;
  // By file: how many records this file and the files before it have.
  std::vector<int64_t> ends_;
};

struct IndexOptions {
  // Where indices are stored; empty for a directory beside each file.
  std::string directory;
  // How many files are indexed in parallel.
  int num_threads = 1;
  // Returns the file system of a path.
  std::function<FileAccess*(const std::string&)> access;
};

std::string IndexPath(const std::string& path, const std::string& directory);

// Reads the indices that exist and fit their files, and makes the others. An
// index that cannot be written beside its file is still used.
absl::StatusOr<std::shared_ptr<const RecordIndex>> LoadOrMakeIndex(
    const std::vector<std::string>& paths, const IndexOptions& options);

}  // namespace refurbish_tf

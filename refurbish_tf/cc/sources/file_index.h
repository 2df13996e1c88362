// Where the records of one file are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/sources/file_access.h"

namespace refurbish_tf {

// Records follow each other without gaps from the file's start to its end, so
// their lengths say where they are. Takes 4.5 bytes per record.
class FileIndex {
 public:
  struct Span {
    uint64_t offset;  // Of the header before the record.
    uint32_t length;
  };

  uint64_t num_records() const { return lengths_.size(); }
  Span At(uint64_t record) const;

  void Add(uint32_t length);
  // Frees spare memory. Called when all records are added.
  void Trim() {
    lengths_.shrink_to_fit();
    offsets_.shrink_to_fit();
  }

  // Includes a checksum and the identity of the file.
  std::string Serialize(const FileIdentity& identity) const;
  // The index in `text`; empty if damaged, or of another state of the file.
  static std::optional<FileIndex> Parse(absl::string_view text,
                                        const FileIdentity& identity);
  // The most bytes that the index of a file of this size can have.
  static uint64_t MostBytes(uint64_t file_size);
  // Whether `text` begins like an index, or is all zeros after a power failure.
  static bool LooksLikeOne(absl::string_view text);

  friend bool operator==(const FileIndex& a, const FileIndex& b) {
    return a.lengths_ == b.lengths_;
  }

 private:
  std::vector<uint32_t> lengths_;
  std::vector<uint64_t> offsets_;  // Of each `kStride`-th record.
  uint64_t end_ = 0;
};

// Makes the index of a file of `size` bytes by reading its headers.
//
// InvalidArgument for a compressed file. DataLoss, with the offset, for a file
// that is not a TFRecord file, or in which the length of a record is damaged,
// so that the records after it cannot be found.
absl::StatusOr<FileIndex> ScanRecords(RandomFile* file, uint64_t size,
                                      bool small_reads,
                                      const std::string& path);

}  // namespace refurbish_tf

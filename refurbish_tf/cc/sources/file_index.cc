#include "refurbish_tf/cc/sources/file_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/sources/record_format.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kStride = 16;

constexpr char kIndexMagic[8] = {'R', 'T', 'F', 'I', 'N', 'D', 'X', '1'};

struct IndexHeader {
  char magic[sizeof(kIndexMagic)];
  FileIdentity identity;
  uint64_t num_records;
};
static_assert(sizeof(IndexHeader) == 48, "is written as it is in memory");

// How much is read at once to find headers. Over a network, reading the records
// between the headers as well costs less than one message per header.
constexpr size_t kRemoteBlock = 1 << 20;
constexpr size_t kLocalBlock = 1 << 16;
// After a record of this length or more, the next header of a local file is
// read alone, which costs less than reading the records in between.
constexpr uint64_t kLongRecord = 4096;

absl::string_view Compression(const char* start, uint64_t size) {
  const auto byte = [start](int i) { return static_cast<uint8_t>(start[i]); };
  if (size < 2) return "";
  if (byte(0) == 0x1f && byte(1) == 0x8b) return "GZIP";
  if (byte(0) == 0x78 && (byte(0) * 256 + byte(1)) % 31 == 0) return "ZLIB";
  return "";
}

absl::Status NoRecord(const std::string& path, uint64_t record, uint64_t offset,
                      absl::string_view what) {
  return DataLoss(path, " is not a TFRecord file, or is damaged: ", what,
                  " (record ", record, " at offset ", offset,
                  "). The records after it cannot be found. Write the file "
                  "again.");
}

// The part of a file that was read last.
class Window {
 public:
  Window(RandomFile* file, uint64_t size, bool small_reads)
      : file_(file),
        file_size_(size),
        small_reads_(small_reads),
        bytes_(new char[small_reads ? kLocalBlock : kRemoteBlock]) {}

  // `size` bytes at `offset`, or null if the file is shorter.
  absl::StatusOr<const char*> At(uint64_t offset, size_t size, bool alone) {
    if (offset < begin_ || offset + size > begin_ + filled_) {
      size_t wanted =
          small_reads_ ? (alone ? size : kLocalBlock) : kRemoteBlock;
      wanted =
          static_cast<size_t>(std::min<uint64_t>(wanted, file_size_ - offset));
      RTF_ASSIGN_OR_RETURN(filled_, file_->Read(offset, wanted, bytes_.get()));
      begin_ = offset;
      if (filled_ < size) return nullptr;
    }
    return bytes_.get() + (offset - begin_);
  }

 private:
  RandomFile* const file_;
  const uint64_t file_size_;
  const bool small_reads_;
  const std::unique_ptr<char[]> bytes_;
  uint64_t begin_ = 0;
  size_t filled_ = 0;
};

}  // namespace

FileIndex::Span FileIndex::At(uint64_t record) const {
  Span span;
  span.offset = offsets_[record / kStride];
  for (uint64_t i = record - record % kStride; i < record; ++i) {
    span.offset += kFrameSize + lengths_[i];
  }
  span.length = lengths_[record];
  return span;
}

void FileIndex::Add(uint32_t length) {
  if (lengths_.size() % kStride == 0) offsets_.push_back(end_);
  lengths_.push_back(length);
  end_ += kFrameSize + length;
}

std::string FileIndex::Serialize(const FileIdentity& identity) const {
  IndexHeader header = {{}, identity, lengths_.size()};
  std::memcpy(header.magic, kIndexMagic, sizeof(kIndexMagic));
  const size_t lengths = lengths_.size() * sizeof(lengths_[0]);
  std::string text(sizeof(header) + lengths + sizeof(uint32_t), '\0');
  std::memcpy(text.data(), &header, sizeof(header));
  if (lengths > 0) {
    std::memcpy(text.data() + sizeof(header), lengths_.data(), lengths);
  }
  const uint32_t crc = Crc32c(text.data(), text.size() - sizeof(uint32_t));
  std::memcpy(text.data() + text.size() - sizeof(crc), &crc, sizeof(crc));
  return text;
}

std::optional<FileIndex> FileIndex::Parse(absl::string_view text,
                                          const FileIdentity& identity) {
  IndexHeader header;
  if (text.size() < sizeof(header) + sizeof(uint32_t)) return std::nullopt;
  std::memcpy(&header, text.data(), sizeof(header));
  const size_t body = text.size() - sizeof(header) - sizeof(uint32_t);
  if (std::memcmp(header.magic, kIndexMagic, sizeof(kIndexMagic)) != 0 ||
      header.identity != identity || body % sizeof(uint32_t) != 0 ||
      header.num_records != body / sizeof(uint32_t) ||
      Load<uint32_t>(text.data() + text.size() - sizeof(uint32_t)) !=
          Crc32c(text.data(), text.size() - sizeof(uint32_t))) {
    return std::nullopt;
  }
  FileIndex index;
  index.lengths_.reserve(header.num_records);
  index.offsets_.reserve((header.num_records + kStride - 1) / kStride);
  for (uint64_t i = 0; i < header.num_records; ++i) {
    index.Add(Load<uint32_t>(text.data() + sizeof(header) + 4 * i));
  }
  // A forged index can have a correct checksum, but it must not lead beyond the
  // end of the file.
  if (index.end_ != identity.size) return std::nullopt;
  return index;
}

uint64_t FileIndex::MostBytes(uint64_t file_size) {
  return sizeof(IndexHeader) + file_size / kFrameSize * sizeof(uint32_t) +
         sizeof(uint32_t);
}

bool FileIndex::LooksLikeOne(absl::string_view text) {
  const absl::string_view magic(kIndexMagic, sizeof(kIndexMagic));
  return text.substr(0, magic.size()) == magic ||
         text.find_first_not_of('\0') == absl::string_view::npos;
}

absl::StatusOr<FileIndex> ScanRecords(RandomFile* file, uint64_t size,
                                      bool small_reads,
                                      const std::string& path) {
  FileIndex index;
  Window window(file, size, small_reads);
  uint64_t before = 0;
  for (uint64_t offset = 0; offset < size;) {
    const uint64_t record = index.num_records();
    if (size - offset < kFrameSize) {
      if (record == 0) {
        return NoRecord(path, record, offset, "it is shorter than a record");
      }
      return NoRecord(path, record, offset, "it ends within a record");
    }
    RTF_ASSIGN_OR_RETURN(const char* const header,
                         window.At(offset, kHeaderSize, before >= kLongRecord));
    if (header == nullptr) {
      return NoRecord(path, record, offset, "it has become shorter");
    }
    uint64_t length;
    if (!ParseHeader(header, &length)) {
      const absl::string_view compression =
          record == 0 ? Compression(header, size) : "";
      if (!compression.empty()) {
        return InvalidArgument(
            path, " is compressed (", compression,
            "), so its records cannot be read one by one. Write it with "
            "tf.io.TFRecordWriter(path), without compression_type; the "
            "contents of records may be compressed, as JPEG is.");
      }
      return NoRecord(path, record, offset,
                      "the checksum of a record's length is wrong");
    }
    if (length > size - offset - kFrameSize) {
      return NoRecord(path, record, offset, "it ends within a record");
    }
    if (length > std::numeric_limits<uint32_t>::max()) {
      return Unimplemented(
          path, " has a record of ", length, " bytes (record ", record,
          " at offset ", offset,
          "); records must be below 4 GiB to be read by index.");
    }
    index.Add(static_cast<uint32_t>(length));
    offset += kFrameSize + length;
    before = length;
  }
  index.Trim();
  return index;
}

}  // namespace refurbish_tf

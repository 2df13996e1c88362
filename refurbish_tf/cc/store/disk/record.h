// The format on disk: records in segments, and for each sample an index word,
// which says where its record is and which generation it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "refurbish_tf/cc/store/disk/buffer_pool.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// The version of the format described here and of the file names. Increase it
// for any change that another version of the package would misread.
inline constexpr int kFormatVersion = 1;

// Precedes the payload of a record, with the memory layout of a little-endian
// machine. It does not say where the record is, because records are moved.
struct RecordHeader {
  uint32_t magic;
  uint32_t index;
  Generation generation;
  uint32_t payload_size;
  // Changes whenever the store starts empty, because deleted files may reappear
  // after a power failure.
  uint64_t store_id;
  uint32_t payload_crc;
  uint32_t header_crc;  // Of all fields before it.
};
static_assert(sizeof(RecordHeader) == 32, "");

RecordHeader MakeRecordHeader(uint64_t store_id, uint32_t index,
                              Generation generation, uint32_t payload_size,
                              uint32_t payload_crc);

// Whether this is the intact header of a record of this sample.
bool IsRecordHeader(const RecordHeader& header, uint64_t store_id,
                    uint32_t index);

// Memory for a record, aligned to `kAlignment` so that its payload can hold
// aligned tensors. Not initialized; `data` is null if there is no memory.
class RecordBuffer {
 public:
  static constexpr size_t kAlignment = BufferPool::kAlignment;

  RecordBuffer() = default;
  explicit RecordBuffer(size_t size)
      : data_(BufferPool::Global().Allocate(size), Free(size)) {}

  char* data() const { return data_.get(); }
  size_t size() const { return data_.get_deleter().size; }
  const RecordHeader& header() const {
    return *reinterpret_cast<const RecordHeader*>(data());
  }
  const char* payload() const { return data() + sizeof(RecordHeader); }
  size_t payload_size() const { return header().payload_size; }

  // Whether another process has written this record.
  bool foreign = false;

  // Whether the first `size` bytes are an intact record of this sample.
  bool Verify(uint64_t store_id, uint32_t index, size_t size) const;

 private:
  struct Free {
    Free() : size(0) {}
    explicit Free(size_t size) : size(size) {}
    size_t size;
    void operator()(char* data) const { BufferPool::Global().Free(data, size); }
  };
  std::unique_ptr<char, Free> data_;
};

// Where a record is. Small records are packed closely. Large ones have their
// own segments and begin at page boundaries, so that a punched hole frees all
// their space.
struct Location {
  bool large = false;
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t size = 0;  // Includes the padding after the record.
  // The part of the generation that fits into an index word: see `kNumTags`.
  uint32_t tag = 0;
};

inline constexpr uint64_t kSmallUnit = 64;
inline constexpr uint64_t kLargeUnit = 4096;
inline constexpr uint64_t kLargeRecord = 16 << 10;  // The smallest large one.
inline constexpr uint64_t kMaxRecord = uint64_t{1023} << 17;
inline constexpr uint64_t kMaxSmallSegment = kSmallUnit << 20;
inline constexpr uint64_t kMaxLargeSegment = uint64_t{1} << 30;
inline constexpr uint32_t kNumSegments = 1 << 15;
// An index word has room for fifteen bits of a generation, its tag. From a tag,
// a reader infers the generation that is nearest to the one it wants. The
// record has the whole generation.
inline constexpr uint32_t kNumTags = 1 << 15;

// The space that a record of this many bytes takes, header included.
uint64_t RecordSpace(uint64_t record_size);

// A location packed into a word, from the highest bit on: tag (15 bits), large
// (1), segment (15), offset in units (20), size (13). The size of a small
// record is in units; the size of a large one has ten bits of units and a shift
// of three bits. 0 is not a location.
uint64_t EncodeLocation(const Location& location);
Location DecodeLocation(uint64_t word);

inline uint32_t TagOf(Generation generation) { return generation % kNumTags; }
inline uint32_t TagOfWord(uint64_t word) { return word >> 49; }
// The generation with this tag that is nearest to `to`. It is the record's
// generation if that is less than half of all tags away. Only the record itself
// is certain.
Generation NearestGeneration(uint32_t tag, Generation to);
inline bool MayBeWanted(uint32_t tag, GenerationRange wanted) {
  return wanted.Contains(NearestGeneration(tag, wanted.least));
}

}  // namespace refurbish_tf

// A sample as bytes, on disk and on a shared level: a header and its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "refurbish_tf/cc/store/buffer_pool.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

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

// The bytes of the largest record, which an index word on disk can express.
inline constexpr uint64_t kMaxRecord = uint64_t{1023} << 17;

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

}  // namespace refurbish_tf

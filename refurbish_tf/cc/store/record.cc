#include "refurbish_tf/cc/store/record.h"

#include "refurbish_tf/cc/base/crc32c.h"

namespace refurbish_tf {
namespace {

constexpr uint32_t kRecordMagic = 0x31465452;  // "RTF1".

uint32_t HeaderCrc(const RecordHeader& header) {
  return Crc32c(&header, offsetof(RecordHeader, header_crc));
}

}  // namespace

RecordHeader MakeRecordHeader(uint64_t store_id, uint32_t index,
                              Generation generation, uint32_t payload_size,
                              uint32_t payload_crc) {
  RecordHeader header{kRecordMagic, index,       generation, payload_size,
                      store_id,     payload_crc, 0};
  header.header_crc = HeaderCrc(header);
  return header;
}

bool IsRecordHeader(const RecordHeader& header, uint64_t store_id,
                    uint32_t index) {
  return header.magic == kRecordMagic && header.index == index &&
         header.store_id == store_id && header.header_crc == HeaderCrc(header);
}

bool RecordBuffer::Verify(uint64_t store_id, uint32_t index,
                          size_t size) const {
  return size >= sizeof(RecordHeader) &&
         IsRecordHeader(header(), store_id, index) &&
         header().payload_size <= size - sizeof(RecordHeader) &&
         header().payload_crc == Crc32c(payload(), payload_size());
}

}  // namespace refurbish_tf

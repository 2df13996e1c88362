// How a TFRecord file frames its records: the length (8 bytes), its checksum
// (4), the record, its checksum (4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "refurbish_tf/cc/base/crc32c.h"

namespace refurbish_tf {

inline constexpr size_t kHeaderSize = 12;
inline constexpr size_t kFooterSize = 4;
inline constexpr uint64_t kFrameSize = kHeaderSize + kFooterSize;

inline uint32_t MaskedCrc(const void* data, size_t size) {
  const uint32_t crc = Crc32c(data, size);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// Files are little-endian, like all CPUs that TensorFlow's wheels run on.
template <class T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// False if the checksum after the length is wrong.
inline bool ParseHeader(const char* header, uint64_t* length) {
  *length = Load<uint64_t>(header);
  return Load<uint32_t>(header + sizeof(*length)) ==
         MaskedCrc(header, sizeof(*length));
}

}  // namespace refurbish_tf

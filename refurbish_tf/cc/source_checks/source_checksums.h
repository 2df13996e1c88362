// For each sample, the checksum of the source element it was prepared from.
#pragma once

#include <cstdint>
#include <string>

namespace refurbish_tf {

// The checksums of a store that outlives the process. Thread-safe.
class SourceChecksums {
 public:
  virtual ~SourceChecksums() = default;

  // The store's directory, for messages.
  virtual const std::string& path() const = 0;
  // False if no checksum was ever stored.
  virtual bool is_there() = 0;
  // Stores a checksum, which must not be 0. `platform`: a number for the
  // platform that computed the element. False if there is no room.
  virtual bool Set(uint64_t index, uint64_t platform, uint32_t sum) = 0;
  // 0 if none is known.
  virtual uint32_t Find(uint64_t index, uint64_t platform) = 0;
};

}  // namespace refurbish_tf

// For each sample a checksum of the source's element that it was prepared from.
#pragma once

#include <cstdint>
#include <string>

namespace refurbish_tf {

// They belong to a store that outlives the process. Thread-safe.
class SourceSums {
 public:
  virtual ~SourceSums() = default;

  // The store's directory, for messages.
  virtual const std::string& path() const = 0;
  // Whether there may be any.
  virtual bool is_there() = 0;
  // Notes a checksum, not 0. `platform`: what the element was computed on.
  // False if there is no room.
  virtual bool Set(uint64_t index, uint64_t platform, uint32_t sum) = 0;
  // 0 if none is known.
  virtual uint32_t Find(uint64_t index, uint64_t platform) = 0;
};

}  // namespace refurbish_tf

// What comes at one place of the order of an epoch.
#pragma once

#include <cstdint>
#include <optional>

#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

struct Place {
  enum class From {
    kStore,    // `sample`, already taken from the store.
    kReading,  // To be read from a store on disk.
    kSource,   // To be read from the source, as its next one.
  };
  From from = From::kSource;
  // Empty for `kSource` on a stream, until it has been read.
  std::optional<uint32_t> index;
  Sample sample;
  WantedSample wanted;           // Of `kReading`.
  int64_t bytes_ahead = 0;       // As counted in `Epoch::bytes_ahead_`.
  bool from_other_jobs = false;  // Another process prepared it.
  bool missing = false;    // Prepared although the schedule expects it cached.
  bool new_input = false;  // The source is first read from its start again.
};

// What to do at the current position of a stream.
struct Advance {
  int64_t pass_over = 0;  // This many elements are not wanted,
  bool wanted = false;    // the one after them is, ...
  uint32_t index = 0;     // ... and has this index,
  bool at_end = false;    // or the stream should end after them.
};

}  // namespace refurbish_tf

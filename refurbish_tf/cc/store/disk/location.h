// The format on disk: records in segments, and for each sample an index word,
// which says where its record is and which generation it has.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/store/record.h"
#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

// The version of the format described here and of the file names. Increase it
// for any change that another version of the package would misread.
inline constexpr int kFormatVersion = 1;

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

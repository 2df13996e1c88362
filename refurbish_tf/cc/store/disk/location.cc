#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {
namespace {

constexpr uint64_t kMaxMantissa = 1023;

// How far the number of units of a large record is shifted to fit in ten bits.
int Shift(uint64_t units) {
  int shift = 0;
  while (((units - 1) >> shift) + 1 > kMaxMantissa) ++shift;
  return shift;
}

}  // namespace

uint64_t RecordSpace(uint64_t record_size) {
  if (record_size < kLargeRecord) {
    return (record_size + kSmallUnit - 1) / kSmallUnit * kSmallUnit;
  }
  const uint64_t units = (record_size + kLargeUnit - 1) / kLargeUnit;
  const int shift = Shift(units);
  return ((((units - 1) >> shift) + 1) << shift) * kLargeUnit;
}

uint64_t EncodeLocation(const Location& location) {
  const uint64_t unit = location.large ? kLargeUnit : kSmallUnit;
  const uint64_t offset = location.offset / unit;
  uint64_t size = location.size / unit;
  if (location.large) {
    const int shift = Shift(size);
    size = static_cast<uint64_t>(shift) << 10 | size >> shift;
  }
  return uint64_t{location.tag} << 49 | uint64_t{location.large} << 48 |
         uint64_t{location.segment} << 33 | offset << 13 | size;
}

Location DecodeLocation(uint64_t word) {
  Location location;
  location.tag = TagOfWord(word);
  location.large = word >> 48 & 1;
  location.segment = word >> 33 & (kNumSegments - 1);
  const uint64_t unit = location.large ? kLargeUnit : kSmallUnit;
  location.offset = (word >> 13 & ((1 << 20) - 1)) * unit;
  uint64_t size = word & ((1 << 13) - 1);
  if (location.large) size = (size & kMaxMantissa) << (size >> 10);
  location.size = size * unit;
  return location;
}

Generation NearestGeneration(uint32_t tag, Generation to) {
  const uint32_t ahead = (tag - to) % kNumTags;
  if (ahead < kNumTags / 2) {
    return to < kNoGeneration - ahead ? to + ahead : to + ahead - kNumTags;
  }
  // There are no negative generations.
  const uint32_t behind = kNumTags - ahead;
  return to >= behind ? to - behind : to + ahead;
}

}  // namespace refurbish_tf

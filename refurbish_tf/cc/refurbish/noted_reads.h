// The reads that an epoch has noted, and how many have not ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "refurbish_tf/cc/store/sample_map.h"

namespace refurbish_tf {

class NotedReads {
 public:
  // `position`: where in the ring a sample in transit is.
  WantedSample Note(uint64_t key, GenerationRange wanted,
                    std::optional<uint64_t> position) {
    noted_.push_back({next_ticket_++, key, wanted, position});
    ++num_reading_;
    num_transit_reading_ += position.has_value();
    return noted_.back();
  }
  // The number of noted reads that were not taken yet.
  size_t size() const { return noted_.size(); }
  std::vector<WantedSample> Take() { return std::exchange(noted_, {}); }

  void End(const WantedSample& read) {
    --num_reading_;
    num_transit_reading_ -= read.position.has_value();
  }
  bool any() const { return num_reading_ > 0; }
  // Whether many reads are in progress. The limit is lower for samples in
  // transit, which may soon be replaced.
  bool many() const {
    return num_reading_ > kMostReading ||
           num_transit_reading_ > kMostTransitReading;
  }

 private:
  static constexpr int64_t kMostReading = 256;
  static constexpr int64_t kMostTransitReading = 32;

  std::vector<WantedSample> noted_;
  int64_t num_reading_ = 0;
  int64_t num_transit_reading_ = 0;
  uint64_t next_ticket_ = 0;
};

}  // namespace refurbish_tf

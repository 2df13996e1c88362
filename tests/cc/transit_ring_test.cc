// The ring of samples in transit: what one process puts another one gets, or nobody; never wrong bytes.
#include "refurbish_tf/cc/store/transit/transit_ring.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/disk/record.h"
#include "tests/cc/transit_testing.h"

namespace refurbish_tf {
namespace {

using State = TransitRing::Entry::State;

class TransitRingTest : public TransitTest {};

TEST_F(TransitRingTest, WhatOnePutsAnotherGets) {
  auto one = OpenRing(16, 3'000);
  auto two = OpenRing(16, 3'000);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(PutInTransit(*one, i, 1, Content(i, 1, 3'000)), PutResult::kStored);
    EXPECT_EQ(two->transit()->head(), i + 1);
  }
  one->Flush();
  const std::vector<Found> found = Walk(*two);
  ASSERT_EQ(found.size(), 10);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(found[i].position, i);
    EXPECT_EQ(found[i].index, i);
    EXPECT_EQ(found[i].tag, 1);
    EXPECT_EQ(Get(*two, i, i), Content(i, 1, 3'000));
  }
  EXPECT_EQ(two->Stats().store.hits, 10);
  EXPECT_EQ(two->Stats().foreign_hits, 10);
  EXPECT_EQ(one->Stats().transit_bytes_put, 10 * RecordSpace(sizeof(RecordHeader) + 3'000));
  EXPECT_EQ(one->Stats().store.entries, 0);
}

}  // namespace
}  // namespace refurbish_tf

// What the tests of samples in transit share.
#ifndef REFURBISH_TF_TESTS_CC_TRANSIT_TESTING_H_
#define REFURBISH_TF_TESTS_CC_TRANSIT_TESTING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/transit/transit_ring.h"
#include "tests/cc/disk_store_testing.h"

namespace refurbish_tf {

class TransitTest : public StoreDirectoryTest {
 protected:
  using StoreDirectoryTest::Get;

  struct Found {
    uint64_t position;
    uint32_t index;
    uint32_t tag;
  };

  static int64_t Space(size_t size) { return RecordSpace(sizeof(RecordHeader) + size); }

  // With a ring of so many records of contents of one size.
  std::unique_ptr<DiskStore> OpenRing(int64_t records, size_t size, DiskStoreOptions options = {}) {
    auto store = Open(std::move(options));
    EXPECT_TRUE(store->PlanTransit(records * Space(size), Space(size)).ok());
    EXPECT_NE(store->transit(), nullptr);
    return store;
  }

  static PutResult PutInTransit(DiskStore& store, uint64_t index, Generation generation, const std::string& content) {
    const iovec part = {const_cast<char*>(content.data()), content.size()};
    return store.PutInTransit(index, generation, &part, 1);
  }

  // What is there, oldest first.
  static std::vector<Found> Walk(DiskStore& store) {
    std::vector<Found> found;
    const TransitRing& ring = *store.transit();
    const uint64_t head = ring.head();
    uint64_t position = head - std::min(head, ring.slots());
    while (position < head) {
      const TransitRing::Entry entry = ring.At(position);
      EXPECT_GT(entry.next, position);
      if (entry.state == TransitRing::Entry::State::kThere) found.push_back({position, entry.index, entry.tag});
      position = entry.next;
    }
    return found;
  }

  static std::string Get(DiskStore& store, uint64_t position, uint64_t index, GenerationRange wanted = kAny) {
    DiskReadAhead ahead(&store);
    return Get(ahead, position, index, wanted);
  }
  static std::string Get(DiskReadAhead& ahead, uint64_t position, uint64_t index, GenerationRange wanted = kAny) {
    RecordBuffer record;
    if (!ahead.Get({0, index, wanted, position}, &record)) return "absent";
    return {record.payload(), record.payload_size()};
  }
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_TESTS_CC_TRANSIT_TESTING_H_

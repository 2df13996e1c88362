// The ring of samples in transit together with other uses of a store: clearing, forking, many threads.
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "tests/cc/store/disk/transit/transit_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

class TransitUseTest : public TransitTest {};

TEST_F(TransitUseTest, ClearEmptiesTheRingAndVerifyIgnoresIt) {
  auto one = OpenRing(8, 3'000);
  auto two = OpenRing(8, 3'000);
  for (uint64_t i = 0; i < 5; ++i) PutInTransit(*one, i, 1, Content(i, 1, 3'000));
  one->Flush();
  EXPECT_EQ(two->Verify(), (std::pair<int64_t, int64_t>(0, 0)));
  EXPECT_TRUE(one->Indices().empty());
  EXPECT_EQ(Walk(*two).size(), 5);
  DiskReadAhead ahead(one.get());
  ahead.Want({{0, 4, kAny, 4}});
  ahead.Start();
  two->Clear();
  const std::string read = Get(ahead, 4, 4);
  EXPECT_TRUE(read == "absent" || read == Content(4, 1, 3'000));  // The read may have been in time.
  EXPECT_TRUE(Walk(*one).empty());
  EXPECT_GE(one->transit()->head(), 5 + 8);
  PutInTransit(*two, 7, 1, Content(7, 1, 3'000));
  two->Flush();
  EXPECT_EQ(Walk(*one).size(), 1);
  one.reset();
  two.reset();
  one = OpenRing(4, 3'000, With(&DiskStoreOptions::overwrite, true));
  EXPECT_EQ(one->transit()->head(), 0);
  EXPECT_EQ(one->transit()->num_units(), 4);
}

TEST_F(TransitUseTest, AForkedChildCannotPut) {
  auto store = OpenRing(8, 3'000);
  PutInTransit(*store, 1, 1, Content(1, 1, 3'000));
  store->Flush();
  EXPECT_EQ(Join(Fork([&] {
              const bool failed = PutInTransit(*store, 2, 1, Content(2, 1, 3'000)) == PutResult::kFailed;
              store->Flush();
              return failed && store->transit()->head() == 1 ? 0 : 1;
            })),
            0);
  EXPECT_EQ(PutInTransit(*store, uint64_t{1} << 28, 1, "far away"), PutResult::kFailed);
}

TEST_F(TransitUseTest, KeptRecordsWrittenByAnotherProcessAreForeign) {
  auto one = Open();
  auto two = Open();
  Put(*one, 1, 1, "one");
  one->Flush();
  for (const bool ahead_of : {false, true}) {
    for (DiskStore* store : {one.get(), two.get()}) {
      DiskReadAhead ahead(store);
      if (ahead_of) ahead.Want({{0, 1, kAny}});
      if (ahead_of) ahead.Start();
      RecordBuffer record;
      EXPECT_TRUE(ahead.Get({0, 1, kAny}, &record));
      EXPECT_EQ(record.foreign, store == two.get());
    }
  }
}

TEST_F(TransitUseTest, ConcurrentPutsAndGetsReturnCorrectSamples) {
  DiskStoreOptions small;
  small.write_buffer = 8 << 10;
  small.write_delay_ms = 0;
  auto one = OpenRing(32, 1'000, std::move(small));
  auto two = OpenRing(32, 1'000);
  Threads(4, [&](int t) {
    DiskStore& store = t % 2 == 0 ? *one : *two;
    for (int i = 0; i < 20 * Rounds(5); ++i) {
      PutInTransit(store, t, i, Content(t, i, 1'000));
      const uint64_t before = store.transit()->head();
      EXPECT_GT(before, 0);
      for (const Found& there : Walk(store)) {
        DiskReadAhead ahead(&store);
        RecordBuffer record;
        // A sample that has replaced this one since has another generation.
        const GenerationRange wanted = {there.tag, there.tag};
        if (!ahead.Get({0, there.index, wanted, there.position}, &record)) continue;
        EXPECT_EQ(std::string(record.payload(), record.payload_size()), Content(there.index, there.tag, 1'000));
      }
    }
  }).Join();
  one->Flush();
  two->Flush();
  EXPECT_EQ(Walk(*one).size(), 32);
  // Now that no other thread writes, the sample must be found.
  PutInTransit(*one, 9, 0, Content(9, 0, 1'000));
  one->Flush();
  EXPECT_EQ(Get(*two, Walk(*two).back().position, 9), Content(9, 0, 1'000));
}

}  // namespace
}  // namespace refurbish_tf

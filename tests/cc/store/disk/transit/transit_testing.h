// Shared by the tests of samples in transit.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {

// A disk on which the files of the ring are slow or full.
class RingEnv : public StoreEnv {
 public:
  absl::StatusOr<int> Open(int directory, const std::string& name, int flags) override {
    if (full && name == "ring") return absl::ResourceExhaustedError("No space left");
    const absl::StatusOr<int> fd = StoreEnv::Open(directory, name, flags);
    if (name == "transit" && fd.ok()) records_ = *fd;
    return fd;
  }
  absl::Status Write(int fd, uint64_t offset, std::vector<iovec> parts) override {
    if (fd != records_) return StoreEnv::Write(fd, offset, std::move(parts));
    std::unique_lock<std::mutex> lock(mu_);
    while (held_) go_on_.wait(lock);
    ++writes;
    int64_t bytes = 0;
    for (const iovec& part : parts) bytes += part.iov_len;
    if (fits >= 0 && bytes > fits) return absl::ResourceExhaustedError("No space left");
    if (fits >= 0) fits -= bytes;
    return StoreEnv::Write(fd, offset, std::move(parts));
  }
  // Makes writes wait, or lets them continue.
  void Hold(bool hold) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      held_ = hold;
    }
    go_on_.notify_all();
  }

  std::atomic<bool> full{false};
  std::atomic<int> writes{0};
  std::atomic<int64_t> fits{-1};  // Bytes that can still be written; below 0, any number.

 private:
  std::atomic<int> records_{-1};
  std::mutex mu_;
  std::condition_variable go_on_;
  bool held_ = false;
};

class TransitTest : public StoreDirectoryTest {
 protected:
  using StoreDirectoryTest::Get;

  struct Found {
    uint64_t position;
    uint32_t index;
    uint32_t tag;
  };

  static int64_t Space(size_t size) { return RecordSpace(sizeof(RecordHeader) + size); }

  // Opens a store with a ring of `records` records of this size.
  std::unique_ptr<DiskStore> OpenRing(int64_t records, size_t size, DiskStoreOptions options = {}) {
    auto store = Open(std::move(options));
    EXPECT_TRUE(store->PlanTransit(records * Space(size), Space(size)).ok());
    EXPECT_NE(store->transit(), nullptr);
    return store;
  }

  static PutResult PutInTransit(DiskStore& store, uint64_t index, Generation generation, const std::string& content) {
    const iovec part = {const_cast<char*>(content.data()), content.size()};
    return store.PutInTransit(index, generation, {&part, 1});
  }

  // The samples in the ring, oldest first.
  static std::vector<Found> Walk(DiskStore& store) {
    std::vector<Found> found;
    const TransitRing& ring = *store.transit();
    const uint64_t head = ring.head();
    uint64_t position = head - std::min(head, ring.num_units());
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

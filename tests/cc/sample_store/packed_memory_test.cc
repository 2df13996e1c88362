#include "refurbish_tf/cc/sample_store/packed_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/sample_store/sample_memory.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using tensorflow::Tensor;

Tensor TensorOf(int64_t bytes, char content = 0) {
  Tensor tensor(tensorflow::DT_UINT8, {bytes});
  std::memset(tensor.data(), content, bytes);
  return tensor;
}

// With pages of 64 KiB, tensors of 20 KiB must also be packed: freeing one would not free a whole page.
TEST(PackedMemoryTest, PacksTensorsOfFewSizesThatWouldNotFreeWholePages) {
  for (const size_t page_bytes : {4 << 10, 64 << 10}) {
    const auto memory = std::make_shared<PackedMemory>(page_bytes);
    std::vector<Tensor> kept;  // Keeps the tensors' slots in use.
    const auto is_packed = [&](int64_t bytes) {
      const Tensor tensor = TensorOf(bytes);
      kept.push_back(memory->Copy(tensor));
      return kept.back().data() != tensor.data();
    };
    EXPECT_TRUE(is_packed(8192));
    EXPECT_EQ(is_packed(20'000), page_bytes > 4096);
    EXPECT_FALSE(is_packed(2 * page_bytes + 1));
    for (int64_t size = 1; size <= 16; ++size) is_packed(20'000 + 64 * size);
    EXPECT_FALSE(is_packed(40'000));
    EXPECT_EQ(is_packed(20'000), page_bytes > 4096);
    EXPECT_TRUE(is_packed(3000));
  }
}

// Guarantee G8 of ARCHITECTURE.md: otherwise dropping samples would free no memory.
TEST(PackedMemoryTest, MemoryOfAFreedRegionIsReturnedToTheSystem) {
  const auto memory = std::make_shared<PackedMemory>();
  std::map<uint64_t, std::vector<Tensor>> regions;
  for (int i = 0; i < 5000; ++i) {
    const Tensor tensor = memory->Copy(TensorOf(3000));
    regions[RegionOf({tensor})].push_back(tensor);
  }
  ASSERT_GE(regions.size(), 5000 * 3000 / kRegionBytes);
  const auto is_mapped = [](void* data) {
    unsigned char pages[2];
    const uintptr_t page = reinterpret_cast<uintptr_t>(data) / 4096 * 4096;
    return mincore(reinterpret_cast<void*>(page), 1, pages) == 0 || errno != ENOMEM;
  };
  // The last region may have a slab with free slots, which is not returned.
  for (auto region = regions.begin(); region != std::prev(regions.end()); ++region) {
    std::vector<void*> slots;
    for (const Tensor& tensor : region->second) slots.push_back(tensor.data());
    region->second.resize(1);
    EXPECT_TRUE(is_mapped(slots[0]));
    region->second.clear();
    int mapped = 0;
    for (void* const slot : slots) mapped += is_mapped(slot);
    // The memory keeps one free slab.
    EXPECT_LE(mapped, (1 << 20) / 3008) << region->first;
  }
}

TEST(PackedMemoryTest, ThreadsFreeMemoryAllocatedByOtherThreads) {
  const auto memory = std::make_shared<PackedMemory>();
  std::mutex mu;
  std::vector<std::pair<char, Tensor>> shared;
  std::atomic<int> wrong{0};
  Threads(4, [&](int t) {
    for (int i = 0; i < 3000; ++i) {
      const char content = static_cast<char>(i * 7 + t);
      Tensor packed = memory->Copy(TensorOf(600 + 1000 * (i % 3), content));
      std::pair<char, Tensor> other;
      {
        std::lock_guard<std::mutex> lock(mu);
        if (shared.size() < 900) {
          shared.push_back({content, std::move(packed)});
          continue;
        }
        std::swap(other, shared[i * 31 % shared.size()]);
        shared[i * 31 % shared.size()] = {content, std::move(packed)};
      }
      const char* const data = static_cast<const char*>(other.second.data());
      for (size_t k = 0; k < other.second.TotalBytes(); k += 7) wrong += data[k] != other.first;
    }
  }).Join();
  EXPECT_EQ(wrong, 0);
  std::set<const void*> slots;
  for (const auto& each : shared) EXPECT_TRUE(slots.insert(each.second.data()).second);
}

}  // namespace
}  // namespace refurbish_tf

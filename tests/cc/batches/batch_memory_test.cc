#include "refurbish_tf/cc/batches/batch_memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using tensorflow::DT_STRING;
using tensorflow::tstring;

constexpr int64_t kLarge = 1 << 18;

// Counts live allocations. Fails to allocate while there are `most` of them.
class CountingAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "counting"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (held >= most) return nullptr;
    ++held;
    // TensorFlow's own allocator has locks that the thread sanitizer does not see.
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void DeallocateRaw(void* data) override {
    --held;
    std::free(data);
  }
  std::atomic<int> held{0}, most{1000};
};

class BatchMemoryTest : public testing::Test {
 protected:
  Tensor Make(int64_t bytes, DataType type = tensorflow::DT_UINT8) {
    Tensor tensor;
    const absl::Status made = memory_->Make(type, TensorShape({bytes}), &tensor);
    EXPECT_TRUE(made.ok()) << made;
    EXPECT_TRUE(tensor.IsAligned());
    return tensor;
  }

  CountingAllocator allocator_;
  std::shared_ptr<BatchMemory> memory_ = std::make_shared<BatchMemory>("batches", &allocator_);
};

TEST_F(BatchMemoryTest, KeepsTwoBuffersPerSizeUntilItIsClosed) {
  std::vector<Tensor> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(Make(kLarge));
  batches.push_back(Make(2 * kLarge));
  EXPECT_EQ(allocator_.held, 6);
  batches.clear();
  EXPECT_EQ(allocator_.held, 3);
  for (int i = 0; i < 2; ++i) batches.push_back(Make(kLarge));
  EXPECT_EQ(allocator_.held, 3);
  EXPECT_NE(batches[0].data(), batches[1].data());
  memory_->Close();
  EXPECT_EQ(allocator_.held, 2);
  // Batches may outlive the iterator, which holds the `BatchMemory`.
  memory_ = nullptr;
  std::memset(batches[0].data(), 1, kLarge);
  batches.clear();
  EXPECT_EQ(allocator_.held, 0);
}

TEST_F(BatchMemoryTest, SmallBatchesAndStringsAreFreed) {
  Make(kLarge - 1);
  Make(0);
  Make(kLarge, DT_STRING).flat<tstring>()(3) = std::string(1000, 'a');
  EXPECT_EQ(allocator_.held, 0);
}

TEST_F(BatchMemoryTest, RunningOutOfMemoryIsAnError) {
  allocator_.most = 1;
  const Tensor first = Make(kLarge);
  Tensor tensor;
  for (const int64_t bytes : {kLarge, int64_t{100}}) {
    const absl::Status made = memory_->Make(tensorflow::DT_UINT8, TensorShape({bytes}), &tensor);
    EXPECT_TRUE(absl::IsResourceExhausted(made)) << made;
  }
  // More bytes than an int64 can count.
  EXPECT_TRUE(
      absl::IsResourceExhausted(memory_->Make(tensorflow::DT_DOUBLE, TensorShape({int64_t{1} << 61}), &tensor)));
}

TEST_F(BatchMemoryTest, ServesManyThreads) {
  std::atomic<int> wrong{0};
  Threads(4, [this, &wrong](int t) {
    for (int i = 0; i < 200; ++i) {
      const int64_t bytes = kLarge * (1 + i % 2);
      Tensor mine = Make(bytes);
      std::memset(mine.data(), t, bytes);
      const char* const data = static_cast<const char*>(mine.data());
      for (int64_t k = 0; k < bytes; k += 1000) wrong += data[k] != t;
      if (t == 0 && i == 150) memory_->Close();
    }
  }).Join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(allocator_.held, 0);
}

}  // namespace
}  // namespace refurbish_tf

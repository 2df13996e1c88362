#include "refurbish_tf/cc/sample_store/sample_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/ragged_tensor_variant.h"

namespace refurbish_tf {
namespace {

using Sample = std::vector<tensorflow::Tensor>;
using tensorflow::RaggedTensorVariant;
using tensorflow::Tensor;
using tensorflow::tstring;
using tensorflow::Variant;

constexpr int64_t kBytes = 100'000;

// Simulates the allocator of an accelerator, which may still be reading the memory.
class OtherAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "other"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
  }
  void DeallocateRaw(void* data) override { tensorflow::cpu_allocator()->DeallocateRaw(data); }
};

Tensor Filled(tensorflow::Allocator* allocator = tensorflow::cpu_allocator(), int64_t bytes = kBytes) {
  Tensor tensor(allocator, tensorflow::DT_UINT8, {bytes});
  std::memset(tensor.data(), 1, bytes);
  return tensor;
}

Tensor Ragged(const Tensor& values) {
  RaggedTensorVariant ragged;
  ragged.set_values(values);
  ragged.append_splits(Filled(tensorflow::cpu_allocator(), 16));
  Tensor tensor(tensorflow::DT_VARIANT, {1});
  tensor.flat<Variant>()(0) = std::move(ragged);
  return tensor;
}

Tensor Strings(const std::vector<std::string>& texts) {
  Tensor tensor(tensorflow::DT_STRING, {static_cast<int64_t>(texts.size())});
  std::copy(texts.begin(), texts.end(), tensor.flat<tstring>().data());
  return tensor;
}

// The number of filled bytes that are left in a buffer.
int64_t Left(const void* data) {
  const char* const bytes = static_cast<const char*>(data);
  return std::count(bytes, bytes + kBytes, 1);
}

uint64_t RegionAt(const void* data) { return reinterpret_cast<uintptr_t>(data) / kRegionBytes; }

TEST(SampleMemoryTest, ReturnsPagesOfUnsharedTensors) {
  Sample sample = {Filled(), Filled()};
  ReturnPagesOf(sample);
  // The first and last pages stay, because other buffers may use them.
  for (const Tensor& tensor : sample) EXPECT_LT(Left(tensor.data()), 2 * 4096);
  sample = {Ragged(Filled())};
  const void* const values = sample[0].flat<Variant>()(0).get<RaggedTensorVariant>()->values().data();
  EXPECT_EQ(Left(values), kBytes);
  ReturnPagesOf(sample);
  EXPECT_LT(Left(values), 2 * 4096);
}

TEST(SampleMemoryTest, KeepsPagesOfSharedTensors) {
  Sample sample = {Filled()};
  const Sample copy = sample;
  ReturnPagesOf(sample);
  EXPECT_EQ(Left(copy[0].data()), kBytes);
  // The inner tensors have one reference, but two samples share the variant.
  sample = {Ragged(Filled())};
  const Sample ragged = sample;
  ReturnPagesOf(sample);
  EXPECT_EQ(Left(ragged[0].flat<Variant>()(0).get<RaggedTensorVariant>()->values().data()), kBytes);
  const Tensor whole = Filled();
  sample = {whole.Slice(0, kBytes / 2)};
  ReturnPagesOf(sample);
  EXPECT_EQ(Left(whole.data()), kBytes);
}

TEST(SampleMemoryTest, KeepsMemoryOfOtherAllocatorsAndStrings) {
  OtherAllocator allocator;
  Sample sample = {Filled(&allocator), Strings(std::vector<std::string>(10'000, std::string(30, 'a'))), Tensor()};
  ReturnPagesOf(sample);
  EXPECT_EQ(Left(sample[0].data()), kBytes);
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(sample[1].flat<tstring>()(i), std::string(30, 'a'));
}

// Dropping a sample frees mainly its largest part, wherever the tensor objects themselves are.
TEST(SampleMemoryTest, ASampleBelongsToTheRegionOfItsLargestPart) {
  const Tensor large = Filled(tensorflow::cpu_allocator(), 3 * kRegionBytes);
  const Tensor strings = Strings({"a", std::string(4 * kRegionBytes, 'b')});
  EXPECT_EQ(RegionOf({Filled(), large, Tensor(int64_t{3})}), RegionAt(large.data()));
  EXPECT_EQ(RegionOf({Ragged(large), Filled()}), RegionAt(large.data()));
  EXPECT_EQ(RegionOf({strings, large}), RegionAt(strings.flat<tstring>()(1).data()));
  EXPECT_EQ(RegionOf({}), 0u);
  EXPECT_EQ(RegionOf({Tensor()}), 0u);
}

}  // namespace
}  // namespace refurbish_tf

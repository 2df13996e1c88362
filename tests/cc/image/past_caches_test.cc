// Stores that bypass the caches normalize to the same bytes as ordinary ones, at any address.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

TEST(NonTemporalStoresTest, WriteTheSameBytesAndNoOthers) {
  // For ordinary stores, stores past the caches, and plain kernels. Comparing all of it finds writes beyond an image.
  alignas(64) static uint8_t memory[3][1 << 16];
  for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16, ValueType::kFloat16}) {
    // With five channels, the pattern of means repeats after the most bytes.
    for (const std::string mean : {".4", ".4,.5,.6", ".2,.3,.4,.5,.6"}) {
      const int64_t channels = static_cast<int64_t>(mean.size() + 1) / 3;
      const LayerChain chain =
          *LayerChain::Parse({"random_flip position=-1", absl::StrCat("normalize position=-1 dtype=", NameOf(type),
                                                                      " mean=", mean, " std=", mean)});
      for (int64_t width = 1; width <= 70; ++width) {
        // One row is normalized straight from the image. Forty rows are flipped first, in bands if they are long.
        for (const int64_t height : {1, 40}) {
          const int32_t flips = height > 1 ? 1 : 0;
          std::vector<uint8_t> from(height * width * channels);
          std::iota(from.begin(), from.end(), static_cast<uint8_t>(width));
          for (int64_t begin = 64; begin < 64 + 8 * BytesOf(type); begin += BytesOf(type)) {
            for (int i = 0; i < 3; ++i) {
              const PixelKernels& kernels = i == 2 ? PlainKernels() : BestKernels();
              Painter(chain, {height, width}, {ValueType::kUint8, channels}, kernels)
                  .Paint(from.data(), &flips, memory[i] + begin, i == 0 ? Stores::kCached : Stores::kPastCaches);
            }
            ASSERT_TRUE(std::equal(memory[0], memory[1], memory[1]) && std::equal(memory[0], memory[1], memory[2]))
                << channels << " channels, " << width << " columns at " << begin << ", " << NameOf(type);
          }
        }
      }
    }
  }
  // Without vector kernels, both kinds of stores use the same loop.
  const auto loop = [](Stores to) { return BestKernels().NormalizeOf(ValueType::kUint8, ValueType::kFloat32, to); };
  EXPECT_EQ(loop(Stores::kPastCaches) != loop(Stores::kCached), VectorKernels() != nullptr);
}

}  // namespace
}  // namespace refurbish_tf

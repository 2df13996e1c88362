// Draws and pixels of the layers, compared with the simplest implementation.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

using Random = std::mt19937_64;

int64_t Between(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % (high - low + 1));
}

// A block of exactly this length, so that the sanitizer reports accesses beyond it.
struct Bytes {
  explicit Bytes(size_t number) : data(new uint8_t[number]), size(number) {}
  std::unique_ptr<uint8_t[]> data;
  size_t size;
  std::vector<uint8_t> Vector() const { return {data.get(), data.get() + size}; }
};

Bytes Noise(Random& random, size_t number) {
  Bytes bytes(number);
  for (size_t i = 0; i < number; ++i) bytes.data[i] = static_cast<uint8_t>(random());
  return bytes;
}

struct Image {
  ImageSize size;
  Pixel pixel;
  std::vector<uint8_t> bytes;
  uint8_t At(int64_t y, int64_t x, int64_t c) const { return bytes[(y * size.width + x) * pixel.bytes() + c]; }
};

Pixel BytePixel(int64_t channels) { return {ValueType::kUint8, channels}; }

absl::StatusOr<ImageSpec> Behind(const LayerChain& chain, ImageSize size, int64_t channels = kUnknown) {
  return chain.Behind({size, BytePixel(channels)});
}

LayerChain Parsed(const std::vector<std::string>& texts) {
  absl::StatusOr<LayerChain> chain = LayerChain::Parse(texts);
  EXPECT_TRUE(chain.ok()) << chain.status();
  return *std::move(chain);
}

std::string RandomLayer(Random& random, int64_t least_side) {
  switch (random() % 4) {
    case 0:
      return absl::StrCat("random_crop position=-1 reflect=0 padding=", Between(random, 0, least_side + 3));
    case 1:
      return absl::StrCat("random_crop position=-1 reflect=1 padding=", Between(random, 0, least_side - 1));
    case 2:
      return "random_flip position=-1";
    default:
      return absl::StrCat("cutout position=-1 side=", Between(random, 1, 2 * least_side));
  }
}

Pixel RandomPixel(Random& random) {
  constexpr ValueType kTypes[] = {ValueType::kUint8, ValueType::kUint16, ValueType::kInt16, ValueType::kFloat32};
  constexpr int64_t kChannels[] = {1, 2, 3, 4, 5, 13, 64};
  return {kTypes[random() % 4], kChannels[random() % 7]};
}

TEST(DrawsTest, MatchTheSpecification) {
  // The expected numbers were calculated in Python, whose integers do not overflow.
  const LayerChain chain =
      Parsed({"random_crop position=-1 padding=4 reflect=0", "random_flip position=1", "cutout position=7 side=3"});
  ASSERT_EQ(chain.num_draws(), 5);
  std::vector<int32_t> draws(5);
  chain.Draw(ImageSeed(7, -3), draws.data());
  EXPECT_EQ(draws, std::vector<int32_t>({4, 6, 1, 669215203, 944996668}));
  EXPECT_EQ(ImageSeed(7, -3).At(5), (std::array<int32_t, 2>{1531704904, -1688831083}));
}

// Converts a value of this type to float32, exactly.
float AsFloat(ValueType type, const uint8_t* bytes) {
  uint32_t bits;
  if (type == ValueType::kFloat32) {
    std::memcpy(&bits, bytes, 4);
  } else {
    uint16_t half;
    std::memcpy(&half, bytes, 2);
    if (type == ValueType::kFloat16) {
      const int exponent = (half >> 10) & 31;
      const double digits = half & 1023;
      const double magnitude = exponent == 31  ? std::numeric_limits<double>::infinity()
                               : exponent == 0 ? std::ldexp(digits, -24)
                                               : std::ldexp(1024 + digits, exponent - 25);
      return static_cast<float>((half & 0x8000) != 0 ? -magnitude : magnitude);
    }
    bits = static_cast<uint32_t>(half) << 16;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

TEST(PainterTest, NormalizesPaintedPixels) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const int64_t channels = std::array<int64_t, 6>{1, 3, 4, 5, 13, 64}[random() % 6];
    // Some rows are longer than the part that is painted at a time.
    const int64_t width = random() % 10 == 0 ? Between(random, 8000, 9000) / channels * 2 : Between(random, 1, 60);
    const ImageSize size = {Between(random, 1, 9), width};
    const Bytes from = Noise(random, size.height * size.width * channels);
    std::string mean, std;
    std::vector<float> scale, offset;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t mean_thousands = Between(random, 0, 1000), std_thousands = Between(random, 1, 1000);
      absl::StrAppend(&mean, c > 0 ? "," : "", mean_thousands, "e-3");
      absl::StrAppend(&std, c > 0 ? "," : "", std_thousands, "e-3");
      scale.push_back(static_cast<float>(1 / (255 * (std_thousands / 1000.0))));
      offset.push_back(static_cast<float>(-(mean_thousands / 1000.0) / (std_thousands / 1000.0)));
    }
    std::vector<std::string> texts;
    for (int64_t i = Between(random, 0, 3); i > 0; --i) {
      texts.push_back(RandomLayer(random, std::min(size.height, size.width)));
    }
    const std::vector<std::string> as_bytes =
        texts.empty() ? std::vector<std::string>{"random_crop position=-1 padding=0 reflect=0"} : texts;
    const ValueType type =
        std::array<ValueType, 3>{ValueType::kFloat32, ValueType::kBfloat16, ValueType::kFloat16}[random() % 3];
    texts.push_back(absl::StrCat("normalize position=-1 dtype=", NameOf(type), " mean=", mean, " std=", std));
    const bool goes_on = random() % 2 == 0;
    if (goes_on) texts.push_back("random_crop position=-1 padding=0 reflect=0");
    const LayerChain chain = Parsed(texts), unnormalized = Parsed(as_bytes);
    std::vector<int32_t> draws(std::max(chain.num_draws(), unnormalized.num_draws()));
    unnormalized.Draw(ImageSeed(round, 0), draws.data());
    Bytes bytes(from.size);
    Painter(unnormalized, size, BytePixel(channels), PlainKernels())
        .Paint(from.data.get(), draws.data(), bytes.data.get());
    if (goes_on) draws.resize(chain.num_draws(), 0);
    const size_t value_size = BytesOf(type);
    Bytes plain(from.size * value_size), best(from.size * value_size);
    Painter(chain, size, BytePixel(channels), PlainKernels()).Paint(from.data.get(), draws.data(), plain.data.get());
    Painter(chain, size, BytePixel(channels), BestKernels()).Paint(from.data.get(), draws.data(), best.data.get());
    ASSERT_EQ(plain.Vector(), best.Vector());
    for (size_t i = 0; i < from.size; ++i) {
      const float product = bytes.data[i] * scale[i % channels];
      const float expected = product + offset[i % channels];
      const float found = AsFloat(type, plain.data.get() + value_size * i);
      // Rounding to 8 (bfloat16) or 11 (float16) binary digits changes at most half a unit; float32 must be equal.
      const float most = type == ValueType::kFloat32 ? 0 : type == ValueType::kBfloat16 ? 1.0f / 256 : 1.0f / 2048;
      ASSERT_LE(std::abs(found - expected), most * std::abs(expected) + (type == ValueType::kFloat16 ? 3e-8f : 0.0f));
    }
  }
}

TEST(RoundingTest, PreservesNanAndInfinity) {
  // Quiet and signalling NaNs, some with digits that rounding would carry into the sign, and infinity.
  const uint32_t bits[] = {0x7fc00000, 0x7fffffff, 0xffffffff, 0x7f800001,
                           0xff802000, 0x7fbfffff, 0x7f800000, 0xff800000};
  for (const auto& [name, type] : {std::pair{"bfloat16", ValueType::kBfloat16},
                                   {"float16", ValueType::kFloat16},
                                   {"float32", ValueType::kFloat32}}) {
    const LayerChain chain = Parsed({absl::StrCat("normalize position=-1 mean=0 std=1 dtype=", name)});
    std::vector<uint32_t> image(24 + 5);
    for (size_t i = 0; i < image.size(); ++i) image[i] = bits[i % 8];
    const ImageSize size = {1, static_cast<int64_t>(image.size())};
    std::vector<uint8_t> made[2];
    for (int i = 0; i < 2; ++i) {
      made[i].resize(image.size() * BytesOf(type));
      Painter(chain, size, {ValueType::kFloat32, 1}, i == 0 ? PlainKernels() : BestKernels())
          .Paint(image.data(), nullptr, made[i].data());
    }
    ASSERT_EQ(made[0], made[1]) << name;
    for (size_t i = 0; i < image.size(); ++i) {
      const uint8_t* const value = made[0].data() + i * BytesOf(type);
      uint16_t half;
      std::memcpy(&half, value, 2);
      const bool is_nan = type == ValueType::kFloat16 ? (half & 0x7fff) > 0x7c00 : std::isnan(AsFloat(type, value));
      ASSERT_EQ(is_nan, i % 8 < 6) << name << i;
    }
  }
}

TEST(RoundingTest, RoundsEveryFloat16ToItself) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const uint16_t bits = static_cast<uint16_t>(half);
    uint8_t bytes[2];
    std::memcpy(bytes, &bits, 2);
    const float value = AsFloat(ValueType::kFloat16, bytes);
    if ((half & 0x7c00) != 0x7c00) {
      EXPECT_EQ(RoundToFloat16(value), bits);
      // The middle between two neighbours is rounded to the even one.
      const uint16_t next = static_cast<uint16_t>(bits + 1);
      std::memcpy(bytes, &next, 2);
      const float after = AsFloat(ValueType::kFloat16, bytes);
      if (std::isfinite(after)) {
        EXPECT_EQ(RoundToFloat16((value + after) / 2), bits % 2 == 0 ? bits : next);
        EXPECT_EQ(RoundToFloat16(std::nextafter((value + after) / 2, after)), next);
      }
    }
    std::memcpy(bytes, &bits, 2);
    const float as_bfloat16 = AsFloat(ValueType::kBfloat16, bytes);
    if (std::isfinite(as_bfloat16)) {
      EXPECT_EQ(RoundToBfloat16(as_bfloat16), bits);
    }
  }
  EXPECT_EQ(RoundToFloat16(65519.99f), 0x7bff);
  EXPECT_EQ(RoundToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(RoundToFloat16(-1e30f), 0xfc00);
  EXPECT_EQ(RoundToBfloat16(1 + 1.0f / 256), 0x3f80);
  EXPECT_EQ(RoundToBfloat16(1 + 3.0f / 256), 0x3f82);
}

TEST(PainterTest, NormalizesEveryTypeIdenticallyWithAllKernels) {
  Random random(6);
  for (int round = 0; round < 200; ++round) {
    const Pixel pixel = RandomPixel(random);
    const ImageSize size = {Between(random, 1, 5), Between(random, 1, 40)};
    const Bytes from = Noise(random, size.height * size.width * pixel.bytes());
    const int64_t values = size.height * size.width * pixel.channels;
    for (const ValueType type : {ValueType::kFloat32, ValueType::kBfloat16, ValueType::kFloat16}) {
      const LayerChain chain =
          Parsed({absl::StrCat("normalize position=-1 mean=0.4 std=0.3 max_pixel_value=9.5 dtype=", NameOf(type))});
      Bytes plain(values * BytesOf(type)), best(plain.size);
      Painter(chain, size, pixel, PlainKernels()).Paint(from.data.get(), nullptr, plain.data.get());
      Painter(chain, size, pixel, BestKernels()).Paint(from.data.get(), nullptr, best.data.get());
      ASSERT_EQ(plain.Vector(), best.Vector()) << NameOf(pixel.type) << " to " << NameOf(type);
    }
  }
}

// Computes `tf.image.resize` in double precision.
double Resized(const Image& image, const Box& box, int64_t out_height, int64_t out_width, bool antialias, int64_t y,
               int64_t x, int64_t c) {
  const auto weights = [antialias](int64_t in, int64_t out, int64_t i) {
    const double step = static_cast<double>(in) / out;
    const double radius = antialias && step > 1 ? step : 1;
    double middle = (i + 0.5) * step - 0.5;
    if (!antialias) middle = std::clamp<double>(middle, 0, in - 1);
    std::vector<double> weights(in);
    double total = 0;
    for (int64_t k = 0; k < in; ++k) {
      weights[k] = std::max(0.0, 1 - std::abs(k - middle) / radius);
      total += weights[k];
    }
    for (double& weight : weights) weight /= total;
    return weights;
  };
  const std::vector<double> rows = weights(box.height, out_height, y);
  const std::vector<double> columns = weights(box.width, out_width, x);
  double sum = 0;
  for (int64_t i = 0; i < box.height; ++i) {
    for (int64_t j = 0; rows[i] > 0 && j < box.width; ++j) {
      sum += rows[i] * columns[j] * image.At(box.y + i, box.x + j, c);
    }
  }
  return sum;
}

TEST(ResizeTest, MatchesTheReferenceWithAllKernels) {
  Random random(3);
  for (int round = 0; round < 250; ++round) {
    const int64_t channels = std::array<int64_t, 3>{1, 3, 4}[random() % 3];
    const ImageSize size = {Between(random, 1, 40), Between(random, 1, 40)};
    const Bytes from = Noise(random, size.height * size.width * channels);
    const Image image = {size, BytePixel(channels), from.Vector()};
    const int64_t height = Between(random, 1, 30), width = Between(random, 1, 30);
    const bool antialias = random() % 2 == 0, flipped = random() % 2 == 0;
    std::vector<std::string> texts = {
        absl::StrCat("random_resized_crop position=-1 height=", height, " width=", width,
                     " scale=0.08,1 ratio=0.75,1.3333333333333333 antialias=", antialias ? 1 : 0)};
    if (flipped) texts.push_back("random_flip position=0");
    const LayerChain chain = Parsed(texts);
    std::vector<int32_t> draws(chain.num_draws());
    chain.Draw(ImageSeed(round, 5), draws.data());
    const Box box = chain.links()[0].layer->ResizingOf(draws.data(), size)->part;
    ASSERT_TRUE(box.y >= 0 && box.x >= 0 && box.height > 0 && box.width > 0 && box.y + box.height <= size.height &&
                box.x + box.width <= size.width);
    Bytes plain(height * width * channels), best(height * width * channels);
    Painter(chain, size, BytePixel(channels), PlainKernels()).Paint(from.data.get(), draws.data(), plain.data.get());
    Painter(chain, size, BytePixel(channels), BestKernels()).Paint(from.data.get(), draws.data(), best.data.get());
    ASSERT_EQ(plain.Vector(), best.Vector());
    const bool mirrored = flipped && draws.back() == 1;
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        for (int64_t c = 0; c < channels; ++c) {
          const double expected = Resized(image, box, height, width, antialias, y, mirrored ? width - 1 - x : x, c);
          ASSERT_NEAR(plain.data[(y * width + x) * channels + c], expected, 0.6);
        }
      }
    }
  }
}

TEST(ResizeTest, FlatImagesStayFlat) {
  for (const int64_t side : {1, 2, 7, 100}) {
    for (const int64_t to_side : {1, 3, 64}) {
      const LayerChain chain = Parsed({absl::StrCat("random_resized_crop position=-1 height=", to_side,
                                                    " width=", to_side, " scale=1,1 ratio=1,1 antialias=1")});
      std::vector<int32_t> draws(chain.num_draws());
      Bytes from(side * side * 3), to(to_side * to_side * 3);
      std::memset(from.data.get(), 255, from.size);
      Painter(chain, {side, side}, BytePixel(3), BestKernels()).Paint(from.data.get(), draws.data(), to.data.get());
      EXPECT_EQ(to.Vector(), std::vector<uint8_t>(to.size, 255));
    }
  }
}

TEST(LayerChainTest, RejectsInvalidLayers) {
  for (const char* text : {"",
                           "random_crop",
                           "blur position=-1",
                           "random_flip position=-2",
                           "random_flip position=-1 padding=3",
                           "random_flip position=-1 position=-1",
                           "random_crop position=-1 padding=-1 reflect=0",
                           "random_crop position=-1 padding=16384 reflect=0",
                           "random_crop position=-1 padding=4 reflect=2",
                           "cutout position=-1 side=0",
                           "cutout position=-1 side=1.5",
                           "random_resized_crop position=-1 height=0 width=1 scale=1,1 ratio=1,1 antialias=0",
                           "random_resized_crop position=-1 height=1 width=1 scale=1 ratio=1,1 antialias=0",
                           "random_resized_crop position=-1 height=1 width=1 scale=1,0.5 ratio=1,1 antialias=0",
                           "random_resized_crop position=-1 height=1 width=1 scale=1,1 ratio=0,1 antialias=0",
                           "random_resized_crop position=-1 height=1 width=1 scale=1,nan ratio=1,1 antialias=0",
                           "resize position=-1 height=1 width=0 antialias=0",
                           "resize position=-1 height=1 width=1 antialias=0 scale=1,1",
                           "normalize position=-1 dtype=float64 mean=0 std=1",
                           "normalize position=-1 dtype=float32 mean=0 std=0",
                           "normalize position=-1 dtype=float32 mean=0 std=-1",
                           "normalize position=-1 dtype=float32 mean=nan std=1",
                           "normalize position=-1 dtype=float32 mean=0 std=1e-45",
                           "normalize position=-1 dtype=float32 mean=0 std=1 max_pixel_value=0",
                           "normalize position=-1 dtype=float32 mean=0 std=1 max_pixel_value=nan",
                           "normalize position=-1 dtype=float32 mean=0,0 std=1",
                           "normalize position=-1 dtype=float32 mean=0 std=1,1,1"}) {
    EXPECT_EQ(LayerChain::Parse({text}).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(LayerChain::Parse({}).ok());
  EXPECT_FALSE(LayerChain::Parse(std::vector<std::string>(65, "random_flip position=-1")).ok());
}

TEST(LayerChainTest, RejectsInvalidImagesAndDraws) {
  const LayerChain chain = Parsed(
      {"random_crop position=-1 padding=3 reflect=1", "normalize position=-1 dtype=float32 mean=0,0,0 std=1,1,1"});
  EXPECT_TRUE(Behind(chain, {4, 4}).ok());
  EXPECT_TRUE(Behind(chain, {kUnknown, 4}, 3).ok());
  EXPECT_FALSE(Behind(chain, {3, 4}).ok());
  EXPECT_FALSE(Behind(chain, {4, 3}).ok());
  EXPECT_FALSE(Behind(chain, {0, 4}).ok());
  EXPECT_FALSE(Behind(chain, {4, 4}, 1).ok());
  EXPECT_FALSE(Behind(chain, {4, 4}, 2).ok());
  EXPECT_FALSE(Behind(Parsed({"random_flip position=-1"}), {4, 4}, 65).ok());
  EXPECT_FALSE(
      Parsed({"resize position=-1 height=1 width=1 antialias=0"}).Behind({{4, 4}, {ValueType::kBfloat16, 1}}).ok());
  for (const std::vector<int32_t>& draws : {std::vector<int32_t>{7, 0}, {0, 7}, {-1, 0}}) {
    EXPECT_FALSE(chain.CheckDraws(draws.data()).ok());
  }
  const int32_t flip = 2, cutout[] = {0, -1};
  EXPECT_FALSE(Parsed({"random_flip position=-1"}).CheckDraws(&flip).ok());
  EXPECT_FALSE(Parsed({"cutout position=-1 side=2"}).CheckDraws(cutout).ok());
}

}  // namespace
}  // namespace refurbish_tf

// mixup and CutMix: moments and frequencies of the draws, and the pixels compared with the simplest implementation.
#include "refurbish_tf/cc/image/mixing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

constexpr int32_t kWholeLambda = 1 << kLambdaBits;

MixDraw DrawOf(float mixup_alpha, float cutmix_alpha, float switch_prob, int64_t seed, int64_t image,
               int64_t batch_size) {
  const Mixing mixing = {mixup_alpha, cutmix_alpha, switch_prob};
  EXPECT_TRUE(mixing.Check().ok());
  return mixing.Draw(ImageSeed(seed, 0), image, batch_size);
}

TEST(MixDrawTest, LambdaHasTheMomentsOfTheBetaDistribution) {
  for (const double alpha : {0.1, 0.2, 0.5, 1.0, 5.0, 100.0}) {
    constexpr int kNumber = 100000;
    double sum = 0, squares = 0, fourths = 0;
    for (int i = 0; i < kNumber; ++i) {
      const double distance = DrawLambda(alpha, ImageSeed(7, i), 0) / double{kWholeLambda} - 0.5;
      sum += distance;
      squares += distance * distance;
      fourths += distance * distance * distance * distance;
    }
    const double variance = 1 / (4 * (2 * alpha + 1));
    // E[(X - 1/2)^4] of Beta(alpha, alpha).
    const double fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3));
    // Five standard deviations of each mean.
    EXPECT_NEAR(sum / kNumber, 0, 5 * std::sqrt(variance / kNumber)) << alpha;
    EXPECT_NEAR(squares / kNumber, variance, 5 * std::sqrt((fourth - variance * variance) / kNumber)) << alpha;
    EXPECT_NEAR(fourths / kNumber, fourth, 5 * std::sqrt(fourth / 16 / kNumber)) << alpha;
  }
}

TEST(MixDrawTest, LambdaIsInRangeForExtremeAlphas) {
  for (const double alpha : {1e-30, 1e-3, 1e3, 1e30}) {
    for (int i = 0; i < 1000; ++i) {
      const int32_t lambda = DrawLambda(alpha, ImageSeed(7, i), 0);
      EXPECT_TRUE(lambda >= 0 && lambda <= kWholeLambda);
      EXPECT_TRUE(alpha > 1e-20 || lambda == 0 || lambda == kWholeLambda);
      EXPECT_TRUE(alpha < 1e20 || lambda == kWholeLambda / 2);
    }
  }
}

// A seed must make the same batches in all versions.
TEST(MixDrawTest, DrawsOfASeedNeverChange) {
  std::vector<int64_t> drawn;
  for (int64_t image = 0; image < 3; ++image) {
    const MixDraw draw = DrawOf(0.2, 1, 0.5, 7, image, 5);
    drawn.insert(drawn.end(), {draw.partner, draw.is_cut, draw.lambda, draw.y, draw.x});
  }
  EXPECT_EQ(drawn, (std::vector<int64_t>{1, 0, 32360, 1449139540, 329333547, 2, 0, 32768, 1662260595, 226234328, 3, 1,
                                         25145, 37189539, 761611288}));
}

TEST(MixDrawTest, EachImageIsAPartnerOnceAndNeverItsOwn) {
  for (const int64_t batch_size : {2, 3, 8}) {
    std::vector<int> shifts(batch_size);
    for (int64_t seed = 0; seed < 2000; ++seed) {
      std::vector<bool> taken(batch_size);
      for (int64_t image = 0; image < batch_size; ++image) {
        const int64_t partner = DrawOf(1, 1, 0, seed, image, batch_size).partner;
        ASSERT_TRUE(partner >= 0 && partner < batch_size && partner != image && !taken[partner]);
        taken[partner] = true;
        if (image == 0) ++shifts[partner];
      }
    }
    const double expected = 2000.0 / (batch_size - 1);
    for (int64_t shift = 1; shift < batch_size; ++shift) EXPECT_NEAR(shifts[shift], expected, 5 * std::sqrt(expected));
  }
}

TEST(MixDrawTest, ASingleImageIsUnchanged) {
  const MixDraw draw = DrawOf(1, 1, 1, 7, 0, 1);
  EXPECT_EQ(draw.partner, 0);
  EXPECT_EQ(LambdaOf(draw, {8, 8}), 1);
}

TEST(MixDrawTest, SwitchesToCutMixWithTheGivenProbability) {
  for (const double prob : {0.0, 0.3, 1.0}) {
    int cut = 0;
    for (int64_t image = 0; image < 10000; ++image) cut += DrawOf(1, 1, prob, 7, image, 10000).is_cut;
    EXPECT_NEAR(cut, prob * 10000, 5 * std::sqrt(prob * (1 - prob) * 10000));
  }
}

TEST(MixDrawTest, DrawsDifferBetweenImagesAndSeeds) {
  EXPECT_NE(DrawOf(1, 1, 0, 7, 0, 9).lambda, DrawOf(1, 1, 0, 7, 1, 9).lambda);
  EXPECT_NE(DrawOf(1, 1, 0, 7, 0, 9).lambda, DrawOf(1, 1, 0, 8, 0, 9).lambda);
}

TEST(MixDrawTest, RejectsInvalidAlphasAndProbabilities) {
  for (const float alpha : {0.0f, -1.0f, std::nanf(""), HUGE_VALF}) {
    EXPECT_FALSE((Mixing{alpha, 1, 0}.Check().ok()));
    EXPECT_FALSE((Mixing{1, alpha, 0}.Check().ok()));
  }
  for (const float prob : {-0.1f, 1.1f, std::nanf("")}) EXPECT_FALSE((Mixing{1, 1, prob}.Check().ok()));
}

TEST(CutMixBoxTest, MatchesTheAuthorsImplementation) {
  std::mt19937_64 random(7);
  std::vector<int> rows(9), columns(12);
  for (int i = 0; i < 20000; ++i) {
    MixDraw draw;
    draw.is_cut = true;
    draw.lambda = static_cast<int32_t>(random() % (kWholeLambda + 1));
    draw.y = static_cast<int32_t>(random() >> 33);
    draw.x = static_cast<int32_t>(random() >> 33);
    const ImageSize size = {9, 12};
    // Like `rand_bbox` in the program of CutMix's authors.
    const double side = std::sqrt(1 - draw.lambda / double{kWholeLambda});
    const int height = static_cast<int>(9 * side), width = static_cast<int>(12 * side);
    const int y = static_cast<int>(draw.y * 9.0 / 0x1p31), x = static_cast<int>(draw.x * 12.0 / 0x1p31);
    ++rows[y];
    ++columns[x];
    const int top = std::max(y - height / 2, 0), bottom = std::min(y + height / 2, 9);
    const int left = std::max(x - width / 2, 0), right = std::min(x + width / 2, 12);
    const Box box = BoxOf(draw, size);
    ASSERT_EQ((std::vector<int64_t>{box.y, box.x, box.height, box.width}),
              (std::vector<int64_t>{top, left, bottom - top, right - left}));
    EXPECT_EQ(LambdaOf(draw, size), static_cast<float>(1 - (bottom - top) * (right - left) / 108.0));
  }
  for (const int row : rows) EXPECT_NEAR(row, 20000 / 9, 5 * std::sqrt(20000 / 9));
  for (const int column : columns) EXPECT_NEAR(column, 20000 / 12, 5 * std::sqrt(20000 / 12));
}

template <class Value>
void CheckMixed(ValueType type, const std::vector<Value>& values) {
  std::mt19937_64 random(7);
  std::vector<const PixelKernels*> all = {&PlainKernels()};
  if (VectorKernels() != nullptr) all.push_back(VectorKernels());
  for (int i = 0; i < 600; ++i) {
    const ImageSize size = {static_cast<int64_t>(random() % 6), static_cast<int64_t>(random() % 14)};
    const int64_t channels = 1 + static_cast<int64_t>(random() % 3), number = size.height * size.width * channels;
    std::vector<Value> image(number), partner(number), expected(number);
    for (Value& value : image) value = values[random() % values.size()];
    for (Value& value : partner) value = values[random() % values.size()];
    MixDraw draw;
    draw.is_cut = random() % 2 != 0;
    draw.lambda = static_cast<int32_t>(random() % 4 == 0 ? (random() % 2) << kLambdaBits : random() % kWholeLambda);
    draw.y = static_cast<int32_t>(random() >> 33);
    draw.x = static_cast<int32_t>(random() >> 33);
    const float lambda = draw.lambda / float{kWholeLambda};
    const Box box = BoxOf(draw, size);
    for (int64_t at = 0; at < number; ++at) {
      const int64_t y = at / channels / size.width - box.y, x = at / channels % size.width - box.x;
      if (draw.is_cut) {
        expected[at] = (y >= 0 && y < box.height && x >= 0 && x < box.width ? partner : image)[at];
      } else if constexpr (sizeof(Value) == 1) {
        expected[at] =
            static_cast<Value>(std::floor(double{lambda} * image[at] + (1 - double{lambda}) * partner[at] + 0.5));
      } else {
        const volatile float one = lambda * image[at], other = (1 - lambda) * partner[at];
        expected[at] = one + other;
      }
    }
    for (const PixelKernels* kernels : all) {
      // Exactly as long as the values, so that the sanitizer reports writes beyond them.
      std::vector<Value> made(number);
      Mix(draw, size, {type, channels}, *kernels, reinterpret_cast<const char*>(image.data()),
          reinterpret_cast<const char*>(partner.data()), reinterpret_cast<char*>(made.data()));
      ASSERT_EQ(made, expected);
    }
  }
}

TEST(MixTest, BytesAreRounded) {
  std::vector<uint8_t> values(256);
  for (int i = 0; i < 256; ++i) values[i] = static_cast<uint8_t>(i);
  CheckMixed(ValueType::kUint8, values);
}

TEST(MixTest, FloatsAreRoundedInEachStep) {
  std::vector<float> values = {0, 1, -1, 255, 1e-30f, 3e38f, 0.1f, -0.7f, 123.456f};
  for (int i = 0; i < 100; ++i) values.push_back(std::sin(static_cast<float>(i)));
  CheckMixed(ValueType::kFloat32, values);
}

TEST(MixTest, InfiniteValuesWithZeroWeightAreIgnored) {
  const float image = HUGE_VALF, partner = 1;
  float made;
  for (const int32_t lambda : {0, kWholeLambda}) {
    Mix({0, false, lambda, 0, 0}, {1, 1}, {ValueType::kFloat32, 1}, PlainKernels(),
        reinterpret_cast<const char*>(&image), reinterpret_cast<const char*>(&partner), reinterpret_cast<char*>(&made));
    EXPECT_EQ(made, lambda == 0 ? partner : image);
  }
}

}  // namespace
}  // namespace refurbish_tf

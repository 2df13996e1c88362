// The distortions, with and without AVX2, compared with the simplest implementation.
#include "refurbish_tf/cc/image/distortions.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "tests/cc/image/distortions_testing.h"

namespace refurbish_tf {
namespace distortions_testing {
namespace {

TEST(DistortionsTest, MatchTheReferenceImplementation) {
  Dice dice(1);
  for (int round = 0; round < 900; ++round) {
    const Distortion distortion = static_cast<Distortion>(round % kNumDistortions);
    const int64_t most = round % 10 == 0 ? 130 : 40;
    const int pixel_bytes = dice() % 3 != 0 ? 3 : distortion >= Distortion::kRotate ? 4 : 1;
    const Picture picture = RollPicture(dice, Roll(dice, 1, most), Roll(dice, 1, most), pixel_bytes);
    const Turn turn = dice() % 2 == 0 ? Turn::kRounded : Turn::kExact;
    ExpectDistorted(dice, distortion, RollParameter(dice, distortion), turn, picture);
    if (HasFatalFailure()) return;
  }
}

TEST(DistortionsTest, MatchTheReferenceForLongRows) {
  Dice dice(2);
  for (int i = static_cast<int>(Distortion::kSharpness); i < kNumDistortions; ++i) {
    const Distortion distortion = static_cast<Distortion>(i);
    const double parameter = RollParameter(dice, distortion);
    ExpectDistorted(dice, distortion, parameter, Turn::kRounded, RollPicture(dice, 5, 1500));
    ExpectDistorted(dice, distortion, parameter, Turn::kRounded, RollPicture(dice, 1500, 5));
    if (distortion == Distortion::kSharpness) {
      ExpectDistorted(dice, distortion, parameter, Turn::kRounded, RollPicture(dice, 5, 1500, 1));
    }
    if (HasFatalFailure()) return;
  }
}

// Kernels that load several pixels at once must not read beyond the last pixel, wherever in a row rotation uses it.
TEST(DistortionsTest, RotationReadsTheLastPixelAnywhereInARow) {
  Dice dice(8);
  for (int degrees = -90; degrees <= 90; ++degrees) {
    const Picture picture = RollPicture(dice, Roll(dice, 6, 12), Roll(dice, 6, 12));
    ExpectDistorted(dice, Distortion::kRotate, degrees, Turn::kRounded, picture);
    if (HasFatalFailure()) return;
  }
}

// Rounding the cosines of these angles to 15 digits changes them by one unit of 1 / 65536, as calculated in Python.
TEST(DistortionsTest, RotationIsExactOrRoundedTo15Digits) {
  struct Angle {
    double degrees;
    int64_t rounded, exact;
  };
  for (const Angle& angle : {Angle{29.998847459120313, 56756, 56757}, Angle{0.3876538689869243, 65534, 65535}}) {
    const PreparedDistortion rounded(Distortion::kRotate, angle.degrees, Turn::kRounded);
    const PreparedDistortion exact(Distortion::kRotate, angle.degrees, Turn::kExact);
    EXPECT_EQ(InUnits(rounded.xx), angle.rounded);
    EXPECT_EQ(InUnits(exact.xx), angle.exact);
  }
}

TEST(DistortionsTest, AutoContrastMatchesTheReferenceForManyRanges) {
  Dice dice(4);
  for (int round = 0; round < 1200; ++round) {
    Picture picture = {1, 256, 3, Values(3 * 256)};
    for (int c = 0; c < 3; ++c) {
      const int64_t low = Roll(dice, 0, 255), high = Roll(dice, low, 255);
      for (int64_t x = 0; x < 256; ++x) picture.At(0, x, c) = static_cast<uint8_t>(std::clamp(x, low, high));
    }
    ExpectDistorted(dice, Distortion::kAutoContrast, 0, Turn::kRounded, picture);
    if (HasFatalFailure()) return;
  }
}

TEST(DistortionsTest, BlendMatchesTheReferenceForAllPairsOfValues) {
  Dice dice(5);
  Values all(3 * 256), expected(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  // With 0.135 and 1.07, some sums are rounded up to a whole number.
  std::vector<double> factors = {RollReal(dice, 0.1, 1.9), RollReal(dice, 0.1, 1.9), 0.135, 1.07};
  for (int i = 0; i <= 20; ++i) factors.push_back(0.1 + 1.8 * (0.05 * i));
  int in_words = 0, others = 0;
  for (const double factor : factors) {
    const BlendPlan plan = PreparedDistortion(Distortion::kContrast, factor).blend;
    ++(plan.in_words ? in_words : others);
    const auto blend = BestKernels().distortions->blend;
    for (int grey = 0; grey < 256; ++grey) {
      for (size_t k = 0; k < all.size(); ++k) expected[k] = Mixed(grey, all[k], plan.factor);
      for (int value = 0; value < 256; ++value) ASSERT_EQ(plain::Blend(grey, value, plan.factor), expected[value]);
      Values made(all.size());
      if (blend == nullptr) continue;
      blend(all.data(), 3 * 256, plan, static_cast<uint8_t>(grey), made.data());
      ASSERT_EQ(made, expected) << plan.factor;
      if (!plan.in_words || grey % 8 != 0) continue;
      // Blends in floats with the same factor, which must make the same bytes.
      BlendPlan by_floats;
      by_floats.factor = plan.factor;
      blend(all.data(), 3 * 256, by_floats, static_cast<uint8_t>(grey), made.data());
      ASSERT_EQ(made, expected) << plan.factor;
    }
  }
  EXPECT_GT(in_words, 18);
  EXPECT_GT(others, 2);
}

TEST(DistortionsTest, BrightnessMatchesTheReferenceForAnyFactor) {
  Dice dice(6);
  Picture picture = {16, 16, 3, Values(3 * 256)};
  for (size_t i = 0; i < picture.values.size(); ++i) picture.values[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 120; ++i) {
    const double factor = i < 21 ? 0.1 + 1.8 * (0.05 * i) : i < 100 ? RollReal(dice, 0, 2.2) : i / 50.0;
    ExpectDistorted(dice, Distortion::kBrightness, factor, Turn::kRounded, picture);
    if (HasFatalFailure()) return;
  }
}

// The checksum was recorded on a CPU without fused multiply-add.
TEST(DistortionsTest, PerspectiveIsBitIdenticalOnAllPlatforms) {
  Dice dice(8);
  uint64_t sum = 0;
  for (int round = 0; round < 200; ++round) {
    // Separate statements, because compilers evaluate arguments in different orders.
    const int64_t width = Roll(dice, 5, 150), height = Roll(dice, 5, 150);
    const Picture picture = RollPicture(dice, height, width);
    Corners to;
    for (int k = 0; k < Corners::kNumber; ++k) {
      const int64_t y = Roll(dice, 0, picture.height / 4), x = Roll(dice, 0, picture.width / 4);
      to.y[k] = k >= 2 ? picture.height - 1 - y : y;
      to.x[k] = k == 1 || k == 2 ? picture.width - 1 - x : x;
    }
    const PreparedDistortion prepared(to, {picture.height, picture.width});
    const std::unique_ptr<uint8_t[]> image = Block(picture.values);
    const RowStep step(prepared, 0, image.get(), picture.height, picture.width, 3, PlainKernels());
    Values row(picture.width * 3);
    for (int64_t y = 0; y < picture.height; ++y) {
      step.Row(y, 0, picture.width, row.data(), row.data() + row.size());
      for (const uint8_t value : row) sum = sum * 0x100000001b3 + value;
    }
  }
  EXPECT_EQ(sum, 6375432375878062906u);
}

TEST(DistortionsTest, ComposedStepsEqualSeparateSteps) {
  Dice dice(7);
  int composed = 0;
  for (int round = 0; round < 480; ++round) {
    Distortion distortions[2];
    double parameters[2];
    for (int i = 0; i < 2; ++i) {
      do {
        distortions[i] = static_cast<Distortion>(dice() % kNumDistortions);
      } while (IsOfRows(distortions[i]));
      parameters[i] = RollParameter(dice, distortions[i]);
    }
    const Picture picture = RollPicture(dice, Roll(dice, 1, 30), Roll(dice, 1, 30), round % 4 == 0 ? 1 : 3);
    const Picture between = Distorted(distortions[0], parameters[0], Turn::kRounded, 0, picture);
    const Picture expected = Distorted(distortions[1], parameters[1], Turn::kRounded, 0, between);
    for (const PixelKernels* kernels : BothKernels()) {
      PixelStep first(PreparedDistortion(distortions[0], parameters[0]), picture.values.data(), picture.pixels(),
                      picture.pixel_bytes, *kernels);
      const PixelStep second(PreparedDistortion(distortions[1], parameters[1]), between.values.data(), picture.pixels(),
                             picture.pixel_bytes, *kernels);
      SCOPED_TRACE(Name(distortions[0], parameters[0], picture, kernels));
      SCOPED_TRACE(Name(distortions[1], parameters[1], picture, kernels));
      if (first.Compose(second)) {
        ++composed;
        ASSERT_EQ(Applied(dice, first, picture), expected.values);
      } else {
        ASSERT_EQ(Applied(dice, first, picture), between.values);
        ASSERT_EQ(Applied(dice, second, between), expected.values);
      }
    }
  }
  EXPECT_GT(composed, 300);
}

}  // namespace
}  // namespace distortions_testing
}  // namespace refurbish_tf

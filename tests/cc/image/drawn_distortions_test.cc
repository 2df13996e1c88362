// Distortions whose amounts are drawn for each image, compared with exact arithmetic.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/distortions.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "tests/cc/image/distortions_testing.h"

namespace refurbish_tf {
namespace distortions_testing {
namespace {

// Turns the hue of a pixel by `sixths` of the color circle, by the definition of HSV, in double precision.
std::array<double, 3> HueTurned(const std::array<double, 3>& pixel, double sixths) {
  const auto [red, green, blue] = pixel;
  const double most = std::max({red, green, blue}), spread = most - std::min({red, green, blue});
  if (spread == 0) return pixel;
  double hue = most == red     ? (green - blue) / spread
               : most == green ? 2 + (blue - red) / spread
                               : 4 + (red - green) / spread;
  hue += sixths + 12;
  std::array<double, 3> made;
  for (int c = 0; c < 3; ++c) {
    // The distance from the channel's own hue, around the circle.
    const double away = std::abs(std::remainder(hue - 2 * c, 6));
    made[c] = most - spread * std::clamp(away - 1, 0.0, 1.0);
  }
  return made;
}

// All values are within 0.6 of exact, unrounded arithmetic.
TEST(DrawnDistortionsTest, HueMatchesExactArithmetic) {
  Dice dice(9);
  for (int round = 0; round < 40; ++round) {
    const double turn = round < 3 ? (round - 1) / 2.0 : RollReal(dice, -0.5, 0.5);
    const Picture picture = RollPicture(dice, 20, 32);
    for (const PixelKernels* kernels : {&PlainKernels(), &BestKernels()}) {
      const PixelStep step(PreparedDistortion(Distortion::kHue, turn), nullptr, picture.pixels(), 3, *kernels);
      const Values made = Applied(dice, step, picture);
      for (size_t i = 0; i < made.size(); i += 3) {
        const std::array<double, 3> expected = HueTurned(
            {double(picture.values[i]), double(picture.values[i + 1]), double(picture.values[i + 2])}, 6 * turn);
        for (int c = 0; c < 3; ++c) ASSERT_NEAR(made[i + c], expected[c], 0.5 + 0.1) << turn;
      }
    }
  }
}

// Factors that are multiples of 1 / kSteps, which have a faster preparation, match the reference as well.
TEST(DrawnDistortionsTest, QuantizedFactorsMatchTheReference) {
  Dice dice(10);
  Picture picture = {16, 16, 3, Values(3 * 256)};
  for (size_t i = 0; i < picture.values.size(); ++i) picture.values[i] = static_cast<uint8_t>(Roll(dice, 0, 255));
  int in_words = 0;
  for (int round = 0; round < 150; ++round) {
    const double factor = static_cast<double>(Roll(dice, 0, 12000)) / PreparedDistortion::kSteps;
    const PreparedDistortion contrast(Distortion::kContrast, factor);
    in_words += contrast.blend.in_words ? 1 : 0;
    ASSERT_EQ(contrast.blend.in_words, factor < 2.5);
    for (const Distortion each : {Distortion::kContrast, Distortion::kColor, Distortion::kBrightness}) {
      ExpectDistorted(dice, each, factor, Turn::kRounded, picture);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(in_words, 100);
}

// For any matrix and pixel size: each pixel is the source pixel that its middle maps to, in units of 1 / 65536 pixel.
TEST(DrawnDistortionsTest, AffineUsesTheNearestPixel) {
  Dice dice(11);
  int empty = 0, taken = 0;
  for (int round = 0; round < 300; ++round) {
    const int64_t most = round % 10 == 0 ? 300 : 40;
    const int pixel_bytes = static_cast<int>(std::array{1, 3, 4}[dice() % 3]);
    const Picture picture = RollPicture(dice, Roll(dice, 1, most), Roll(dice, 1, most), pixel_bytes);
    AffineChange change;
    change.degrees = RollReal(dice, -180, 180);
    change.scale = round % 7 == 0 ? RollReal(dice, 0.01, 0.2) : RollReal(dice, 0.5, 4);
    change.shear_x = round % 2 == 0 ? 0 : RollReal(dice, -80, 80);
    change.shear_y = round % 3 == 0 ? 0 : RollReal(dice, -80, 80);
    change.translate_x = round % 4 == 0 ? 0 : RollReal(dice, -1, 1);
    change.translate_y = round % 5 == 0 ? 0 : RollReal(dice, -1, 1);
    const PreparedDistortion prepared(change);
    const double middle_y = picture.height / 2.0, middle_x = picture.width / 2.0;
    const double from_y = -middle_y - std::nearbyint(InDouble(change.translate_y * picture.height));
    const double from_x = -middle_x - std::nearbyint(InDouble(change.translate_x * picture.width));
    const int64_t first_y = InUnits((InDouble(prepared.yx * from_x) + InDouble(prepared.yy * from_y)) + middle_y +
                                    InDouble(prepared.yx * 0.5) + InDouble(prepared.yy * 0.5));
    const int64_t first_x = InUnits((InDouble(prepared.xx * from_x) + InDouble(prepared.xy * from_y)) + middle_x +
                                    InDouble(prepared.xx * 0.5) + InDouble(prepared.xy * 0.5));
    const std::unique_ptr<uint8_t[]> image = Block(picture.values);
    for (const PixelKernels* kernels : BothKernels()) {
      SCOPED_TRACE(Name(Distortion::kAffine, change.degrees, picture, kernels));
      const RowStep step(prepared, 0, image.get(), picture.height, picture.width, pixel_bytes, *kernels);
      for (int64_t y = 0; y < picture.height; ++y) {
        const std::unique_ptr<uint8_t[]> to = Block(Values(picture.width * pixel_bytes));
        step.Row(y, 0, picture.width, to.get(), to.get() + picture.width * pixel_bytes);
        for (int64_t x = 0; x < picture.width; ++x) {
          const int64_t row = (first_y + x * InUnits(prepared.yx) + y * InUnits(prepared.yy)) >> 16;
          const int64_t column = (first_x + x * InUnits(prepared.xx) + y * InUnits(prepared.xy)) >> 16;
          const bool inside = row >= 0 && row < picture.height && column >= 0 && column < picture.width;
          ++(inside ? taken : empty);
          for (int c = 0; c < pixel_bytes; ++c) {
            ASSERT_EQ(to[x * pixel_bytes + c], inside ? picture.At(row, column, c) : 0) << y << " " << x;
          }
        }
      }
    }
  }
  EXPECT_GT(empty, 10000);
  EXPECT_GT(taken, 10000);
}

}  // namespace
}  // namespace distortions_testing
}  // namespace refurbish_tf

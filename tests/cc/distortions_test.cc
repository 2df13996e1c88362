// The distortions, plain and in AVX2, against the simplest implementation.
#include "refurbish_tf/cc/image/distortions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

using Dice = std::mt19937_64;
using Values = std::vector<uint8_t>;

constexpr int kNumDistortions = 18;

int64_t Roll(Dice& dice, int64_t low, int64_t high) { return low + static_cast<int64_t>(dice() % (high - low + 1)); }

double RollReal(Dice& dice, double low, double high) {
  return low + (high - low) * (static_cast<double>(dice() >> 11) / (int64_t{1} << 53));
}

// Exactly as long as it says, for the sanitizer to see what is beyond.
std::unique_ptr<uint8_t[]> Block(const Values& values) {
  std::unique_ptr<uint8_t[]> block(new uint8_t[values.size()]);
  std::copy(values.begin(), values.end(), block.get());
  return block;
}

struct Picture {
  int64_t height, width;
  int pixel_bytes;
  Values values;
  int64_t pixels() const { return height * width; }
  uint8_t& At(int64_t y, int64_t x, int c) { return values[(y * width + x) * pixel_bytes + c]; }
  uint8_t At(int64_t y, int64_t x, int c) const { return values[(y * width + x) * pixel_bytes + c]; }
};

// Noise of a random range of values in each channel.
Picture RollPicture(Dice& dice, int64_t height, int64_t width, int pixel_bytes = 3) {
  Picture picture = {height, width, pixel_bytes, Values(height * width * pixel_bytes)};
  int64_t low[4], high[4];
  for (int c = 0; c < 4; ++c) {
    low[c] = dice() % 3 == 0 ? 0 : Roll(dice, 0, 255);
    high[c] = dice() % 3 == 0 ? 255 : Roll(dice, low[c], 255);
  }
  for (size_t i = 0; i < picture.values.size(); ++i) {
    const int c = static_cast<int>(i % pixel_bytes);
    picture.values[i] = static_cast<uint8_t>(Roll(dice, low[c], high[c]));
  }
  return picture;
}

// What is stored is rounded, so that nothing is fused where fused operations are asked for.
float InFloat(float value) {
  volatile float rounded = value;
  return rounded;
}
double InDouble(double value) {
  volatile double rounded = value;
  return rounded;
}

uint8_t Mixed(int degenerate, int value, float factor) {
  const float product = InFloat(factor * static_cast<float>(value - degenerate));
  const float sum = InFloat(static_cast<float>(degenerate) + product);
  return static_cast<uint8_t>(sum <= 0 ? 0 : sum >= 255 ? 255 : std::floor(sum));
}

int GreyOf(const Picture& picture, int64_t y, int64_t x) {
  return (19595 * picture.At(y, x, 0) + 38470 * picture.At(y, x, 1) + 7471 * picture.At(y, x, 2) + 32768) / 65536;
}

int64_t InUnits(double value) { return static_cast<int64_t>(std::floor(InDouble(value * 65536) + 0.5)); }

// The hue of HSV, in sixths of the circle, turned; by the definition, in doubles.
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
    // From the channel's own hue, around the circle.
    const double away = std::abs(std::remainder(hue - 2 * c, 6));
    made[c] = most - spread * std::clamp(away - 1, 0.0, 1.0);
  }
  return made;
}

// Pillow's `ImageOps` and `ImageEnhance`, and `Image.transform` with the nearest pixel.
Picture Distorted(Distortion distortion, double parameter, Turn turn, uint8_t fill, const Picture& from) {
  Picture to = from;
  const float factor = static_cast<float>(parameter);
  const auto each = [&](auto value) {
    for (int64_t y = 0; y < from.height; ++y) {
      for (int64_t x = 0; x < from.width; ++x) {
        for (int c = 0; c < from.pixel_bytes; ++c) to.At(y, x, c) = static_cast<uint8_t>(value(y, x, c));
      }
    }
  };
  const auto by_value = [&](auto value) { each([&](int64_t y, int64_t x, int c) { return value(from.At(y, x, c)); }); };
  const auto from_place = [&](auto place) {
    each([&](int64_t y, int64_t x, int c) {
      const std::pair<int64_t, int64_t> source = place(y, x);
      const bool inside =
          source.first >= 0 && source.first < from.height && source.second >= 0 && source.second < from.width;
      return inside ? from.At(source.first, source.second, c) : fill;
    });
  };
  const auto shifted = [&](int64_t i) { return (i * InUnits(parameter) + InUnits(0.5 + parameter * 0.5)) >> 16; };
  switch (distortion) {
    case Distortion::kIdentity:
      break;
    case Distortion::kInvert:
      by_value([](int value) { return 255 - value; });
      break;
    case Distortion::kSolarize:
      by_value([&](int value) { return value < parameter ? value : 255 - value; });
      break;
    case Distortion::kPosterize:
      by_value([&](int value) { return value >> (8 - std::lround(parameter)) << (8 - std::lround(parameter)); });
      break;
    case Distortion::kHue: {
      // In sixteenths, of a turn in 4096ths.
      const int turn = static_cast<int>(std::lround(parameter * 6 * 4096));
      for (int64_t i = 0; i < 3 * from.pixels(); i += 3) {
        const int red = from.values[i], green = from.values[i + 1], blue = from.values[i + 2];
        const int most = std::max({red, green, blue}), spread = most - std::min({red, green, blue});
        const int sixths = most == red ? green - blue : most == green ? 2 * spread + blue - red : 4 * spread + red - green;
        const int turned = static_cast<int>(std::floor(spread * turn / 256.0 + 0.5));
        const int hue = spread == 0 ? 0 : (16 * sixths + turned + 96 * spread) % (96 * spread);
        for (int c = 0; c < 3; ++c) {
          const int away = std::abs(hue - 32 * c * spread);
          const int less = std::clamp(std::min(away, 96 * spread - away) - 16 * spread, 0, 16 * spread);
          to.values[i + c] = static_cast<uint8_t>((16 * most + 8 - less) / 16);
        }
      }
      break;
    }
    case Distortion::kBrightness:
      by_value([&](int value) { return std::min(InFloat(static_cast<float>(value) * factor), 255.0f); });
      break;
    case Distortion::kColor:
      each([&](int64_t y, int64_t x, int c) { return Mixed(GreyOf(from, y, x), from.At(y, x, c), factor); });
      break;
    case Distortion::kContrast: {
      double sum = 0;
      for (int64_t i = 0; i < from.pixels(); ++i) sum += GreyOf(from, i / from.width, i % from.width);
      const int mean = static_cast<int>(sum / static_cast<double>(from.pixels()) + 0.5);
      by_value([&](int value) { return Mixed(mean, value, factor); });
      break;
    }
    case Distortion::kAutoContrast:
      for (int c = 0; c < 3; ++c) {
        int low = 255, high = 0;
        for (int64_t i = c; i < from.pixels() * 3; i += 3) {
          low = std::min<int>(low, from.values[i]);
          high = std::max<int>(high, from.values[i]);
        }
        if (low == high) continue;
        const double scale = 255.0 / (high - low), offset = InDouble(-low * scale);
        for (int64_t i = c; i < from.pixels() * 3; i += 3) {
          to.values[i] = static_cast<uint8_t>(InDouble(from.values[i] * scale) + offset);
        }
      }
      break;
    case Distortion::kEqualize:
      for (int c = 0; c < 3; ++c) {
        std::vector<int64_t> histogram(256);
        for (int64_t i = c; i < from.pixels() * 3; i += 3) ++histogram[from.values[i]];
        int brightest = 255;
        while (histogram[brightest] == 0) --brightest;
        const int64_t step = (from.pixels() - histogram[brightest]) / 255;
        if (step == 0) continue;
        std::vector<int64_t> table(256);
        int64_t sum = step / 2;
        for (int value = 0; value < 256; ++value) {
          table[value] = std::min<int64_t>(sum / step, 255);
          sum += histogram[value];
        }
        for (int64_t i = c; i < from.pixels() * 3; i += 3) to.values[i] = static_cast<uint8_t>(table[from.values[i]]);
      }
      break;
    case Distortion::kSharpness:
      each([&](int64_t y, int64_t x, int c) {
        if (y == 0 || x == 0 || y == from.height - 1 || x == from.width - 1) return from.At(y, x, c);
        double sum = 4 * from.At(y, x, c);
        for (int64_t k = 0; k < 9; ++k) sum += from.At(y + k / 3 - 1, x + k % 3 - 1, c);
        return Mixed(static_cast<int>(sum / 13 + 0.5), from.At(y, x, c), factor);
      });
      break;
    case Distortion::kShearX:
      from_place([&](int64_t y, int64_t x) { return std::pair(y, x + shifted(y)); });
      break;
    case Distortion::kShearY:
      from_place([&](int64_t y, int64_t x) { return std::pair(y + shifted(x), x); });
      break;
    case Distortion::kTranslateX:
      from_place([&](int64_t y, int64_t x) { return std::pair(y, x + std::lrint(parameter * from.width)); });
      break;
    case Distortion::kTranslateY:
      from_place([&](int64_t y, int64_t x) { return std::pair(y + std::lrint(parameter * from.height), x); });
      break;
    case Distortion::kMoveX:
      from_place([&](int64_t y, int64_t x) { return std::pair(y, x + std::lrint(parameter)); });
      break;
    case Distortion::kMoveY:
      from_place([&](int64_t y, int64_t x) { return std::pair(y + std::lrint(parameter), x); });
      break;
    case Distortion::kAffine:
      break;
    case Distortion::kRotate: {
      const double pi = std::acos(-1.0);
      double cosine = std::cos(parameter * (pi / 180)), sine = std::sin(parameter * (pi / 180));
      if (turn == Turn::kRounded) {
        cosine = std::nearbyint(cosine * 1e15) / 1e15;
        sine = std::nearbyint(sine * 1e15) / 1e15;
      }
      const double middle_x = from.width / 2.0, middle_y = from.height / 2.0;
      const int64_t first_x = InUnits(InDouble(cosine * -middle_x) + InDouble(-sine * -middle_y) + middle_x +
                                      InDouble(cosine * 0.5) + InDouble(-sine * 0.5));
      const int64_t first_y = InUnits(InDouble(sine * -middle_x) + InDouble(cosine * -middle_y) + middle_y +
                                      InDouble(sine * 0.5) + InDouble(cosine * 0.5));
      from_place([&](int64_t y, int64_t x) {
        return std::pair((x * InUnits(sine) + y * InUnits(cosine) + first_y) >> 16,
                         (x * InUnits(cosine) + y * InUnits(-sine) + first_x) >> 16);
      });
      break;
    }
  }
  return to;
}

bool IsOfRows(Distortion distortion) {
  return distortion == Distortion::kSharpness || distortion >= Distortion::kRotate;
}

// The whole numbers and halves of magnitudes, as RandAugment uses them, and others.
double RollParameter(Dice& dice, Distortion distortion) {
  const double level = dice() % 2 == 0 ? static_cast<double>(Roll(dice, 0, 20)) / 20 : RollReal(dice, 0, 1);
  const double sign = dice() % 2 == 0 ? 1 : -1;
  switch (distortion) {
    case Distortion::kSolarize:
      return static_cast<double>(Roll(dice, 0, 256));
    case Distortion::kPosterize:
      return static_cast<double>(Roll(dice, 1, 8));
    case Distortion::kHue:
      return sign * level / 2;
    case Distortion::kRotate:
      return sign * level * (dice() % 4 == 0 ? 180 : 30);
    case Distortion::kShearX:
    case Distortion::kShearY:
      return sign * level * (dice() % 4 == 0 ? 1 : 0.3);
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
      // Quarters of a side end in halves of a pixel.
      return sign * (dice() % 2 == 0 ? level * 150 / 331 : 0.25 * static_cast<double>(Roll(dice, 0, 5)));
    case Distortion::kMoveX:
    case Distortion::kMoveY:
      return sign * static_cast<double>(Roll(dice, 0, 40));
    default:
      return 0.1 + 1.8 * level;
  }
}

std::vector<const PixelKernels*> BothKernels() { return {&PlainKernels(), &BestKernels()}; }

std::string Name(Distortion distortion, double parameter, const Picture& picture, const PixelKernels* kernels) {
  return "distortion " + std::to_string(static_cast<int>(distortion)) + " by " + std::to_string(parameter) + " of " +
         std::to_string(picture.height) + " x " + std::to_string(picture.width) + " x " +
         std::to_string(picture.pixel_bytes) + (kernels == &PlainKernels() ? ", plain" : "");
}

// In parts, in place or not.
Values Applied(Dice& dice, const PixelStep& step, const Picture& picture) {
  Values result;
  const bool in_place = dice() % 2 == 0;
  for (int64_t done = 0; done < picture.pixels();) {
    const int64_t pixels = Roll(dice, 1, picture.pixels() - done);
    const auto begin = picture.values.begin() + 3 * done;
    Values part(begin, begin + 3 * pixels);
    const std::unique_ptr<uint8_t[]> from = Block(part);
    const std::unique_ptr<uint8_t[]> to = Block(part);
    step.Apply(from.get(), pixels, in_place ? from.get() : to.get());
    const uint8_t* const made = in_place ? from.get() : to.get();
    result.insert(result.end(), made, made + 3 * pixels);
    done += pixels;
  }
  return result;
}

void ExpectDistorted(Dice& dice, Distortion distortion, double parameter, Turn turn, const Picture& picture) {
  const uint8_t fill = dice() % 2 == 0 ? 128 : 0;
  const Picture expected = Distorted(distortion, parameter, turn, fill, picture);
  const PreparedDistortion prepared(distortion, parameter, turn);
  const std::unique_ptr<uint8_t[]> image = Block(picture.values);
  for (const PixelKernels* kernels : BothKernels()) {
    SCOPED_TRACE(Name(distortion, parameter, picture, kernels));
    if (!IsOfRows(distortion)) {
      const bool needs_image = PixelStep::NeedsImage(distortion);
      const PixelStep step(prepared, needs_image ? image.get() : nullptr, picture.pixels(), *kernels);
      ASSERT_EQ(Applied(dice, step, picture), expected.values);
      if (step.changes_nothing()) {
        ASSERT_EQ(picture.values, expected.values);
      }
      continue;
    }
    const RowStep step(prepared, fill, image.get(), picture.height, picture.width, picture.pixel_bytes, *kernels);
    for (int64_t y = 0; y < picture.height; ++y) {
      const int64_t x = dice() % 2 == 0 ? 0 : Roll(dice, 0, picture.width - 1);
      const int64_t count = dice() % 2 == 0 ? picture.width - x : Roll(dice, 1, picture.width - x);
      const int64_t bytes = count * picture.pixel_bytes;
      const int64_t beyond = dice() % 2 == 0 ? 0 : Roll(dice, 0, 40);
      const std::unique_ptr<uint8_t[]> to = Block(Values(bytes + beyond));
      step.Row(y, x, count, to.get(), to.get() + bytes + beyond);
      const auto begin = expected.values.begin() + (y * picture.width + x) * picture.pixel_bytes;
      ASSERT_EQ(Values(to.get(), to.get() + bytes), Values(begin, begin + bytes)) << "row " << y << " from " << x;
    }
    if (prepared.changes_nothing) {
      ASSERT_EQ(picture.values, expected.values);
    }
  }
}

TEST(DistortionsTest, EqualTheSimplestImplementation) {
  Dice dice(1);
  for (int round = 0; round < 900; ++round) {
    const Distortion distortion = static_cast<Distortion>(round % kNumDistortions);
    const int64_t most = round % 10 == 0 ? 130 : 40;
    const int pixel_bytes = distortion >= Distortion::kRotate && dice() % 3 == 0 ? 4 : 3;
    const Picture picture = RollPicture(dice, Roll(dice, 1, most), Roll(dice, 1, most), pixel_bytes);
    const Turn turn = dice() % 2 == 0 ? Turn::kRounded : Turn::kExact;
    ExpectDistorted(dice, distortion, RollParameter(dice, distortion), turn, picture);
    if (HasFatalFailure()) return;
  }
}

TEST(DistortionsTest, OfLongRows) {
  Dice dice(2);
  for (int i = static_cast<int>(Distortion::kSharpness); i < kNumDistortions; ++i) {
    const Distortion distortion = static_cast<Distortion>(i);
    const double parameter = RollParameter(dice, distortion);
    ExpectDistorted(dice, distortion, parameter, Turn::kRounded, RollPicture(dice, 5, 1500));
    ExpectDistorted(dice, distortion, parameter, Turn::kRounded, RollPicture(dice, 1500, 5));
    if (HasFatalFailure()) return;
  }
}

// Of any matrix: each pixel is the one where its middle comes from, in units of 1 / 65536; of any number of channels.
TEST(DistortionsTest, AffineTakesTheNearestPixel) {
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

// The last pixel of the image can be anywhere in a row that is turned.
TEST(DistortionsTest, OfTheLastPixel) {
  Dice dice(8);
  for (int degrees = -90; degrees <= 90; ++degrees) {
    const Picture picture = RollPicture(dice, Roll(dice, 6, 12), Roll(dice, 6, 12));
    ExpectDistorted(dice, Distortion::kRotate, degrees, Turn::kRounded, picture);
    if (HasFatalFailure()) return;
  }
}

// Of angles whose cosine is next to half a unit; worked out in Python, with `round(math.cos(...), 15)`.
TEST(DistortionsTest, TurnsAreRoundedTo15DigitsOrNot) {
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

TEST(DistortionsTest, AutoContrastOfManyRanges) {
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

TEST(DistortionsTest, BlendAllPairsOfValues) {
  Dice dice(5);
  Values all(3 * 256), expected(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  // Of the last two, a sum is rounded up to a whole number.
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
      // By floats, too.
      BlendPlan by_floats;
      by_floats.factor = plan.factor;
      blend(all.data(), 3 * 256, by_floats, static_cast<uint8_t>(grey), made.data());
      ASSERT_EQ(made, expected) << plan.factor;
    }
  }
  EXPECT_GT(in_words, 18);
  EXPECT_GT(others, 2);
}

TEST(DistortionsTest, BrightnessByAnyFactor) {
  Dice dice(6);
  Picture picture = {16, 16, 3, Values(3 * 256)};
  for (size_t i = 0; i < picture.values.size(); ++i) picture.values[i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 120; ++i) {
    const double factor = i < 21 ? 0.1 + 1.8 * (0.05 * i) : i < 100 ? RollReal(dice, 0, 2.2) : i / 50.0;
    ExpectDistorted(dice, Distortion::kBrightness, factor, Turn::kRounded, picture);
    if (HasFatalFailure()) return;
  }
}

// Nowhere does a value differ by a level from that of exact arithmetic, before it is rounded.
TEST(DistortionsTest, HueIsTurnedAsExactArithmeticDoes) {
  Dice dice(9);
  for (int round = 0; round < 40; ++round) {
    const double turn = round < 3 ? (round - 1) / 2.0 : RollReal(dice, -0.5, 0.5);
    const Picture picture = RollPicture(dice, 20, 32);
    const PixelStep step(PreparedDistortion(Distortion::kHue, turn), nullptr, picture.pixels(), BestKernels());
    const Values made = Applied(dice, step, picture);
    for (size_t i = 0; i < made.size(); i += 3) {
      const std::array<double, 3> expected =
          HueTurned({double(picture.values[i]), double(picture.values[i + 1]), double(picture.values[i + 2])}, 6 * turn);
      for (int c = 0; c < 3; ++c) ASSERT_NEAR(made[i + c], expected[c], 0.5 + 0.1) << turn;
    }
  }
}

// A factor in whole steps, which is made for each image, is made as others are.
TEST(DistortionsTest, FactorsInWholeSteps) {
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

TEST(DistortionsTest, StepsInARowAreOneOrTwo) {
  Dice dice(7);
  int composed = 0;
  for (int round = 0; round < 400; ++round) {
    Distortion distortions[2];
    double parameters[2];
    for (int i = 0; i < 2; ++i) {
      do {
        distortions[i] = static_cast<Distortion>(dice() % kNumDistortions);
      } while (IsOfRows(distortions[i]));
      parameters[i] = RollParameter(dice, distortions[i]);
    }
    const Picture picture = RollPicture(dice, Roll(dice, 1, 30), Roll(dice, 1, 30));
    const Picture between = Distorted(distortions[0], parameters[0], Turn::kRounded, 0, picture);
    const Picture expected = Distorted(distortions[1], parameters[1], Turn::kRounded, 0, between);
    for (const PixelKernels* kernels : BothKernels()) {
      PixelStep first(PreparedDistortion(distortions[0], parameters[0]), picture.values.data(), picture.pixels(),
                      *kernels);
      const PixelStep second(PreparedDistortion(distortions[1], parameters[1]), between.values.data(), picture.pixels(),
                             *kernels);
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
}  // namespace refurbish_tf

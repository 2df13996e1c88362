// The simplest implementation of the distortions, and pictures to distort.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/distortions.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace distortions_testing {

using Dice = std::mt19937_64;
using Values = std::vector<uint8_t>;

constexpr int kNumDistortions = 19;

inline int64_t Roll(Dice& dice, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(dice() % (high - low + 1));
}

inline double RollReal(Dice& dice, double low, double high) {
  return low + (high - low) * (static_cast<double>(dice() >> 11) / (int64_t{1} << 53));
}

// A copy in a block of exactly the same length, so that the sanitizer reports accesses beyond it.
inline std::unique_ptr<uint8_t[]> Block(const Values& values) {
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

// Noise with a random range of values in each channel.
inline Picture RollPicture(Dice& dice, int64_t height, int64_t width, int pixel_bytes = 3) {
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

// Storing a value in memory rounds it, and keeps the compiler from fusing two operations.
inline float InFloat(float value) {
  volatile float rounded = value;
  return rounded;
}
inline double InDouble(double value) {
  volatile double rounded = value;
  return rounded;
}

inline uint8_t Mixed(int degenerate, int value, float factor) {
  const float product = InFloat(factor * static_cast<float>(value - degenerate));
  const float sum = InFloat(static_cast<float>(degenerate) + product);
  return static_cast<uint8_t>(sum <= 0 ? 0 : sum >= 255 ? 255 : std::floor(sum));
}

inline int GreyOf(const Picture& picture, int64_t y, int64_t x) {
  if (picture.pixel_bytes == 1) return picture.At(y, x, 0);
  return (19595 * picture.At(y, x, 0) + 38470 * picture.At(y, x, 1) + 7471 * picture.At(y, x, 2) + 32768) / 65536;
}

inline int64_t InUnits(double value) { return static_cast<int64_t>(std::floor(InDouble(value * 65536) + 0.5)); }

// Does what Pillow's `ImageOps` and `ImageEnhance` do, and `Image.transform` with the nearest pixel.
inline Picture Distorted(Distortion distortion, double parameter, Turn turn, uint8_t fill, const Picture& from) {
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
  if (from.pixel_bytes == 1 && IsOfColors(distortion)) return to;
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
      // Computes in sixteenths of a level; `turn` is in 4096ths of a sixth of the color circle.
      const int turn = static_cast<int>(std::lround(parameter * 6 * 4096));
      for (int64_t i = 0; i < 3 * from.pixels(); i += 3) {
        const int red = from.values[i], green = from.values[i + 1], blue = from.values[i + 2];
        const int most = std::max({red, green, blue}), spread = most - std::min({red, green, blue});
        const int sixths = most == red     ? green - blue
                           : most == green ? 2 * spread + blue - red
                                           : 4 * spread + red - green;
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
    case Distortion::kPermuteChannels: {
      std::array<int, 3> order = {0, 1, 2};
      for (int i = 0; i < parameter; ++i) std::next_permutation(order.begin(), order.end());
      each([&](int64_t y, int64_t x, int c) { return from.At(y, x, order[c]); });
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
      for (int c = 0; c < from.pixel_bytes; ++c) {
        int low = 255, high = 0;
        for (int64_t i = c; i < from.pixels() * from.pixel_bytes; i += from.pixel_bytes) {
          low = std::min<int>(low, from.values[i]);
          high = std::max<int>(high, from.values[i]);
        }
        if (low == high) continue;
        const double scale = 255.0 / (high - low), offset = InDouble(-low * scale);
        for (int64_t i = c; i < from.pixels() * from.pixel_bytes; i += from.pixel_bytes) {
          to.values[i] = static_cast<uint8_t>(InDouble(from.values[i] * scale) + offset);
        }
      }
      break;
    case Distortion::kEqualize:
      for (int c = 0; c < from.pixel_bytes; ++c) {
        std::vector<int64_t> histogram(256);
        for (int64_t i = c; i < from.pixels() * from.pixel_bytes; i += from.pixel_bytes) ++histogram[from.values[i]];
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
        for (int64_t i = c; i < from.pixels() * from.pixel_bytes; i += from.pixel_bytes)
          to.values[i] = static_cast<uint8_t>(table[from.values[i]]);
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
    case Distortion::kPerspective:
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

inline bool IsOfRows(Distortion distortion) {
  return distortion == Distortion::kSharpness || distortion >= Distortion::kRotate;
}

// Half of the parameters are whole or half magnitudes, as in RandAugment.
inline double RollParameter(Dice& dice, Distortion distortion) {
  const double level = dice() % 2 == 0 ? static_cast<double>(Roll(dice, 0, 20)) / 20 : RollReal(dice, 0, 1);
  const double sign = dice() % 2 == 0 ? 1 : -1;
  switch (distortion) {
    case Distortion::kSolarize:
      return static_cast<double>(Roll(dice, 0, 256));
    case Distortion::kPosterize:
      return static_cast<double>(Roll(dice, 1, 8));
    case Distortion::kHue:
      return sign * level / 2;
    case Distortion::kPermuteChannels:
      return static_cast<double>(Roll(dice, 0, kNumChannelOrders - 1));
    case Distortion::kRotate:
      return sign * level * (dice() % 4 == 0 ? 180 : 30);
    case Distortion::kShearX:
    case Distortion::kShearY:
      return sign * level * (dice() % 4 == 0 ? 1 : 0.3);
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
      // A quarter of a side may end in half a pixel, which must be rounded.
      return sign * (dice() % 2 == 0 ? level * 150 / 331 : 0.25 * static_cast<double>(Roll(dice, 0, 5)));
    case Distortion::kMoveX:
    case Distortion::kMoveY:
      return sign * static_cast<double>(Roll(dice, 0, 40));
    default:
      return 0.1 + 1.8 * level;
  }
}

inline std::vector<const PixelKernels*> BothKernels() { return {&PlainKernels(), &BestKernels()}; }

inline std::string Name(Distortion distortion, double parameter, const Picture& picture, const PixelKernels* kernels) {
  return "distortion " + std::to_string(static_cast<int>(distortion)) + " by " + std::to_string(parameter) + " of " +
         std::to_string(picture.height) + " x " + std::to_string(picture.width) + " x " +
         std::to_string(picture.pixel_bytes) + (kernels == &PlainKernels() ? ", plain" : "");
}

// Applies the step to the picture in parts of random length, in place in half of the cases.
inline Values Applied(Dice& dice, const PixelStep& step, const Picture& picture) {
  Values result;
  const bool in_place = dice() % 2 == 0;
  for (int64_t done = 0; done < picture.pixels();) {
    const int64_t pixels = Roll(dice, 1, picture.pixels() - done);
    const auto begin = picture.values.begin() + picture.pixel_bytes * done;
    Values part(begin, begin + picture.pixel_bytes * pixels);
    const std::unique_ptr<uint8_t[]> from = Block(part);
    const std::unique_ptr<uint8_t[]> to = Block(part);
    step.Apply(from.get(), pixels, in_place ? from.get() : to.get());
    const uint8_t* const made = in_place ? from.get() : to.get();
    result.insert(result.end(), made, made + part.size());
    done += pixels;
  }
  return result;
}

inline void ExpectDistorted(Dice& dice, Distortion distortion, double parameter, Turn turn, const Picture& picture) {
  const uint8_t fill = dice() % 2 == 0 ? 128 : 0;
  const Picture expected = Distorted(distortion, parameter, turn, fill, picture);
  const PreparedDistortion prepared(distortion, parameter, turn);
  const std::unique_ptr<uint8_t[]> image = Block(picture.values);
  for (const PixelKernels* kernels : BothKernels()) {
    SCOPED_TRACE(Name(distortion, parameter, picture, kernels));
    if (!IsOfRows(distortion)) {
      const bool needs_image = PixelStep::NeedsImage(distortion);
      const PixelStep step(prepared, needs_image ? image.get() : nullptr, picture.pixels(), picture.pixel_bytes,
                           *kernels);
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

}  // namespace distortions_testing
}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/prepared_distortion.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "refurbish_tf/cc/base/elementary.h"

namespace refurbish_tf {
namespace {

double RadiansOf(double degrees) { return degrees * (M_PI / 180); }

int64_t HalfToEven(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

// Adds 1e-6, because a product that should be whole may be slightly below.
int64_t Truncated(double value) {
  return static_cast<int64_t>(value + std::copysign(1e-6, value));
}

// Python's round(value, 15).
double RoundedToDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15f", value);
  return std::strtod(text, nullptr);
}

// Whether the factor is a whole number of steps. If so, its products with
// bytes, and sums with these, are exact in float32 and in 16-bit words.
bool IsInSteps(float factor) {
  const float steps = factor * PreparedDistortion::kSteps;
  return steps == std::floor(steps);
}

// Finds an m with whole * d + (d * m >> 16) == floor(factor * d), for d = 0,
// `sign`, ..., 255 * `sign`. Returns false if no such m exists.
bool FindMultiplier(float factor, int whole, int sign, int16_t* found) {
  const int middle = static_cast<int>(
      std::floor((static_cast<double>(factor) - whole) * 65536));
  for (int m = std::max(middle - 3, -32768); m <= std::min(middle + 4, 32767);
       ++m) {
    int d = 0;
    while (std::abs(d) < 256 &&
           whole * d + ((d * m) >> 16) == std::floor(factor * d)) {
      d += sign;
    }
    if (std::abs(d) == 256) {
      *found = static_cast<int16_t>(m);
      return true;
    }
  }
  return false;
}

// In 16-bit words, a blend adds floor(factor * d) to a whole number. This is
// wrong if the float32 sum is rounded up to a whole number, which can happen
// only if the product is just below one. The last loop checks these cases.
BlendPlan BlendBy(float factor) {
  BlendPlan plan;
  plan.factor = factor;
  const int whole = static_cast<int>(std::floor(factor + 0.5f));
  if (whole < 0 || whole > 2) return plan;
  plan.whole = static_cast<int16_t>(whole);
  if (IsInSteps(factor)) {
    plan.up = plan.down =
        static_cast<int16_t>((factor - static_cast<float>(whole)) * 65536);
    plan.in_words = true;
    return plan;
  }
  if (!FindMultiplier(factor, whole, 1, &plan.up) ||
      !FindMultiplier(factor, whole, -1, &plan.down)) {
    return plan;
  }
  for (int d = -255; d <= 255; ++d) {
    const float product = factor * d;
    const int floor = static_cast<int>(std::floor(product));
    // A sum below 256 is rounded by at most 2^-17.
    if (product - static_cast<float>(floor) < 1 - 1.0f / 65536) continue;
    for (int to = std::max(d, 0); to <= std::min(255 + d, 255); ++to) {
      if (plain::Blend(to - d, to, factor) !=
          std::clamp(to - d + floor, 0, 255)) {
        return plan;
      }
    }
  }
  plan.in_words = true;
  return plan;
}

// Returns an m for which value * whole + (value * m >> 16), at most 255, is the
// brightened value, for all values; or -1 if no such m exists.
int32_t BrightnessMultiplier(float factor, int whole) {
  if (factor < 0 || whole > 1) return -1;
  const int middle = static_cast<int>((factor - whole) * 65536);
  if (IsInSteps(factor)) return middle;
  for (int m = std::max(middle - 1, 0); m <= std::min(middle + 2, 65535); ++m) {
    int value = 0;
    while (value < 256 && std::min(value * whole + ((value * m) >> 16), 255) ==
                              plain::Brightened(value, factor)) {
      ++value;
    }
    if (value == 256) return m;
  }
  return -1;
}

}  // namespace

PreparedDistortion::PreparedDistortion(Distortion distortion, double parameter,
                                       Turn turn)
    : distortion(distortion),
      parameter(parameter),
      changes_nothing(MovesPixels(distortion) && parameter == 0) {
  const float factor = static_cast<float>(parameter);
  switch (distortion) {
    case Distortion::kIdentity:
      changes_nothing = true;
      break;
    case Distortion::kColor:
    case Distortion::kContrast:
    case Distortion::kSharpness:
      changes_nothing = factor == 1;
      blend = BlendBy(factor);
      break;
    case Distortion::kBrightness:
      changes_nothing = factor == 1;
      whole = static_cast<uint16_t>(factor);
      multiplier = BrightnessMultiplier(factor, whole);
      break;
    case Distortion::kSolarize:
      changes_nothing = parameter > 255;
      break;
    case Distortion::kPosterize:
      changes_nothing = parameter == 8;
      break;
    case Distortion::kPermuteChannels:
      changes_nothing = parameter == 0;
      break;
    case Distortion::kHue:
      hue = static_cast<int16_t>(std::lround(parameter * (6 * 4096)));
      changes_nothing = hue == 0;
      break;
    case Distortion::kRotate:
      if (turn == Turn::kExact) {
        const auto [sine, cosine] = SineCosineOf(RadiansOf(parameter));
        yy = cosine;
        yx = sine;
      } else {
        double degrees = std::fmod(parameter, 360.0);
        if (degrees < 0) degrees += 360;
        const auto [sine, cosine] = SineCosineOf(RadiansOf(degrees));
        yy = RoundedToDigits(cosine);
        yx = RoundedToDigits(sine);
      }
      xx = yy;
      xy = -yx;
      break;
    default:
      break;
  }
}

PreparedDistortion PreparedDistortion::InSteps(Distortion distortion,
                                               double parameter) {
  return PreparedDistortion(distortion,
                            std::nearbyint(parameter * kSteps) / kSteps);
}

// The inverse of torchvision's matrix: a scale, then a shear, then a rotation.
PreparedDistortion::PreparedDistortion(const AffineChange& change)
    : distortion(Distortion::kAffine),
      parameter(0),
      translate_y(change.translate_y),
      translate_x(change.translate_x) {
  const double turn = RadiansOf(change.degrees);
  const double shear = RadiansOf(change.shear_y);
  const SineCosine turned = SineCosineOf(turn);
  const SineCosine both = SineCosineOf(turn - shear);
  const SineCosine of_x = SineCosineOf(RadiansOf(change.shear_x));
  const double tangent = of_x.sine / of_x.cosine;
  const double shear_y = SineCosineOf(shear).cosine;
  const double cosine = both.cosine / shear_y;
  const double sine = both.sine / shear_y;
  xx = (turned.cosine - sine * tangent) / change.scale;
  xy = (turned.sine + cosine * tangent) / change.scale;
  yx = -sine / change.scale;
  yy = cosine / change.scale;
}

// Maps a quadrilateral to a square, after Heckbert, *Fundamentals of Texture
// Mapping and Image Warping*, 1989, section 2.2.3. The only products that are
// added to anything are of whole numbers, and exact: it makes no difference
// whether a compiler fuses product and sum.
PreparedDistortion::PreparedDistortion(const Corners& to, ImageSize size)
    : distortion(Distortion::kPerspective), parameter(0) {
  const auto [ys, xs] = to;
  const auto cross = [](int64_t ay, int64_t ax, int64_t by, int64_t bx) {
    return ax * by - bx * ay;
  };
  // From the upper left corner to the upper right and the lower left one.
  const int64_t right_y = ys[1] - ys[0], right_x = xs[1] - xs[0];
  const int64_t below_y = ys[3] - ys[0], below_x = xs[3] - xs[0];
  // From the lower right corner to the same two. `skew_y` and `skew_x`: how far
  // the quadrilateral deviates from a parallelogram.
  const int64_t up_y = ys[1] - ys[2], up_x = xs[1] - xs[2];
  const int64_t left_y = ys[3] - ys[2], left_x = xs[3] - xs[2];
  const int64_t skew_y = ys[2] - ys[1] - below_y;
  const int64_t skew_x = xs[2] - xs[1] - below_x;
  const int64_t whole = cross(up_y, up_x, left_y, left_x);
  const int64_t g = cross(skew_y, skew_x, left_y, left_x);
  const int64_t h = cross(up_y, up_x, skew_y, skew_x);
  const double area =
      static_cast<double>(cross(right_y, right_x, below_y, below_x));
  const double by_g = static_cast<double>(whole + g);
  const double by_h = static_cast<double>(whole + h);
  const double of_x = static_cast<double>(whole) / (by_g * area);
  const double of_y = static_cast<double>(whole) / (by_h * area);
  const int64_t last_x = size.width - 1, last_y = size.height - 1;
  xx = static_cast<double>(last_x * below_y) * of_x;
  xy = static_cast<double>(-last_x * below_x) * of_x;
  yy = static_cast<double>(last_y * right_x) * of_y;
  yx = static_cast<double>(-last_y * right_y) * of_y;
  wx = (static_cast<double>(right_y * h) / by_h -
        static_cast<double>(below_y * g) / by_g) /
       area;
  wy = (static_cast<double>(below_x * g) / by_g -
        static_cast<double>(right_x * h) / by_h) /
       area;
  // The constant terms: the values at the upper left corner of the image.
  const int64_t of_right = cross(right_y, right_x, ys[0], xs[0]);
  const int64_t of_below = cross(below_y, below_x, ys[0], xs[0]);
  x = static_cast<double>(last_x * of_below) * of_x;
  y = static_cast<double>(-last_y * of_right) * of_y;
  w = 1 + (static_cast<double>(of_right) * static_cast<double>(h) / by_h -
           static_cast<double>(of_below) * static_cast<double>(g) / by_g) /
              area;
}

Move PreparedDistortion::MoveOf(ImageSize size) const {
  const double height = static_cast<double>(size.height);
  const double width = static_cast<double>(size.width);
  const auto whole = truncates ? Truncated : HalfToEven;
  switch (distortion) {
    case Distortion::kTranslateX:
      return {0, whole(parameter * width)};
    case Distortion::kTranslateY:
      return {whole(parameter * height), 0};
    case Distortion::kMoveX:
      return {0, HalfToEven(parameter)};
    case Distortion::kMoveY:
      return {HalfToEven(parameter), 0};
    default:
      return {-HalfToEven(translate_y * height),
              -HalfToEven(translate_x * width)};
  }
}

PreparedDistortion PreparedDistortion::Enlarged(int64_t times,
                                                ImageSize size) const {
  PreparedDistortion made = *this;
  const double factor = static_cast<double>(times);
  // The move of the smaller image, which is rounded to whole pixels.
  const Move move = MoveOf(size);
  switch (distortion) {
    case Distortion::kTranslateX:
    case Distortion::kMoveX:
      made.distortion = Distortion::kMoveX;
      made.parameter = factor * static_cast<double>(move.x);
      break;
    case Distortion::kTranslateY:
    case Distortion::kMoveY:
      made.distortion = Distortion::kMoveY;
      made.parameter = factor * static_cast<double>(move.y);
      break;
    case Distortion::kAffine:
      made.translate_y =
          -static_cast<double>(move.y) / static_cast<double>(size.height);
      made.translate_x =
          -static_cast<double>(move.x) / static_cast<double>(size.width);
      break;
    case Distortion::kPerspective:
      made.y *= factor;
      made.x *= factor;
      made.wy /= factor;
      made.wx /= factor;
      break;
    default:
      break;
  }
  return made;
}

}  // namespace refurbish_tf

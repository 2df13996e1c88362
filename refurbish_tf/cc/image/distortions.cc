#include "refurbish_tf/cc/image/distortions.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace refurbish_tf {
namespace {

// Not to be fused with a sum into one operation that rounds once: all that is
// stored is rounded.
double Product(double a, double b) {
  volatile double product = a * b;
  return product;
}

// Pillow's fixed-point numbers, in units of 1 / 65536.
int64_t Fixed(double value) {
  return static_cast<int64_t>(std::floor(value * 65536 + 0.5));
}

// Python's round(value, 15).
double RoundedToDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15f", value);
  return std::strtod(text, nullptr);
}

// Finds m with d * m >> 16 equal to the given whole part of the product, less
// `whole` * d, for d = 0, `sign`, ... 255 * `sign`.
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

// In words, a blend adds the whole part of a product to a whole number. That
// is not what it should be where the sum in float32 is rounded up to the next
// whole number; the product is then just below one.
BlendPlan BlendBy(float factor) {
  BlendPlan plan;
  plan.factor = factor;
  const int whole = static_cast<int>(std::floor(factor + 0.5f));
  if (whole < 0 || whole > 2) return plan;
  plan.whole = static_cast<int16_t>(whole);
  if (!FindMultiplier(factor, whole, 1, &plan.up) ||
      !FindMultiplier(factor, whole, -1, &plan.down)) {
    return plan;
  }
  for (int d = -255; d <= 255; ++d) {
    const float product = factor * d;
    const int floor = static_cast<int>(std::floor(product));
    // A sum below 256 is wrong by no more than 2^-17.
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

uint8_t Brightened(int value, float factor) {
  return static_cast<uint8_t>(std::min(value * factor, 255.0f));
}

// Finds m with value * whole + (value * m >> 16), at most 255, equal to the
// brightened value; or returns -1.
int32_t BrightnessMultiplier(float factor, int whole) {
  if (factor < 0 || whole > 1) return -1;
  const int middle = static_cast<int>((factor - whole) * 65536);
  for (int m = std::max(middle - 1, 0); m <= std::min(middle + 2, 65535); ++m) {
    int value = 0;
    while (value < 256 && std::min(value * whole + ((value * m) >> 16),
                                   255) == Brightened(value, factor)) {
      ++value;
    }
    if (value == 256) return m;
  }
  return -1;
}

// How Pillow stretches the values of a channel.
struct Contrast {
  Contrast(int lowest, int highest)
      : lowest(lowest),
        span(highest - lowest),
        whole(span == 0 ? 1 : 255 / span),
        scale(span == 0 ? 0 : 255.0 / span),
        offset(span == 0 ? -lowest : Product(lowest, scale)) {}

  uint8_t Of(int value) const {
    return static_cast<uint8_t>(Product(value, scale) - offset);
  }

  // What part of u = value - lowest is added to `whole` times u, in units of
  // 1 / 65536, so that the whole part of the sum is Of(value); or -1.
  int32_t Multiplier() const {
    if (span == 0) return 0;
    // Doubles are right except perhaps where u * 255 / span is whole: there
    // they may be just below. All of these must be right, or none.
    const int wholes = (span % 3 == 0 ? 3 : 1) * (span % 5 == 0 ? 5 : 1) *
                       (span % 17 == 0 ? 17 : 1);
    int below = 0;
    for (int k = 1; k <= wholes; ++k) {
      const int u = k * (span / wholes);
      below += Of(lowest + u) != k * (255 / wholes);
    }
    const int fraction = (255 - whole * span) * 65536;
    if (below == 0) return (fraction + span - 1) / span;
    return below == wholes && fraction > 0 ? (fraction - 1) / span : -1;
  }

  int lowest, span, whole;
  double scale, offset;
};

// Counts in several copies, as additions to the same count wait for each other.
template <int copies>
void CountValues(const uint8_t* from, int64_t pixels, uint32_t (*counts)[256]) {
  alignas(64) uint32_t parts[copies][kColors][256] = {};
  int64_t i = 0;
  for (; i + 8 <= pixels; i += 8) {
    uint64_t words[kColors];
    std::memcpy(words, from + kColors * i, sizeof words);
#pragma GCC unroll 24
    for (int k = 0; k < 24; ++k) {
      ++parts[k / kColors % copies][k % kColors]
             [words[k / 8] >> (k % 8 * 8) & 255];
    }
  }
  for (; i < pixels; ++i) {
    for (int c = 0; c < kColors; ++c) ++parts[0][c][from[kColors * i + c]];
  }
  for (int c = 0; c < kColors; ++c) {
    for (int value = 0; value < 256; ++value) {
      uint32_t sum = 0;
      for (int k = 0; k < copies; ++k) sum += parts[k][c][value];
      counts[c][value] = sum;
    }
  }
}

void PrepareSteps(ColorTables* tables) {
  for (int c = 0; c < kColors; ++c) {
    uint64_t words[32];
    std::memcpy(words, tables->of[c], sizeof words);
    for (int k = 31; k >= 2; --k) {
      if (k % 16 >= 2) words[k] ^= words[k - 2];
    }
    for (int step = 0; step < 16; ++step) {
      std::memcpy(tables->steps[c][step], words + 2 * step, 16);
      std::memcpy(tables->steps[c][step] + 16, words + 2 * step, 16);
    }
  }
}

// Brings an image that is to be read across its rows into the cache. In its
// order that is done ahead; across it is not.
void Touch(const uint8_t* image, int64_t bytes) {
  if (bytes > 1 << 20) return;
  for (int64_t i = 0; i < bytes; i += 64) {
    static_cast<void>(*const_cast<const volatile uint8_t*>(image + i));
  }
}

}  // namespace

PreparedDistortion::PreparedDistortion(Distortion distortion, double parameter,
                                       Turn turn)
    : distortion(distortion), parameter(parameter) {
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
    case Distortion::kRotate:
      changes_nothing = parameter == 0;
      if (turn == Turn::kExact) {
        const double radians = parameter * (M_PI / 180);
        cosine = std::cos(radians);
        sine = std::sin(radians);
      } else {
        double degrees = std::fmod(parameter, 360.0);
        if (degrees < 0) degrees += 360;
        const double radians = degrees * (M_PI / 180);
        cosine = RoundedToDigits(std::cos(radians));
        sine = RoundedToDigits(std::sin(radians));
      }
      break;
    case Distortion::kShearX:
    case Distortion::kShearY:
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
      changes_nothing = parameter == 0;
      break;
    case Distortion::kAutoContrast:
    case Distortion::kEqualize:
    case Distortion::kInvert:
      break;
  }
}

bool PixelStep::NeedsImage(Distortion distortion) {
  return distortion == Distortion::kAutoContrast ||
         distortion == Distortion::kEqualize ||
         distortion == Distortion::kContrast;
}

PixelStep::PixelStep(const PreparedDistortion& prepared, const uint8_t* image,
                     int64_t pixels, const PixelKernels& kernels)
    : kernels_(*kernels.distortions), blend_(prepared.blend) {
  if (prepared.changes_nothing) return;
  const double parameter = prepared.parameter;
  switch (prepared.distortion) {
    case Distortion::kAutoContrast:
      MakeAutoContrast(image, pixels);
      break;
    case Distortion::kEqualize:
      MakeEqualize(image, pixels);
      break;
    case Distortion::kColor:
      form_ = Form::kColor;
      break;
    case Distortion::kContrast: {
      const int64_t sum = kernels_.sum_greys(image, kColors * pixels);
      byte_ = static_cast<uint8_t>((2 * sum + pixels) / (2 * pixels));
      Make(Form::kBlend, [this](int value) {
        return plain::Blend(byte_, value, blend_.factor);
      });
      break;
    }
    case Distortion::kBrightness:
      std::memset(stretch_.lowest, 0, sizeof stretch_.lowest);
      std::fill_n(stretch_.multiplier, kBlock,
                  static_cast<uint16_t>(prepared.multiplier));
      std::fill_n(stretch_.whole, kBlock, prepared.whole);
      Make(prepared.multiplier < 0 ? Form::kTables : Form::kStretch,
           [factor = static_cast<float>(parameter)](int value) {
             return Brightened(value, factor);
           });
      break;
    case Distortion::kInvert:
    case Distortion::kSolarize:
      byte_ = prepared.distortion == Distortion::kInvert
                  ? 0
                  : static_cast<uint8_t>(parameter);
      Make(Form::kSolarize,
           [this](int value) { return value < byte_ ? value : 255 - value; });
      break;
    case Distortion::kPosterize:
      byte_ =
          static_cast<uint8_t>(256 - (1 << (8 - static_cast<int>(parameter))));
      Make(Form::kMask, [this](int value) { return value & byte_; });
      break;
    default:
      break;
  }
}

template <class Value>
void PixelStep::Make(Form form, Value value) {
  form_ = kernels_.has_arithmetic ? form : Form::kTables;
  if (form_ != Form::kTables) return;
  for (int i = 0; i < 256; ++i) {
    tables_.of[0][i] = static_cast<uint8_t>(value(i));
  }
  for (int c = 1; c < kColors; ++c) {
    std::memcpy(tables_.of[c], tables_.of[0], 256);
  }
  PrepareSteps(&tables_);
}

void PixelStep::MakeAutoContrast(const uint8_t* image, int64_t pixels) {
  uint8_t lowest[kColors], highest[kColors];
  kernels_.find_extremes(image, kColors * pixels, lowest, highest);
  alike_ = false;
  bool changes_nothing = true;
  int32_t multipliers[kColors];
  const Contrast contrasts[kColors] = {{lowest[0], highest[0]},
                                       {lowest[1], highest[1]},
                                       {lowest[2], highest[2]}};
  form_ = kernels_.has_arithmetic ? Form::kStretch : Form::kTables;
  for (int c = 0; c < kColors; ++c) {
    const int span = contrasts[c].span;
    changes_nothing &= span == 0 || span == 255;
    // What does not change has no offset.
    if (span == 0) lowest[c] = 0;
    if (form_ == Form::kTables) continue;
    multipliers[c] = contrasts[c].Multiplier();
    if (multipliers[c] < 0) form_ = Form::kTables;
  }
  if (changes_nothing) {
    form_ = Form::kNothing;
  } else if (form_ == Form::kStretch) {
    for (int i = 0; i < kBlock; i += kColors) {
      for (int c = 0; c < kColors; ++c) {
        stretch_.lowest[i + c] = lowest[c];
        stretch_.whole[i + c] = static_cast<uint16_t>(contrasts[c].whole);
        stretch_.multiplier[i + c] = static_cast<uint16_t>(multipliers[c]);
      }
    }
  } else {
    for (int c = 0; c < kColors; ++c) {
      // Other values do not occur.
      for (int value = lowest[c]; value <= highest[c]; ++value) {
        tables_.of[c][value] = contrasts[c].Of(value);
      }
    }
    PrepareSteps(&tables_);
  }
}

void PixelStep::MakeEqualize(const uint8_t* image, int64_t pixels) {
  alignas(64) uint32_t counts[kColors][256];
  if (pixels < 4096) {
    CountValues<2>(image, pixels, counts);
  } else {
    CountValues<4>(image, pixels, counts);
  }
  form_ = Form::kTables;
  alike_ = false;
  for (int c = 0; c < kColors; ++c) {
    int brightest = 255;
    while (counts[c][brightest] == 0) --brightest;
    const int64_t step = (pixels - counts[c][brightest]) / 255;
    if (step == 0) {
      for (int value = 0; value < 256; ++value) {
        tables_.of[c][value] = static_cast<uint8_t>(value);
      }
      continue;
    }
    // Of so many pixels, and a half, which keeps the quotients away from whole
    // numbers: they are wrong by less.
    int32_t darker[256];
    int32_t sum = static_cast<int32_t>(step / 2);
    for (int value = 0; value < 256; ++value) {
      darker[value] = sum;
      sum += static_cast<int32_t>(counts[c][value]);
    }
    const double inverse = 1.0 / static_cast<double>(step);
    for (int value = 0; value < 256; ++value) {
      const int spread = static_cast<int>((darker[value] + 0.5) * inverse);
      tables_.of[c][value] = static_cast<uint8_t>(std::min(spread, 255));
    }
  }
  PrepareSteps(&tables_);
}

bool PixelStep::Compose(const PixelStep& next) {
  if (next.changes_nothing()) return true;
  if (form_ != Form::kTables || next.form_ == Form::kColor) return false;
  if (next.form_ == Form::kTables) {
    for (int c = 0; c < kColors; ++c) {
      for (uint8_t& value : tables_.of[c]) value = next.tables_.of[c][value];
    }
  } else if (next.alike_) {
    next.Apply(tables_.of[0], 256, tables_.of[0]);
  } else {
    return false;
  }
  alike_ &= next.alike_;
  PrepareSteps(&tables_);
  return true;
}

void PixelStep::Apply(const uint8_t* from, int64_t pixels, uint8_t* to) const {
  const int64_t bytes = kColors * pixels;
  switch (form_) {
    case Form::kNothing:
      if (from != to) std::memcpy(to, from, bytes);
      break;
    case Form::kMask:
      kernels_.mask(from, bytes, byte_, to);
      break;
    case Form::kSolarize:
      kernels_.solarize(from, bytes, byte_, to);
      break;
    case Form::kStretch:
      kernels_.stretch(from, bytes, stretch_, to);
      break;
    case Form::kBlend:
      kernels_.blend(from, bytes, blend_, byte_, to);
      break;
    case Form::kColor:
      kernels_.color(from, bytes, blend_, to);
      break;
    case Form::kTables:
      kernels_.look_up(from, bytes, tables_, to);
      break;
  }
}

RowStep::RowStep(const PreparedDistortion& prepared, uint8_t fill,
                 const uint8_t* image, int64_t height, int64_t width,
                 int pixel_bytes, const PixelKernels& kernels) {
  plan_.image = image;
  plan_.height = height;
  plan_.width = width;
  plan_.row_bytes = width * pixel_bytes;
  plan_.pixel_bytes = pixel_bytes;
  plan_.fill = fill;
  const DistortionKernels& distortions = *kernels.distortions;
  row_ = distortions.move[pixel_bytes];
  // Half to even, as Python does.
  const auto moved = [&prepared](int64_t side) {
    return static_cast<int64_t>(
        std::nearbyint(prepared.parameter * static_cast<double>(side)));
  };
  switch (prepared.distortion) {
    case Distortion::kTranslateX:
      plan_.first = moved(width) * 65536;
      break;
    case Distortion::kTranslateY:
      plan_.down = moved(height);
      break;
    case Distortion::kShearX:
    case Distortion::kShearY:
      plan_.step = Fixed(prepared.parameter);
      plan_.first = Fixed(prepared.parameter * 0.5 + 0.5);
      if (prepared.distortion == Distortion::kShearY) {
        row_ = distortions.move_columns[pixel_bytes];
        PrepareRuns();
        Touch(image, height * plan_.row_bytes);
      }
      break;
    case Distortion::kRotate:
      row_ = distortions.turn[pixel_bytes];
      PrepareTurn(prepared);
      Touch(image, height * plan_.row_bytes);
      break;
    default:
      row_ = distortions.sharpen;
      plan_.blend = prepared.blend;
      break;
  }
}

void RowStep::PrepareRuns() {
  int64_t offset = 0, begin = 0;
  for (int64_t x = 0; x < plan_.width; ++x) {
    const int64_t next = (plan_.first + x * plan_.step) >> 16;
    if (x > 0 && next == offset) continue;
    offset = next;
    const int64_t at = x * plan_.pixel_bytes;
    plan_.longest = std::max(plan_.longest, at - begin);
    begin = at;
    plan_.runs.push_back(static_cast<int32_t>(at));
  }
  plan_.runs.push_back(static_cast<int32_t>(plan_.row_bytes));
  plan_.longest = std::max(plan_.longest, plan_.row_bytes - begin);
}

void RowStep::PrepareTurn(const PreparedDistortion& prepared) {
  const double cosine = prepared.cosine, sine = prepared.sine;
  const double x = static_cast<double>(plan_.width) / 2;
  const double y = static_cast<double>(plan_.height) / 2;
  // In this order, which decides the last digit.
  plan_.first_x = Fixed((Product(cosine, -x) + Product(-sine, -y)) + x +
                        cosine * 0.5 + -sine * 0.5);
  plan_.first_y = Fixed((Product(sine, -x) + Product(cosine, -y)) + y +
                        sine * 0.5 + cosine * 0.5);
  plan_.cosine = Fixed(cosine);
  plan_.sine = Fixed(sine);
  plan_.minus_sine = Fixed(-sine);
  plan_.inverse_cosine = 1.0 / static_cast<double>(plan_.cosine);
  plan_.inverse_sine = 1.0 / static_cast<double>(plan_.sine);
}

}  // namespace refurbish_tf

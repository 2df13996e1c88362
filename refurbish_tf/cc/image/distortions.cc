#include "refurbish_tf/cc/image/distortions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace refurbish_tf {
namespace {

constexpr std::array<uint8_t, kColors> kChannelOrders[kNumChannelOrders] = {
    {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

// Rounds the product. `volatile` keeps a compiler from fusing it with a sum
// into one operation, which would round only once.
double Product(double a, double b) {
  volatile double product = a * b;
  return product;
}

// Pillow's fixed-point numbers, in units of 1 / 65536.
int64_t Fixed(double value) {
  return static_cast<int64_t>(std::floor(value * 65536 + 0.5));
}

// How Pillow's auto-contrast stretches the values of a channel to 0 to 255.
struct Contrast {
  Contrast(int lowest, int highest)
      : lowest(lowest),
        span(highest - lowest),
        whole(span == 0 ? 1 : 255 / span),
        wholes((span % 3 == 0 ? 3 : 1) * (span % 5 == 0 ? 5 : 1) *
               (span % 17 == 0 ? 17 : 1)),
        scale(span == 0 ? 0 : 255.0 / span),
        offset(span == 0 ? -lowest : Product(lowest, scale)) {}

  uint8_t Of(int value) const {
    return static_cast<uint8_t>(Product(value, scale) - offset);
  }

  // Returns m such that Of(value) == u * whole + (u * m >> 16) for all values,
  // where u = value - lowest, or -1 if there is no such m.
  int32_t Multiplier() const {
    if (span == 0) return 0;
    // `Of` truncates a double. Where u * 255 / span is whole, it may be just
    // below. An m exists only if this happens for all such u or for none.
    int below = 0;
    for (int k = 1; k <= wholes; ++k) below += IsBelow(k) ? 1 : 0;
    if (below == 0) return (Fraction() + span - 1) / span;
    return below == wholes && Fraction() > 0 ? (Fraction() - 1) / span : -1;
  }

  // Only fills the entries of values from the lowest to the highest.
  void FillTable(uint8_t* table) const {
    for (int u = 0; u <= span; ++u) table[lowest + u] = Of(lowest + u);
  }

  int Fraction() const { return (255 - whole * span) * 65536; }
  // Whether `Of` is too low for the k-th u for which u * 255 / span is whole.
  bool IsBelow(int k) const {
    return Of(lowest + k * (span / wholes)) != k * (255 / wholes);
  }

  // `wholes`: the greatest common divisor of 255 and `span`, which is also the
  // number of u above 0 for which u * 255 / span is whole.
  int lowest, span, whole, wholes;
  double scale, offset;
};

// Keeps several copies of the counts, because additions to the same count wait
// for each other.
template <int copies>
void CountValues(const uint8_t* from, int64_t pixels, uint32_t (*counts)[256]) {
  alignas(64) uint32_t parts[copies][kColors * 256];
  std::memset(parts, 0, sizeof parts);
  int64_t i = 0;
  for (; i + 8 <= pixels; i += 8) {
    uint64_t words[kColors];
    std::memcpy(words, from + kColors * i, sizeof words);
#pragma GCC unroll 24
    for (int k = 0; k < 24; ++k) {
      const uint64_t value = words[k / 8] >> (k % 8 * 8) & 255;
      ++parts[k / kColors % copies][k % kColors * 256 + value];
    }
  }
  for (; i < pixels; ++i) {
    for (int c = 0; c < kColors; ++c)
      ++parts[0][c * 256 + from[kColors * i + c]];
  }
  // The inner loop is over the counts, so that compilers vectorize it.
  for (int k = 1; k < copies; ++k) {
    for (int j = 0; j < kColors * 256; ++j) parts[0][j] += parts[k][j];
  }
  std::memcpy(counts, parts[0], sizeof parts[0]);
}

void PrepareSteps(ValueTables* tables) {
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

// Brings a small image into the cache before a distortion reads it across its
// rows, because CPUs prefetch only along rows.
void Touch(const uint8_t* image, int64_t bytes) {
  if (bytes > 1 << 20) return;
  for (int64_t i = 0; i < bytes; i += 64) {
    static_cast<void>(*const_cast<const volatile uint8_t*>(image + i));
  }
}

}  // namespace

PixelStep::PixelStep(const PreparedDistortion& prepared, const uint8_t* image,
                     int64_t pixels, int64_t channels,
                     const PixelKernels& kernels)
    : kernels_(*kernels.distortions),
      channels_(channels),
      blend_(prepared.blend) {
  if (prepared.changes_nothing) return;
  if (channels == 1 && IsOfColors(prepared.distortion)) return;
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
    case Distortion::kHue:
      form_ = Form::kHue;
      hue_ = prepared.hue;
      break;
    case Distortion::kPermuteChannels:
      form_ = Form::kPermute;
      order_ = kChannelOrders[static_cast<int>(parameter)];
      break;
    case Distortion::kContrast: {
      const int64_t sum =
          channels == 1 ? std::accumulate(image, image + pixels, int64_t{0})
                        : kernels_.sum_greys(image, kColors * pixels);
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
             return plain::Brightened(value, factor);
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
  kernels_.find_extremes(image, channels_ * pixels, lowest, highest);
  alike_ = channels_ == 1;
  if (alike_) {
    // `find_extremes` treated the one channel as three: merge its results.
    std::fill_n(lowest, kColors, *std::min_element(lowest, lowest + kColors));
    std::fill_n(highest, kColors,
                *std::max_element(highest, highest + kColors));
  }
  bool changes_nothing = true;
  int32_t multipliers[kColors];
  const Contrast contrasts[kColors] = {{lowest[0], highest[0]},
                                       {lowest[1], highest[1]},
                                       {lowest[2], highest[2]}};
  form_ = kernels_.has_arithmetic ? Form::kStretch : Form::kTables;
  for (int c = 0; c < kColors; ++c) {
    const int span = contrasts[c].span;
    changes_nothing &= span == 0 || span == 255;
    // A channel of one value does not change: `whole` is 1, the multiplier 0.
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
    for (int c = 0; c < kColors; ++c) contrasts[c].FillTable(tables_.of[c]);
    PrepareSteps(&tables_);
  }
}

void PixelStep::MakeEqualize(const uint8_t* image, int64_t pixels) {
  alignas(64) uint32_t counts[kColors][256];
  const int64_t counted = channels_ * pixels / kColors;
  if (counted < 4096) {
    CountValues<2>(image, counted, counts);
  } else {
    CountValues<4>(image, counted, counts);
  }
  form_ = Form::kTables;
  alike_ = channels_ == 1;
  if (alike_) {
    // `CountValues` treated the one channel as three: add up its counts.
    for (int64_t i = kColors * counted; i < pixels; ++i) ++counts[0][image[i]];
    for (int value = 0; value < 256; ++value) {
      counts[0][value] += counts[1][value] + counts[2][value];
      counts[1][value] = counts[2][value] = counts[0][value];
    }
  }
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
    // The number of darker pixels, plus half a step. Adding another 0.5 keeps
    // quotients away from whole numbers, so rounding errors do not matter.
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
  if (form_ != Form::kTables || next.form_ == Form::kColor ||
      next.form_ == Form::kHue || next.form_ == Form::kPermute) {
    return false;
  }
  if (next.form_ == Form::kTables) {
    for (int c = 0; c < kColors; ++c) {
      for (uint8_t& value : tables_.of[c]) value = next.tables_.of[c][value];
    }
  } else if (next.alike_) {
    next.ApplyToBytes(tables_.of[0], sizeof tables_.of, tables_.of[0]);
  } else {
    return false;
  }
  alike_ &= next.alike_;
  PrepareSteps(&tables_);
  return true;
}

void PixelStep::ApplyToBytes(const uint8_t* from, int64_t bytes,
                             uint8_t* to) const {
  switch (form_) {
    case Form::kNothing:
      if (from != to) std::memcpy(to, from, bytes);
      return;
    case Form::kMask:
      return kernels_.mask(from, bytes, byte_, to);
    case Form::kSolarize:
      return kernels_.solarize(from, bytes, byte_, to);
    case Form::kStretch:
      return kernels_.stretch(from, bytes, stretch_, to);
    case Form::kBlend:
      return kernels_.blend(from, bytes, blend_, byte_, to);
    case Form::kColor:
      return kernels_.color(from, bytes, blend_, to);
    case Form::kHue:
      return kernels_.hue(from, bytes, hue_, to);
    case Form::kPermute:
      return kernels_.permute(from, bytes, order_, to);
    case Form::kTables:
      return kernels_.look_up(from, bytes, tables_, to);
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
  row_ = distortions.move;
  switch (prepared.distortion) {
    case Distortion::kTranslateX:
    case Distortion::kTranslateY:
    case Distortion::kMoveX:
    case Distortion::kMoveY: {
      const Move move = prepared.MoveOf({height, width});
      plan_.first = move.x * 65536;
      plan_.down = move.y;
      break;
    }
    case Distortion::kShearX:
    case Distortion::kShearY:
      plan_.step = Fixed(prepared.parameter);
      plan_.first = Fixed(prepared.parameter * 0.5 + 0.5);
      if (prepared.distortion == Distortion::kShearY) {
        row_ = distortions.move_columns;
        PrepareRuns();
        Touch(image, height * plan_.row_bytes);
      }
      break;
    case Distortion::kRotate:
    case Distortion::kAffine:
      row_ = distortions.turn[pixel_bytes];
      PrepareTurn(prepared);
      Touch(image, height * plan_.row_bytes);
      break;
    case Distortion::kPerspective:
      row_ = distortions.project[pixel_bytes];
      PrepareProjection(prepared);
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
    plan_.spans.push_back(static_cast<int32_t>(at));
  }
  plan_.spans.push_back(static_cast<int32_t>(plan_.row_bytes));
  plan_.longest = std::max(plan_.longest, plan_.row_bytes - begin);
}

void RowStep::PrepareTurn(const PreparedDistortion& prepared) {
  const Move move = prepared.MoveOf({plan_.height, plan_.width});
  const double x = static_cast<double>(plan_.width) / 2;
  const double y = static_cast<double>(plan_.height) / 2;
  const double from_x = static_cast<double>(move.x);
  const double from_y = static_cast<double>(move.y);
  const auto first = [&](double by_x, double by_y, double middle) {
    // Pillow adds in this order, which affects the last digit.
    return Fixed((Product(by_x, from_x - x) + Product(by_y, from_y - y)) +
                 middle + by_x * 0.5 + by_y * 0.5);
  };
  plan_.first_x = first(prepared.xx, prepared.xy, x);
  plan_.first_y = first(prepared.yx, prepared.yy, y);
  plan_.xx = Fixed(prepared.xx);
  plan_.xy = Fixed(prepared.xy);
  plan_.yx = Fixed(prepared.yx);
  plan_.yy = Fixed(prepared.yy);
  plan_.inverse_xx = 1.0 / static_cast<double>(plan_.xx);
  plan_.inverse_yx = 1.0 / static_cast<double>(plan_.yx);
}

// Maps the middles of pixels. All numbers are doubled, so half a pixel is a
// whole number. Divisors have 16 more fraction bits than the other numbers, so
// `ProjectRow` multiplies the quotients by 65536.
void RowStep::PrepareProjection(const PreparedDistortion& prepared) {
  const auto fixed = [](double value, int bits) {
    return static_cast<int64_t>(std::floor(std::ldexp(value, bits) + 0.5));
  };
  constexpr int kBits = 32, kDepthBits = kBits + 16;
  plan_.xx = 2 * fixed(prepared.xx, kBits);
  plan_.xy = 2 * fixed(prepared.xy, kBits);
  plan_.yx = 2 * fixed(prepared.yx, kBits);
  plan_.yy = 2 * fixed(prepared.yy, kBits);
  plan_.wx = 2 * fixed(prepared.wx, kDepthBits);
  plan_.wy = 2 * fixed(prepared.wy, kDepthBits);
  plan_.first_x = 2 * fixed(prepared.x, kBits) + (plan_.xx + plan_.xy) / 2;
  plan_.first_y = 2 * fixed(prepared.y, kBits) + (plan_.yx + plan_.yy) / 2;
  plan_.first_w = 2 * fixed(prepared.w, kDepthBits) + (plan_.wx + plan_.wy) / 2;
}

}  // namespace refurbish_tf

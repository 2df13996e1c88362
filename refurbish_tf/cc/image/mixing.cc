#include "refurbish_tf/cc/image/mixing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "refurbish_tf/cc/base/elementary.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr int32_t kOne = 1 << kLambdaBits;
// Above all positions of layers, so mixing and layers draw independently.
constexpr uint64_t kOwnPosition = uint64_t{1} << 40;
// The words of an image's seed, by use. Lambda takes as many words as it needs,
// so it comes last.
constexpr uint64_t kSwitchWord = 0, kYWord = 1, kXWord = 2, kLambdaWord = 3;

// base^exponent, for a base in (0, 1] and an exponent above 0.
double Power(double base, double exponent) {
  return std::min(Exp2(exponent * Log2(base)), 1.0);
}

bool IsAlpha(double alpha) { return alpha > 0 && std::isfinite(alpha); }

}  // namespace

absl::Status Mixing::Check() const {
  if (!IsAlpha(mixup_alpha) || !IsAlpha(cutmix_alpha)) {
    return InvalidArgument(
        "`mixup_alpha` and `cutmix_alpha` must be above 0, got ", mixup_alpha,
        " and ", cutmix_alpha, ".");
  }
  if (!(switch_prob >= 0 && switch_prob <= 1)) {
    return InvalidArgument("`switch_prob` must be from 0 to 1, got ",
                           switch_prob, ".");
  }
  return absl::OkStatus();
}

MixDraw Mixing::Draw(const ImageSeed& seed, int64_t image,
                     int64_t batch_size) const {
  MixDraw draw;
  draw.partner = image;
  if (batch_size < 2) return draw;
  const int64_t shift = 1 + seed.SeedAt(kOwnPosition).Below(0, batch_size - 1);
  draw.partner = (image + shift) % batch_size;
  const ImageSeed own = seed.SeedAt(image).SeedAt(kOwnPosition);
  draw.is_cut = own.Fraction(kSwitchWord) < switch_prob * 0x1p31;
  draw.y = own.Fraction(kYWord);
  draw.x = own.Fraction(kXWord);
  draw.lambda =
      DrawLambda(draw.is_cut ? cutmix_alpha : mixup_alpha, own, kLambdaWord);
  return draw;
}

int32_t DrawLambda(double alpha, const ImageSeed& seed, uint64_t word) {
  // After Devroye, *Random variate generation in one line of code*, WSC 1996.
  // The cosine of a random angle is x / sqrt(square), for a random point of the
  // unit disc. The formula holds for each alpha above 0.
  const double base = (seed.Word(word) + 1.0) * 0x1p-32;
  double x, square;
  do {
    x = static_cast<int32_t>(seed.Word(++word)) * 0x1p-31;
    const double y = static_cast<int32_t>(seed.Word(++word)) * 0x1p-31;
    square = x * x + y * y;
  } while (square > 1 || square == 0);
  const double power = Power(base, 1 / alpha);
  const double part = (1 - power) * (x * x / square);
  // If x is 0, `power` may be 0 as well, and 0 / 0 would be NaN.
  const double distance = part == 0 ? 0 : std::sqrt(part / (power + part));
  const double lambda = (1 + std::copysign(distance, x)) / 2;
  return static_cast<int32_t>(std::floor(lambda * kOne + 0.5));
}

Box BoxOf(const MixDraw& draw, ImageSize size) {
  // IEEE 754 defines how square roots are rounded, so all machines agree.
  const double side = std::sqrt(static_cast<double>(kOne - draw.lambda) / kOne);
  const auto span = [side](int64_t length, int32_t middle) {
    const int64_t half = static_cast<int64_t>(length * side) / 2;
    const int64_t at = (length * int64_t{middle}) >> 31;
    return std::pair(std::max<int64_t>(at - half, 0),
                     std::min(at + half, length));
  };
  const auto [top, bottom] = span(size.height, draw.y);
  const auto [left, right] = span(size.width, draw.x);
  return {top, left, bottom - top, right - left};
}

float LambdaOf(const MixDraw& draw, ImageSize size) {
  if (!draw.is_cut) return static_cast<float>(draw.lambda) / kOne;
  const Box box = BoxOf(draw, size);
  const int64_t pixels = size.height * size.width;
  if (pixels == 0) return 1;
  return static_cast<float>(
      static_cast<double>(pixels - box.height * box.width) /
      static_cast<double>(pixels));
}

void Mix(const MixDraw& draw, ImageSize size, Pixel pixel,
         const PixelKernels& kernels, const char* image, const char* partner,
         char* to) {
  const int64_t values = size.height * size.width * pixel.channels;
  const int64_t bytes = values * BytesOf(pixel.type);
  if (bytes == 0) return;
  if (draw.is_cut) {
    const int64_t row = size.width * pixel.bytes();
    const Box box = BoxOf(draw, size);
    std::memcpy(to, image, box.y * row);
    const int64_t left = box.x * pixel.bytes();
    const int64_t middle = box.width * pixel.bytes();
    const int64_t right = row - left - middle;
    int64_t at = box.y * row;
    for (int64_t i = 0; i < box.height; ++i) {
      std::memcpy(to + at, image + at, left);
      at += left;
      std::memcpy(to + at, partner + at, middle);
      at += middle;
      std::memcpy(to + at, image + at, right);
      at += right;
    }
    std::memcpy(to + at, image + at, bytes - at);
  } else if (draw.lambda == kOne || draw.lambda == 0) {
    // A blend would multiply infinity by 0, which is NaN.
    std::memcpy(to, draw.lambda == 0 ? partner : image, bytes);
  } else if (pixel.type == ValueType::kUint8) {
    kernels.mix_bytes(reinterpret_cast<const uint8_t*>(image),
                      reinterpret_cast<const uint8_t*>(partner), values,
                      draw.lambda, reinterpret_cast<uint8_t*>(to));
  } else {
    kernels.mix_floats(reinterpret_cast<const float*>(image),
                       reinterpret_cast<const float*>(partner), values,
                       static_cast<float>(draw.lambda) / kOne,
                       reinterpret_cast<float*>(to));
  }
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/kernels.h"

#include <cstring>

#include "refurbish_tf/cc/image/distortion_kernels.h"
#include "refurbish_tf/cc/image/plain_kernels.h"

namespace refurbish_tf {
namespace {

void Copy(const uint8_t* from, int64_t bytes, uint8_t* to) {
  std::memcpy(to, from, bytes);
}

template <int channels>
void Mirror(const uint8_t* from, int64_t from_stride, int64_t pixels,
            int64_t rows, uint8_t* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    plain::MirrorRow<channels>(from + row * from_stride, pixels,
                               to + row * to_stride);
  }
}

template <class T>
void Normalize(const uint8_t* from, int64_t count, const Pattern& pattern,
               void* to) {
  plain::Normalize(from, 0, count, pattern, static_cast<T*>(to));
}

void BlendRows(const uint8_t* const* rows, const int16_t* weights,
               int64_t pairs, int64_t count, int16_t* to) {
  plain::BlendRows(rows, weights, pairs, 0, count, to);
}

template <int channels>
void BlendColumns(const std::array<const int16_t*, 2>& from,
                  const int32_t* start, const int16_t* weights, int64_t pairs,
                  int64_t pixels, const std::array<uint8_t*, 2>& to) {
  plain::BlendColumns<channels>(from, start, weights, pairs, 0, pixels, to);
}

void SumRows(const uint8_t* from, int64_t count, const float* weights,
             int64_t rows, float* to) {
  plain::SumRows(from, 0, count, weights, rows, to);
}

void SumPixels(const float* from, const FloatSpans& spans, int64_t pixels,
               uint8_t* to) {
  plain::SumPixels(from, spans, 0, pixels, to);
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

Pattern::Pattern(const Normalization& normalization, int64_t channels) {
  // Without divisions: 24 of them take as long as the pixels of a small image.
  int64_t channel = 0;
  for (int i = 0; i < kPattern; ++i) {
    scale[i] = normalization.scale[channel];
    offset[i] = normalization.offset[channel];
    if (++channel == channels) channel = 0;
  }
}

const PixelKernels& PlainKernels() {
  static const PixelKernels kKernels = {
      Copy,
      {nullptr, Mirror<1>, nullptr, Mirror<3>, Mirror<4>},
      {nullptr, Normalize<float>, Normalize<plain::Bfloat16>,
       Normalize<plain::Float16>},
      BlendRows,
      {nullptr, BlendColumns<1>, nullptr, BlendColumns<3>, BlendColumns<4>},
      SumRows,
      SumPixels,
      &PlainDistortions()};
  return kKernels;
}

uint16_t RoundToBfloat16(float value) {
  const uint32_t bits = Bits(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t RoundToFloat16(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and above.
  if (magnitude < 0x38800000) {  // Below 2^-14: a multiple of 2^-24.
    // Adding 2^-1 leaves just these multiples of a float's digits, rounded.
    float scaled;
    std::memcpy(&scaled, &magnitude, sizeof scaled);
    return sign | static_cast<uint16_t>(Bits(scaled + 0.5f) - Bits(0.5f));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace refurbish_tf

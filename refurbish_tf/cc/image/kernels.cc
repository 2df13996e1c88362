#include "refurbish_tf/cc/image/kernels.h"

#include <cmath>
#include <cstring>

#include "absl/base/casts.h"
#include "refurbish_tf/cc/image/distortion_kernels.h"
#include "refurbish_tf/cc/image/noise.h"
#include "refurbish_tf/cc/image/plain_kernels.h"

namespace refurbish_tf {
namespace {

void Copy(const uint8_t* from, int64_t bytes, uint8_t* to) {
  std::memcpy(to, from, bytes);
}

template <size_t unit, bool any = false>
void Mirror(const uint8_t* from, int64_t from_stride, int64_t pixels,
            int64_t pixel_bytes, int64_t rows, uint8_t* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    plain::MirrorRow<unit, any>(from + row * from_stride, pixels,
                                to + row * to_stride,
                                static_cast<size_t>(pixel_bytes));
  }
}

void MirrorAny(const uint8_t* from, int64_t from_stride, int64_t pixels,
               int64_t pixel_bytes, int64_t rows, uint8_t* to,
               int64_t to_stride) {
  const auto mirror = pixel_bytes >= 16  ? Mirror<16, true>
                      : pixel_bytes >= 8 ? Mirror<8, true>
                                         : Mirror<4, true>;
  mirror(from, from_stride, pixels, pixel_bytes, rows, to, to_stride);
}

template <class From>
constexpr PixelKernels::NormalizeTo NormalizeFrom() {
  return PixelKernels::ToFloats(plain::Normalize<From, float>,
                                plain::Normalize<From, plain::Bfloat16>,
                                plain::Normalize<From, plain::Float16>);
}

constexpr PixelKernels::Normalizations kNormalizations = {
    {{},
     NormalizeFrom<uint8_t>(),
     NormalizeFrom<uint16_t>(),
     NormalizeFrom<int16_t>(),
     NormalizeFrom<float>()}};

void NoFence() {}

template <int known>
void BlendColumns(const std::array<const int16_t*, 2>& from, int64_t channels,
                  const int32_t* start, const int16_t* weights, int64_t pairs,
                  int64_t pixels, const std::array<uint8_t*, 2>& to) {
  plain::BlendColumnsFrom<known>(0, from, channels, start, weights, pairs,
                                 pixels, to);
}

uint32_t Bits(float value) { return absl::bit_cast<uint32_t>(value); }

}  // namespace

Pattern::Pattern(const std::vector<float>& scales,
                 const std::vector<float>& offsets) {
  const size_t channels = scales.size();
  // Three vectors of 8, which a loop can keep in registers.
  constexpr size_t kShort = 24;
  length = static_cast<int64_t>(kShort % channels == 0 ? kShort : 8 * channels);
  for (int64_t i = 0; i < length + 7; ++i) {
    scale.push_back(scales[i % channels]);
    offset.push_back(offsets[i % channels]);
  }
}

const PixelKernels& PlainKernels() {
  static const PixelKernels kKernels = {
      Copy,
      {MirrorAny, Mirror<1>, Mirror<2>, Mirror<3>, Mirror<4>, nullptr,
       Mirror<6>, nullptr, Mirror<8>, nullptr, nullptr, nullptr, Mirror<12>},
      kNormalizations,
      kNormalizations,
      NoFence,
      plain::BlendRows,
      {BlendColumns<0>, BlendColumns<1>, nullptr, BlendColumns<3>,
       BlendColumns<4>},
      plain::SumRows<float>,
      plain::SumRows<uint8_t>,
      plain::SumPixels,
      plain::MixBytes,
      plain::MixFloats,
      plain::AddNoise<uint8_t>,
      plain::AddNoise<float>,
      &PlainDistortions()};
  return kKernels;
}

uint16_t RoundToBfloat16(float value) {
  const uint32_t bits = Bits(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

uint16_t RoundToFloat16(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  }
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // Infinity from 65520 on.
  if (magnitude < 0x38800000) {  // Below 2^-14: a multiple of 2^-24.
    // Floats from 0.5 to 1 are multiples of 2^-24, so the addition rounds.
    const float scaled = absl::bit_cast<float>(magnitude);
    return sign | static_cast<uint16_t>(Bits(scaled + 0.5f) - Bits(0.5f));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace refurbish_tf

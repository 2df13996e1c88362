// Implements the AVX2 intrinsics that the loops use, under Intel's names, with
// NEON, which every aarch64 CPU has. A vector of 32 bytes is two of 16: most
// AVX2 intrinsics treat both halves alike.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define REFURBISH_TF_AVX2
#define REFURBISH_TF_AVX2_INLINE __attribute__((always_inline))

namespace refurbish_tf::vectors {

template <class Value>
struct Halves {
  typedef Value Half __attribute__((vector_size(16)));

  Halves() = default;
  Halves(Half low, Half high) : low(low), high(high) {}
  Halves(Value all) : low(all - Half{}), high(low) {}
  // Reinterprets the bits.
  template <class Other>
  explicit Halves(const Halves<Other>& other)
      : low(Half(other.low)), high(Half(other.high)) {}

#define RTF_OPERATOR(op)                                   \
  friend inline Halves operator op(Halves a, Halves b) {   \
    return {Half(a.low op b.low), Half(a.high op b.high)}; \
  }
  RTF_OPERATOR(+)
  RTF_OPERATOR(-)
  RTF_OPERATOR(*)
  RTF_OPERATOR(&)
  RTF_OPERATOR(|)
  RTF_OPERATOR(^)
  RTF_OPERATOR(<<)
  RTF_OPERATOR(>>)
  RTF_OPERATOR(==)
  RTF_OPERATOR(!=)
  RTF_OPERATOR(<)
  RTF_OPERATOR(>)
  RTF_OPERATOR(>=)
#undef RTF_OPERATOR

  Half low, high;
};

using __m256i = Halves<int64_t>;
using __m256 = Halves<float>;
using Words = Halves<int16_t>;
using __m128i = __m256i::Half;
using __m128 = __m256::Half;

// Defines an intrinsic of two vectors of 16 bytes, and the one of 32 bytes that
// does the same to both halves. `made` is the result for `a` and `b` of `Type`.
#define RTF_OF_TWO(name, suffix, Type, made)                  \
  inline __m128##suffix _mm_##name(__m128##suffix left,       \
                                   __m128##suffix right) {    \
    const Type a = Type(left), b = Type(right);               \
    return __m128##suffix(made);                              \
  }                                                           \
  inline __m256##suffix _mm256_##name(__m256##suffix left,    \
                                      __m256##suffix right) { \
    return {_mm_##name(left.low, right.low),                  \
            _mm_##name(left.high, right.high)};               \
  }
RTF_OF_TWO(add_epi32, i, uint32x4_t, a + b)
RTF_OF_TWO(sub_epi8, i, uint8x16_t, a - b)
RTF_OF_TWO(sub_epi16, i, uint16x8_t, a - b)
RTF_OF_TWO(mullo_epi32, i, uint32x4_t, vmulq_u32(a, b))
RTF_OF_TWO(cmpeq_epi8, i, uint8x16_t, a == b)
RTF_OF_TWO(cmpeq_epi32, i, uint32x4_t, a == b)
RTF_OF_TWO(min_epu8, i, uint8x16_t, vminq_u8(a, b))
RTF_OF_TWO(max_epu8, i, uint8x16_t, vmaxq_u8(a, b))
RTF_OF_TWO(min_epi16, i, int16x8_t, vminq_s16(a, b))
RTF_OF_TWO(max_epi16, i, int16x8_t, vmaxq_s16(a, b))
// Return the second operand if either is NaN or both are equal, as on x86.
RTF_OF_TWO(min_ps, , float32x4_t, vbslq_f32(vcltq_f32(a, b), a, b))
RTF_OF_TWO(max_ps, , float32x4_t, vbslq_f32(vcgtq_f32(a, b), a, b))
RTF_OF_TWO(unpacklo_epi8, i, uint8x16_t, vzip1q_u8(a, b))
RTF_OF_TWO(unpackhi_epi8, i, uint8x16_t, vzip2q_u8(a, b))
// All indices are below 16, or are negative, for which the result is 0.
RTF_OF_TWO(shuffle_epi8, i, uint8x16_t, vqtbl1q_u8(a, b))
RTF_OF_TWO(madd_epi16, i, int16x8_t,
           vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)),
                      vmull_high_s16(a, b)))
RTF_OF_TWO(add_epi16, i, int16x8_t, vaddq_s16(a, b))
RTF_OF_TWO(mullo_epi16, i, int16x8_t, vmulq_s16(a, b))
// The NEON instruction doubles the product, so it is halved again.
RTF_OF_TWO(mulhi_epi16, i, int16x8_t, vqdmulhq_s16(a, b) >> 1)
RTF_OF_TWO(mulhi_epu16, i, uint16x8_t,
           vuzp2q_u16(uint16x8_t(vmull_u16(vget_low_u16(a), vget_low_u16(b))),
                      uint16x8_t(vmull_high_u16(a, b))))
RTF_OF_TWO(mulhrs_epi16, i, int16x8_t, vqrdmulhq_s16(a, b))
RTF_OF_TWO(packs_epi32, i, int32x4_t, vqmovn_high_s32(vqmovn_s32(a), b))
RTF_OF_TWO(packus_epi32, i, int32x4_t, vqmovun_high_s32(vqmovun_s32(a), b))
RTF_OF_TWO(packus_epi16, i, int16x8_t, vqmovun_high_s16(vqmovun_s16(a), b))
#undef RTF_OF_TWO

#define RTF_OF_ONE(name, From, To, Type, made)        \
  inline To name(From value) {                        \
    const auto of_half = [](From::Half half) {        \
      const Type a = Type(half);                      \
      return To::Half(made);                          \
    };                                                \
    return {of_half(value.low), of_half(value.high)}; \
  }
RTF_OF_ONE(_mm256_abs_epi16, __m256i, __m256i, int16x8_t, vabsq_s16(a))
RTF_OF_ONE(_mm256_cvtepi32_ps, __m256i, __m256, int32x4_t, vcvtq_f32_s32(a))
RTF_OF_ONE(_mm256_cvttps_epi32, __m256, __m256i, float32x4_t, vcvtq_s32_f32(a))
RTF_OF_ONE(SumsOfFour, __m256i, __m256i, uint8x16_t, vpaddlq_u16(vpaddlq_u8(a)))
#undef RTF_OF_ONE

#define _mm_cvttps_epi32(value) __m128i(vcvtq_s32_f32(value))
inline __m128i _mm256_cvtps_ph(__m256 value, int /*rounding*/) {
  return __m128i(vcvt_high_f16_f32(vcvt_f16_f32(value.low), value.high));
}
constexpr int _MM_FROUND_TO_NEAREST_INT = 0;
inline __m256i _mm256_cvtepu8_epi16(__m128i bytes) {
  const auto a = uint8x16_t(bytes);
  return {__m128i(vmovl_u8(vget_low_u8(a))), __m128i(vmovl_high_u8(a))};
}
inline __m256i _mm256_cvtepi16_epi32(__m128i words) {
  const auto a = int16x8_t(words);
  return {__m128i(vmovl_s16(vget_low_s16(a))), __m128i(vmovl_high_s16(a))};
}
inline __m256i _mm256_cvtepu8_epi32(__m128i bytes) {
  return _mm256_cvtepi16_epi32(_mm256_cvtepu8_epi16(bytes).low);
}

#define _mm256_slli_epi32(a, by) __m256i(Halves<uint32_t>(a) << (by))
#define _mm256_srli_epi32(a, by) __m256i(Halves<uint32_t>(a) >> (by))
#define _mm256_srai_epi32(a, by) __m256i(Halves<int32_t>(a) >> (by))
inline __m256i _mm256_blendv_epi8(__m256i a, __m256i b, __m256i from_b) {
  const auto which = Halves<uint8_t>(Halves<int8_t>(from_b) >> 7);
  const Halves<uint8_t> x(a), y(b);
  return __m256i(Halves<uint8_t>(vbslq_u8(which.low, y.low, x.low),
                                 vbslq_u8(which.high, y.high, x.high)));
}

template <class Value, class... Values>
inline __m256i Listed(Values... values) {
  typedef Value All __attribute__((vector_size(32)));
  const All all = {static_cast<Value>(values)...};
  __m128i halves[2];
  std::memcpy(halves, &all, sizeof halves);
  return {halves[0], halves[1]};
}
#define _mm256_setr_epi8(...) Listed<int8_t>(__VA_ARGS__)
#define _mm256_setr_epi32(...) Listed<int32_t>(__VA_ARGS__)
#define _mm_setr_epi8(...) Listed<int8_t>(__VA_ARGS__, __VA_ARGS__).low
#define _mm256_set1_epi8(value) __m256i(Halves<int8_t>(value))
#define _mm256_set1_epi16(value) __m256i(Halves<int16_t>(value))
#define _mm256_set1_epi32(value) __m256i(Halves<int32_t>(value))
#define _mm256_set1_ps(value) __m256(value)
#define _mm_set1_ps(value) __m256(value).low
#define _mm256_setzero_si256() __m256i(0)
#define _mm256_setzero_ps() __m256(0)
#define _mm_setzero_ps() __m256(0).low

inline __m128i _mm_loadu_si128(const __m128i* from) {
  return __m128i(vld1q_u8(reinterpret_cast<const uint8_t*>(from)));
}
inline void _mm_storeu_si128(__m128i* to, __m128i value) {
  vst1q_u8(reinterpret_cast<uint8_t*>(to), uint8x16_t(value));
}
inline __m256i _mm256_loadu_si256(const __m256i* from) {
  const auto* const half = reinterpret_cast<const __m128i*>(from);
  return {_mm_loadu_si128(half), _mm_loadu_si128(half + 1)};
}
inline void _mm256_storeu_si256(__m256i* to, __m256i value) {
  auto* const half = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(half, value.low);
  _mm_storeu_si128(half + 1, value.high);
}
#define _mm_loadu_ps vld1q_f32
inline __m256 _mm256_loadu_ps(const float* from) {
  return {vld1q_f32(from), vld1q_f32(from + 4)};
}
inline void _mm256_storeu_ps(float* to, __m256 value) {
  vst1q_f32(to, value.low);
  vst1q_f32(to + 4, value.high);
}
inline __m128i _mm_loadl_epi64(const __m128i* from) {
  __m128i value = {};
  std::memcpy(&value, from, 8);
  return value;
}
inline void _mm_storel_epi64(__m128i* to, __m128i value) {
  std::memcpy(to, &value, 8);
}
#define _mm_cvtsi128_si64(value) (value)[0]
// Ordinary stores: in long runs of them, these CPUs do not read memory first.
#define _mm256_stream_ps _mm256_storeu_ps
#define _mm_stream_si128 _mm_storeu_si128
#define _mm_sfence()

#define _mm256_castsi256_si128(value) (value).low
#define _mm256_extracti128_si256(value, one) (value).high
#define _mm256_inserti128_si256(value, half, one) __m256i((value).low, half)
inline __m256i _mm256_broadcastsi128_si256(__m128i both) {
  return {both, both};
}
#define _mm256_castsi128_si256 _mm256_broadcastsi128_si256
inline __m256i _mm256_permute2x128_si256(__m256i a, __m256i b, int which) {
  const __m128i halves[] = {a.low, a.high, b.low, b.high};
  return {halves[which & 3], halves[which >> 4]};
}
inline int _mm256_testz_si256(__m256i a, __m256i b) {
  const __m256i bits = a & b;
  return vmaxvq_u32(uint32x4_t(bits.low | bits.high)) == 0;
}
// Bytes that are shifted in are 0.
inline __m128i MovedBy(int bytes, __m128i value) {
  const __m128i places = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  return _mm_shuffle_epi8(value, __m128i(uint8x16_t(places) - uint8_t(bytes)));
}
#define _mm_slli_si128(value, bytes) MovedBy(bytes, value)
#define _mm_srli_si128(value, bytes) MovedBy(-(bytes), value)

inline __m256i MovedDown(__m256i value) {
  const auto a = uint8x16_t(value.low), b = uint8x16_t(value.high);
  return {__m128i(vextq_u8(a, b, 1)), __m128i(vextq_u8(b, a, 1))};
}
inline __m256i MovedUp(__m256i value) {
  const auto a = uint8x16_t(value.low), b = uint8x16_t(value.high);
  return {__m128i(vextq_u8(b, a, 15)), __m128i(vextq_u8(a, b, 15))};
}
inline __m256i Interleaved64(__m256i value) {
  return {vzip1q_s64(value.low, value.high), vzip2q_s64(value.low, value.high)};
}
inline __m256i Interleaved32(__m256i value) {
  const auto a = int32x4_t(value.low), b = int32x4_t(value.high);
  return {__m128i(vzip1q_s32(a, b)), __m128i(vzip2q_s32(a, b))};
}
// Looks up bytes in a table of 256 values.
inline __m128i LookUpIn(const uint8_t* table, __m128i value) {
  uint8x16_t places = uint8x16_t(value);
  uint8x16_t found = vqtbl4q_u8(vld1q_u8_x4(table), places);
  for (int k = 64; k < 256; k += 64) {
    places = places - uint8_t{64};
    found = vqtbx4q_u8(found, vld1q_u8_x4(table + k), places);
  }
  return __m128i(found);
}

}  // namespace refurbish_tf::vectors

// The distortions that read other pixels, in AVX2 or NEON.
#include "refurbish_tf/cc/image/vector_rows.h"

#include "refurbish_tf/cc/image/vectors.h"

#if defined(REFURBISH_TF_VECTORS)

#include <cstring>

namespace refurbish_tf::vectors::distortions {
namespace {

// `CopyBytes` and `FillBytes` are faster than memcpy and memset for few bytes.
REFURBISH_TF_AVX2 inline void CopyBytes(const uint8_t* from, int64_t bytes,
                                        uint8_t* to) {
  if (bytes >= 32) {
    int64_t i = 0;
    for (; i + 32 <= bytes; i += 32) Store(to + i, Load(from + i));
    Store(to + bytes - 32, Load(from + bytes - 32));
  } else if (bytes >= 16) {
    StoreHalf(to, LoadHalf(from));
    StoreHalf(to + bytes - 16, LoadHalf(from + bytes - 16));
  } else if (bytes >= 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + bytes - 8, from + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(to, from, 4);
    std::memcpy(to + bytes - 4, from + bytes - 4, 4);
  } else if (bytes > 0) {
    to[0] = from[0];
    to[bytes / 2] = from[bytes / 2];
    to[bytes - 1] = from[bytes - 1];
  }
}

REFURBISH_TF_AVX2 inline void FillBytes(uint8_t fill, int64_t bytes,
                                        uint8_t* to) {
  if (bytes >= 32) {
    const __m256i value = Repeated(fill);
    for (int64_t i = 0; i + 32 <= bytes; i += 32) Store(to + i, value);
    Store(to + bytes - 32, value);
  } else if (bytes >= 8) {
    std::memset(to, fill, 8);
    for (int64_t i = 8; i + 8 <= bytes; i += 8) std::memset(to + i, fill, 8);
    std::memset(to + bytes - 8, fill, 8);
  } else if (bytes >= 4) {
    std::memset(to, fill, 4);
    std::memset(to + bytes - 4, fill, 4);
  } else {
    for (int64_t i = 0; i < bytes; ++i) to[i] = fill;
  }
}

REFURBISH_TF_AVX2 void MoveRow(const RowPlan& plan, int64_t y, int64_t x,
                               int64_t count, uint8_t* to, uint8_t* /*end*/) {
  const int64_t pixel = plan.pixel_bytes, row = y + plan.down;
  const int64_t from = x + ((plan.first + y * plan.step) >> 16);
  if (row < 0 || row >= plan.height) {
    return FillBytes(plan.fill, count * pixel, to);
  }
  const Range inside = Intersection({0, count}, -from, plan.width - from);
  FillBytes(plan.fill, inside.from * pixel, to);
  CopyBytes(plan.image + row * plan.row_bytes + (from + inside.from) * pixel,
            (inside.to - inside.from) * pixel, to + inside.from * pixel);
  FillBytes(plan.fill, (count - inside.to) * pixel, to + inside.to * pixel);
}

// If no span is longer than `kVector` bytes, copies that many bytes for each
// span, unless they extend beyond the image or `end`. The bytes after a span
// are written again with the next span.
template <int kVector>
REFURBISH_TF_AVX2 void MoveColumns(const RowPlan& plan, int64_t y, int64_t x,
                                   int64_t count, uint8_t* to, uint8_t* end) {
  if (kVector == 16 && plan.longest > 16) {
    return MoveColumns<32>(plan, y, x, count, to, end);
  }
  const ColumnSpans spans = InsideSpans(plan, y, x, count);
  const int64_t begin = x * plan.pixel_bytes;
  const int64_t until = begin + count * plan.pixel_bytes;
  if (spans.from == spans.to) return FillBytes(plan.fill, until - begin, to);
  const auto start_of = [&](int64_t span) {
    return std::clamp<int64_t>(plan.spans[span], begin, until);
  };
  const bool fits = plan.longest <= kVector;
  const int64_t stride = spans.step * plan.row_bytes;
  const uint8_t* const last_read =
      plan.image + plan.height * plan.row_bytes - kVector;
  const uint8_t* row = plan.image + spans.row * plan.row_bytes;
  int64_t from = start_of(spans.from);
  FillBytes(plan.fill, from - begin, to);
  to -= begin;
  const int32_t* next = plan.spans.data() + spans.from + 1;
  for (int64_t span = spans.from; span < spans.to; ++span) {
    const int64_t behind = std::min<int64_t>(*next++, until);
    if (fits && end - (to + from) >= kVector && row + from <= last_read) {
      if (kVector == 16) {
        StoreHalf(to + from, LoadHalf(row + from));
      } else {
        Store(to + from, Load(row + from));
      }
    } else {
      CopyBytes(row + from, behind - from, to + from);
    }
    from = behind;
    row += stride;
  }
  FillBytes(plan.fill, until - from, to + from);
}

template <int pixel>
REFURBISH_TF_AVX2 void TurnRow(const RowPlan& plan, int64_t y, int64_t x,
                               int64_t count, uint8_t* to, uint8_t* end) {
  constexpr int kChunk = 256;
  constexpr int kWide = pixel == 3 ? 4 : pixel;
  const int64_t image_bytes = plan.height * plan.row_bytes;
  if (image_bytes > INT32_MAX) {
    return PlainDistortions().turn[pixel](plan, y, x, count, to, end);
  }
  const TurnedRow row(plan, y, x, count);
  const Range inside = row.inside;
  FillBytes(plan.fill, inside.from * pixel, to);
  const int32_t last = static_cast<int32_t>(image_bytes) - pixel;
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i row_bytes = Repeated32(plan.row_bytes);
  const __m256i xx = Repeated32(plan.xx), yx = Repeated32(plan.yx);
  const __m256i step_x = _mm256_slli_epi32(xx, 3);
  const __m256i step_y = _mm256_slli_epi32(yx, 3);
  __m256i from_x =
      _mm256_add_epi32(Repeated32(row.from_x + inside.from * plan.xx),
                       _mm256_mullo_epi32(lane, xx));
  __m256i from_y =
      _mm256_add_epi32(Repeated32(row.from_y + inside.from * plan.yx),
                       _mm256_mullo_epi32(lane, yx));
  alignas(32) int32_t points[kChunk];
  for (int64_t begin = inside.from; begin < inside.to; begin += kChunk) {
    const int64_t n = std::min<int64_t>(kChunk, inside.to - begin);
    __m256i is_last = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) {
      const __m256i column = _mm256_srai_epi32(from_x, 16);
      const __m256i point = _mm256_add_epi32(
          _mm256_mullo_epi32(_mm256_srai_epi32(from_y, 16), row_bytes),
          pixel == 1 ? column
          : pixel == 4
              ? _mm256_slli_epi32(column, 2)
              : _mm256_add_epi32(column, _mm256_slli_epi32(column, 1)));
      Store(points + i, point);
      is_last = is_last | _mm256_cmpeq_epi32(point, Repeated32(last));
      from_x = _mm256_add_epi32(from_x, step_x);
      from_y = _mm256_add_epi32(from_y, step_y);
    }
    // A copy, because a compiler must assume that stores may change the plan.
    const uint8_t* const image = plan.image;
    uint8_t* const pixels = to + begin * pixel;
    int64_t i = 0;
    // Copies four bytes per pixel instead of three, except for the last pixel
    // of a chunk, and if the chunk reads the last pixel of the image.
    int64_t wide = n;
    if (pixel == 3) wide = _mm256_testz_si256(is_last, is_last) ? n - 1 : 0;
    // Faster than gathers. Without unrolling, the loop would be a third slower.
#pragma GCC unroll 4
    for (; i < wide; ++i) {
      std::memcpy(pixels + i * pixel, image + points[i], kWide);
    }
    for (; i < n; ++i) {
      std::memcpy(pixels + i * pixel, image + points[i], pixel);
    }
  }
  FillBytes(plan.fill, (count - inside.to) * pixel, to + inside.to * pixel);
}

// Sharpens `count` bytes, at least 32, of a row.
template <class By>
REFURBISH_TF_AVX2 void SharpenBy(const By by, const RowPlan& plan,
                                 const uint8_t* row, int64_t count,
                                 uint8_t* to) {
  constexpr int64_t kChunk = 1024;
  const int64_t pixel = plan.pixel_bytes;
  // Sums of three bytes: of the row above, this row and the row below. They
  // begin one pixel before the chunk.
  alignas(32) uint16_t sums[kChunk + 2 * kColors];
  for (int64_t done = 0; done < count;) {
    const int64_t begin = std::min(done, count - 32);
    const int64_t n = std::min(kChunk, count - begin);
    const uint8_t* const from = row + begin;
    const auto add = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
      const uint8_t* const at = from + i - pixel;
      Store(sums + i, __m256i(InOrder(at - plan.row_bytes) + InOrder(at) +
                              InOrder(at + plan.row_bytes)));
    };
    const int64_t num_sums = n + 2 * pixel;
    for (int64_t i = 0; i + 16 < num_sums; i += 16) add(i);
    add(num_sums - 16);
    const auto sharpened = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
      const Words middle = InOrder(from + i);
      const Words sum = Words(Load(sums + i)) + Words(Load(sums + i + pixel)) +
                        Words(Load(sums + i + 2 * pixel)) + 4 * middle + 6;
      // Divides by 13: exact up to 13 * 255 + 6, the largest sum.
      return by(
          Words(_mm256_mulhi_epu16(__m256i(sum), _mm256_set1_epi16(5042))),
          middle);
    };
    const auto sharpen = [&](int64_t i) REFURBISH_TF_AVX2_INLINE {
      StoreInOrder(to + begin + i, sharpened(i), sharpened(i + 16));
    };
    for (int64_t i = 0; i + 32 < n; i += 32) sharpen(i);
    sharpen(n - 32);
    done = begin + n;
  }
}

REFURBISH_TF_AVX2 void SharpenRow(const RowPlan& plan, int64_t y, int64_t x,
                                  int64_t count, uint8_t* to,
                                  uint8_t* /*end*/) {
  const uint8_t* const row = plan.image + y * plan.row_bytes;
  const Range inner = InnerBytes(plan, y, x, count);
  const int64_t begin = x * plan.pixel_bytes;
  const int64_t end = begin + count * plan.pixel_bytes;
  CopyBytes(row + begin, inner.from - begin, to);
  uint8_t* const inner_to = to + (inner.from - begin);
  const int64_t bytes = inner.to - inner.from;
  if (bytes < 32) {
    plain::Sharpen(plan, row, inner.from, inner.to, inner_to);
  } else {
    WithBlend(plan.blend, [&](const auto by) REFURBISH_TF_AVX2_INLINE {
      SharpenBy(by, plan, row + inner.from, bytes, inner_to);
    });
  }
  CopyBytes(row + inner.to, end - inner.to, to + (inner.to - begin));
}

}  // namespace

void SetRows(DistortionKernels* kernels) {
  kernels->move = MoveRow;
  kernels->move_columns = MoveColumns<16>;
  kernels->turn[1] = TurnRow<1>;
  kernels->turn[3] = TurnRow<3>;
  kernels->turn[4] = TurnRow<4>;
  kernels->sharpen = SharpenRow;
}

}  // namespace refurbish_tf::vectors::distortions

#endif

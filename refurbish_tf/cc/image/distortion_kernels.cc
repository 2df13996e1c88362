#include "refurbish_tf/cc/image/distortion_kernels.h"

#include <cstring>

namespace refurbish_tf {
namespace {

void LookUp(const uint8_t* from, int64_t bytes, const ValueTables& tables,
            uint8_t* to) {
  for (int c = 0; c < kColors; ++c) {
    for (int64_t i = c; i < bytes; i += kColors) to[i] = tables.of[c][from[i]];
  }
}

void Color(const uint8_t* from, int64_t bytes, const BlendPlan& plan,
           uint8_t* to) {
  for (int64_t i = 0; i < bytes; i += kColors) {
    const int grey = plain::Grey(from + i);
    for (int c = 0; c < kColors; ++c) {
      to[i + c] = plain::Blend(grey, from[i + c], plan.factor);
    }
  }
}

void Hue(const uint8_t* from, int64_t bytes, int turn, uint8_t* to) {
  for (int64_t i = 0; i < bytes; i += kColors) {
    plain::TurnHue(from + i, turn, to + i);
  }
}

void Permute(const uint8_t* from, int64_t bytes,
             const std::array<uint8_t, kColors>& order, uint8_t* to) {
  for (int64_t i = 0; i < bytes; i += kColors) {
    const uint8_t pixel[] = {from[i + order[0]], from[i + order[1]],
                             from[i + order[2]]};
    std::memcpy(to + i, pixel, kColors);
  }
}

void FindExtremes(const uint8_t* from, int64_t bytes, uint8_t* lowest,
                  uint8_t* highest) {
  std::memset(lowest, 255, kColors);
  std::memset(highest, 0, kColors);
  for (int c = 0; c < kColors; ++c) {
    for (int64_t i = c; i < bytes; i += kColors) {
      lowest[c] = std::min(lowest[c], from[i]);
      highest[c] = std::max(highest[c], from[i]);
    }
  }
}

int64_t SumGreys(const uint8_t* from, int64_t bytes) {
  int64_t sum = 0;
  for (int64_t i = 0; i < bytes; i += kColors) sum += plain::Grey(from + i);
  return sum;
}

void MoveRow(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
             uint8_t* to, uint8_t* /*end*/) {
  const int64_t pixel = plan.pixel_bytes, row = y + plan.down;
  const int64_t from = x + ((plan.first + y * plan.step) >> 16);
  Range inside = {0, 0};
  if (row >= 0 && row < plan.height) {
    inside = Intersection({0, count}, -from, plan.width - from);
  }
  std::memset(to, plan.fill, inside.from * pixel);
  if (inside.to > inside.from) {
    std::memcpy(
        to + inside.from * pixel,
        plan.image + row * plan.row_bytes + (from + inside.from) * pixel,
        (inside.to - inside.from) * pixel);
  }
  std::memset(to + inside.to * pixel, plan.fill, (count - inside.to) * pixel);
}

void MoveRowColumns(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
                    uint8_t* to, uint8_t* /*end*/) {
  const ColumnSpans spans = InsideSpans(plan, y, x, count);
  const int64_t begin = x * plan.pixel_bytes;
  const int64_t end = begin + count * plan.pixel_bytes;
  std::memset(to, plan.fill, end - begin);
  const uint8_t* row = plan.image + spans.row * plan.row_bytes;
  for (int64_t span = spans.from; span < spans.to; ++span) {
    const int64_t from = std::max<int64_t>(plan.spans[span], begin);
    const int64_t until = std::min<int64_t>(plan.spans[span + 1], end);
    std::memcpy(to + (from - begin), row + from, until - from);
    row += spans.step * plan.row_bytes;
  }
}

template <int pixel>
void TurnRow(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
             uint8_t* to, uint8_t* /*end*/) {
  const TurnedRow row(plan, y, x, count);
  const Range inside = row.inside;
  std::memset(to, plan.fill, inside.from * pixel);
  int64_t from_x = row.from_x + inside.from * plan.xx;
  int64_t from_y = row.from_y + inside.from * plan.yx;
  for (int64_t i = inside.from; i < inside.to; ++i) {
    std::memcpy(
        to + i * pixel,
        plan.image + (from_y >> 16) * plan.row_bytes + (from_x >> 16) * pixel,
        pixel);
    from_x += plan.xx;
    from_y += plan.yx;
  }
  std::memset(to + inside.to * pixel, plan.fill, (count - inside.to) * pixel);
}

template <int pixel>
void ProjectRow(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
                uint8_t* to, uint8_t* /*end*/) {
  const double height = static_cast<double>(plan.height);
  const double width = static_cast<double>(plan.width);
  int64_t from_x = plan.first_x + x * plan.xx + y * plan.xy;
  int64_t from_y = plan.first_y + x * plan.yx + y * plan.yy;
  int64_t from_w = plan.first_w + x * plan.wx + y * plan.wy;
  for (int64_t i = 0; i < count; ++i, to += pixel) {
    const double scale = 65536 / static_cast<double>(from_w);
    const double column = static_cast<double>(from_x) * scale;
    const double row = static_cast<double>(from_y) * scale;
    if (from_w > 0 && row >= 0 && row < height && column >= 0 &&
        column < width) {
      std::memcpy(to,
                  plan.image + static_cast<int64_t>(row) * plan.row_bytes +
                      static_cast<int64_t>(column) * pixel,
                  pixel);
    } else {
      std::memset(to, plan.fill, pixel);
    }
    from_x += plan.xx;
    from_y += plan.yx;
    from_w += plan.wx;
  }
}

void SharpenRow(const RowPlan& plan, int64_t y, int64_t x, int64_t count,
                uint8_t* to, uint8_t* /*end*/) {
  const uint8_t* const row = plan.image + y * plan.row_bytes;
  const Range inner = InnerBytes(plan, y, x, count);
  const int64_t begin = x * plan.pixel_bytes;
  const int64_t end = begin + count * plan.pixel_bytes;
  std::memcpy(to, row + begin, inner.from - begin);
  plain::Sharpen(plan, row, inner.from, inner.to, to + (inner.from - begin));
  std::memcpy(to + (inner.to - begin), row + inner.to, end - inner.to);
}

}  // namespace

const DistortionKernels& PlainDistortions() {
  static constexpr DistortionKernels kKernels = {
      false,
      nullptr,
      nullptr,
      nullptr,
      nullptr,
      LookUp,
      Color,
      Permute,
      Hue,
      FindExtremes,
      SumGreys,
      MoveRow,
      MoveRowColumns,
      SharpenRow,
      {nullptr, TurnRow<1>, nullptr, TurnRow<3>, TurnRow<4>},
      {nullptr, ProjectRow<1>, nullptr, ProjectRow<3>, ProjectRow<4>}};
  return kKernels;
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/image/painter.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/image/resize.h"

namespace refurbish_tf {
namespace {

int64_t BytesOf(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return 1;
    case ValueType::kBfloat16:
    case ValueType::kFloat16:
      return 2;
    case ValueType::kFloat32:
      return 4;
  }
  return 1;
}

// Adjacent columns, in bytes, for rows that lie in the same cutouts.
struct Piece {
  int64_t to, from, length, step;
};

using Pieces = absl::InlinedVector<Piece, 8>;

Pieces PiecesOf(const Stretches& columns, uint64_t cutouts, int64_t channels) {
  Pieces pieces;
  int64_t to = 0;
  for (const Stretch& stretch : columns) {
    const int64_t length = stretch.length * channels;
    const int64_t step = (stretch.cutouts & cutouts) != 0 ? 0 : stretch.step;
    // The lowest place that is read.
    const int64_t from =
        (stretch.from - (step < 0 ? stretch.length - 1 : 0)) * channels;
    pieces.push_back({to, from, length, step});
    to += length;
  }
  return pieces;
}

// For few bytes in each of many rows: a call of memset would take longer.
inline void Clear(uint8_t* to, int64_t length) {
  if (length > 16) {
    std::memset(to, 0, length);
  } else if (length >= 8) {
    std::memset(to, 0, 8);
    std::memset(to + length - 8, 0, 8);
  } else if (length >= 4) {
    std::memset(to, 0, 4);
    std::memset(to + length - 4, 0, 4);
  } else {
    for (int64_t i = 0; i < length; ++i) to[i] = 0;
  }
}

}  // namespace

Painter::Painter(const LayerRun& run, ImageSize size, int64_t channels,
                 const PixelKernels& kernels)
    : run_(run),
      size_(size),
      channels_(channels),
      kernels_(kernels),
      pattern_(run.normalization(), channels) {}

void Painter::Paint(const uint8_t* from, const int32_t* draws, void* to) {
  ImageSize size = size_;
  std::optional<Plan> plan;
  plan.emplace(size.height, size.width);
  std::vector<uint8_t> resized;
  const std::vector<Layer>& layers = run_.layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    if (layer.kind != LayerKind::kRandomResizedCrop &&
        layer.kind != LayerKind::kResize) {
      plan->Add(layer, draws);
      draws += layer.NumDraws();
      continue;
    }
    Box box = ResizedCropBox(layer, draws, size);
    std::vector<uint8_t> planned;
    if (!plan->changes_nothing()) {
      // Only the part that is resized.
      plan->Cut(box.y, box.height, box.x, box.width);
      planned.resize(box.height * box.width * channels_);
      Rows(from, *plan, 0, box.height, planned.data());
      from = planned.data();
      size.width = box.width;
      box.y = box.x = 0;
    }
    draws += layer.NumDraws();
    // Flips that follow only change where columns are put.
    bool mirrored = false;
    while (i + 1 < layers.size() &&
           layers[i + 1].kind == LayerKind::kRandomFlip) {
      mirrored ^= draws[0] != 0;
      draws += layers[++i].NumDraws();
    }
    const ImageSize made_size = {layer.height, layer.width};
    Resizer resizer(from, size.width, channels_, box, made_size,
                    layer.antialias, mirrored, kernels_);
    size = made_size;
    const auto make_rows = [&resizer](int64_t begin, int64_t count,
                                      uint8_t* rows) {
      resizer.Rows(begin, count, rows);
    };
    if (i + 1 == layers.size()) return Convert(size, make_rows, to);
    std::vector<uint8_t> made(size.height * size.width * channels_);
    resizer.Rows(0, size.height, made.data());
    resized = std::move(made);
    from = resized.data();
    plan.emplace(size.height, size.width);
  }
  if (run_.normalization().type != ValueType::kUint8 &&
      plan->changes_nothing()) {
    Convert(from, size.height * size.width * channels_, to);
    return;
  }
  Convert(size, [this, from, &plan](int64_t begin, int64_t count,
                                    uint8_t* rows) {
    Rows(from, *plan, begin, count, rows);
  }, to);
}

template <class MakeRows>
void Painter::Convert(ImageSize size, const MakeRows& make_rows, void* to) {
  if (run_.normalization().type == ValueType::kUint8) {
    make_rows(0, size.height, static_cast<uint8_t*>(to));
    return;
  }
  const int64_t row_bytes = size.width * channels_;
  uint8_t band[kBand];
  uint8_t* rows = band;
  if (row_bytes > kBand) {
    if (long_row_ == nullptr) long_row_.reset(new uint8_t[row_bytes]);
    rows = long_row_.get();
  }
  const int64_t at_once = std::max<int64_t>(1, kBand / row_bytes);
  for (int64_t row = 0; row < size.height; row += at_once) {
    const int64_t count = std::min(at_once, size.height - row);
    make_rows(row, count, rows);
    to = Convert(rows, count * row_bytes, to);
  }
}

uint8_t* Painter::Convert(const uint8_t* from, int64_t count, void* to) const {
  const ValueType type = run_.normalization().type;
  kernels_.normalize[static_cast<int>(type)](from, count, pattern_, to);
  return static_cast<uint8_t*>(to) + count * BytesOf(type);
}

void Painter::Rows(const uint8_t* from, const Plan& plan, int64_t begin,
                   int64_t count, uint8_t* to) const {
  const int64_t row_bytes = plan.columns.size() * channels_;
  const int64_t from_row_bytes = plan.image_width * channels_;
  const int64_t pixel = channels_;
  Pieces pieces;
  std::optional<uint64_t> pieces_of;
  int64_t at = 0;
  for (const Stretch& stretch : plan.rows.stretches()) {
    const int64_t first = std::max<int64_t>(begin - at, 0);
    const int64_t rows = std::min(begin + count - at, stretch.length) - first;
    at += stretch.length;
    if (rows <= 0) continue;
    uint8_t* const rows_to = to;
    to += rows * row_bytes;
    if (stretch.step == 0) {
      std::memset(rows_to, 0, rows * row_bytes);
      continue;
    }
    if (pieces_of != stretch.cutouts) {
      pieces = PiecesOf(plan.columns.stretches(), stretch.cutouts, channels_);
      pieces_of = stretch.cutouts;
    }
    const uint8_t* const rows_from =
        from + (stretch.from + stretch.step * first) * from_row_bytes;
    const int64_t from_stride = stretch.step * from_row_bytes;
    // If all copied pieces move by the same distance, rows are copied whole,
    // with what is between the pieces; that is cleared afterwards.
    const Piece* copied_first = nullptr;
    const Piece* copied_last = nullptr;
    bool at_one_distance = stretch.step == 1 && from_row_bytes == row_bytes;
    for (const Piece& piece : pieces) {
      if (piece.step == 0) continue;
      if (copied_first == nullptr) copied_first = &piece;
      copied_last = &piece;
      at_one_distance &= piece.step == 1 && piece.to - piece.from ==
                                                copied_first->to -
                                                    copied_first->from;
    }
    if (copied_first != nullptr && at_one_distance) {
      kernels_.copy(rows_from + copied_first->from,
                    (rows - 1) * row_bytes + copied_last->to +
                        copied_last->length - copied_first->to,
                    rows_to + copied_first->to);
    }
    for (const Piece& piece : pieces) {
      uint8_t* const piece_to = rows_to + piece.to;
      const uint8_t* const piece_from = rows_from + piece.from;
      if (piece.step == 0) {
        for (int64_t row = 0; row < rows; ++row) {
          Clear(piece_to + row * row_bytes, piece.length);
        }
      } else if (piece.step < 0) {
        kernels_.mirror[pixel](piece_from, from_stride, piece.length / pixel,
                               rows, piece_to, row_bytes);
      } else if (!at_one_distance) {
        for (int64_t row = 0; row < rows; ++row) {
          kernels_.copy(piece_from + row * from_stride, piece.length,
                        piece_to + row * row_bytes);
        }
      }
    }
  }
}

}  // namespace refurbish_tf

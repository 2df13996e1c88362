#include "refurbish_tf/cc/image/fused_pass.h"

#include <algorithm>
#include <cstring>

namespace refurbish_tf {

const uint8_t* FusedPass::memory() const {
  const bool nothing_to_do =
      plan_.changes_nothing && !row_step_ && !resizer_ && steps_.empty();
  return nothing_to_do ? image_ : nullptr;
}

bool FusedPass::Flip(bool vertically) {
  if (!resizer_) {
    plan_.Flip(vertically);
    return true;
  }
  if (!vertically) resizer_->Mirror();
  return !vertically;
}

bool FusedPass::Crop(const Box& part, Border border, FillColor color,
                     int64_t outermost) {
  if (plan_.Contains(part) ? resizer_ != nullptr : !Accepts(color)) {
    return false;
  }
  plan_.Crop(part, border, outermost);
  return true;
}

bool FusedPass::CutOut(const Box& part, FillColor color) {
  // Nested chains may contain more cutouts than a strip has bits for.
  if (plan_.num_cutouts == Strip::kMostCutouts || !Accepts(color)) return false;
  plan_.CutOut(part);
  return true;
}

void FusedPass::Rows(int64_t begin, int64_t count, uint8_t* to, uint8_t* end) {
  const int64_t pixels = count * plan_.columns.size();
  auto step = steps_.begin();
  if (resizer_) {
    resizer_->Rows(begin, count, to);
  } else if (row_step_ || !plan_.changes_nothing) {
    MoveRows(begin, count, to, end);
  } else if (step != steps_.end()) {
    (step++)->Apply(image_ + begin * row_bytes(), pixels, to);
  } else {
    kernels_.copy(image_ + begin * row_bytes(), count * row_bytes(), to);
  }
  for (; step != steps_.end(); ++step) step->Apply(to, pixels, to);
  if (!steps_.empty() && plan_.has_empty) EmptyPieces(begin, count, to);
  for (const PixelStep& behind : steps_behind_) behind.Apply(to, pixels, to);
}

FusedPass::Pieces FusedPass::PiecesOf(uint64_t cutouts) const {
  Pieces pieces;
  int64_t to = 0;
  for (const Strip& strip : plan_.columns.strips()) {
    const int64_t length = strip.length * pixel_bytes_;
    // The lowest point of the input that is read.
    int64_t from = strip.from - (strip.step < 0 ? strip.length - 1 : 0);
    if ((strip.cutouts & cutouts) != 0) from = Strip::kNowhere;
    pieces.push_back({to, from * pixel_bytes_, length, strip.step});
    to += length;
  }
  return pieces;
}

template <class Visit>
void FusedPass::ForEachPart(int64_t begin, int64_t count, uint8_t* to,
                            const Visit& visit) const {
  Pieces pieces;
  std::optional<uint64_t> pieces_of;
  int64_t at = 0;
  for (const Strip& strip : plan_.rows.strips()) {
    const int64_t first = std::max<int64_t>(begin - at, 0);
    const int64_t rows = std::min(begin + count - at, strip.length) - first;
    at += strip.length;
    if (rows <= 0) continue;
    if (!strip.is_empty() && pieces_of != strip.cutouts) {
      pieces = PiecesOf(strip.cutouts);
      pieces_of = strip.cutouts;
    }
    visit(rows, to, strip, strip.from + strip.step * first, pieces);
    to += rows * row_bytes();
  }
}

void FusedPass::MoveRows(int64_t begin, int64_t count, uint8_t* to,
                         uint8_t* end) {
  if (plan_.changes_nothing) {
    for (int64_t row = begin; row < begin + count; ++row) {
      row_step_->Row(row, 0, image_size_.width, to, end);
      to += row_bytes();
    }
    return;
  }
  const int64_t from_row_bytes = image_size_.width * pixel_bytes_;
  ForEachPart(begin, count, to,
              [&](int64_t rows, uint8_t* rows_to, const Strip& strip,
                  int64_t from, const Pieces& pieces) {
                if (strip.is_empty()) {
                  Empty(rows_to, rows * row_bytes());
                } else if (row_step_) {
                  DistortPieces(from, strip.step, rows, pieces, rows_to, end);
                } else {
                  CopyPieces(image_ + from * from_row_bytes,
                             strip.step * from_row_bytes, strip.step, rows,
                             pieces, rows_to);
                }
              });
}

void FusedPass::CopyPieces(const uint8_t* from, int64_t from_stride,
                           int64_t step, int64_t rows, const Pieces& pieces,
                           uint8_t* to) const {
  const int64_t row_bytes = this->row_bytes();
  // If all copied pieces move by the same distance, a single copy moves whole
  // rows, including the gaps between pieces, which are emptied afterwards.
  const Piece* copied_first = nullptr;
  const Piece* copied_last = nullptr;
  bool at_one_distance =
      step == 1 && image_size_.width * pixel_bytes_ == row_bytes;
  for (const Piece& piece : pieces) {
    if (piece.is_empty()) continue;
    if (copied_first == nullptr) copied_first = &piece;
    copied_last = &piece;
    at_one_distance &=
        piece.step == 1 &&
        piece.to - piece.from == copied_first->to - copied_first->from;
  }
  if (copied_first != nullptr && at_one_distance) {
    kernels_.copy(from + copied_first->from,
                  (rows - 1) * row_bytes + copied_last->to +
                      copied_last->length - copied_first->to,
                  to + copied_first->to);
  }
  for (const Piece& piece : pieces) {
    uint8_t* const piece_to = to + piece.to;
    if (piece.is_empty()) {
      for (int64_t row = 0; row < rows; ++row) {
        Empty(piece_to + row * row_bytes, piece.length);
      }
      continue;
    }
    const uint8_t* const piece_from = from + piece.from;
    if (piece.step == 0) {
      for (int64_t row = 0; row < rows; ++row) {
        Repeat(piece_from + row * from_stride, piece.length,
               piece_to + row * row_bytes);
      }
    } else if (piece.step < 0) {
      LoopOf(kernels_.mirrors, pixel_bytes_)(
          piece_from, from_stride, piece.length / pixel_bytes_, pixel_bytes_,
          rows, piece_to, row_bytes);
    } else if (!at_one_distance) {
      for (int64_t row = 0; row < rows; ++row) {
        kernels_.copy(piece_from + row * from_stride, piece.length,
                      piece_to + row * row_bytes);
      }
    }
  }
}

void FusedPass::DistortPieces(int64_t from, int64_t step, int64_t rows,
                              const Pieces& pieces, uint8_t* to, uint8_t* end) {
  for (int64_t row = 0; row < rows; ++row, from += step, to += row_bytes()) {
    // From left to right, because each piece may overwrite the bytes after it.
    for (const Piece& piece : pieces) {
      const int64_t first = piece.from / pixel_bytes_;
      const int64_t pixels = piece.step == 0 ? 1 : piece.length / pixel_bytes_;
      if (piece.is_empty()) {
        Empty(to + piece.to, piece.length);
      } else if (piece.step > 0) {
        row_step_->Row(from, first, pixels, to + piece.to, end);
      } else {
        const int64_t bytes = image_size_.width * pixel_bytes_;
        if (row_ == nullptr) row_.reset(new uint8_t[bytes]);
        row_step_->Row(from, first, pixels, row_.get(), row_.get() + bytes);
        if (piece.step == 0) {
          Repeat(row_.get(), piece.length, to + piece.to);
        } else {
          LoopOf(kernels_.mirrors, pixel_bytes_)(
              row_.get(), 0, pixels, pixel_bytes_, 1, to + piece.to, 0);
        }
      }
    }
  }
}

void FusedPass::EmptyPieces(int64_t begin, int64_t count, uint8_t* to) const {
  ForEachPart(begin, count, to,
              [this](int64_t rows, uint8_t* rows_to, const Strip& strip,
                     int64_t, const Pieces& pieces) {
                if (strip.is_empty()) {
                  Empty(rows_to, rows * row_bytes());
                  return;
                }
                for (const Piece& piece : pieces) {
                  if (!piece.is_empty()) continue;
                  for (int64_t row = 0; row < rows; ++row) {
                    Empty(rows_to + row * row_bytes() + piece.to, piece.length);
                  }
                }
              });
}

void FusedPass::Repeat(const uint8_t* pixel, int64_t length,
                       uint8_t* to) const {
  for (int64_t i = 0; i < length; i += pixel_bytes_) {
    std::copy_n(pixel, pixel_bytes_, to + i);
  }
}

void FusedPass::Empty(uint8_t* to, int64_t length) const {
  if (color_ != kBlack && pixel_bytes_ % 4 == 0) {
    for (int64_t i = 0; i < length; i += 4) std::memcpy(to + i, &color_, 4);
  } else if (color_ != kBlack) {
    for (int64_t i = 0; i < length; i += pixel_bytes_) {
      for (int64_t c = 0; c < pixel_bytes_; ++c) to[i + c] = color_[c];
    }
  } else if (length > 16) {
    // For fewer bytes, calling memset would take longer than the stores below.
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

}  // namespace refurbish_tf

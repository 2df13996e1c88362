// Images that are made of parts of several images of a batch: mosaics
// (Bochkovskiy et al., YOLOv4, 2020) and copy-paste (Ghiasi et al., CVPR 2021).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"

namespace refurbish_tf {

// A part of an image of the batch, and where its upper left corner is in the
// result. A part that is not in the result is empty.
struct Piece {
  int32_t source = 0;
  int32_t y = 0, x = 0, height = 0, width = 0;
  int32_t made_y = 0, made_x = 0;
};
inline constexpr int kMosaicPieces = 4, kPastePieces = 2;

// Apart from positions of layers and of mixup, so the draws are independent.
inline constexpr uint64_t kMosaicPosition = (uint64_t{1} << 40) + 1;
inline constexpr uint64_t kPastePosition = (uint64_t{1} << 40) + 2;

inline bool IsDrawn(const ImageSeed& seed, uint64_t word, float p) {
  return seed.Fraction(word) < p * 0x1p31;
}

// How many images further in the batch the `count` partners of each image are.
// They are distinct, and not 0. In a batch with too few images, each image is
// a partner as seldom as possible, including the image itself.
using Shifts = std::array<int64_t, kMosaicPieces - 1>;
inline Shifts DrawShifts(const ImageSeed& seed, int64_t batch_size, int count) {
  const ImageSeed own = seed.SeedAt(kMosaicPosition).SeedAt(count);
  Shifts shifts = {};
  // All shifts come once before any comes again, from `begin` on.
  int64_t least = 1;
  for (int i = 0, begin = 0; i < count; ++i) {
    if (least + i - begin == batch_size) {
      least = 0;
      begin = i;
    }
    Shifts before = shifts;
    std::sort(before.begin() + begin, before.begin() + i);
    shifts[i] = least + own.Below(i, batch_size - least - (i - begin));
    for (int k = begin; k < i; ++k) shifts[i] += shifts[i] >= before[k];
  }
  return shifts;
}

// Draws, with probability `p`, a mosaic of `image` and its partners around a
// center in the middle half. Otherwise the image is in the middle.
inline void DrawMosaic(const ImageSeed& seed, int64_t image, int64_t batch_size,
                       const Shifts& shifts, float p, ImageSize size,
                       ImageSize made, Piece pieces[kMosaicPieces]) {
  const ImageSeed own = seed.SeedAt(image).SeedAt(kMosaicPosition);
  const bool is_mosaic = IsDrawn(own, 0, p);
  // The end of the image itself, on one axis.
  const auto draw_end = [&](uint64_t word, int64_t side, int64_t whole) {
    if (!is_mosaic) return BeginOfMiddle(whole, side) + side;
    const int64_t least = whole / 4;
    return least + static_cast<int64_t>(own.Below(word, whole - 2 * least + 1));
  };
  const int64_t end_y = draw_end(1, size.height, made.height);
  const int64_t end_x = draw_end(2, size.width, made.width);
  const auto of = [](int64_t number) { return static_cast<int32_t>(number); };
  std::fill_n(pieces, kMosaicPieces, Piece{of(image)});
  for (int k = 0; k < (is_mosaic ? kMosaicPieces : 1); ++k) {
    const int64_t y = k < 2 ? end_y - size.height : end_y;
    const int64_t x = k % 2 == 0 ? end_x - size.width : end_x;
    const int64_t top = std::max<int64_t>(y, 0), left = std::max<int64_t>(x, 0);
    const int64_t height = std::min(y + size.height, made.height) - top;
    const int64_t width = std::min(x + size.width, made.width) - left;
    if (height < 1 || width < 1) continue;
    const int64_t source = (image + (k == 0 ? 0 : shifts[k - 1])) % batch_size;
    pieces[k] = {of(source), of(top - y), of(left - x), of(height),
                 of(width),  of(top),     of(left)};
  }
}

// The part of an object that copy-paste leaves in an image, or pastes.
struct Object {
  int64_t pixels = 0, left = 0;
  // The box around what is left.
  Edges visible = {};
};

// Draws which objects of a partner are pasted over image `image`, and sets
// `pasted` for their pixels; or finds out what they leave of the image's own.
// `ids`: the numbers of the `rows` objects in the map; those that are not from
// 1 to 65,535 are of no object.
inline std::vector<Object> DrawPasted(const ImageSeed& seed, int64_t image,
                                      float p, ImageSize size,
                                      const int32_t* map, const int32_t* ids,
                                      int64_t rows, bool is_own, bool* pasted) {
  const ImageSeed own = seed.SeedAt(image).SeedAt(kPastePosition);
  std::vector<int64_t> row_of(1 << 16, -1);
  for (int64_t row = 0; row < rows; ++row) {
    const bool is_object = ids[row] > 0 && ids[row] < 1 << 16;
    if (is_object && (is_own || IsDrawn(own, row, p))) row_of[ids[row]] = row;
  }
  std::vector<Object> objects(rows);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x, ++map, ++pasted) {
      if (*map <= 0 || *map >= 1 << 16 || row_of[*map] < 0) continue;
      Object& object = objects[row_of[*map]];
      ++object.pixels;
      if (is_own && *pasted) continue;
      if (!is_own) *pasted = true;
      const Edges at = Edges::Of({y, x, 1, 1});
      Edges& box = object.visible;
      if (object.left++ == 0) box = at;
      box = {box.top, std::min(box.left, at.left), at.bottom,
             std::max(box.right, at.right)};
    }
  }
  return objects;
}

}  // namespace refurbish_tf

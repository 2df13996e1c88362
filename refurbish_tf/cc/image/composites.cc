#include "refurbish_tf/cc/image/composites.h"

#include <algorithm>

namespace refurbish_tf {
namespace {

// Above all positions of layers and apart from mixup's, so that the draws are
// independent.
constexpr uint64_t kMosaicPosition = (uint64_t{1} << 40) + 1;
constexpr uint64_t kPastePosition = (uint64_t{1} << 40) + 2;
// The words of an image's seed, by use.
constexpr uint64_t kProbabilityWord = 0, kCenterYWord = 1, kCenterXWord = 2;

bool IsDrawn(const ImageSeed& seed, uint64_t word, float p) {
  return seed.Fraction(word) < p * 0x1p31;
}

// A whole number in the middle half of a side.
int64_t DrawCenter(const ImageSeed& seed, uint64_t word, int64_t side) {
  const int64_t least = side / 4;
  return least + seed.Below(word, side - 2 * least + 1);
}

}  // namespace

Shifts DrawShifts(const ImageSeed& seed, int64_t batch_size, int count) {
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

void DrawMosaic(const ImageSeed& seed, int64_t image, int64_t batch_size,
                const Shifts& shifts, float p, ImageSize size, ImageSize made,
                Piece pieces[kMosaicPieces]) {
  std::fill_n(pieces, kMosaicPieces, Piece{static_cast<int32_t>(image)});
  // Puts the upper left corner of an image at (y, x).
  const auto put = [&](int k, int64_t source, int64_t y, int64_t x) {
    const int64_t top = std::max<int64_t>(y, 0), left = std::max<int64_t>(x, 0);
    const int64_t height = std::min(y + size.height, made.height) - top;
    const int64_t width = std::min(x + size.width, made.width) - left;
    if (height < 1 || width < 1) return;
    const auto of = [](int64_t number) { return static_cast<int32_t>(number); };
    pieces[k] = {of(source), of(top - y), of(left - x), of(height),
                 of(width),  of(top),     of(left)};
  };
  const ImageSeed own = seed.SeedAt(image).SeedAt(kMosaicPosition);
  if (!IsDrawn(own, kProbabilityWord, p)) {
    const auto middle = [](int64_t side, int64_t whole) {
      return side > whole ? -BeginOfMiddle(side, whole)
                          : BeginOfMiddle(whole, side);
    };
    put(0, image, middle(size.height, made.height),
        middle(size.width, made.width));
    return;
  }
  const int64_t y = DrawCenter(own, kCenterYWord, made.height);
  const int64_t x = DrawCenter(own, kCenterXWord, made.width);
  for (int k = 0; k < kMosaicPieces; ++k) {
    const int64_t shift = k == 0 ? 0 : shifts[k - 1];
    put(k, (image + shift) % batch_size, k < 2 ? y - size.height : y,
        k % 2 == 0 ? x - size.width : x);
  }
}

std::vector<Object> DrawPasted(const ImageSeed& seed, int64_t image, float p,
                               ImageSize size, const int32_t* map,
                               const int32_t* ids, int64_t rows, bool is_own,
                               bool* pasted) {
  const ImageSeed own = seed.SeedAt(image).SeedAt(kPastePosition);
  Instances instances(-1);
  for (int64_t row = 0; row < rows; ++row) {
    if (!is_own && !IsDrawn(own, row, p)) continue;
    instances.Add(ids[row], static_cast<int32_t>(row));
  }
  std::vector<Object> objects(rows);
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x, ++map, ++pasted) {
      const int32_t row = instances[*map];
      if (row < 0) continue;
      Object& object = objects[row];
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

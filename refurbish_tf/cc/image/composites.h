// Images that are made of parts of several images of a batch: mosaics
// (Bochkovskiy et al., YOLOv4, 2020) and copy-paste (Ghiasi et al., CVPR 2021).
#pragma once

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

// How many images further in the batch the `count` partners of each image are.
// They are distinct, and not 0. In a batch with too few images, each comes as
// seldom as possible, including the image itself.
using Shifts = std::array<int64_t, kMosaicPieces - 1>;
Shifts DrawShifts(const ImageSeed& seed, int64_t batch_size, int count);

// Draws, with probability `p`, a mosaic of `image` and its partners around a
// center. Otherwise the image is in the middle.
void DrawMosaic(const ImageSeed& seed, int64_t image, int64_t batch_size,
                const Shifts& shifts, float p, ImageSize size, ImageSize made,
                Piece pieces[kMosaicPieces]);

// The rows of objects, by their numbers in a map, which are from 1 to the end;
// `absent` for all others.
class Instances {
 public:
  static constexpr int32_t kMost = 65535;

  explicit Instances(int32_t absent) : absent_(absent) {}

  void Add(int32_t number, int32_t row) {
    if (number < 1 || number > kMost) return;
    if (number >= static_cast<int64_t>(rows_.size())) {
      rows_.resize(number + 1, absent_);
    }
    rows_[number] = row;
  }
  int32_t operator[](int32_t number) const {
    const size_t at = static_cast<uint32_t>(number);
    return at < rows_.size() ? rows_[at] : absent_;
  }

 private:
  int32_t absent_;
  std::vector<int32_t> rows_;
};

// What copy-paste leaves of the objects of an image, or pastes of them.
struct Object {
  int64_t pixels = 0, left = 0;
  // The box around what is left.
  Edges visible = {};
};

// Draws which objects of a partner are pasted over image `image`, and sets
// `pasted` for their pixels; or finds out what they leave of the image's own.
// `ids`: the numbers of the `rows` objects in the map.
std::vector<Object> DrawPasted(const ImageSeed& seed, int64_t image, float p,
                               ImageSize size, const int32_t* map,
                               const int32_t* ids, int64_t rows, bool is_own,
                               bool* pasted);

}  // namespace refurbish_tf

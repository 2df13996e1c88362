// Elastic deformation: each pixel of the result comes from a place near it, by
// a smooth random field, as in torchvision's `ElasticTransform` (after Simard
// et al., *Best Practices for Convolutional Neural Networks*, 2003).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

// Pairs are of x and y.
struct Displacement {
  bool operator==(const Displacement& other) const {
    return alpha == other.alpha && sigma == other.sigma && seed == other.seed &&
           is_nearest == other.is_nearest && fill == other.fill;
  }

  // The factor, and the standard deviation of the blur: both 0, or neither.
  std::array<double, 2> alpha, sigma;
  std::array<int32_t, 2> seed;
  // Whether a pixel is the nearest one, or blended from four.
  bool is_nearest;
  FillColor fill;
};

// How far from each pixel of the result it comes, in pixels: numbers from -1 to
// 1, independent for each pixel and axis, which are blurred in rows, then in
// columns, and multiplied by alpha / 2. All in float32, in a fixed order.
class DisplacementField {
 public:
  // The field for an image of `size`, enlarged for one `times` as large.
  DisplacementField(const Displacement& displacement, ImageSize size,
                    int64_t times = 1);

  bool IsOf(const Displacement& displacement, ImageSize size) const {
    return of_ == displacement && size_ == size;
  }
  // Where a place of the result comes from. Between the middles of pixels, the
  // field is interpolated; beyond the outermost ones, it is constant.
  ImagePlace operator()(ImagePlace place) const;
  // Where a place goes, so that it comes from within 0.001 pixels of it. Where
  // the field folds the image, it may end farther from all solutions.
  ImagePlace Inverse(ImagePlace place) const;
  // The number of the pixel that is the nearest to where a pixel comes from,
  // row by row, or -1 if that is outside.
  int64_t NearestOf(int64_t y, int64_t x) const;
  // Makes the image. Beyond its edges is `fill`, in torchvision's arithmetic:
  // the part of a pixel that is not empty is multiplied by its size again.
  void Apply(const uint8_t* image, Pixel pixel, uint8_t* to) const;

 private:
  // `known`: the number of channels, or 0 if it is `any`.
  template <class Value, int known>
  void ApplyTo(const Value* image, int64_t any, Value* to) const;

  const Displacement of_;
  const ImageSize size_;
  // The length of a row of numbers in memory.
  int64_t stride_;
  std::array<std::vector<float>, 2> by_;
};

}  // namespace refurbish_tf

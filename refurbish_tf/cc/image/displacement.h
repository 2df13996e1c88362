// Elastic deformation: each pixel of the result comes from a place near it, by
// a smooth random field, as in torchvision's `ElasticTransform` (after Simard
// et al., *Best Practices for Convolutional Neural Networks*, 2003).
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "refurbish_tf/cc/image/image.h"

namespace refurbish_tf {

// Pairs are of x and y.
struct Displacement {
  // The factor, and the standard deviation of the blur: both 0, or neither.
  std::array<double, 2> alpha, sigma;
  // Whether a pixel is the nearest one, or blended from four.
  bool is_nearest;
  FillColor fill;
  std::array<int32_t, 2> seed;
};
inline bool operator==(const Displacement& a, const Displacement& b) {
  return std::tie(a.alpha, a.sigma, a.is_nearest, a.fill, a.seed) ==
         std::tie(b.alpha, b.sigma, b.is_nearest, b.fill, b.seed);
}

// How far from each pixel of the result it comes, in pixels: numbers from -1 to
// 1, independent for each pixel and axis, which are blurred in rows, then in
// columns, and multiplied by alpha / 2. All in float32, in a fixed order.
class DisplacementField {
 public:
  DisplacementField(const Displacement& of, ImageSize size);

  bool IsOf(const Displacement& other, ImageSize size) const {
    return of_ == other && size_ == size;
  }
  // Returns the source of a place of the result. Between the middles of pixels,
  // the field is interpolated; beyond the outermost ones, it is constant.
  ImagePlace operator()(ImagePlace place) const {
    const ImagePlace by = By(place);
    return {place.y + by.y, place.x + by.x};
  }
  // Returns the place whose source is within 0.001 pixels of this one. If the
  // field folds the image, the distance may be larger.
  ImagePlace Inverse(ImagePlace place) const;
  // Makes an image that is `times` as large as the field. Beyond its edges is
  // `fill`, in torchvision's arithmetic: the part of a pixel that is not empty
  // is multiplied by its size again.
  void Apply(const uint8_t* image, Pixel pixel, int64_t times,
             uint8_t* to) const;

 private:
  // Makes `by_`. With vectors of 256 bits the numbers are the same.
  __attribute__((always_inline)) void Make();
  void MakeWithVectors();
  // The offset that is added to a place of the result.
  ImagePlace By(ImagePlace place) const;

  const Displacement of_;
  const ImageSize size_;
  // The length of a row of numbers in memory.
  const int64_t stride_;
  std::array<std::vector<float>, 2> by_;
};

}  // namespace refurbish_tf

// Moves a mask as layers move its image: each pixel of the result is the
// nearest pixel of the mask, or empty.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/targets/target_canvas.h"

namespace refurbish_tf {

// For each pixel of the result, where it comes from.
class MaskPoints : public MapCanvas {
 public:
  // The most pixels of an image, so that 1 + each index fits into int32.
  static constexpr int64_t kMost = (int64_t{1} << 31) - 2;

  MaskPoints(ImageSize size, const PixelKernels& kernels);

  ImageSize size() const override {
    return {static_cast<int64_t>(rows_.size()),
            static_cast<int64_t>(columns_.size())};
  }

  void Transpose() override;
  void Resize(const Box& part, ImageSize to, bool antialias) override;
  void Displace(const Displacement& displacement) override;

  // Moves the mask `from`, with pixels of `pixel_bytes`. Empty pixels become 0.
  void Move(const uint8_t* from, int64_t pixel_bytes, uint8_t* to) const;

 private:
  void Take(const Plan& plan) override {
    Follow(plan.rows.Sources(), plan.columns.Sources());
  }
  void MoveBy(const PreparedDistortion& distortion) override;
  // For each row, or each column, where it comes from; negative if it is empty.
  using Line = std::vector<int32_t>;

  void Follow(const Line& rows, const Line& columns);
  int32_t At(int64_t y, int64_t x) const {
    if (rows_[y] < 0 || columns_[x] < 0) return 0;
    const int64_t point = rows_[y] * size_.width + columns_[x];
    return points_.empty() ? static_cast<int32_t>(point + 1) : points_[point];
  }
  // Replaces the points by those that `make(size, from, to)` makes in memory.
  template <class Make>
  void Remake(const Make& make);
  // Replaces the intermediate image by these points, of this size.
  void GoOnFrom(std::vector<int32_t> points, ImageSize size);

  const PixelKernels& kernels_;
  // Distortions and transpositions make an intermediate image. For each of its
  // pixels: 1 + the index of the mask's pixel that it comes from; 0: empty.
  // Until then `points_` is empty, and the mask is used in place of this image.
  ImageSize size_;
  std::vector<int32_t> points_;
  // The rows and columns of the intermediate image that are left after later
  // crops, flips and resizes.
  Line rows_, columns_;
};

}  // namespace refurbish_tf

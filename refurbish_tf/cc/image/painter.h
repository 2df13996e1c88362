// Applies a run of layers to an image.
//
// Crops, flips and cutouts are composed (`Plan`) before a pixel is touched, so
// each output byte is written once, by copying, mirroring or clearing parts of
// rows; if a normalisation follows, a band at a time, which is converted while
// it is in the nearest cache. A resized crop is made row by row in words with 7
// fraction bits.
#ifndef REFURBISH_TF_CC_IMAGE_PAINTER_H_
#define REFURBISH_TF_CC_IMAGE_PAINTER_H_

#include <cstdint>
#include <memory>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/plan.h"

namespace refurbish_tf {

// Not thread-safe.
class Painter {
 public:
  // `run.SizeBehind` and `run.CheckChannels` must accept `size` and `channels`.
  // `run` must outlive this.
  Painter(const LayerRun& run, ImageSize size, int64_t channels,
          const PixelKernels& kernels);

  // `run.CheckDraws` must accept `draws`; `to` has the size of `run.SizeBehind`
  // and the type of the normalization. The two images must not overlap.
  void Paint(const uint8_t* from, const int32_t* draws, void* to);

 private:
  // The size of a band, in bytes.
  static constexpr int64_t kBand = 8192;

  // Writes rows of the image that a plan makes.
  void Rows(const uint8_t* from, const Plan& plan, int64_t begin,
            int64_t count, uint8_t* to) const;
  template <class MakeRows>
  void Convert(ImageSize size, const MakeRows& make_rows, void* to);
  uint8_t* Convert(const uint8_t* from, int64_t count, void* to) const;

  const LayerRun& run_;
  const ImageSize size_;
  const int64_t channels_;
  const PixelKernels& kernels_;
  const Pattern pattern_;
  std::unique_ptr<uint8_t[]> long_row_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_PAINTER_H_

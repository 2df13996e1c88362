// What a run of layers makes of an image.
#ifndef REFURBISH_TF_CC_IMAGE_PAINTER_H_
#define REFURBISH_TF_CC_IMAGE_PAINTER_H_

#include <cstdint>
#include <memory>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/plan.h"

namespace refurbish_tf {

// Not for several threads at once.
class Painter {
 public:
  // `size` is one that `run.SizeBehind` takes, and `channels` a number that
  // `run.CheckChannels` takes. `run` must outlive this.
  Painter(const LayerRun& run, ImageSize size, int64_t channels,
          const PixelKernels& kernels);

  // `draws` must be such that `run.CheckDraws` takes them; `to` has the size of
  // `run.SizeBehind` and the type of the normalization. The two images do not
  // overlap.
  void Paint(const uint8_t* from, const int32_t* draws, void* to);

 private:
  // So many bytes are painted before they are converted: they stay in the
  // nearest cache.
  static constexpr int64_t kBand = 8192;

  // Rows of what a plan makes of an image.
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

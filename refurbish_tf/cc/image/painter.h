// Applies a chain of layers to an image, in as few walks over its bytes as give
// the same values (`Walk`). If a normalisation ends the chain, a band of rows
// is converted while it is in the nearest cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/policy.h"
#include "refurbish_tf/cc/image/walk.h"

namespace refurbish_tf {

struct ImageMemory {
  std::unique_ptr<uint8_t[]> bytes;
  int64_t size = 0;
};

// Not thread-safe.
class Painter {
 public:
  // `chain.SizeBehind` and `chain.CheckChannels` must accept `size` and
  // `channels`. `chain` must outlive this.
  Painter(const LayerChain& chain, ImageSize size, int64_t channels,
          const PixelKernels& kernels);
  ~Painter();

  // `chain.CheckDraws` must accept `draws`; `to` has the size of
  // `chain.SizeBehind` and the type of the normalization. The two images must
  // not overlap.
  void Paint(const uint8_t* from, const int32_t* draws, void* to);

 private:
  // Adds a step to the walk, or to the next one.
  template <class Step>
  void AddOrMakeFirst(const Step& step);
  void Add(const Layer& layer, const int32_t* draws);
  void AddOutcome(const Policy& policy, const int32_t* draws);
  void AddResize(Box box, ImageSize size, bool antialias);
  // Makes the image, so that the walk begins with it.
  void Make();
  // Makes all rows of the walk, a band at a time.
  void MakeRows(uint8_t* to);
  // Memory for an image that does not hold the present one.
  uint8_t* Fresh(int64_t bytes);
  void Complete(void* to);
  uint8_t* Convert(const uint8_t* from, int64_t count, void* to) const;

  const LayerChain& chain_;
  const ImageSize size_;
  const int64_t channels_;
  const PixelKernels& kernels_;
  const Pattern pattern_;
  std::optional<Walk> walk_;
  // Images between two walks.
  ImageMemory memory_, other_memory_;
  std::unique_ptr<uint8_t[]> long_row_;
};

}  // namespace refurbish_tf

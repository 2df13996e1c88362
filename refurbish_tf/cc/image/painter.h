// Applies a chain of layers to an image, in as few passes over its bytes
// (`FusedPass`) as possible without changing the result. A band of rows is
// normalized while it is in the L1 cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/displacement.h"
#include "refurbish_tf/cc/image/fused_pass.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {

struct ImageMemory {
  std::unique_ptr<uint8_t[]> bytes;
  int64_t size = 0;
};

// Values beyond the limits: the largest one for a normalization, any one for
// noise; otherwise 0. An image with such a value is in unexpected units.
struct BeyondLimits {
  bool any() const { return normalized != 0 || noisy != 0; }

  float normalized = 0, noisy = 0;
};

// Not thread-safe.
class Painter : private Canvas {
 public:
  // `chain` must outlive this. `chain.Behind` must accept an image of this size
  // and format. A second image that follows the first one
  // (`chain.BehindFollower`) may be `times` as large: then all lengths in
  // pixels are multiplied. Its `number`, from 1 on, makes its noise different
  // from that of other images.
  Painter(const LayerChain& chain, ImageSize size, Pixel pixel,
          const PixelKernels& kernels, int64_t times = 1, int number = 0);
  ~Painter() override;

  // `chain.CheckDraws` must accept `draws`. `chain.Behind` says what `to` is.
  // `from` and `to` must not overlap, and must be aligned for their values.
  // Use `kPastCaches` if `to` is part of something larger than the caches.
  void Paint(const void* from, const int32_t* draws, void* to,
             Stores stores = Stores::kCached) {
    Begin(from);
    chain_.Apply(draws, this);
    End(to, stores);
  }
  // The same, but calls `apply` with the canvas instead of applying the chain.
  template <class Apply>
  void PaintBy(const Apply& apply, const void* from, void* to) {
    Begin(from);
    apply(static_cast<Canvas*>(this));
    End(to, Stores::kCached);
  }
  BeyondLimits beyond() const { return beyond_; }

 private:
  // The size that layers see: the size of this image divided by `times_`.
  ImageSize size() const override {
    const auto [height, width] = pass_->size();
    return {height / times_, width / times_};
  }
  void Crop(const Box& part, Border border, FillColor color) override {
    AddOrMakeFirst(
        [&] { return pass_->Crop(Enlarged(part), border, color, times_); });
  }
  void Flip(bool vertically) override {
    AddOrMakeFirst([&] { return pass_->Flip(vertically); });
  }
  void Transpose() override;
  void CutOut(const Box& part, FillColor color) override {
    AddOrMakeFirst([&] { return pass_->CutOut(Enlarged(part), color); });
  }
  float Mean() override;
  void Resize(const Box& part, ImageSize size, bool antialias) override;
  void ResizeBicubic(const Box& part) override;
  void Blur(const Gaussian& gaussian) override;
  void Distort(const PreparedDistortion& distortion, uint8_t fill) override;
  void Displace(const Displacement& displacement) override;
  void AddNoise(const AddedNoise& noise) override;
  void Rescale(float scale, float offset) override {
    MakeNormalized();
    rescaling_ = {ValueType::kFloat32,
                  {{ValueType::kFloat32, Pattern({scale}, {offset})}}};
    normalization_ = &rescaling_;
  }
  void Normalize(const Normalization& normalization) override {
    MakeNormalized();
    normalization_ = &normalization;
  }
  void Blend(const std::vector<float>& weights, Branch branch) override;

  void Begin(const void* from) {
    pixel_ = from_pixel_;
    normalization_ = nullptr;
    pass_.emplace(static_cast<const uint8_t*>(from), from_size_, pixel_,
                  kernels_);
  }
  void End(void* to, Stores stores);
  // Converts from the pixels of layers to those of this image.
  ImageSize Enlarged(ImageSize size) const {
    return {size.height * times_, size.width * times_};
  }
  Box Enlarged(const Box& box) const {
    return {box.y * times_, box.x * times_, box.height * times_,
            box.width * times_};
  }

  // Adds a step to the pass. If it cannot follow the steps of the pass, makes
  // the image first, and adds the step to a new pass.
  template <class Step>
  void AddOrMakeFirst(const Step& step) {
    MakeNormalized();
    if (step()) return;
    Make();
    step();
  }
  // Runs the pass, and begins a new one with the image that it made.
  void Make();
  // Makes the normalized image, if a normalization is pending.
  void MakeNormalized();
  // Begins the next pass with an image in memory from `Fresh`.
  void BeginWith(const uint8_t* made, ImageSize size);
  // Makes all rows of the pass, a band at a time.
  void MakeRows(uint8_t* to);
  void MakeNormalizedRows(void* to, Stores stores = Stores::kCached);
  // Returns memory for an image, never the memory that the pass reads.
  uint8_t* Fresh(int64_t bytes);

  const LayerChain& chain_;
  const ImageSize from_size_;
  const Pixel from_pixel_;
  const PixelKernels& kernels_;
  const int64_t times_;
  const int number_;
  std::optional<FusedPass> pass_;
  // The pixel format of the pass.
  Pixel pixel_;
  // The normalization to apply after the pass, or null.
  const Normalization* normalization_ = nullptr;
  // The normalization of the last `Rescale`.
  Normalization rescaling_;
  // The last field, which the next frame of a clip uses again.
  std::optional<DisplacementField> field_;
  BeyondLimits beyond_;
  // The image that the pass reads, unless it is the input, and the next one.
  ImageMemory memory_, other_memory_;
  // A row that is too long for a band.
  ImageMemory long_row_;
};

}  // namespace refurbish_tf

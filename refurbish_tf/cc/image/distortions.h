// The distortions of AutoAugment and RandAugment, with the same results as
// Pillow's. They change each pixel by itself (`PixelStep`) or read other pixels
// (`RowStep`). Images have three channels or one; distortions that move pixels
// also accept pixels of four bytes.
#pragma once

#include <array>
#include <cstdint>

#include "refurbish_tf/cc/image/distortion_kernels.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/prepared_distortion.h"

namespace refurbish_tf {

class PixelStep {
 public:
  // True for auto-contrast, equalize and contrast, which measure the image.
  static bool NeedsImage(Distortion distortion) {
    return distortion == Distortion::kAutoContrast ||
           distortion == Distortion::kEqualize ||
           distortion == Distortion::kContrast;
  }

  // The constructor reads `image`, which has three channels or one, only if
  // `NeedsImage`. It does not keep the pointer.
  PixelStep(const PreparedDistortion& prepared, const uint8_t* image,
            int64_t pixels, int64_t channels, const PixelKernels& kernels);

  bool changes_nothing() const { return form_ == Form::kNothing; }

  // Merges `next`, which is applied after this step, into this step. Returns
  // false if that is impossible, or if two steps are faster.
  bool Compose(const PixelStep& next);

  // If the constructor measured an image, the pixels must be from that image.
  // `from` and `to` may be equal. Nothing beyond the pixels is read or written.
  void Apply(const uint8_t* from, int64_t pixels, uint8_t* to) const {
    ApplyToBytes(from, channels_ * pixels, to);
  }

 private:
  enum class Form {
    kNothing,
    kMask,
    kSolarize,
    kStretch,
    kBlend,
    kColor,
    kHue,
    kPermute,
    kTables,
  };

  // Sets the form: `form` or, if the kernels have no arithmetic, tables in
  // which value i becomes `value(i)`.
  template <class Value>
  void Make(Form form, Value value);
  void MakeAutoContrast(const uint8_t* image, int64_t pixels);
  void MakeEqualize(const uint8_t* image, int64_t pixels);
  void ApplyToBytes(const uint8_t* from, int64_t bytes, uint8_t* to) const;

  const DistortionKernels& kernels_;
  const int64_t channels_;
  Form form_ = Form::kNothing;
  // Whether all channels are treated alike.
  bool alike_ = true;
  // The mask, the threshold or the grey to blend with.
  uint8_t byte_ = 0;
  int16_t hue_ = 0;
  std::array<uint8_t, kColors> order_ = {0, 1, 2};
  BlendPlan blend_;
  StretchPlan stretch_;
  ValueTables tables_;
};

// A distortion that reads other pixels: sharpness, or one that moves pixels.
// Pixels from outside the image are `fill`.
class RowStep {
 public:
  // `image` must outlive this. `pixel_bytes` may be 3; or 4, except for
  // sharpness; or 1, but only for sharpness, rotate, affine and perspective.
  RowStep(const PreparedDistortion& prepared, uint8_t fill,
          const uint8_t* image, int64_t height, int64_t width, int pixel_bytes,
          const PixelKernels& kernels);

  // Writes pixels [x, x + count) of row y of the result. Bytes after them, up
  // to `end`, may be overwritten, so the caller must write those later.
  void Row(int64_t y, int64_t x, int64_t count, uint8_t* to,
           uint8_t* end) const {
    row_(plan_, y, x, count, to, end);
  }

 private:
  void PrepareTurn(const PreparedDistortion& prepared);
  void PrepareProjection(const PreparedDistortion& prepared);
  void PrepareRuns();

  RowPlan plan_;
  DistortionKernels::Row row_;
};

}  // namespace refurbish_tf

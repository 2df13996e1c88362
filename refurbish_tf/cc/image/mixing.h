// mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019): each
// image of a batch is mixed with another one of the batch.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

struct MixDraw {
  // The position in the batch of the image that it is mixed with.
  int64_t partner = 0;
  // Whether a box of the image is replaced by the partner's (CutMix). Otherwise
  // the image is blended with the whole partner (mixup).
  bool is_cut = false;
  // The weight of the image itself, in units of 2^-kLambdaBits. For CutMix, the
  // actual weight (`LambdaOf`) is larger if the box is clipped.
  int32_t lambda = 1 << kLambdaBits;
  // The center of the box, as fractions of height and width in units of 2^-31.
  int32_t y = 0, x = 0;
};

struct Mixing {
  // Checks the members: a graph loaded from a file may have any numbers.
  absl::Status Check() const;
  // Draws how image `image` of a batch with this seed is mixed. The image of a
  // batch of one is not mixed.
  //
  // All partners in a batch are the same number of images away, so each image
  // is a partner exactly once. Over many seeds, all pairs are equally likely.
  MixDraw Draw(const ImageSeed& seed, int64_t image, int64_t batch_size) const;

  // Lambda is drawn from Beta(alpha, alpha), with one of these alphas.
  float mixup_alpha = 1, cutmix_alpha = 1;
  // The probability of CutMix instead of mixup.
  float switch_prob = 0;
};

// A number from Beta(alpha, alpha), in units of 2^-kLambdaBits, drawn from the
// words of a seed from `word` on.
int32_t DrawLambda(double alpha, const ImageSeed& seed, uint64_t word);

// The box that CutMix takes from the partner. It may be empty.
Box BoxOf(const MixDraw& draw, ImageSize size);

// The fraction of the mixed image, and of its label, that is the image itself.
float LambdaOf(const MixDraw& draw, ImageSize size);

// Mixes an image of uint8 or float32 pixels with its partner.
void Mix(const MixDraw& draw, ImageSize size, Pixel pixel,
         const PixelKernels& kernels, const char* image, const char* partner,
         char* to);

}  // namespace refurbish_tf

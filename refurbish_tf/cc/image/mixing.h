// mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019): each
// image of a batch is mixed with another one of it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/kernels.h"

namespace refurbish_tf {

// How an image is mixed.
struct MixDraw {
  // The position in the batch of the image that it is mixed with.
  int64_t partner = 0;
  // Whether a box of the partner is put into it, and not all of it blended.
  bool is_cut = false;
  // What is left of the image itself, in units of 2^-kLambdaBits.
  int32_t lambda = 1 << kLambdaBits;
  // The middle of the box, in [0, 1) of height and width in units of 2^-31.
  int32_t y = 0, x = 0;
};

class Mixing {
 public:
  // `switch_prob`: how often an image is cut, and not blended. Each way draws
  // lambda from Beta(alpha, alpha), with its own alpha.
  static absl::StatusOr<Mixing> Make(double mixup_alpha, double cutmix_alpha,
                                     double switch_prob);

  Mixing() = default;

  // How image `image` of a batch with this seed is mixed; an image that is
  // alone stays as it is.
  //
  // Partners are `shift` images away, the same shift for the whole batch: each
  // image is mixed with another one, each is a partner once, and over seeds all
  // pairs are equally likely.
  MixDraw Draw(const ImageSeed& seed, int64_t image, int64_t batch_size) const;

 private:
  Mixing(double mixup_alpha, double cutmix_alpha, double switch_prob)
      : mixup_alpha_(mixup_alpha),
        cutmix_alpha_(cutmix_alpha),
        switch_prob_(switch_prob) {}

  double mixup_alpha_ = 1, cutmix_alpha_ = 1, switch_prob_ = 0;
};

// A number from Beta(alpha, alpha), in units of 2^-kLambdaBits, of the words of
// a seed from `word` on.
int32_t DrawLambda(double alpha, const ImageSeed& seed, uint64_t word);

// The part of an image that a cut takes from the partner; it may be empty.
Box BoxOf(const MixDraw& draw, ImageSize size);

// Which part of the mixed image is of the image itself: of labels, too.
float LambdaOf(const MixDraw& draw, ImageSize size);

// Mixes an image of uint8 or float32 pixels with its partner.
void Mix(const MixDraw& draw, ImageSize size, Pixel pixel,
         const PixelKernels& kernels, const char* image, const char* partner,
         char* to);

}  // namespace refurbish_tf

// The memory for the image of one file, or for several frames of a clip.
#pragma once

#include <cstdint>

#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The first output of a decoding op, allocated when its first frame is made.
class ClipMemory {
 public:
  // `files` is the op's input: one file (a scalar), or a clip's (a vector).
  ClipMemory(OpKernelContext* ctx, const Tensor& files, Pixel pixel)
      : ctx_(ctx), shape_(files.shape()), pixel_(pixel) {}

  // Begins a frame, whose image has size `standing` once it is turned upright.
  // Fails if the sizes of frames differ. Errors continue "file of ... must ".
  absl::Status Begin(int64_t frame, ImageSize standing) {
    frame_ = frame;
    if (frame == 0) standing_ = standing;
    if (standing == standing_) return absl::OkStatus();
    return InvalidArgument(
        "have the size of the first one of its clip, ", standing_,
        " pixels, got ", standing,
        ". Give it frames of one clip, and decode files that are not a clip one "
        "by one, before batch");
  }

  // The memory for the frame that was begun. `made`, the size of the result,
  // must be the same for all frames.
  absl::Status Allocate(ImageSize made, uint8_t** memory) {
    if (frame_ == 0) {
      TensorShape shape = shape_;
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(made.height));
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(made.width));
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(pixel_.channels));
      TF_RETURN_IF_ERROR(ctx_->allocate_output(0, shape, &output_));
      made_ = made;
    }
    *memory = static_cast<uint8_t*>(output_->data()) +
              frame_ * made_.height * made_.width * pixel_.bytes();
    return absl::OkStatus();
  }

  ImageSize standing() const { return standing_; }
  ImageSize made() const { return made_; }

 private:
  OpKernelContext* const ctx_;
  const TensorShape shape_;
  const Pixel pixel_;
  int64_t frame_ = 0;
  ImageSize standing_ = {0, 0}, made_ = {0, 0};
  Tensor* output_ = nullptr;
};

}  // namespace refurbish_tf

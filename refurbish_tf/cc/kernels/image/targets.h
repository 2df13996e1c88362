// The targets that follow the images of an op: more inputs and outputs of it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "refurbish_tf/cc/image/canvas.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/targets/target_kind.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The images that targets belong to.
struct ImageBatch {
  // The dimensions before height, width and channels.
  std::vector<int64_t> lead;
  // How many draws there are: each is for `frames` images.
  int64_t num_draws = 1, frames = 1;
  // The sizes before and after all layers.
  ImageSize size, made;
  // Does to a canvas what is done to the images of this draw.
  std::function<void(int64_t draw, Canvas*)> apply;
  // The layers, the draws of all images, one after the other, and the pixels
  // that the layers are applied to.
  const LayerChain* chain = nullptr;
  const int32_t* draws = nullptr;
  Pixel pixel;
};

class Targets {
 public:
  // From the attributes `kinds` and `names`.
  absl::Status Parse(OpKernelConstruction* ctx);

  bool empty() const { return kinds_.empty(); }
  // Moves the inputs from `input` on to the outputs from `output` on, except
  // those that were moved before. `only_looks`: moves only the first boxes,
  // which layers look at.
  absl::Status Move(OpKernelContext* ctx, int input, int output,
                    const ImageBatch& images, bool only_looks = false) const;

 private:
  std::vector<TargetKind> kinds_;
  // For errors.
  std::vector<std::string> names_;
};

}  // namespace refurbish_tf

// The targets of images, such as masks, as inputs and outputs of an op.
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
  // The dimensions before height, width and channels: batch, frames or both.
  std::vector<int64_t> lead;
  // How many draws there are. Each is used for `frames` images.
  int64_t num_draws = 1, frames = 1;
  // The sizes before and after all layers.
  ImageSize size, made;
  // Applies the layers, with these draws, to a canvas.
  std::function<void(int64_t draw, Canvas*)> apply;
  // The layers, the draws of all images, one after the other, and the pixels
  // that the layers are applied to.
  const LayerChain* chain = nullptr;
  const int32_t* draws = nullptr;
  Pixel pixel;
};

class Targets {
 public:
  // Reads the attributes `kinds` and `names`.
  absl::Status Parse(OpKernelConstruction* ctx);

  bool empty() const { return kinds_.empty(); }
  // Moves the targets from the inputs that begin at `input` to the outputs that
  // begin at `output`, except outputs that are set already. `only_looks`: moves
  // only the first boxes, because layers look at them to complete their draws.
  absl::Status Move(OpKernelContext* ctx, int input, int output,
                    const ImageBatch& images, bool only_looks = false) const;

 private:
  std::vector<TargetKind> kinds_;
  // How each target is named in errors.
  std::vector<std::string> names_;
};

}  // namespace refurbish_tf

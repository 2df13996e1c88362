// Native layers as given by an op's attributes: for the ops, and for functions
// that end in such an op.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

struct BeyondLimits;

// Thread-safe, except `Parse`.
class ImageLayers {
 public:
  absl::Status Parse(tensorflow::AttrSlice attributes);

  const LayerChain& chain() const { return chain_; }
  bool clips() const { return clips_; }
  ValueType type() const { return type_; }

  bool IsBatch(const Tensor& images) const {
    return images.dims() == (clips_ ? 5 : 4);
  }
  // How many images or clips have draws of their own.
  int64_t NumDrawing(const Tensor& images) const {
    return IsBatch(images) ? images.dim_size(0) : 1;
  }
  absl::Status CheckRank(const Tensor& images) const;
  // The spec of the layers' results for these images, which have three or more
  // dimensions. `draws`: those of each image, or null. Warns once if the input
  // hardly is an image.
  absl::StatusOr<ImageSpec> Behind(const Tensor& images,
                                   const int32_t* draws) const;
  // The shape of all results for these images.
  static absl::StatusOr<TensorShape> ShapeOf(const Tensor& images,
                                             const ImageSpec& made);
  // The errors of painting.
  static absl::Status NoMemory();
  // Fails if a value was beyond the limits.
  static absl::Status Check(const BeyondLimits& beyond);

 private:
  LayerChain chain_;
  bool clips_ = false;
  // True where Python does not know the shape, until it has warned.
  mutable std::atomic<bool> looks_at_channels_ = false;
  ValueType type_ = ValueType::kUnknown;
};

// A function that applies one chain of layers to an image, a clip or a batch,
// as the op does, and returns its other arguments. It needs no graph.
// Thread-safe.
class LayersFunction {
 public:
  // The layers that `function` ends in, or null. If it does anything before
  // them, `*rest` becomes a function that does this, and the layers are called
  // with its results.
  static std::unique_ptr<const LayersFunction> Of(
      const tensorflow::FunctionDef& function,
      std::optional<tensorflow::FunctionDef>* rest);

  // Whether this can be called with these arguments. The last `num_missing`
  // arguments are still missing.
  bool Takes(const std::vector<Tensor>& arguments, int num_missing = 0) const;
  // Returns what the function returns. `seed` is an additional last argument,
  // or null if there is none.
  absl::Status Run(std::vector<Tensor> arguments,
                   const std::array<int32_t, 2>* seed,
                   std::vector<Tensor>* results) const;
  // Writes the results into a row, after checking that they fit it.
  absl::Status RunInto(const std::vector<Tensor>& arguments,
                       const std::array<int32_t, 2>* seed,
                       const BatchRows& rows, const BatchRows::Row& row) const;

 private:
  using Draws = absl::InlinedVector<int32_t, 64>;
  // The spec of the result, and the draws of all that have their own.
  absl::StatusOr<ImageSpec> Draw(const std::vector<Tensor>& arguments,
                                 const std::array<int32_t, 2>* seed,
                                 Draws* draws) const;
  bool ChangesNothing(const Tensor& images, const Draws& draws) const;
  absl::Status Paint(const Tensor& images, const Draws& draws, char* to,
                     int64_t to_bytes, Stores stores) const;

  ImageLayers layers_;
  // Positions of arguments. The seed's is -1 if nothing is drawn.
  int image_ = -1, seed_ = -1;
  // For each result, which argument it is, or -1 for the image.
  std::vector<int> results_;
  int image_result_ = -1;
};

}  // namespace refurbish_tf

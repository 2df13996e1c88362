// Applies native layers that an op's attributes describe: for the ops, and for
// functions that end in such an op.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/image.h"
#include "refurbish_tf/cc/image/kernels.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

struct BeyondLimits;

// The native layers of one op. Thread-safe, except `Parse`.
class ImageLayers {
 public:
  absl::Status Parse(tensorflow::AttrSlice attributes);

  const LayerChain& chain() const { return chain_; }
  bool clips() const { return clips_; }
  ValueType type() const { return type_; }

  bool IsBatch(const Tensor& images) const {
    return images.dims() == (clips_ ? 5 : 4);
  }
  // How many images or clips there are, each with its own draws.
  int64_t NumDrawing(const Tensor& images) const {
    return IsBatch(images) ? images.dim_size(0) : 1;
  }
  absl::Status CheckRank(const Tensor& images) const;
  // [time, mel] is an image of one channel, [samples] also one of one column.
  ImageSpec SpecOf(const Tensor& images) const {
    TensorShape shape = images.shape();
    while (shape.dims() < 3) shape.AddDim(1);
    const int dims = shape.dims();
    return {{shape.dim_size(dims - 3), shape.dim_size(dims - 2)},
            {type_, shape.dim_size(dims - 1)}};
  }
  // What the layers make from each of these images. `draws`: the draws of all
  // images, one after the other, or null.
  // Warns once if the channels seem not to be the last dimension.
  absl::StatusOr<ImageSpec> Behind(const Tensor& images,
                                   const int32_t* draws) const;
  // The shape of the whole result, if each of `images` becomes `made`.
  static absl::StatusOr<TensorShape> ShapeOf(const Tensor& images,
                                             const ImageSpec& made);
  static absl::Status NoMemory() {
    return ResourceExhausted(
        "Out of memory for an image between two layers. Pass smaller images, "
        "or smaller sizes to the layers.");
  }
  // Fails if a layer met values that it does not allow.
  static absl::Status Check(const BeyondLimits& beyond);

 private:
  LayerChain chain_;
  bool clips_ = false;
  // Whether to warn if channels seem not to come last: true if Python could not
  // check this, because it did not know the shape. False after the warning.
  mutable std::atomic<bool> looks_at_channels_ = false;
  ValueType type_ = ValueType::kUnknown;
};

// A function that applies one chain of layers to an image, a clip or a batch,
// as the op does, and returns its other arguments unchanged. It is called
// without running a TensorFlow graph. Thread-safe.
class LayersFunction {
 public:
  // Returns the layers at the end of `function`, or null if there are none. If
  // it does anything before them, `*rest` is set to a function that does only
  // that; the layers must then be called with the results of `*rest`.
  static std::unique_ptr<const LayersFunction> Of(
      const tensorflow::FunctionDef& function,
      std::optional<tensorflow::FunctionDef>* rest);

  // Whether this can be called with these and `num_missing` more arguments.
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
  // Writes the draws of all images, and returns what each image becomes.
  absl::StatusOr<ImageSpec> Draw(const std::vector<Tensor>& arguments,
                                 const std::array<int32_t, 2>* seed,
                                 Draws* draws) const;
  bool ChangesNothing(const Tensor& images, const Draws& draws) const {
    return layers_.NumDrawing(images) == 1 && images.NumElements() > 0 &&
           layers_.chain().ChangesNothing(draws.data());
  }
  absl::Status Paint(const Tensor& images, const Draws& draws, char* to,
                     int64_t to_bytes, Stores stores) const;

  ImageLayers layers_;
  // Positions of arguments. `seed_` may be -1 if the layers draw nothing.
  int image_ = -1, seed_ = -1;
  // Which argument each result is, by its position, or -1 for the image.
  std::vector<int> results_;
  int image_result_ = -1;
};

}  // namespace refurbish_tf

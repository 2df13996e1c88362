#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

inline constexpr Pixel kOffloadPixel = {ValueType::kUint8, 3};

// The inputs and attributes of the op, and what is derived from them.
struct OffloadOptions {
  // Components of a batch that do not come from the input.
  static constexpr int64_t kImages = -1;
  static constexpr int64_t kDraws = -2;
  static constexpr int64_t kLayers = -3;

  std::string stage;
  int64_t seed = 0;
  // The argument of the constructor of `DeviceFractionRule`.
  int64_t eighths = 0;
  // Whether the user gave no seed.
  bool any_seed = false;
  Batches batches;
  // A batch is divided into this many equal parts, one for each replica.
  int64_t num_parts = 1;
  int64_t tables = 0, group = 0;
  // Which component of the input is the image.
  int64_t image = 0;
  // Whether the last component of the input is the image's seed.
  bool seeded = false;
  // For each component of a batch: the input's component, or a constant above.
  std::vector<int64_t> components;
  DataTypeVector types;
  std::vector<PartialTensorShape> shapes;
  // All layers; and those up to the last policy, which both sides can run.
  LayerChain layers, policy_layers;
  ImageSize size = {0, 0};
  // How many frames a clip has; 0 for images. Clips have no policy layers.
  int64_t frames = 0;

  // `CheckAttributes` checks the attributes alone, `CheckComponents` the
  // components against the input, because a loaded graph may be wrong.
  // `CheckComponents` also computes the output shapes. It uses the attribute
  // only for shapes that it cannot compute, such as the fingerprint's.
  absl::Status CheckAttributes() const;
  absl::Status CheckComponents(const DatasetBase& input);

  int64_t image_bytes() const {
    return std::max<int64_t>(frames, 1) * size.height * size.width * 3;
  }
  // The shape of an image or a clip whose rows have these dimensions.
  std::vector<int64_t> ShapeWith(std::initializer_list<int64_t> row) const {
    std::vector<int64_t> shape;
    shape.reserve(4);
    if (frames > 0) shape.push_back(frames);
    shape.push_back(size.height);
    for (const int64_t dim : row) shape.push_back(dim);
    return shape;
  }
  int64_t num_columns() const { return 1 + layers.num_draws(); }
};

}  // namespace refurbish_tf

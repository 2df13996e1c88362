#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "refurbish_tf/cc/batches/batch_rows.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/device_fraction_rule.h"

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
  absl::Status CheckAttributes() const {
    const auto& all = DeviceFractionRule::kEighths;
    if (eighths != DeviceFractionRule::kAutotuned &&
        std::find(all.begin(), all.end(), eighths) == all.end()) {
      return Refused("eighths must be 0, 1, 2, 4, 8 or -1, got ", eighths, ".");
    }
    if (batches.size % num_parts != 0) {
      return Refused("batch_size must be a multiple of num_parts, got ",
                     batches.size, " and ", num_parts, ".");
    }
    if (tables > group) {
      return Refused("tables must be at most group, got ", tables, " and ",
                     group, ".");
    }
    TF_ASSIGN_OR_RETURN(const ImageSpec made,
                        layers.Behind({size, kOffloadPixel}));
    if (!(made.size == size)) {
      return Refused("its layers must not change the size of an image.");
    }
    if (frames > 0 && !policy_layers.links().empty()) {
      return Refused("the layers of clips must have no policies.");
    }
    TensorShape images, draws;
    TF_RETURN_IF_ERROR(
        TensorShape::BuildTensorShape(ShapeWith({size.width, 3}), &images));
    TF_RETURN_IF_ERROR(images.InsertDimWithStatus(0, batches.size));
    return TensorShape::BuildTensorShape({batches.size, num_columns()}, &draws);
  }
  absl::Status CheckComponents(const DatasetBase& input) {
    const DataTypeVector& from_input = input.output_dtypes();
    const int64_t num_inputs = from_input.size();
    if (image >= num_inputs || from_input[image] != tensorflow::DT_UINT8) {
      return Refused("component ", image,
                     " of the input must be an image of uint8.");
    }
    if (seeded && (from_input.back() != tensorflow::DT_INT32 ||
                   !input.output_shapes().back().IsCompatibleWith({2}))) {
      return Refused(
          "the last component of the input must be a seed, int32 [2].");
    }
    if (components.size() != types.size() ||
        components.size() != shapes.size()) {
      return Refused(
          "components, output_types and output_shapes must match in number.");
    }
    for (const int64_t once :
         {OffloadOptions::kImages, OffloadOptions::kDraws}) {
      if (std::count(components.begin(), components.end(), once) != 1) {
        return Refused("components must have ", once, " once.");
      }
    }
    const PartialTensorShape batch(
        {batches.drop_remainder ? batches.size : -1});
    for (size_t i = 0; i < components.size(); ++i) {
      const int64_t from = components[i];
      PartialTensorShape& shape = shapes[i];
      DataType type = tensorflow::DT_INT32;
      PartialTensorShape row;
      if (from == OffloadOptions::kImages) {
        type = tensorflow::DT_UINT8;
        row = PartialTensorShape(ShapeWith({size.width * 3}));
      } else if (from == OffloadOptions::kDraws) {
        row = PartialTensorShape({num_columns()});
      } else if (from == OffloadOptions::kLayers) {
        row =
            PartialTensorShape({0, shape.dims() == 3 ? shape.dim_size(2) : -1});
      } else if (from >= 0 && from < num_inputs) {
        type = from_input[from];
        row = input.output_shapes()[from];
      } else {
        return Refused("components must be from -3 to ", num_inputs - 1,
                       ", got ", from, ".");
      }
      PartialTensorShape made;
      TF_RETURN_IF_ERROR(batch.ConcatenateWithStatus(row, &made));
      if (made.unknown_rank()) made = shape;
      if (types[i] != type || !shape.IsCompatibleWith(made) ||
          made.unknown_rank() || (from < 0 && !row.IsFullyDefined())) {
        return Refused("output ", i, " must be ", DataTypeString(type),
                       made.DebugString(), ", got ", DataTypeString(types[i]),
                       shape.DebugString(), ".");
      }
      shape = made;
    }
    return absl::OkStatus();
  }

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

 private:
  template <class... Parts>
  static absl::Status Refused(const Parts&... parts) {
    return InvalidArgument("OffloadDataset: ", parts...);
  }
};

}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/image_layers.h"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "refurbish_tf/cc/base/python_warning.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image_attributes.h"
#include "refurbish_tf/cc/kernels/value_types.h"

namespace refurbish_tf {
namespace {

using tensorflow::FunctionDef;

constexpr char kLayersOp[] = "RefurbishTf>ImageLayers";
constexpr char kPixelsOp[] = "RefurbishTf>ImagePixels";

// A component of a batch that is larger is not read from the caches that it
// would be written to: measured, from between 9 and 13 MB on. What the system
// tells of the last cache may be that of many more processors.
constexpr int64_t kBytesPastCaches = 12 << 20;

// What `value`, as nodes of a function name their inputs, is made by: passes
// over operations that change nothing. An argument has no node.
struct Origin {
  std::string argument;
  const NodeDef* node = nullptr;
};

Origin OriginOf(const std::map<std::string, const NodeDef*>& nodes,
                std::string value) {
  // A graph that was loaded may go in circles.
  for (size_t steps = 0; steps <= nodes.size(); ++steps) {
    const std::vector<std::string> parts = absl::StrSplit(value, ':');
    if (parts.size() == 1) return {value, nullptr};
    const auto found = nodes.find(parts[0]);
    if (found == nodes.end()) return {};
    if (found->second->op() != "Identity") {
      const bool is_first = parts.back() == "0" && parts[1] != "moved";
      return {"", is_first ? found->second : nullptr};
    }
    if (found->second->input_size() == 0) return {};
    value = found->second->input(0);
  }
  return {};
}

}  // namespace

absl::Status ImageLayers::Parse(tensorflow::AttrSlice attributes) {
  TF_RETURN_IF_ERROR(ParseLayers(attributes, &chain_));
  bool looks = false;
  DataType given, type;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attributes, "clips", &clips_));
  TF_RETURN_IF_ERROR(
      tensorflow::GetNodeAttr(attributes, "looks_at_channels", &looks));
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attributes, "S", &given));
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(attributes, "T", &type));
  looks_at_channels_ = looks;
  ImageSpec spec;
  spec.pixel.type = type_ = TypeOf(given);
  TF_ASSIGN_OR_RETURN(const ImageSpec made, chain_.Behind(spec));
  const DataType returned = TypeOf(made.pixel.type);
  if (type == returned) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`T` must be ", DataTypeString(returned),
      ", which the layers return, got ", DataTypeString(type), "."));
}

absl::StatusOr<ImageSpec> ImageLayers::Behind(const Tensor& images) const {
  const int dims = images.dims();
  const int64_t channels = images.dim_size(dims - 1);
  const ImageSize size = {images.dim_size(dims - 3), images.dim_size(dims - 2)};
  TF_ASSIGN_OR_RETURN(const ImageSpec made,
                      chain_.Behind({size, {type_, channels}}));
  if (channels > 4 && std::min(size.height, size.width) <= channels &&
      looks_at_channels_.exchange(false)) {
    WarnInPython(absl::StrCat(
        "image of ", chain_.links()[0].name, " has the shape ",
        images.shape().DebugString(),
        ", which is taken for [height, width, channels]. If channels come "
        "first, put them last: tf.experimental.numpy.moveaxis(image, -3, -1). "
        "If the last axis is the width, add them: image[..., tf.newaxis]. ",
        kSilence));
  }
  return made;
}

absl::Status ImageLayers::NoMemory() {
  return absl::ResourceExhaustedError(
      "Out of memory for an image between two layers. Pass smaller images, or "
      "smaller sizes to the layers.");
}

absl::Status ImageLayers::BeyondLimit(float value) {
  if (value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "image of normalize must have values from 0 to 1, as its mean and std "
      "do; the image has values up to ",
      value,
      ". Pass max_pixel_value=255 if 255 is white, 1 for values as they are, "
      "or mean and std in the image's units."));
}

std::unique_ptr<const LayersFunction> LayersFunction::Of(
    const FunctionDef& function) {
  std::map<std::string, int> arguments;
  for (const auto& argument : function.signature().input_arg()) {
    arguments.emplace(argument.name(), arguments.size());
  }
  std::map<std::string, const NodeDef*> nodes;
  const NodeDef* layers = nullptr;
  for (const NodeDef& node : function.node_def()) {
    nodes[node.name()] = &node;
    if (node.op() == kLayersOp || node.op() == kPixelsOp) {
      if (std::exchange(layers, &node) != nullptr) return nullptr;
    } else if (node.op() != "Identity" && node.op() != "Const") {
      return nullptr;
    }
  }
  if (layers == nullptr || layers->input_size() != 2) return nullptr;
  auto made = std::make_unique<LayersFunction>();
  if (!made->layers_.Parse(tensorflow::AttrSlice(*layers)).ok()) return nullptr;
  const auto position_of = [&](const std::string& value) {
    const auto found = arguments.find(OriginOf(nodes, value).argument);
    return found == arguments.end() ? -1 : found->second;
  };
  made->image_ = position_of(layers->input(0));
  made->seed_ = position_of(layers->input(1));
  const bool draws = made->layers_.chain().num_draws() > 0;
  if (made->image_ < 0 || (draws && made->seed_ < 0) ||
      (draws && layers->op() == kPixelsOp)) {
    return nullptr;
  }
  for (const auto& result : function.signature().output_arg()) {
    const auto value = function.ret().find(result.name());
    if (value == function.ret().end()) return nullptr;
    const bool is_image = OriginOf(nodes, value->second).node == layers;
    if (is_image) {
      if (made->image_result_ >= 0) return nullptr;
      made->image_result_ = made->results_.size();
    }
    made->results_.push_back(is_image ? -1 : position_of(value->second));
    if (!is_image && made->results_.back() < 0) return nullptr;
  }
  return made->image_result_ < 0 ? nullptr : std::move(made);
}

bool LayersFunction::Takes(const std::vector<Tensor>& arguments,
                           int num_missing) const {
  const int number = arguments.size();
  const auto is_there = [number](int position) { return position < number; };
  return is_there(image_) && seed_ < number + num_missing &&
         std::all_of(results_.begin(), results_.end(), is_there) &&
         arguments[image_].dims() == 3 && arguments[image_].NumElements() > 0 &&
         TypeOf(arguments[image_].dtype()) == layers_.type();
}

absl::StatusOr<ImageSpec> LayersFunction::Draw(
    const std::vector<Tensor>& arguments, const std::array<int32_t, 2>* seed,
    Draws* draws) const {
  const LayerChain& chain = layers_.chain();
  draws->resize(chain.num_draws());
  if (!draws->empty() && seed_ < static_cast<int>(arguments.size())) {
    TF_ASSIGN_OR_RETURN(const ImageSeed given, ParseSeed(arguments[seed_]));
    chain.Draw(given, draws->data());
  } else if (!draws->empty()) {
    chain.Draw(ImageSeed((*seed)[0], (*seed)[1]), draws->data());
  }
  return layers_.Behind(arguments[image_]);
}

absl::Status LayersFunction::Paint(const Tensor& image, const Draws& draws,
                                   void* to, Stores stores) const {
  try {
    Painter painter(layers_.chain(), {image.dim_size(0), image.dim_size(1)},
                    {layers_.type(), image.dim_size(2)}, BestKernels());
    painter.Paint(image.data(), draws.data(), to, stores);
    return ImageLayers::BeyondLimit(painter.beyond_limit());
  } catch (const std::bad_alloc&) {
    return ImageLayers::NoMemory();
  }
}

absl::Status LayersFunction::Run(std::vector<Tensor> arguments,
                                 const std::array<int32_t, 2>* seed,
                                 std::vector<Tensor>* results) const {
  Draws draws;
  TF_ASSIGN_OR_RETURN(const ImageSpec made, Draw(arguments, seed, &draws));
  const Tensor& image = arguments[image_];
  Tensor result = image;
  if (!layers_.chain().ChangesNothing(draws.data())) {
    result = Tensor(
        TypeOf(made.pixel.type),
        TensorShape({made.size.height, made.size.width, image.dim_size(2)}));
    if (!result.IsInitialized()) return ImageLayers::NoMemory();
    TF_RETURN_IF_ERROR(Paint(image, draws, result.data(), Stores::kCached));
  }
  results->clear();
  results->reserve(results_.size());
  for (const int position : results_) {
    results->push_back(position < 0 ? result : arguments[position]);
  }
  return absl::OkStatus();
}

absl::Status LayersFunction::RunInto(const std::vector<Tensor>& arguments,
                                     const std::array<int32_t, 2>* seed,
                                     const BatchRows& rows,
                                     const BatchRows::Row& row) const {
  Draws draws;
  TF_ASSIGN_OR_RETURN(const ImageSpec made, Draw(arguments, seed, &draws));
  const Tensor& image = arguments[image_];
  std::vector<Tensor>& components = row.batch->components;
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i] < 0) continue;
    const Tensor& value = arguments[results_[i]];
    TF_RETURN_IF_ERROR(rows.CheckRow(i, value.dtype(), value.shape()));
    TF_RETURN_IF_ERROR(CopyToRow(value, row.number, &components[i]));
  }
  Tensor& component = components[image_result_];
  const TensorShape shape(
      {made.size.height, made.size.width, image.dim_size(2)});
  TF_RETURN_IF_ERROR(
      rows.CheckRow(image_result_, TypeOf(made.pixel.type), shape));
  if (layers_.chain().ChangesNothing(draws.data())) {
    return CopyToRow(image, row.number, &component);
  }
  const int64_t bytes = shape.num_elements() * BytesOf(made.pixel.type);
  return Paint(image, draws,
               static_cast<char*>(component.data()) + row.number * bytes,
               static_cast<int64_t>(component.TotalBytes()) > kBytesPastCaches
                   ? Stores::kPastCaches
                   : Stores::kCached);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/image_layers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <utility>

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

// Components of batches that are larger than this are written past the CPU
// caches, because they would leave the caches before they are read. In our
// measurements, this became faster between 9 and 13 MB. The reported size of
// the last-level cache does not help: many more cores may share that cache.
constexpr int64_t kBytesPastCaches = 12 << 20;

absl::string_view NodeOf(absl::string_view value) {
  return value.substr(0, value.find(':'));
}

bool IsLayers(const NodeDef& node) {
  return (node.op() == kLayersOp || node.op() == kPixelsOp) &&
         node.input_size() == 2;
}

// Where a value in a function comes from: an argument, a node, or unknown.
struct Origin {
  std::string argument;
  const NodeDef* node = nullptr;
};

// Looks through Identity nodes. `value` is written like an input of a node: as
// the name of an argument, or as "node:output:number".
Origin OriginOf(const std::map<std::string, const NodeDef*>& nodes,
                std::string value) {
  // The number of steps is bounded, because a loaded graph may have cycles.
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

// Returns `function` without its node `layers`, which makes the result `image`.
// That result becomes the input of `layers`, whose seed is added as the last
// result. Returns nothing if anything else uses the output of `layers`.
std::optional<FunctionDef> WithoutLayers(const FunctionDef& function,
                                         const std::string& image,
                                         const std::string& layers) {
  // The node `layers`, and the nodes that only pass its output on.
  std::set<std::string, std::less<>> makers = {layers};
  const auto is_made = [&makers](absl::string_view value) {
    return makers.count(NodeOf(value)) > 0;
  };
  // Repeated until nothing is added, because nodes come in any order. tf.data
  // may also have added Identity nodes whose output nothing uses.
  for (size_t before = 0; before < makers.size();) {
    before = makers.size();
    for (const NodeDef& node : function.node_def()) {
      if (node.op() == "Identity" && node.input_size() > 0 &&
          is_made(node.input(0))) {
        makers.insert(node.name());
      }
    }
  }
  FunctionDef rest = function;
  DataType type = tensorflow::DT_INVALID, seed_type = tensorflow::DT_INT32;
  for (NodeDef& node : *rest.mutable_node_def()) {
    if (!is_made(node.name())) {
      for (const std::string& input : node.input()) {
        if (is_made(input)) return std::nullopt;
      }
    } else if (node.name() == layers) {
      const auto& attributes = node.attr();
      type = attributes.at("S").type();
      if (attributes.count("Tseed") > 0) {
        seed_type = attributes.at("Tseed").type();
      }
      AttrValue types;
      types.mutable_list()->add_type(type);
      types.mutable_list()->add_type(seed_type);
      node.set_op("IdentityN");
      node.clear_attr();
      (*node.mutable_attr())["T"] = types;
    }
  }
  const std::string given = absl::StrCat(layers, ":output:0");
  for (NodeDef& node : *rest.mutable_node_def()) {
    if (node.name() == layers || !is_made(node.name())) continue;
    (*node.mutable_attr())["T"].set_type(type);
    if (NodeOf(node.input(0)) == layers) node.set_input(0, given);
  }
  for (auto& [name, value] : *rest.mutable_ret()) {
    if (name != image && is_made(value)) return std::nullopt;
    if (NodeOf(value) == layers) value = given;
  }
  for (auto& result : *rest.mutable_signature()->mutable_output_arg()) {
    if (result.name() == image) result.set_type(type);
  }
  auto* const seed = rest.mutable_signature()->add_output_arg();
  seed->set_name("refurbish_tf_seed");
  seed->set_type(seed_type);
  (*rest.mutable_ret())[seed->name()] = absl::StrCat(layers, ":output:1");
  return rest;
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
  return InvalidArgument("`T` must be ", DataTypeString(returned),
                         ", which the layers return, got ",
                         DataTypeString(type), ".");
}

absl::Status ImageLayers::CheckRank(const Tensor& images) const {
  const int most = clips_ ? 5 : 4;
  if (images.dims() >= 1 && images.dims() <= most) return absl::OkStatus();
  return InvalidArgument(
      "`images` must be of shape [height, width, channels] or ",
      clips_ ? "[frames, height, width, channels], or a batch of these"
             : "[batch, height, width, channels]",
      ", got ", images.shape().DebugString(), ".");
}

absl::StatusOr<ImageSpec> ImageLayers::Behind(const Tensor& images,
                                              const int32_t* draws) const {
  const int dims = images.dims();
  const ImageSpec image = SpecOf(images);
  const int64_t channels = image.pixel.channels;
  const int64_t number = draws == nullptr ? 0 : NumDrawing(images);
  TF_ASSIGN_OR_RETURN(ImageSpec made,
                      chain_.Behind(image, number > 0 ? draws : nullptr));
  for (int64_t i = 1; made.size_is_drawn && i < number; ++i) {
    TF_ASSIGN_OR_RETURN(const ImageSpec other,
                        chain_.Behind(image, draws + i * chain_.num_draws()));
    if (other.size == made.size) continue;
    return InvalidArgument(
        "images of a batch must have one size after ", chain_.links()[0].name,
        " and the layers that follow it, got ", made.size, " and ", other.size,
        " pixels. Put resize((height, width)) after it in the same list, or "
        "the layers before batch.");
  }
  // An empty batch has no draws. If they determine the size, any size will do.
  if (made.size.height == kUnknown) made.size = image.size;
  // A clip of few frames with many channels may be a channels-first volume.
  const bool is_odd =
      std::min(image.size.height, image.size.width) <= channels ||
      (clips_ && dims == 4 && images.dim_size(0) <= 4);
  if (channels > 4 && is_odd && looks_at_channels_.exchange(false)) {
    WarnInPython(absl::StrCat(
        "image of ", chain_.links()[0].name, " has the shape ",
        images.shape().DebugString(),
        ", which is read as [height, width, channels]. If channels come "
        "first, put them last: tf.experimental.numpy.moveaxis(image, -3, -1), "
        "or -4 for a volume. "
        "If the last axis is the width, add them: image[..., tf.newaxis]. ",
        kSilence));
  }
  return made;
}

absl::StatusOr<TensorShape> ImageLayers::ShapeOf(const Tensor& images,
                                                 const ImageSpec& made) {
  TensorShape shape = images.shape();
  const int dims = shape.dims(), begin = std::max(dims - 3, 0);
  TF_RETURN_IF_ERROR(shape.SetDimWithStatus(begin, made.size.height));
  if (dims > 1) {
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(begin + 1, made.size.width));
  } else if (made.size.width != 1) {
    return InvalidArgument("[samples] must stay one column, got a width of ",
                           made.size.width, ".");
  }
  return shape;
}

absl::Status ImageLayers::Check(const BeyondLimits& beyond) {
  if (beyond.noisy != 0) {
    return InvalidArgument(
        "image of gaussian_noise must have values from 0 to 1, to which it is "
        "clipped; the image has values such as ",
        beyond.noisy,
        ". Put the layer before normalize and scale the image before it, for "
        "example with image / 255; or pass clip=False, and mean and sigma in "
        "the image's units.");
  }
  if (beyond.normalized == 0) return absl::OkStatus();
  return InvalidArgument(
      "image of normalize must have values from 0 to 1, like its mean and std; "
      "the image has values up to ",
      beyond.normalized,
      ". Pass max_pixel_value=255 if 255 is white, 1 to keep the values, or "
      "mean and std in the image's units.");
}

std::unique_ptr<const LayersFunction> LayersFunction::Of(
    const FunctionDef& function, std::optional<FunctionDef>* rest) {
  std::map<std::string, int> arguments;
  for (const auto& argument : function.signature().input_arg()) {
    arguments.emplace(argument.name(), arguments.size());
  }
  std::map<std::string, const NodeDef*> nodes;
  bool is_alone = true;
  int num_layers = 0;
  for (const NodeDef& node : function.node_def()) {
    nodes[node.name()] = &node;
    num_layers += IsLayers(node);
    is_alone &=
        IsLayers(node) || node.op() == "Identity" || node.op() == "Const";
  }
  auto made = std::make_unique<LayersFunction>();
  Origin image;
  std::string image_name;
  for (const auto& result : function.signature().output_arg()) {
    const auto value = function.ret().find(result.name());
    if (value == function.ret().end()) return nullptr;
    Origin origin = OriginOf(nodes, value->second);
    const auto found = arguments.find(origin.argument);
    made->results_.push_back(found == arguments.end() ? -1 : found->second);
    if (origin.node != nullptr && IsLayers(*origin.node)) {
      // Only one result may be made by layers.
      if (image.node != nullptr) return nullptr;
      made->image_result_ = made->results_.size() - 1;
      image_name = result.name();
      image = std::move(origin);
    } else {
      is_alone &= made->results_.back() >= 0;
    }
  }
  if (image.node == nullptr ||
      !made->layers_.Parse(tensorflow::AttrSlice(*image.node)).ok() ||
      made->layers_.chain().looks_at_boxes()) {
    return nullptr;
  }
  const auto position_of = [&](const std::string& value) {
    const auto found = arguments.find(OriginOf(nodes, value).argument);
    return found == arguments.end() ? -1 : found->second;
  };
  const bool draws = made->layers_.chain().num_draws() > 0;
  if (draws && image.node->op() == kPixelsOp) return nullptr;
  made->image_ = position_of(image.node->input(0));
  made->seed_ = position_of(image.node->input(1));
  if (is_alone && num_layers == 1 && made->image_ >= 0 &&
      (!draws || made->seed_ >= 0)) {
    return made;
  }
  *rest = WithoutLayers(function, image_name, image.node->name());
  if (!rest->has_value()) return nullptr;
  made->image_ = made->image_result_;
  made->seed_ = made->results_.size();
  for (int i = 0; i < made->seed_; ++i) {
    made->results_[i] = i == made->image_ ? -1 : i;
  }
  return made;
}

bool LayersFunction::Takes(const std::vector<Tensor>& arguments,
                           int num_missing) const {
  const int number = arguments.size();
  const auto is_there = [number](int position) { return position < number; };
  if (!is_there(image_) || seed_ >= number + num_missing) return false;
  const Tensor& image = arguments[image_];
  return std::all_of(results_.begin(), results_.end(), is_there) &&
         TypeOf(image.dtype()) == layers_.type();
}

absl::StatusOr<ImageSpec> LayersFunction::Draw(
    const std::vector<Tensor>& arguments, const std::array<int32_t, 2>* seed,
    Draws* draws) const {
  const LayerChain& chain = layers_.chain();
  const Tensor& images = arguments[image_];
  TF_RETURN_IF_ERROR(layers_.CheckRank(images));
  if (const int num_draws = chain.num_draws(); num_draws > 0) {
    ImageSeed given =
        seed == nullptr ? ImageSeed(0, 0) : ImageSeed((*seed)[0], (*seed)[1]);
    if (seed_ < static_cast<int>(arguments.size())) {
      TF_ASSIGN_OR_RETURN(given, ParseSeed(arguments[seed_]));
    }
    draws->resize(layers_.NumDrawing(images) * num_draws);
    const bool is_batch = layers_.IsBatch(images);
    if (!is_batch) chain.Draw(given, draws->data());
    for (int64_t i = 0; is_batch && i < images.dim_size(0); ++i) {
      chain.Draw(given.SeedAt(i), draws->data() + i * num_draws);
    }
  }
  return layers_.Behind(images, draws->data());
}

absl::Status LayersFunction::Paint(const Tensor& images, const Draws& draws,
                                   char* to, int64_t to_bytes,
                                   Stores stores) const {
  if (to_bytes == 0) return absl::OkStatus();
  const int dims = images.dims();
  const ImageSpec spec = layers_.SpecOf(images);
  int64_t number = 1;
  for (int i = 0; i < dims - 3; ++i) number *= images.dim_size(i);
  const int64_t frames = number / layers_.NumDrawing(images);
  const auto* from = static_cast<const char*>(images.data());
  try {
    Painter painter(layers_.chain(), spec.size, spec.pixel, BestKernels());
    for (int64_t i = 0; i < number; ++i) {
      painter.Paint(from,
                    draws.data() + i / frames * layers_.chain().num_draws(), to,
                    stores);
      from += images.TotalBytes() / number;
      to += to_bytes / number;
    }
    return ImageLayers::Check(painter.beyond());
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
  if (!ChangesNothing(image, draws)) {
    TF_ASSIGN_OR_RETURN(const TensorShape shape,
                        ImageLayers::ShapeOf(image, made));
    result = Tensor(TypeOf(made.pixel.type), shape);
    if (!result.IsInitialized()) return ImageLayers::NoMemory();
    TF_RETURN_IF_ERROR(Paint(image, draws, static_cast<char*>(result.data()),
                             result.TotalBytes(), Stores::kCached));
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
  TF_ASSIGN_OR_RETURN(const TensorShape shape,
                      ImageLayers::ShapeOf(image, made));
  TF_RETURN_IF_ERROR(
      rows.CheckRow(image_result_, TypeOf(made.pixel.type), shape));
  if (ChangesNothing(image, draws)) {
    return CopyToRow(image, row.number, &component);
  }
  const int64_t bytes = shape.num_elements() * BytesOf(made.pixel.type);
  return Paint(image, draws,
               static_cast<char*>(component.data()) + row.number * bytes, bytes,
               static_cast<int64_t>(component.TotalBytes()) > kBytesPastCaches
                   ? Stores::kPastCaches
                   : Stores::kCached);
}

}  // namespace refurbish_tf

// The ops of a chain of layers: one for draws, one for pixels, one for both.
//
// Adjacent native layers are one op, which draws int32 numbers from the seed
// and applies them to the image. Draws and pixels also have ops of their own,
// so that draws can be sent to the device that has the pixels. Draws do not
// depend on the device that makes them (image_seed.h). The frames of a clip
// have the same draws. A batch is split across the device's threads, a single
// image is not.
#include <algorithm>
#include <atomic>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/targets.h"
#include "refurbish_tf/cc/kernels/image/threads.h"
#include "refurbish_tf/cc/kernels/image_attributes.h"
#include "refurbish_tf/cc/kernels/image_layers.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/value_types.h"
#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {
namespace {

// Writes the draws of each image of a batch, one image after the other.
void DrawForBatch(const LayerChain& chain, const ImageSeed& seed,
                  int64_t batch_size, int32_t* draws) {
  // Without draws there is nothing to loop over, however large the batch.
  if (chain.num_draws() == 0) return;
  for (int64_t image = 0; image < batch_size; ++image) {
    chain.Draw(seed.SeedAt(image), draws);
    draws += chain.num_draws();
  }
}

class SeedAtOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const ImageSeed seed, ctx, ParseSeed(ctx->input(0)));
    const Tensor& index = ctx->input(1);
    OP_REQUIRES(
        ctx, index.dims() <= 1,
        InvalidArgument("`index` must be a scalar or a vector, got shape ",
                        index.shape().DebugString(), "."));
    TensorShape shape = index.shape();
    shape.AddDim(2);
    Tensor* seeds;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &seeds));
    const auto indices = index.flat<int64_t>();
    auto values = seeds->flat<int32_t>();
    for (int64_t i = 0; i < indices.size(); ++i) {
      OP_REQUIRES(ctx, indices(i) >= 0,
                  InvalidArgument(
                      "`index` must be at least 0, got ", indices(i),
                      ". It is the position of an image in its batch, or of a "
                      "layer among its layers."));
      const std::array<int32_t, 2> at = seed.At(indices(i));
      values(2 * i) = at[0];
      values(2 * i + 1) = at[1];
    }
  }
};

class DrawsOp : public OpKernel {
 public:
  explicit DrawsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx->def(), &chain_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_VALUE(const ImageSeed seed, ctx, ParseSeed(ctx->input(0)));
    Tensor* output;
    if (ctx->num_inputs() == 1) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(
                              0, TensorShape({chain_.num_draws()}), &output));
      chain_.Draw(seed, output->flat<int32_t>().data());
      return;
    }
    const Tensor& batch_size = ctx->input(1);
    OP_REQUIRES(
        ctx, batch_size.dims() == 0 && batch_size.scalar<int64_t>()() >= 0,
        InvalidArgument("`batch_size` must be a scalar of at least 0, got ",
                        batch_size.DebugString(), "."));
    const int64_t size = batch_size.scalar<int64_t>()();
    TensorShape shape;
    OP_REQUIRES_OK(
        ctx, TensorShape::BuildTensorShape({size, chain_.num_draws()}, &shape));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    DrawForBatch(chain_, seed, size, output->flat<int32_t>().data());
  }

 private:
  LayerChain chain_;
};

// The base class of ops that apply layers to images and their targets.
class ImageOp : public OpKernel {
 public:
  explicit ImageOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, layers_.Parse(ctx->def()));
    OP_REQUIRES_OK(ctx, targets_.Parse(ctx));
  }

 protected:
  // Draws of a single image need no allocation on the heap.
  using Draws = absl::InlinedVector<int32_t, 64>;

  const ImageLayers& layers() const { return layers_; }
  const LayerChain& chain() const { return layers_.chain(); }
  bool IsBatch(const Tensor& images) const { return layers_.IsBatch(images); }

  // Sets all outputs. `draws`: the draws of each image or clip, one after the
  // other, null if there are no images. `CheckDraws` must accept them. Layers
  // that look at boxes complete the draws.
  void Make(OpKernelContext* ctx, const Tensor& images, int32_t* draws) {
    const auto draws_of = [this, draws](int64_t i) {
      return draws + i * chain().num_draws();
    };
    const int dims = images.dims();
    const int64_t num_draws = layers_.NumDrawing(images);
    const ImageSize size = layers_.SpecOf(images).size;
    const Pixel pixel = layers_.SpecOf(images).pixel;
    const int64_t frames =
        layers_.clips() && dims > 3 ? images.dim_size(dims - 4) : 1;
    ImageBatch batch{{}, num_draws, frames, size, size,
                     {}, &chain(),  draws,  pixel};
    for (int i = 0; i < dims - 3; ++i) {
      batch.lead.push_back(images.dim_size(i));
    }
    if (chain().looks_at_boxes() && images.NumElements() > 0) {
      OP_REQUIRES_OK(ctx, layers_.Behind(images, nullptr).status());
      batch.apply = [&](int64_t draw, Canvas* boxes) {
        chain().DrawFrom(boxes, draws_of(draw));
      };
      OP_REQUIRES_OK(ctx, targets_.Move(ctx, 2, 1, batch, /*only_looks=*/true));
    }
    OP_REQUIRES_VALUE(const ImageSpec behind, ctx,
                      layers_.Behind(images, draws));
    if (!targets_.empty()) {
      batch.made = behind.size;
      batch.apply = [&](int64_t draw, Canvas* canvas) {
        chain().Apply(draws_of(draw), canvas);
      };
      OP_REQUIRES_OK(ctx, targets_.Move(ctx, 2, 1, batch));
    }
    if (num_draws == 1 && images.NumElements() > 0 &&
        chain().ChangesNothing(draws_of(0))) {
      ctx->set_output(0, images);
      return;
    }
    OP_REQUIRES_VALUE(const TensorShape shape, ctx,
                      ImageLayers::ShapeOf(images, behind));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;
    const char* const from = images.tensor_data().data();
    char* const to = const_cast<char*>(output->tensor_data().data());
    const int64_t num_images = num_draws * frames;
    const int64_t from_bytes = images.TotalBytes() / num_images;
    const int64_t to_bytes = output->TotalBytes() / num_images;
    std::atomic<BeyondLimits> beyond = BeyondLimits();
    const auto paint = [&](int64_t begin, int64_t end) {
      Painter painter(chain(), size, pixel, BestKernels());
      for (int64_t image = begin; image < end; ++image) {
        painter.Paint(from + image * from_bytes, draws_of(image / frames),
                      to + image * to_bytes);
      }
      if (painter.beyond().any()) beyond = painter.beyond();
    };
    // Memory may run out, because an image between two layers may be large.
    OP_REQUIRES(ctx,
                !ForEachPart(ctx, num_images, from_bytes + to_bytes, paint),
                ImageLayers::NoMemory());
    OP_REQUIRES_OK(ctx, ImageLayers::Check(beyond));
  }

 private:
  ImageLayers layers_;
  Targets targets_;
};

class PixelsOp : public ImageOp {
 public:
  using ImageOp::ImageOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    const Tensor& draws = ctx->input(1);
    OP_REQUIRES_OK(ctx, layers().CheckRank(images));
    const bool batch = IsBatch(images);
    const int64_t batch_size = batch ? images.dim_size(0) : 1;
    const int num_draws = chain().num_draws();
    OP_REQUIRES(
        ctx,
        num_draws == 0 || (draws.dims() == (batch ? 2 : 1) &&
                           draws.dim_size(draws.dims() - 1) == num_draws &&
                           (!batch || draws.dim_size(0) == batch_size)),
        InvalidArgument("`draws` must be of shape [",
                        batch ? absl::StrCat(batch_size, ", ") : "", num_draws,
                        "] for images of shape ", images.shape().DebugString(),
                        ", got ", draws.shape().DebugString(), "."));
    const int32_t* const given = draws.flat<int32_t>().data();
    Draws drawn(given, given + batch_size * num_draws);
    for (int64_t i = 0; i < batch_size; ++i) {
      OP_REQUIRES_OK(ctx, chain().CheckDraws(drawn.data() + i * num_draws));
    }
    Make(ctx, images, drawn.data());
  }
};

// Draws and pixels in one op, without a tensor between them: for small images
// the overhead of two ops is as large as the work on the pixels.
class LayersOp : public ImageOp {
 public:
  using ImageOp::ImageOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    OP_REQUIRES_OK(ctx, layers().CheckRank(images));
    OP_REQUIRES_VALUE(const ImageSeed seed, ctx, ParseSeed(ctx->input(1)));
    if (!IsBatch(images)) {
      Draws draws(chain().num_draws());
      chain().Draw(seed, draws.data());
      Make(ctx, images, draws.data());
      return;
    }
    if (images.NumElements() == 0) {
      Make(ctx, images, nullptr);
      return;
    }
    Tensor draws;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tensorflow::DT_INT32,
                                           TensorShape({images.dim_size(0),
                                                        chain().num_draws()}),
                                           &draws));
    int32_t* const drawn = draws.flat<int32_t>().data();
    DrawForBatch(chain(), seed, images.dim_size(0), drawn);
    Make(ctx, images, drawn);
  }
};

// Describes layers to Python, so that their properties are defined only here.
class DescribeLayersOp : public OpKernel {
 public:
  explicit DescribeLayersOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx->def(), &chain_));
    DataType type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("S", &type));
    PartialTensorShape shape;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape", &shape));
    if (const int dims = shape.dims(); dims >= 3) {
      spec_.size = {shape.dim_size(dims - 3), shape.dim_size(dims - 2)};
      spec_.pixel.channels = shape.dim_size(dims - 1);
    }
    spec_.pixel.type = TypeOf(type);
    is_no_image_ = spec_.pixel.type == ValueType::kUnknown;
    if (is_no_image_) spec_.pixel.type = ValueType::kFloat32;
  }

  void Compute(OpKernelContext* ctx) override {
    const int64_t number = static_cast<int64_t>(chain_.links().size());
    const auto of_each_layer = [&](int output, DataType type) {
      ctx->set_output(output, Tensor(type, TensorShape({number})));
      return ctx->mutable_output(output);
    };
    auto num_draws = of_each_layer(0, tensorflow::DT_INT32)->vec<int32_t>();
    auto is_policy = of_each_layer(1, tensorflow::DT_BOOL)->vec<bool>();
    auto moves = of_each_layer(6, tensorflow::DT_BOOL)->vec<bool>();
    auto changes = of_each_layer(8, DT_STRING)->vec<tstring>();
    int64_t refusing = 0;
    absl::StatusOr<ImageSpec> made = spec_;
    if (absl::Status status = LayerChain::Check(spec_); !status.ok()) {
      made = status;
    }
    for (int64_t i = 0; i < number; ++i) {
      const Layer& layer = *chain_.links()[i].layer;
      num_draws(i) = layer.num_draws();
      is_policy(i) = layer.is_policy();
      moves(i) = layer.movement() != Movement::kNone;
      changes(i) = TextOf(layer.movement());
      if (!made.ok()) continue;
      made = layer.Behind(*made);
      refusing = i;
    }
    auto [inner, problem] = Refusal::Of(made.status());
    if (is_no_image_ && made.ok()) {
      problem = absl::StrCat("be ", kImageTypes);
      refusing = 0;
    } else if (is_no_image_) {
      // The float32 set above is only a stand-in for the type. Cut off the part
      // of a layer's message that names it.
      problem.resize(std::min(problem.size(), problem.find(", got dtype")));
    }
    ctx->set_output(
        2, Tensor(static_cast<int32_t>(TypeOf(
               problem.empty() ? made->pixel.type : ValueType::kUnknown))));
    ctx->set_output(3, Tensor(tstring(problem)));
    ctx->set_output(4, Tensor(static_cast<int32_t>(refusing)));
    ctx->set_output(5, Tensor(static_cast<int32_t>(LayerChain::kVersion)));
    ctx->set_output(7, Tensor(tstring(inner)));
  }

 private:
  LayerChain chain_;
  ImageSpec spec_;
  // Whether no layer takes images of this type.
  bool is_no_image_ = false;
};

REFURBISH_TF_KERNEL("SeedAt", SeedAtOp);
REFURBISH_TF_KERNEL("DescribeLayers", DescribeLayersOp);
REFURBISH_TF_KERNEL("ImageDraws", DrawsOp);
REFURBISH_TF_KERNEL("ImagePixels", PixelsOp);
REFURBISH_TF_KERNEL("ImageLayers", LayersOp);

}  // namespace
}  // namespace refurbish_tf

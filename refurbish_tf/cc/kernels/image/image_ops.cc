// The ops of a chain of layers: their draws, the pixels, and both in one.
//
// Adjacent native layers are one op, which draws int32 numbers from the seed
// and applies them to the image. Draws and pixels are ops of their own, too, so
// that draws can be sent to where the pixels are. Image b of a batch has the
// seed `seed_at(seed, b)`, and a layer of `compose` has `seed_at(., position)`
// of that, so the draws do not depend on who makes them. A batch is split
// across the device's threads, an image is not.
#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/mask.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/parsing.h"
#include "refurbish_tf/cc/kernels/image/value_types.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/op_requires.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

namespace refurbish_tf {
namespace {

// Waking a thread pays only if it reads and writes at least so much.
constexpr int64_t kBytesForAThread = 1 << 18;

// Writes the draws of each image of a batch, one image after the other.
void DrawForBatch(const LayerChain& chain, const ImageSeed& seed,
                  int64_t batch_size, int32_t* draws) {
  // Returns at once whatever the batch size.
  if (chain.num_draws() == 0) return;
  for (int64_t image = 0; image < batch_size; ++image) {
    chain.Draw(seed.SeedAt(image), draws);
    draws += chain.num_draws();
  }
}

// Calls work(begin, end) for parts of a batch, on the device's threads if that
// pays. `bytes` are those of an image. Returns whether memory was lacking.
bool ForEachImage(OpKernelContext* ctx, int64_t batch_size, int64_t bytes,
                  const std::function<void(int64_t, int64_t)>& work) {
  std::atomic<bool> lacks_memory{false};
  const auto part = [&](int64_t begin, int64_t end) {
    try {
      work(begin, end);
    } catch (const std::bad_alloc&) {
      lacks_memory = true;
    }
  };
  if (batch_size == 1 || bytes * batch_size < 2 * kBytesForAThread) {
    part(0, batch_size);
    return lacks_memory;
  }
  const auto* const workers = ctx->device()->tensorflow_cpu_worker_threads();
  // `Shard` makes shards of a cost of at least 10,000.
  tensorflow::Shard(workers->num_threads, workers->workers, batch_size,
                    std::max<int64_t>(1, bytes * 10000 / kBytesForAThread),
                    part);
  return lacks_memory;
}

class SeedAtOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    std::optional<ImageSeed> seed;
    OP_REQUIRES_OK(ctx, ParseSeed(ctx->input(0), &seed));
    const Tensor& index = ctx->input(1);
    OP_REQUIRES(ctx, index.dims() <= 1,
                absl::InvalidArgumentError(absl::StrCat(
                    "`index` must be a scalar or a vector, got shape ",
                    index.shape().DebugString(), ".")));
    TensorShape shape = index.shape();
    shape.AddDim(2);
    Tensor* seeds;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &seeds));
    const auto indices = index.flat<int64_t>();
    auto values = seeds->flat<int32_t>();
    for (int64_t i = 0; i < indices.size(); ++i) {
      OP_REQUIRES(ctx, indices(i) >= 0,
                  absl::InvalidArgumentError(absl::StrCat(
                      "`index` must be at least 0, got ", indices(i),
                      ". It is the position of an image in its batch, or of a "
                      "layer among its layers.")));
      const std::array<int32_t, 2> at = seed->At(indices(i));
      values(2 * i) = at[0];
      values(2 * i + 1) = at[1];
    }
  }
};

class DrawsOp : public OpKernel {
 public:
  explicit DrawsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx, &chain_));
  }

  void Compute(OpKernelContext* ctx) override {
    std::optional<ImageSeed> seed;
    OP_REQUIRES_OK(ctx, ParseSeed(ctx->input(0), &seed));
    Tensor* output;
    if (ctx->num_inputs() == 1) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(
                              0, TensorShape({chain_.num_draws()}), &output));
      chain_.Draw(*seed, output->flat<int32_t>().data());
      return;
    }
    const Tensor& batch_size = ctx->input(1);
    OP_REQUIRES(ctx,
                batch_size.dims() == 0 && batch_size.scalar<int64_t>()() >= 0,
                absl::InvalidArgumentError(absl::StrCat(
                    "`batch_size` must be a scalar of at least 0, got ",
                    batch_size.DebugString(), ".")));
    const int64_t size = batch_size.scalar<int64_t>()();
    TensorShape shape;
    OP_REQUIRES_OK(
        ctx, TensorShape::BuildTensorShape({size, chain_.num_draws()}, &shape));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    DrawForBatch(chain_, *seed, size, output->flat<int32_t>().data());
  }

 private:
  LayerChain chain_;
};

// The base class of ops that apply layers to images, given the draws.
class ImageOp : public OpKernel {
 public:
  explicit ImageOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx, &chain_));
    DataType given, type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("S", &given));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type));
    ImageSpec spec;
    spec.pixel.type = type_ = TypeOf(given);
    const absl::StatusOr<ImageSpec> made = chain_.Behind(spec);
    OP_REQUIRES_OK(ctx, made.status());
    const DataType returned = TypeOf(made->pixel.type);
    OP_REQUIRES(
        ctx, type == returned,
        absl::InvalidArgumentError(absl::StrCat(
            "`T` must be ", DataTypeString(returned),
            ", which the layers return, got ", DataTypeString(type), ".")));
  }

 protected:
  const LayerChain& chain() const { return chain_; }

  static absl::Status CheckRank(const Tensor& images) {
    if (images.dims() == 3 || images.dims() == 4) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("`images` must be of shape [height, width, channels] or "
                     "[batch, height, width, channels], got ",
                     images.shape().DebugString(), "."));
  }

  // `draws_of(i)` returns the draws of image i, which must pass `CheckDraws`.
  // It is called by several threads.
  template <class DrawsOf>
  void Make(OpKernelContext* ctx, const Tensor& images,
            const DrawsOf& draws_of) {
    const int dims = images.dims();
    const int64_t batch_size = dims == 4 ? images.dim_size(0) : 1;
    const int64_t channels = images.dim_size(dims - 1);
    const ImageSize size = {images.dim_size(dims - 3),
                            images.dim_size(dims - 2)};
    const Pixel pixel = {type_, channels};
    const absl::StatusOr<ImageSpec> behind = chain_.Behind({size, pixel});
    OP_REQUIRES_OK(ctx, behind.status());
    const ImageSize made = behind->size;
    if (batch_size == 1 && chain_.ChangesNothing(draws_of(0))) {
      ctx->set_output(0, images);
      return;
    }
    Tensor* output;
    if (made.height == size.height && made.width == size.width) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(0, images.shape(), &output));
    } else {
      TensorShape shape = images.shape();
      OP_REQUIRES_OK(ctx, shape.SetDimWithStatus(dims - 3, made.height));
      OP_REQUIRES_OK(ctx, shape.SetDimWithStatus(dims - 2, made.width));
      OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    }
    if (output->NumElements() == 0) return;
    const char* const from = images.tensor_data().data();
    char* const to = const_cast<char*>(output->tensor_data().data());
    const int64_t from_bytes = images.TotalBytes() / batch_size;
    const int64_t to_bytes = output->TotalBytes() / batch_size;
    const auto paint = [&](int64_t begin, int64_t end) {
      Painter painter(chain_, size, pixel, BestKernels());
      for (int64_t image = begin; image < end; ++image) {
        painter.Paint(from + image * from_bytes, draws_of(image),
                      to + image * to_bytes);
      }
    };
    // An image between two layers may be larger than the first and the last
    // one.
    OP_REQUIRES(
        ctx, !ForEachImage(ctx, batch_size, from_bytes + to_bytes, paint),
        absl::ResourceExhaustedError(
            "Out of memory for an image between two layers. Pass smaller "
            "images, or smaller sizes to the layers."));
  }

 private:
  LayerChain chain_;
  ValueType type_ = ValueType::kUnknown;
};

class PixelsOp : public ImageOp {
 public:
  using ImageOp::ImageOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    const Tensor& draws = ctx->input(1);
    OP_REQUIRES_OK(ctx, CheckRank(images));
    const bool batch = images.dims() == 4;
    const int64_t batch_size = batch ? images.dim_size(0) : 1;
    const int num_draws = chain().num_draws();
    OP_REQUIRES(
        ctx,
        num_draws == 0 || (draws.dims() == (batch ? 2 : 1) &&
                           draws.dim_size(draws.dims() - 1) == num_draws &&
                           (!batch || draws.dim_size(0) == batch_size)),
        absl::InvalidArgumentError(
            absl::StrCat("`draws` must be of shape [",
                         batch ? absl::StrCat(batch_size, ", ") : "", num_draws,
                         "] for images of shape ", images.shape().DebugString(),
                         ", got ", draws.shape().DebugString(), ".")));
    const int32_t* const drawn = draws.flat<int32_t>().data();
    for (int64_t image = 0; image < batch_size; ++image) {
      OP_REQUIRES_OK(ctx, chain().CheckDraws(drawn + image * num_draws));
    }
    Make(ctx, images, [drawn, num_draws](int64_t image) {
      return drawn + image * num_draws;
    });
  }
};

// Draws and pixels in one op, without a tensor between them: for small images
// the overhead of two ops is as large as the work on the pixels.
class LayersOp : public ImageOp {
 public:
  using ImageOp::ImageOp;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    OP_REQUIRES_OK(ctx, CheckRank(images));
    std::optional<ImageSeed> seed;
    OP_REQUIRES_OK(ctx, ParseSeed(ctx->input(1), &seed));
    if (images.dims() == 3) {
      Draws draws(chain().num_draws());
      chain().Draw(*seed, draws.data());
      Make(ctx, images, [&draws](int64_t) { return draws.data(); });
      return;
    }
    if (images.NumElements() == 0) {
      Make(ctx, images, [](int64_t) -> const int32_t* { return nullptr; });
      return;
    }
    Tensor draws;
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tensorflow::DT_INT32,
                                           TensorShape({images.dim_size(0),
                                                        chain().num_draws()}),
                                           &draws));
    int32_t* const drawn = draws.flat<int32_t>().data();
    DrawForBatch(chain(), *seed, images.dim_size(0), drawn);
    Make(ctx, images, [this, drawn](int64_t image) {
      return drawn + image * chain().num_draws();
    });
  }

 private:
  // The draws of one image need no allocation.
  using Draws = absl::InlinedVector<int32_t, 64>;
};

// Moves masks as `ImagePixels` moves their images.
class MaskOp : public OpKernel {
 public:
  explicit MaskOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx, &chain_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& masks = ctx->input(0);
    const Tensor& draws = ctx->input(1);
    const Tensor& image_shape = ctx->input(2);
    const int batch = draws.dims() == 2 ? 1 : 0;
    OP_REQUIRES(
        ctx,
        (draws.dims() == 1 || draws.dims() == 2) &&
            draws.dim_size(batch) == chain_.num_draws() &&
            (masks.dims() == batch + 2 || masks.dims() == batch + 3) &&
            (batch == 0 || draws.dim_size(0) == masks.dim_size(0)),
        absl::InvalidArgumentError(absl::StrCat(
            "`masks` must be of shape [height, width] or [height, width, "
            "channels] for `draws` of shape [",
            chain_.num_draws(),
            "], or have one more dimension of the same size in front of both; "
            "got ",
            masks.shape().DebugString(), " and ", draws.shape().DebugString(),
            ".")));
    const ImageSize size = {masks.dim_size(batch), masks.dim_size(batch + 1)};
    const int64_t dims = image_shape.NumElements();
    OP_REQUIRES(
        ctx,
        image_shape.dims() == 1 && dims >= 3 &&
            image_shape.vec<int32_t>()(dims - 3) == size.height &&
            image_shape.vec<int32_t>()(dims - 2) == size.width,
        absl::InvalidArgumentError(absl::StrCat(
            "Masks must have the height and width of their images, got ",
            masks.shape().DebugString(), " for images of shape ",
            image_shape.SummarizeValue(4), ".")));
    const absl::StatusOr<ImageSpec> behind = chain_.Behind({size, {}});
    OP_REQUIRES_OK(ctx, behind.status());
    const ImageSize made = behind->size;
    OP_REQUIRES(ctx, size.height * size.width <= MaskPoints::kMost,
                absl::InvalidArgumentError(absl::StrCat(
                    "Masks must have at most ", MaskPoints::kMost,
                    " pixels, got ", size.height, " x ", size.width, ".")));
    const int32_t* const drawn = draws.flat<int32_t>().data();
    const int64_t count = batch == 1 ? masks.dim_size(0) : 1;
    for (int64_t i = 0; i < count; ++i) {
      OP_REQUIRES_OK(ctx, chain_.CheckDraws(drawn + i * chain_.num_draws()));
    }
    TensorShape shape = masks.shape();
    OP_REQUIRES_OK(ctx, shape.SetDimWithStatus(batch, made.height));
    OP_REQUIRES_OK(ctx, shape.SetDimWithStatus(batch + 1, made.width));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;
    const int64_t from_bytes = masks.TotalBytes() / count;
    const int64_t to_bytes = output->TotalBytes() / count;
    const int64_t pixel_bytes = from_bytes / (size.height * size.width);
    const auto* const from =
        reinterpret_cast<const uint8_t*>(masks.tensor_data().data());
    auto* const to = reinterpret_cast<uint8_t*>(
        const_cast<char*>(output->tensor_data().data()));
    const auto move = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        MaskPoints(chain_, size, drawn + i * chain_.num_draws(), BestKernels())
            .Move(from + i * from_bytes, pixel_bytes, to + i * to_bytes);
      }
    };
    OP_REQUIRES(ctx, !ForEachImage(ctx, count, from_bytes + to_bytes, move),
                absl::ResourceExhaustedError(
                    "Out of memory for a mask. Pass smaller ones."));
  }

 private:
  LayerChain chain_;
};

// What Python asks of layers, so that nothing is said of them twice.
class DescribeLayersOp : public OpKernel {
 public:
  explicit DescribeLayersOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx, &chain_));
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
    Tensor* output;
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(0, TensorShape({number}), &output));
    auto num_draws = output->vec<int32_t>();
    OP_REQUIRES_OK(ctx,
                   ctx->allocate_output(1, TensorShape({number}), &output));
    auto divided = output->vec<bool>();
    int64_t refusing = 0;
    absl::StatusOr<ImageSpec> made = spec_;
    if (absl::Status status = LayerChain::Check(spec_); !status.ok()) {
      made = status;
    }
    for (int64_t i = 0; i < number; ++i) {
      const Layer& layer = *chain_.links()[i].layer;
      num_draws(i) = layer.num_draws();
      divided(i) = layer.is_divided();
      if (!made.ok()) continue;
      made = layer.Behind(*made);
      refusing = i;
    }
    std::string problem(made.status().message());
    if (is_no_image_ && made.ok()) {
      problem = absl::StrCat("be ", kImageTypes);
      refusing = 0;
    } else if (is_no_image_) {
      // A layer that takes bytes alone. It was not told what there is.
      problem.resize(std::min(problem.size(), problem.find(", got dtype")));
    }
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({}), &output));
    output->scalar<int32_t>()() =
        TypeOf(problem.empty() ? made->pixel.type : ValueType::kUnknown);
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, TensorShape({}), &output));
    output->scalar<tstring>()() = problem;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(4, TensorShape({}), &output));
    output->scalar<int32_t>()() = static_cast<int32_t>(refusing);
    OP_REQUIRES_OK(ctx, ctx->allocate_output(5, TensorShape({}), &output));
    output->scalar<int32_t>()() = LayerChain::Version();
  }

 private:
  LayerChain chain_;
  ImageSpec spec_;
  // Of a type that no layer takes.
  bool is_no_image_ = false;
};

REFURBISH_TF_KERNEL("SeedAt", SeedAtOp);
REFURBISH_TF_KERNEL("DescribeLayers", DescribeLayersOp);
REFURBISH_TF_KERNEL("ImageDraws", DrawsOp);
REFURBISH_TF_KERNEL("ImagePixels", PixelsOp);
REFURBISH_TF_KERNEL("ImageLayers", LayersOp);
REFURBISH_TF_KERNEL("ImageMask", MaskOp);

}  // namespace
}  // namespace refurbish_tf

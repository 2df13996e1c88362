// The ops of mixup and CutMix: for a batch of images, and for its labels.
#include <algorithm>
#include <string>

#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/mixing.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/threads.h"
#include "refurbish_tf/cc/kernels/image_attributes.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/kernels/value_types.h"

namespace refurbish_tf {
namespace {

class MixImagesOp : public OpKernel {
 public:
  explicit MixImagesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mixup_alpha", &mixing_.mixup_alpha));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("cutmix_alpha", &mixing_.cutmix_alpha));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("switch_prob", &mixing_.switch_prob));
    OP_REQUIRES_OK(ctx, mixing_.Check());
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    OP_REQUIRES(
        ctx, images.dims() == 4,
        InvalidArgument("`images` must be of shape [batch, height, width, "
                        "channels], got ",
                        images.shape().DebugString(), "."));
    OP_REQUIRES_VALUE(const ImageSeed seed, ctx, ParseSeed(ctx->input(1)));
    const int64_t batch_size = images.dim_size(0);
    const ImageSize size = {images.dim_size(1), images.dim_size(2)};
    const Pixel pixel = {TypeOf(images.dtype()), images.dim_size(3)};
    Tensor *output, *lambdas_output, *partners_output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, images.shape(), &output));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({batch_size}),
                                             &lambdas_output));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({batch_size}),
                                             &partners_output));
    if (batch_size == 0) return;
    float* const lambdas = lambdas_output->flat<float>().data();
    int32_t* const partners = partners_output->flat<int32_t>().data();
    const char* const from = images.tensor_data().data();
    char* const to = const_cast<char*>(output->tensor_data().data());
    const int64_t bytes = images.TotalBytes() / batch_size;
    // Memory cannot run out here, because none is allocated.
    ForEachPart(ctx, batch_size, 3 * bytes, [&](int64_t begin, int64_t end) {
      const PixelKernels& kernels = BestKernels();
      for (int64_t i = begin; i < end; ++i) {
        const MixDraw draw = mixing_.Draw(seed, i, batch_size);
        lambdas[i] = LambdaOf(draw, size);
        partners[i] = static_cast<int32_t>(draw.partner);
        Mix(draw, size, pixel, kernels, from + i * bytes,
            from + draw.partner * bytes, to + i * bytes);
      }
    });
  }

 private:
  Mixing mixing_;
};

class MixRowsOp : public OpKernel {
 public:
  explicit MixRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("called", &called_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_classes", &num_classes_));
    DataType type;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("R", &type));
    one_hot_ = type == DT_INT64;
    OP_REQUIRES(ctx, num_classes_ > 0 || !one_hot_,
                InvalidArgument(
                    "`num_classes` must be above 0 for numbers of classes."));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(0);
    const Tensor& lambdas = ctx->input(1);
    const Tensor& partners = ctx->input(2);
    OP_REQUIRES(ctx,
                lambdas.dims() == 1 && partners.dims() == 1 &&
                    lambdas.dim_size(0) == partners.dim_size(0),
                InvalidArgument(
                    "`lambdas` and `partners` must be those of `MixImages`."));
    const int64_t batch_size = lambdas.dim_size(0);
    const auto partner = partners.vec<int32_t>();
    for (int64_t i = 0; i < batch_size; ++i) {
      OP_REQUIRES(
          ctx, partner(i) >= 0 && partner(i) < batch_size,
          InvalidArgument("`partners` must be positions in the batch of ",
                          batch_size, " images, got ", partner(i), "."));
    }
    OP_REQUIRES(
        ctx, HasRows(rows, batch_size),
        InvalidArgument(
            called_, " must be ",
            one_hot_           ? "[batch] or [batch, 1]"
            : num_classes_ > 0 ? absl::StrCat("[batch, ", num_classes_, "]")
                               : "[batch] or [batch, n]",
            " with a batch of ", batch_size, " images, got shape ",
            rows.shape().DebugString(),
            ". Batch both, and remove components of no single image."));
    TensorShape shape = rows.shape();
    if (one_hot_) {
      OP_REQUIRES_OK(ctx, TensorShape::BuildTensorShape(
                              {batch_size, num_classes_}, &shape));
    }
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;
    const auto lambda = lambdas.vec<float>();
    float* const to = output->flat<float>().data();
    const int64_t columns = output->NumElements() / batch_size;
    if (!one_hot_) {
      const float* const from = rows.flat<float>().data();
      for (int64_t i = 0; i < batch_size; ++i) {
        // A single image is its own partner, so its labels stay as they are.
        PlainKernels().mix_floats(from + i * columns,
                                  from + partner(i) * columns, columns,
                                  lambda(i), to + i * columns);
      }
      return;
    }
    const auto classes = rows.flat<int64_t>();
    for (int64_t i = 0; i < batch_size; ++i) {
      OP_REQUIRES(ctx, classes(i) >= 0 && classes(i) < num_classes_,
                  InvalidArgument(
                      called_, " must be classes from 0 to ", num_classes_ - 1,
                      " for num_classes=", num_classes_, ", got ", classes(i),
                      ". Pass the number of classes, or count them "
                      "from 0 in Dataset.map before."));
    }
    std::fill_n(to, output->NumElements(), 0.0f);
    for (int64_t i = 0; i < batch_size; ++i) {
      float* const row = to + i * columns;
      row[classes(i)] += lambda(i);
      row[classes(partner(i))] += 1 - lambda(i);
    }
  }

 private:
  bool HasRows(const Tensor& rows, int64_t batch_size) const {
    if (rows.dims() < 1 || rows.dim_size(0) != batch_size) return false;
    if (rows.dims() == 1) return one_hot_ || num_classes_ == 0;
    if (rows.dims() > 2) return false;
    const int64_t columns = rows.dim_size(1);
    return one_hot_ ? columns == 1
                    : num_classes_ == 0 || columns == num_classes_;
  }

  // The name of the rows in errors.
  std::string called_;
  int64_t num_classes_ = 0;
  bool one_hot_ = false;
};

REFURBISH_TF_KERNEL("MixImages", MixImagesOp);
REFURBISH_TF_KERNEL("MixRows", MixRowsOp);

}  // namespace
}  // namespace refurbish_tf

// The op of `decode_and_crop` and `decode`.
//
// JPEG files are decoded here: only the window that is wanted, at one of
// libjpeg's scales where it has many more pixels than the result (jpeg.h), and
// then resized. Files of other formats are decoded whole by the kernel of
// TensorFlow's `DecodeImage`, which is called here: as an op before this one it
// would decode JPEG files, too, and its errors would not say what to do.
#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/image/draws.h"
#include "refurbish_tf/cc/image/jpeg.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/resize.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/parsing.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/op_requires.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/lib/jpeg/jpeg_mem.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kNumColors = 3;

bool IsJpeg(absl::string_view file) {
  return absl::StartsWith(file, "\xff\xd8\xff");
}

// Of the others that `image_folder` lists; empty if it is none.
absl::string_view OtherFormat(absl::string_view file) {
  if (absl::StartsWith(file, "\x89PNG\r\n\x1a\n")) return "PNG";
  if (absl::StartsWith(file, "GIF8")) return "GIF";
  if (absl::StartsWith(file, "BM")) return "BMP";
  return "";
}

absl::Status FileOf(const Tensor& tensor, absl::string_view* file) {
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`file` must be a scalar, got shape ",
                     tensor.shape().DebugString(), "."));
  }
  *file = tensor.scalar<tstring>()();
  return absl::OkStatus();
}

class DecodeAndCropOp : public OpKernel {
 public:
  explicit DecodeAndCropOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx, &chain_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("resizes", &resizes_));
    OP_REQUIRES(ctx,
                chain_.layers().size() == 1 &&
                    (layer().kind == LayerKind::kRandomResizedCrop ||
                     layer().kind == LayerKind::kResize),
                absl::InvalidArgumentError(
                    "`layers` must be one random resized crop, or a resize."));
    NodeDef node;
    OP_REQUIRES_OK(ctx, tensorflow::NodeDefBuilder("decode", "DecodeImage")
                            .Input("contents", 0, DT_STRING)
                            .Attr("channels", kNumColors)
                            .Attr("dtype", tensorflow::DT_UINT8)
                            .Attr("expand_animations", false)
                            .Finalize(&node));
    absl::Status status;
    others_ = tensorflow::CreateOpKernel(tensorflow::DEVICE_CPU, ctx->device(),
                                         ctx->device()->GetAllocator({}), node,
                                         ctx->graph_def_version(), &status);
    OP_REQUIRES_OK(ctx, status);
  }

  void Compute(OpKernelContext* ctx) override {
    absl::string_view file;
    OP_REQUIRES_OK(ctx, FileOf(ctx->input(0), &file));
    std::optional<ImageSeed> seed;
    OP_REQUIRES_OK(ctx, ParseSeed(ctx->input(1), &seed));
    std::vector<int32_t> draws(chain_.num_draws());
    Draw(chain_, *seed, draws.data());
    try {
      OP_REQUIRES_OK(ctx, IsJpeg(file) ? MakeOfJpeg(ctx, file, draws.data())
                                       : MakeOfOther(ctx, file, draws.data()));
    } catch (const std::bad_alloc&) {
      OP_REQUIRES_OK(ctx, absl::ResourceExhaustedError(absl::StrCat(
                              "Out of memory for the file of ", whose(), ".")));
    }
  }

 private:
  const Layer& layer() const { return chain_.layers()[0]; }
  absl::string_view whose() const {
    return layer().kind == LayerKind::kResize ? "decode" : "decode_and_crop";
  }
  ImageSize size() const { return {layer().height, layer().width}; }

  absl::Status MakeOfJpeg(OpKernelContext* ctx, absl::string_view file,
                          const int32_t* draws) const {
    const std::optional<JpegHeader> header = ReadJpegHeader(file);
    if (!header.has_value() || file.size() > std::numeric_limits<int>::max()) {
      return Damaged(file);
    }
    // What `tf.io` takes, too, and at every scale.
    if (header->size.height * header->size.width * header->components >=
        1 << 29) {
      return absl::InvalidArgumentError(
          absl::StrCat("file of ", whose(),
                       " must have fewer than 2^29 values, got a JPEG "
                       "file of ",
                       header->size.height, " x ", header->size.width,
                       " pixels and ", header->components, " channels."));
    }
    const Box box = ResizedCropBox(layer(), draws, header->size);
    const ScaledPart part =
        resizes_ ? ScaledPartOf(box, size()) : ScaledPart{1, box, {}};
    tensorflow::jpeg::UncompressFlags flags;
    flags.components = kNumColors;
    flags.dct_method = JDCT_IFAST;  // As `tf.io` by default.
    flags.ratio = part.ratio;
    flags.crop = true;
    flags.crop_y = static_cast<int>(part.box.y);
    flags.crop_x = static_cast<int>(part.box.x);
    flags.crop_height = static_cast<int>(part.box.height);
    flags.crop_width = static_cast<int>(part.box.width);
    Tensor decoded;
    absl::Status allocated;
    const uint8_t* const pixels = tensorflow::jpeg::Uncompress(
        file.data(), static_cast<int>(file.size()), flags, nullptr,
        [&](int width, int height, int channels) -> uint8_t* {
          const TensorShape shape({height, width, channels});
          if (resizes_) {
            allocated =
                ctx->allocate_temp(tensorflow::DT_UINT8, shape, &decoded);
          } else {
            Tensor* output;
            allocated = ctx->allocate_output(0, shape, &output);
            if (allocated.ok()) decoded = *output;
          }
          return allocated.ok() ? decoded.flat<uint8_t>().data() : nullptr;
        });
    if (!allocated.ok()) return allocated;
    if (pixels == nullptr) return Damaged(file);
    if (!resizes_) return absl::OkStatus();
    return Resize(ctx, pixels, part.box.width,
                  {0, 0, part.box.height, part.box.width}, part.window);
  }

  absl::Status Damaged(absl::string_view file) const {
    return absl::InvalidArgumentError(
        absl::StrCat("file of ", whose(),
                     " must be a whole JPEG file, got a damaged one of ",
                     file.size(), " bytes. Leave it out, or mend it."));
  }

  absl::Status MakeOfOther(OpKernelContext* ctx, absl::string_view file,
                           const int32_t* draws) const {
    const absl::string_view format = OtherFormat(file);
    if (format.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must be a JPEG, PNG, GIF or BMP file, got ",
          file.size(), " bytes that begin with '",
          absl::CHexEscape(file.substr(0, 8)),
          "'. Leave out what is no image, and decode other formats by a "
          "function of your own."));
    }
    Tensor decoded;
    if (absl::Status status = DecodeOther(ctx, &decoded); !status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("file of ", whose(), " must be a whole ", format,
                       " file, got one of ", file.size(),
                       " bytes that TensorFlow cannot decode (",
                       status.message(), "). Leave it out, or mend it."));
    }
    if (decoded.dims() != 3 || decoded.dim_size(2) != kNumColors ||
        decoded.NumElements() == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must have pixels, got an image of shape ",
          decoded.shape().DebugString(), "."));
    }
    const int64_t width = decoded.dim_size(1);
    const Box box =
        ResizedCropBox(layer(), draws, {decoded.dim_size(0), width});
    const uint8_t* const pixels = decoded.flat<uint8_t>().data();
    if (resizes_) {
      return Resize(ctx, pixels, width, box,
                    {0, 0, static_cast<double>(box.height),
                     static_cast<double>(box.width)});
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({box.height, box.width, kNumColors}), &output));
    uint8_t* to = output->flat<uint8_t>().data();
    for (int64_t row = 0; row < box.height; ++row) {
      std::copy_n(pixels + ((box.y + row) * width + box.x) * kNumColors,
                  box.width * kNumColors, to);
      to += box.width * kNumColors;
    }
    return absl::OkStatus();
  }

  absl::Status DecodeOther(OpKernelContext* ctx, Tensor* decoded) const {
    Tensor file = ctx->input(0);
    const tensorflow::TensorValue input(&file);
    const tensorflow::AllocatorAttributes attributes;
    OpKernelContext::Params params;
    params.op_kernel = others_.get();
    params.device = ctx->device();
    params.inputs = absl::MakeConstSpan(&input, 1);
    params.output_attr_array = &attributes;
    OpKernelContext called(&params);
    others_->Compute(&called);
    if (called.status().ok()) *decoded = *called.mutable_output(0);
    return called.status();
  }

  absl::Status Resize(OpKernelContext* ctx, const uint8_t* image, int64_t width,
                      const Box& box, const ResizeWindow& window) const {
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({size().height, size().width, kNumColors}), &output));
    Resizer(image, width, kNumColors, box, window, size(), layer().antialias,
            BestKernels())
        .Rows(0, size().height, output->flat<uint8_t>().data());
    return absl::OkStatus();
  }

  LayerChain chain_;
  bool resizes_ = false;
  std::unique_ptr<OpKernel> others_;
};

REFURBISH_TF_KERNEL("DecodeAndCrop", DecodeAndCropOp);

}  // namespace
}  // namespace refurbish_tf

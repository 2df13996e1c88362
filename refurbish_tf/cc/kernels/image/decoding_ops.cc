// The op of `decode_and_crop` and `decode`.
//
// JPEG files are decoded here: only the window that is wanted, at one of
// libjpeg's scales where it has many more pixels than the result (jpeg.h), and
// then resized. Files of other formats are decoded whole by the kernel of
// TensorFlow's `DecodeImage`, which is called here: as an op before this one it
// would decode JPEG files, too, and its errors would not say what to do.
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/image/draws.h"
#include "refurbish_tf/cc/image/image_file.h"
#include "refurbish_tf/cc/image/jpeg.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/orientation.h"
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
    OP_REQUIRES_OK(ctx, ctx->GetAttr("apply_exif_orientation",
                                     &applies_exif_orientation_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_pixels", &max_pixels_));
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
    const ImageFile read = ReadImageFile(file);
    OP_REQUIRES_OK(ctx, Check(file, read));
    try {
      OP_REQUIRES_OK(ctx, read.format == "JPEG"
                              ? MakeOfJpeg(ctx, file, read, draws.data())
                              : MakeOfOther(ctx, file, read, draws.data()));
    } catch (const std::bad_alloc&) {
      OP_REQUIRES_OK(ctx, absl::ResourceExhaustedError(absl::StrCat(
                              "Out of memory for the file of ", whose(), ".")));
    }
  }

 private:
  // Pixels in memory, and the part of them that is wanted.
  struct Part {
    const uint8_t* pixels;
    // Of the rows in memory.
    ImageSize size;
    Box box;
    ResizeWindow window;
  };

  const Layer& layer() const { return chain_.layers()[0]; }
  absl::string_view whose() const {
    return layer().kind == LayerKind::kResize ? "decode" : "decode_and_crop";
  }
  ImageSize size() const { return {layer().height, layer().width}; }
  Orientation OrientationOf(const ImageFile& read) const {
    return Orientation(applies_exif_orientation_ ? read.orientation : 1);
  }

  // Of what the file says of itself, before anything is allocated.
  absl::Status Check(absl::string_view file, const ImageFile& read) const {
    if (read.format.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must be a JPEG, PNG, GIF, BMP or WebP file, ",
          "got ", file.size(), " bytes that begin with '",
          absl::CHexEscape(file.substr(0, 8)),
          "'. Leave out what is no image, and decode other formats by a "
          "function of your own."));
    }
    const auto claimed = [&] {
      return absl::StrCat("a ", read.format, " file of ", file.size(),
                          " bytes and ", read.size.height, " x ",
                          read.size.width, " pixels");
    };
    // A product of two sides of 32 bits each may not fit into 64.
    if (read.size.height > 0 &&
        read.size.width > max_pixels_ / read.size.height) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must have at most max_pixels=", max_pixels_,
          " pixels, got ", claimed(),
          ". Leave it out, or pass a larger max_pixels if it is whole."));
    }
    // What `tf.io` takes, too, and at every scale.
    if (read.size.height * read.size.width * read.components >= 1 << 29) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must have fewer than 2^29 values, got ",
          claimed(), " with ", read.components,
          " channels. Leave it out, or make it smaller before."));
    }
    if (read.bits > 8) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file of ", whose(), " must have 8 bits a value, got ", claimed(),
          " with ", read.bits,
          " bits, of which only the upper 8 would be left. Decode it with "
          "tf.io.decode_png(file, dtype=tf.uint16), or convert it to 8 bits "
          "in a function of your own."));
    }
    return absl::OkStatus();
  }

  absl::Status MakeOfJpeg(OpKernelContext* ctx, absl::string_view file,
                          const ImageFile& read, const int32_t* draws) const {
    if (read.size.height == 0 ||
        file.size() > std::numeric_limits<int>::max()) {
      return Damaged(file);
    }
    const Orientation orientation = OrientationOf(read);
    const Box box = orientation.StoredBox(
        ResizedCropBox(layer(), draws, orientation.Turned(read.size)),
        read.size);
    ScaledPart part = {1, box, WholeOf({box.height, box.width})};
    if (resizes_) part = ScaledPartOf(box, orientation.Turned(size()));
    tensorflow::jpeg::UncompressFlags flags;
    flags.components = kNumColors;
    flags.dct_method = JDCT_IFAST;  // As `tf.io` by default.
    flags.ratio = part.ratio;
    flags.crop = true;
    flags.crop_y = static_cast<int>(part.box.y);
    flags.crop_x = static_cast<int>(part.box.x);
    flags.crop_height = static_cast<int>(part.box.height);
    flags.crop_width = static_cast<int>(part.box.width);
    // What is decoded is the result itself, if nothing is done to it.
    const bool is_made = !resizes_ && orientation.changes_nothing();
    Tensor decoded;
    absl::Status allocated;
    const uint8_t* const pixels = tensorflow::jpeg::Uncompress(
        file.data(), static_cast<int>(file.size()), flags, nullptr,
        [&](int width, int height, int channels) -> uint8_t* {
          const TensorShape shape({height, width, channels});
          if (is_made) {
            Tensor* output;
            allocated = ctx->allocate_output(0, shape, &output);
            if (allocated.ok()) decoded = *output;
          } else {
            allocated =
                ctx->allocate_temp(tensorflow::DT_UINT8, shape, &decoded);
          }
          return allocated.ok() ? decoded.flat<uint8_t>().data() : nullptr;
        });
    if (!allocated.ok()) return allocated;
    if (pixels == nullptr) return Damaged(file);
    if (is_made) return absl::OkStatus();
    const ImageSize in_memory = {part.box.height, part.box.width};
    return Complete(ctx, orientation,
                    {pixels, in_memory, AllOf(in_memory), part.window});
  }

  absl::Status Damaged(absl::string_view file) const {
    return absl::InvalidArgumentError(
        absl::StrCat("file of ", whose(),
                     " must be a whole JPEG file, got a damaged one of ",
                     file.size(), " bytes. Leave it out, or mend it."));
  }

  absl::Status MakeOfOther(OpKernelContext* ctx, absl::string_view file,
                           const ImageFile& read, const int32_t* draws) const {
    Tensor decoded;
    if (absl::Status status = DecodeOther(ctx, &decoded); !status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat("file of ", whose(), " must be a whole ", read.format,
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
    const Orientation orientation = OrientationOf(read);
    const ImageSize stored = {decoded.dim_size(0), decoded.dim_size(1)};
    const Box box = orientation.StoredBox(
        ResizedCropBox(layer(), draws, orientation.Turned(stored)), stored);
    return Complete(ctx, orientation,
                    {decoded.flat<uint8_t>().data(), stored, box,
                     WholeOf({box.height, box.width})});
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

  // Turns the part to how it stands, and resizes it if that is wanted.
  absl::Status Complete(OpKernelContext* ctx, const Orientation& orientation,
                        Part part) const {
    const ImageSize stored = {part.box.height, part.box.width};
    const ImageSize standing = orientation.Turned(stored);
    const ImageSize made = resizes_ ? size() : standing;
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({made.height, made.width, kNumColors}), &output));
    uint8_t* const to = output->flat<uint8_t>().data();
    const bool turns = !resizes_ || !orientation.changes_nothing();
    Tensor turned;
    if (turns) {
      uint8_t* turned_to = to;
      if (resizes_) {
        TF_RETURN_IF_ERROR(ctx->allocate_temp(
            tensorflow::DT_UINT8,
            TensorShape({standing.height, standing.width, kNumColors}),
            &turned));
        turned_to = turned.flat<uint8_t>().data();
      }
      const int64_t stride = part.size.width * kNumColors;
      orientation.Turn(
          part.pixels + part.box.y * stride + part.box.x * kNumColors, stored,
          stride, kNumColors, turned_to);
      part = {turned_to, standing, AllOf(standing),
              orientation.StandingWindow(part.window, stored)};
    }
    if (!resizes_) return absl::OkStatus();
    Resizer(part.pixels, part.size.width, kNumColors, part.box, part.window,
            size(), layer().antialias, BestKernels())
        .Rows(0, size().height, to);
    return absl::OkStatus();
  }

  static Box AllOf(ImageSize size) { return {0, 0, size.height, size.width}; }
  static ResizeWindow WholeOf(ImageSize size) {
    return {0, 0, static_cast<double>(size.height),
            static_cast<double>(size.width)};
  }

  LayerChain chain_;
  bool resizes_ = false, applies_exif_orientation_ = false;
  int64_t max_pixels_ = 0;
  std::unique_ptr<OpKernel> others_;
};

REFURBISH_TF_KERNEL("DecodeAndCrop", DecodeAndCropOp);

}  // namespace
}  // namespace refurbish_tf

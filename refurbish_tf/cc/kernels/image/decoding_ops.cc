// The op of `decode_random_resized_crop` and `decode`: it decodes only a window
// of a JPEG file; TensorFlow's `DecodeImage` decodes other files whole.
#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/image/image_file.h"
#include "refurbish_tf/cc/image/image_seed.h"
#include "refurbish_tf/cc/image/jpeg.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/orientation.h"
#include "refurbish_tf/cc/image/resize.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/clip_memory.h"
#include "refurbish_tf/cc/kernels/image/targets.h"
#include "refurbish_tf/cc/kernels/image_attributes.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/node_def_builder.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/lib/jpeg/jpeg_mem.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kNumColors = 3;

class DecodeResizedOp : public OpKernel {
 public:
  explicit DecodeResizedOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ParseLayers(ctx->def(), &chain_));
    OP_REQUIRES_OK(ctx, targets_.Parse(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("resizes", &resizes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("apply_exif_orientation",
                                     &applies_exif_orientation_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_pixels", &max_pixels_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &type_));
    const std::vector<int32_t> draws(chain_.num_draws());
    OP_REQUIRES(ctx,
                chain_.links().size() == 1 &&
                    layer().ResizingOf(draws.data(), {1, 1}).has_value(),
                InvalidArgument(
                    "`layers` must be one random resized crop or a resize."));
    OP_REQUIRES_OK(ctx, MakeDecoder(ctx, type_, kNumColors, &others_));
    OP_REQUIRES_OK(ctx, MakeDecoder(ctx, tensorflow::DT_UINT8, kNumColors + 1,
                                    &with_alpha_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& files = ctx->input(0);
    OP_REQUIRES(ctx, files.dims() <= 1 && files.NumElements() > 0,
                Refused("must be a single file, of shape [], or a file for "
                        "each frame of a clip, got shape ",
                        files.shape().DebugString(),
                        ". Leave out clips without frames with "
                        "Dataset.filter."));
    OP_REQUIRES_VALUE(const ImageSeed seed, ctx, ParseSeed(ctx->input(1)));
    std::vector<int32_t> draws(chain_.num_draws());
    chain_.Draw(seed, draws.data());
    ClipMemory memory(ctx, files, pixel());
    const auto file = files.flat<tstring>();
    for (int64_t i = 0; i < file.size(); ++i) {
      const absl::Status status =
          MakeFrame(ctx, file(i), i, draws.data(), &memory);
      OP_REQUIRES(
          ctx, status.ok(),
          files.dims() == 0
              ? status
              : absl::Status(
                    status.code(),
                    absl::StrCat(status.message(), " It is file number ", i,
                                 " of ", file.size(),
                                 " in its clip, counted from 0.")));
    }
    if (targets_.empty()) return;
    ImageBatch images{{},
                      1,
                      file.size(),
                      memory.standing(),
                      memory.made(),
                      {},
                      &chain_,
                      draws.data(),
                      pixel()};
    if (files.dims() == 1) images.lead = {file.size()};
    images.apply = [&](int64_t /*draw*/, Canvas* canvas) {
      Move(draws.data(), canvas);
    };
    OP_REQUIRES_OK(ctx, targets_.Move(ctx, 2, 1, images));
  }

 private:
  static absl::Status MakeDecoder(OpKernelConstruction* ctx, DataType type,
                                  int64_t channels,
                                  std::unique_ptr<OpKernel>* made) {
    NodeDef node;
    TF_RETURN_IF_ERROR(tensorflow::NodeDefBuilder("decode", "DecodeImage")
                           .Input("contents", 0, DT_STRING)
                           .Attr("channels", channels)
                           .Attr("dtype", type)
                           .Attr("expand_animations", false)
                           .Finalize(&node));
    absl::Status status;
    *made = tensorflow::CreateOpKernel(tensorflow::DEVICE_CPU, ctx->device(),
                                       ctx->device()->GetAllocator({}), node,
                                       ctx->graph_def_version(), &status);
    return status;
  }

  // Pixels in memory. Only `box` is used or, if resized, `window` within it.
  struct Part {
    const uint8_t* pixels;
    ImageSize size;
    Box box;
    ResizeWindow window;
  };

  const Layer& layer() const { return *chain_.links()[0].layer; }
  absl::string_view whose() const {
    return chain_.num_draws() == 0 ? "decode" : "decode_random_resized_crop";
  }
  template <class... Parts>
  absl::Status Refused(const Parts&... parts) const {
    return InvalidArgument("file of ", whose(), " ", parts...);
  }
  Pixel pixel() const {
    return {
        type_ == tensorflow::DT_UINT16 ? ValueType::kUint16 : ValueType::kUint8,
        kNumColors};
  }
  // The layer's resizing of an image that is stored with size `stored`. The
  // layer sees the image upright; `part` is converted to the stored image.
  Resizing ResizingOf(const int32_t* draws, const Orientation& orientation,
                      ImageSize stored) const {
    Resizing resizing = *layer().ResizingOf(draws, orientation.Turned(stored));
    resizing.part = orientation.StoredBox(resizing.part, stored);
    return resizing;
  }
  Orientation OrientationOf(const ImageFile& read) const {
    return Orientation(applies_exif_orientation_ ? read.orientation : 1);
  }

  absl::Status MakeFrame(OpKernelContext* ctx, absl::string_view file,
                         int64_t frame, const int32_t* draws,
                         ClipMemory* memory) const {
    const ImageFile read = ReadImageFile(file);
    TF_RETURN_IF_ERROR(Check(file, read));
    try {
      return read.format == "JPEG"
                 ? MakeOfJpeg(ctx, file, read, frame, draws, memory)
                 : MakeOfOther(ctx, file, read, frame, draws, memory);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("Out of memory for the file of ", whose(), ".");
    }
  }

  // Moves a target, whose canvas has the size of the upright image.
  void Move(const int32_t* draws, Canvas* canvas) const {
    const ImageSize size = canvas->size();
    const Resizing resizing = *layer().ResizingOf(draws, size);
    const Box& part = resizing.part;
    const ImageSize made =
        resizes_ ? resizing.padded : ImageSize{part.height, part.width};
    if (ImageSize{part.height, part.width} == size && made == size) return;
    if (resizes_) return layer().Apply(draws, canvas);
    canvas->Resize(part, made, resizing.antialias);
  }

  // Begins a frame of `memory`. `standing`: the size of its upright image.
  absl::Status Begin(int64_t frame, ImageSize standing,
                     ClipMemory* memory) const {
    absl::Status status = memory->Begin(frame, standing);
    if (status.ok() && resizes_) {
      status = layer().Behind({standing, pixel()}).status();
    }
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("file of ", whose(), " must ", status.message(), "."));
  }

  // Checks what the file's header claims, before anything is allocated.
  absl::Status Check(absl::string_view file, const ImageFile& read) const {
    if (read.format.empty()) {
      const bool is_text =
          !file.empty() && std::all_of(file.begin(), file.end(), [](char each) {
            return static_cast<unsigned char>(each) >= ' ';
          });
      return Refused(
          "must be a JPEG, PNG, GIF, BMP or WebP file, got ", file.size(),
          " bytes that begin with '", absl::CHexEscape(file.substr(0, 12)),
          is_text ? "'. If this is a path, first read its file with "
                    "tf.io.read_file. Leave out files that are not images."
                  : "'. Leave out files that are not images, convert HEIC and "
                    "AVIF files to JPEG, and decode other formats with your "
                    "own function.");
    }
    if (!read.unknown.empty()) {
      return Refused(
          "must be a BMP file of 8, 24 or 32 bits per pixel, not compressed, "
          "got one with ",
          read.unknown, ". Convert it to PNG.");
    }
    const auto claimed = [&] {
      return absl::StrCat("a ", read.format, " file of ", file.size(),
                          " bytes and ", read.size, " pixels");
    };
    // Divides, because the product of two sides of 32 bits may overflow.
    if (read.size.height > 0 &&
        read.size.width > max_pixels_ / read.size.height) {
      return Refused(
          "must have at most max_pixels=", max_pixels_, " pixels, got ",
          claimed(),
          ". Leave it out, or pass a larger max_pixels if it is intact.");
    }
    // The limit of `tf.io`, applied to the size before scaling down.
    if (read.size.height * read.size.width * read.components >= 1 << 29) {
      return Refused("must have fewer than 2^29 values, got ", claimed(),
                     " with ", read.components,
                     " channels. Leave it out, or make it smaller first.");
    }
    if ((read.bits > 8) != (type_ == tensorflow::DT_UINT16)) {
      return Refused(
          "must have ", read.bits > 8 ? 8 : 16, " bits per value for dtype=tf.",
          DataTypeString(type_), ", got ", claimed(), " with ", read.bits,
          read.bits > 8
              ? " bits, half of which would be lost. Pass dtype=tf.uint16, or "
                "convert the file to 8 bits."
              : " bits. Leave dtype out, and keep files of 8 and of 16 bits in "
                "separate datasets.");
    }
    return absl::OkStatus();
  }

  absl::Status MakeOfJpeg(OpKernelContext* ctx, absl::string_view file,
                          const ImageFile& read, int64_t frame,
                          const int32_t* draws, ClipMemory* memory) const {
    if (read.size.height == 0 ||
        file.size() > std::numeric_limits<int>::max()) {
      return Damaged(file);
    }
    const Orientation orientation = OrientationOf(read);
    TF_RETURN_IF_ERROR(Begin(frame, orientation.Turned(read.size), memory));
    const Resizing resizing = ResizingOf(draws, orientation, read.size);
    const Box& box = resizing.part;
    ScaledPart part = {1, box, WholeOf(box)};
    if (resizes_) part = ScaledPartOf(box, orientation.Turned(resizing.size));
    // One more column on each side is decoded, because the colors of the
    // outermost columns also depend on their neighbors.
    const int64_t width = (read.size.width + part.ratio - 1) / part.ratio;
    const int64_t left = std::max<int64_t>(part.box.x - 1, 0);
    const int64_t right = std::min(part.box.x + part.box.width + 1, width);
    const Box within = {0, part.box.x - left, part.box.height, part.box.width};
    tensorflow::jpeg::UncompressFlags flags;
    flags.components = kNumColors;
    // Pillow's method. If decoded pixels ever change, raise `DECODERS_VERSION`.
    flags.dct_method = JDCT_ISLOW;
    flags.ratio = part.ratio;
    flags.crop = true;
    flags.crop_y = static_cast<int>(part.box.y);
    flags.crop_x = static_cast<int>(left);
    flags.crop_height = static_cast<int>(part.box.height);
    flags.crop_width = static_cast<int>(right - left);
    // If nothing is done to the decoded pixels, they go into the output.
    const bool is_made = !resizes_ && orientation.changes_nothing() &&
                         right - left == part.box.width;
    Tensor decoded;
    absl::Status allocated;
    const uint8_t* const pixels = tensorflow::jpeg::Uncompress(
        file.data(), static_cast<int>(file.size()), flags, nullptr,
        [&](int width, int height, int channels) -> uint8_t* {
          uint8_t* made = nullptr;
          if (is_made) {
            allocated = memory->Allocate({height, width}, &made);
          } else {
            allocated = ctx->allocate_temp(
                tensorflow::DT_UINT8, TensorShape({height, width, channels}),
                &decoded);
            if (allocated.ok()) made = decoded.flat<uint8_t>().data();
          }
          return made;
        });
    if (!allocated.ok()) return allocated;
    if (pixels == nullptr) return Damaged(file);
    if (is_made) return absl::OkStatus();
    return Complete(
        ctx, orientation, resizing,
        {pixels, {part.box.height, right - left}, within, part.window}, memory);
  }

  absl::Status Damaged(absl::string_view file) const {
    return Refused("must be an intact JPEG file, got a damaged one of ",
                   file.size(), " bytes. Leave it out, or repair it.");
  }

  absl::Status MakeOfOther(OpKernelContext* ctx, absl::string_view file,
                           const ImageFile& read, int64_t frame,
                           const int32_t* draws, ClipMemory* memory) const {
    static const bool decodes_webp =
        tensorflow::OpRegistry::Global()->LookUp("DecodeWebP") != nullptr;
    if (read.format == "WebP" && !decodes_webp) {
      return Refused(
          "is a WebP file, which this TensorFlow cannot decode. Install "
          "TensorFlow 2.20 or newer, or convert the file to PNG.");
    }
    Tensor decoded;
    if (absl::Status status = DecodeOther(ctx, file, read, &decoded);
        !status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat(
              "file of ", whose(), " must be an intact ", read.format,
              " file, got one of ", file.size(),
              " bytes that TensorFlow cannot decode (", status.message(),
              "). Leave it out, repair it, or convert an animation to a still "
              "image."));
    }
    if (decoded.dims() != 3 || decoded.dim_size(2) != kNumColors ||
        decoded.NumElements() == 0) {
      return Refused("must have pixels, got an image of shape ",
                     decoded.shape().DebugString(), ".");
    }
    const Orientation orientation = OrientationOf(read);
    const ImageSize stored = {decoded.dim_size(0), decoded.dim_size(1)};
    TF_RETURN_IF_ERROR(Begin(frame, orientation.Turned(stored), memory));
    const Resizing resizing = ResizingOf(draws, orientation, stored);
    const Box& box = resizing.part;
    return Complete(ctx, orientation, resizing,
                    {BytesIn(decoded), stored, box, WholeOf(box)}, memory);
  }

  absl::Status DecodeOther(OpKernelContext* ctx, absl::string_view file,
                           const ImageFile& read, Tensor* decoded) const {
    // Only the first picture of a GIF file is decoded: TensorFlow would decode
    // and hold all of them, and make transparent pixels black.
    tstring bytes;
    if (read.format == "GIF") {
      bytes = FirstPicture(file, read);
    } else {
      bytes.assign_as_view(file.data(), file.size());
    }
    Tensor given(bytes);
    absl::Status status = Decode(ctx, *others_, &given, decoded);
    if (status.ok() && read.format == "GIF") {
      return PutOnScreen(ctx, file, read, decoded);
    }
    if (status.ok() && read.palette > 0) ApplyPalette(file, read, decoded);
    if (status.ok() || read.format != "WebP") return status;
    // TensorFlow decodes a WebP file only with as many channels as it has, so
    // four are tried after three. TensorFlow must not choose the number: for an
    // animation without alpha it would write four into an image of three.
    if (!Decode(ctx, *with_alpha_, &given, decoded).ok()) return status;
    return DropAlpha(ctx, decoded);
  }

  static absl::Status Decode(OpKernelContext* ctx, OpKernel& decoder,
                             Tensor* file, Tensor* decoded) {
    const tensorflow::TensorValue input(file);
    const tensorflow::AllocatorAttributes attributes;
    OpKernelContext::Params params;
    params.op_kernel = &decoder;
    params.device = ctx->device();
    params.inputs = absl::MakeConstSpan(&input, 1);
    params.output_attr_array = &attributes;
    OpKernelContext called(&params);
    decoder.Compute(&called);
    if (called.status().ok()) *decoded = *called.mutable_output(0);
    return called.status();
  }

  // Puts the picture of a GIF file in its place on the GIF's screen.
  static absl::Status PutOnScreen(OpKernelContext* ctx, absl::string_view file,
                                  const ImageFile& read, Tensor* image) {
    const Box& box = read.picture;
    if (image->shape() != TensorShape({box.height, box.width, kNumColors})) {
      return InvalidArgument("its picture has a different size");
    }
    if (ImageSize{box.height, box.width} == read.size) return absl::OkStatus();
    Tensor screen;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(
        tensorflow::DT_UINT8,
        TensorShape({read.size.height, read.size.width, kNumColors}), &screen));
    const auto color = ColorAround(file, read);
    uint8_t* to = BytesIn(screen);
    for (int64_t i = 0; i < screen.NumElements(); i += kNumColors) {
      std::copy_n(color.data(), kNumColors, to + i);
    }
    const int64_t bytes = box.width * kNumColors;
    for (int64_t y = 0; y < box.height; ++y) {
      std::copy_n(BytesIn(*image) + y * bytes, bytes,
                  to + ((box.y + y) * read.size.width + box.x) * kNumColors);
    }
    *image = screen;
    return absl::OkStatus();
  }

  // Replaces palette indices, which TensorFlow decodes as grey levels.
  static void ApplyPalette(absl::string_view file, const ImageFile& read,
                           Tensor* image) {
    uint8_t* pixel = BytesIn(*image);
    for (int64_t i = 0; i < image->NumElements(); i += kNumColors) {
      const auto color = ColorOf(file, read, pixel[i]);
      std::copy_n(color.data(), kNumColors, pixel + i);
    }
  }

  static absl::Status DropAlpha(OpKernelContext* ctx, Tensor* image) {
    TensorShape shape = image->shape();
    shape.set_dim(2, kNumColors);
    Tensor made;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensorflow::DT_UINT8, shape, &made));
    const auto values = image->flat<uint8_t>();
    uint8_t* to = made.flat<uint8_t>().data();
    for (int64_t i = 0; i < values.size(); i += kNumColors + 1) {
      to = std::copy_n(&values(i), kNumColors, to);
    }
    *image = made;
    return absl::OkStatus();
  }

  // Writes the part into `memory`: upright, and resized if `resizes_`.
  absl::Status Complete(OpKernelContext* ctx, const Orientation& orientation,
                        const Resizing& resizing, Part part,
                        ClipMemory* memory) const {
    const ImageSize stored = {part.box.height, part.box.width};
    const ImageSize standing = orientation.Turned(stored);
    uint8_t* output;
    TF_RETURN_IF_ERROR(
        memory->Allocate(resizes_ ? resizing.padded : standing, &output));
    const bool turns = !resizes_ || !orientation.changes_nothing();
    Tensor turned;
    if (turns) {
      uint8_t* to = output;
      if (resizes_) {
        TF_RETURN_IF_ERROR(ctx->allocate_temp(
            type_, TensorShape({standing.height, standing.width, kNumColors}),
            &turned));
        to = BytesIn(turned);
      }
      const int64_t stride = part.size.width * pixel().bytes();
      orientation.Turn(
          part.pixels + part.box.y * stride + part.box.x * pixel().bytes(),
          stored, stride, pixel().bytes(), to);
      part = {to, standing, AllOf(standing),
              orientation.StandingWindow(part.window, stored)};
    }
    if (!resizes_) return absl::OkStatus();
    Tensor resized;
    uint8_t* to = output;
    if (resizing.pads()) {
      TF_RETURN_IF_ERROR(ctx->allocate_temp(
          type_,
          TensorShape({resizing.size.height, resizing.size.width, kNumColors}),
          &resized));
      to = BytesIn(resized);
    }
    MakeResizer({part.pixels, part.size.width, pixel()}, part.box, part.window,
                resizing.size, resizing.antialias, BestKernels())
        ->Rows(0, resizing.size.height, to);
    if (!resizing.pads()) return absl::OkStatus();
    const int64_t stride = resizing.padded.width * pixel().bytes();
    const Box place = resizing.place();
    std::fill_n(output, resizing.padded.height * stride, resizing.color[0]);
    for (int64_t y = 0; y < place.height; ++y) {
      std::copy_n(to + y * place.width * pixel().bytes(),
                  place.width * pixel().bytes(),
                  output + (place.y + y) * stride + place.x * pixel().bytes());
    }
    return absl::OkStatus();
  }

  static uint8_t* BytesIn(const Tensor& tensor) {
    return static_cast<uint8_t*>(tensor.data());
  }
  static Box AllOf(ImageSize size) { return {0, 0, size.height, size.width}; }

  LayerChain chain_;
  Targets targets_;
  bool resizes_ = false, applies_exif_orientation_ = false;
  int64_t max_pixels_ = 0;
  DataType type_ = tensorflow::DT_UINT8;
  std::unique_ptr<OpKernel> others_, with_alpha_;
};

REFURBISH_TF_KERNEL("DecodeResized", DecodeResizedOp);

}  // namespace
}  // namespace refurbish_tf

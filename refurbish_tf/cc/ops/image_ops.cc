// The ops of `rtf.augment`'s native layers: signatures and shapes.
#include <string>
#include <vector>

#include "refurbish_tf/cc/image/layer_chain.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/statusor.h"

namespace refurbish_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::StatusOr<LayerChain> ChainOf(InferenceContext* c) {
  std::vector<std::string> texts;
  TF_RETURN_IF_ERROR(c->GetAttr("layers", &texts));
  return LayerChain::Parse(texts);
}

absl::Status SeedIsPair(InferenceContext* c, int input) {
  ShapeHandle seed;
  return c->Merge(c->input(input), c->Vector(2), &seed);
}

absl::Status SeedAtShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(SeedIsPair(c, 0));
  ShapeHandle index, seeds;
  TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(1), 1, &index));
  TF_RETURN_IF_ERROR(c->Concatenate(index, c->Vector(2), &seeds));
  c->set_output(0, seeds);
  return absl::OkStatus();
}

absl::Status DrawsShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(SeedIsPair(c, 0));
  TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
  if (c->num_inputs() == 1) {
    c->set_output(0, c->Vector(chain.num_draws()));
    return absl::OkStatus();
  }
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
  DimensionHandle batch_size;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &batch_size));
  c->set_output(0, c->Matrix(batch_size, chain.num_draws()));
  return absl::OkStatus();
}

// Sets the shape that the layers return for `images`: rank 3, 4 or unknown. The
// kernel looks at their type.
absl::Status MadeShape(InferenceContext* c, const LayerChain& chain,
                       ShapeHandle images) {
  if (!c->RankKnown(images)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(images, 3, &images));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(images, 4, &images));
  const int dims = c->Rank(images);
  const ImageSpec given = {
      {c->Value(c->Dim(images, dims - 3)), c->Value(c->Dim(images, dims - 2))},
      {ValueType::kUnknown, c->Value(c->Dim(images, dims - 1))}};
  TF_ASSIGN_OR_RETURN(const ImageSpec made, chain.Behind(given));
  // A dimension that the layers keep stays the same object, also if unknown.
  const auto replace = [&](int dim, int64_t from, int64_t to) {
    return from == to ? absl::OkStatus()
                      : c->ReplaceDim(images, dim, c->MakeDim(to), &images);
  };
  TF_RETURN_IF_ERROR(replace(dims - 3, given.size.height, made.size.height));
  TF_RETURN_IF_ERROR(replace(dims - 2, given.size.width, made.size.width));
  TF_RETURN_IF_ERROR(
      replace(dims - 1, given.pixel.channels, made.pixel.channels));
  c->set_output(0, images);
  return absl::OkStatus();
}

absl::Status PixelsShape(InferenceContext* c) {
  TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
  ShapeHandle images = c->input(0);
  if (chain.num_draws() == 0) return MadeShape(c, chain, images);
  if (!c->RankKnown(images) && c->RankKnown(c->input(1))) {
    images = c->UnknownShapeOfRank(c->Rank(c->input(1)) + 2);
  }
  if (c->RankKnown(images)) {
    ShapeHandle draws = c->Vector(chain.num_draws());
    const bool batch = c->Rank(images) == 4;
    if (batch) draws = c->Matrix(c->Dim(images, 0), chain.num_draws());
    TF_RETURN_IF_ERROR(c->Merge(c->input(1), draws, &draws));
    if (batch) {
      TF_RETURN_IF_ERROR(c->ReplaceDim(images, 0, c->Dim(draws, 0), &images));
    }
  }
  return MadeShape(c, chain, images);
}

absl::Status LayersShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(SeedIsPair(c, 1));
  TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
  return MadeShape(c, chain, c->input(0));
}

absl::Status MaskShape(InferenceContext* c) {
  TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
  ShapeHandle masks = c->input(0), draws = c->input(1);
  if (!c->RankKnown(masks) || !c->RankKnown(draws)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  const int batch = c->Rank(draws) == 2 ? 1 : 0;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(masks, batch + 2, &masks));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(masks, batch + 3, &masks));
  const ImageSize size = {c->Value(c->Dim(masks, batch)),
                          c->Value(c->Dim(masks, batch + 1))};
  TF_ASSIGN_OR_RETURN(const ImageSpec behind, chain.Behind({size, {}}));
  const ImageSize made = behind.size;
  TF_RETURN_IF_ERROR(
      c->ReplaceDim(masks, batch, c->MakeDim(made.height), &masks));
  TF_RETURN_IF_ERROR(
      c->ReplaceDim(masks, batch + 1, c->MakeDim(made.width), &masks));
  c->set_output(0, masks);
  return absl::OkStatus();
}

absl::Status DecodeAndCropShape(InferenceContext* c) {
  ShapeHandle merged;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &merged));
  TF_RETURN_IF_ERROR(SeedIsPair(c, 1));
  bool resizes;
  TF_RETURN_IF_ERROR(c->GetAttr("resizes", &resizes));
  ImageSize size = {kUnknown, kUnknown};
  if (resizes) {
    TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
    TF_ASSIGN_OR_RETURN(const ImageSpec made, chain.Behind({}));
    size = made.size;
  }
  c->set_output(0, c->MakeShape({c->MakeDim(size.height),
                                 c->MakeDim(size.width), c->MakeDim(3)}));
  return absl::OkStatus();
}

static_assert(kUnknown == InferenceContext::kUnknownDim);

// Derives the seed at `index` from `seed`: [2], or [n, 2] for n indices.
REGISTER_OP("RefurbishTf>SeedAt")
    .Input("seed: Tseed")
    .Input("index: int64")
    .Output("seeds: int32")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(SeedAtShape);

// The draws of a chain of layers: [D], or [batch_size, D] for the images of
// a batch.
//
// layers: their descriptions, such as 'random_crop position=0 padding=4
// reflect=0', in pieces. See `refurbish_tf/cc/image/layer_chain.h`.
// batch_size: none for a single image.
REGISTER_OP("RefurbishTf>ImageDraws")
    .Input("seed: Tseed")
    .Input("batch_size: num_batch_sizes * int64")
    .Output("draws: int32")
    .Attr("layers: list(string)")
    .Attr("Tseed: {int32, int64}")
    .Attr("num_batch_sizes: int >= 0")
    .SetShapeFn(DrawsShape);

// Applies a chain of layers, with their draws, to an image or to each image
// of a batch.
//
// If the layers draw nothing, `draws` may have any shape.
REGISTER_OP("RefurbishTf>ImagePixels")
    .Input("images: S")
    .Input("draws: int32")
    .Output("made: T")
    .Attr("layers: list(string)")
    .Attr("S: {uint8, uint16, int16, float, bfloat16, half}")
    .Attr("T: {uint8, uint16, int16, float, bfloat16, half}")
    .SetShapeFn(PixelsShape);

// Applies a chain of layers: `ImagePixels` with the `ImageDraws` of `seed`.
REGISTER_OP("RefurbishTf>ImageLayers")
    .Input("images: S")
    .Input("seed: Tseed")
    .Output("made: T")
    .Attr("layers: list(string)")
    .Attr("S: {uint8, uint16, int16, float, bfloat16, half}")
    .Attr("T: {uint8, uint16, int16, float, bfloat16, half}")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(LayersShape);

// Moves a mask, or each of a batch, as `ImagePixels` with these draws moves
// its image.
//
// Pixels are the nearest ones, or 0 from outside the image.
//
// masks: [height, width] or [height, width, channels]; in a batch [batch,
// ...].
// image_shape: the shape of the image, or of the batch of images.
REGISTER_OP("RefurbishTf>ImageMask")
    .Input("masks: T")
    .Input("draws: int32")
    .Input("image_shape: int32")
    .Output("moved: T")
    .Attr("layers: list(string)")
    .Attr("T: {bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64}")
    .SetShapeFn(MaskShape);

// What there is to know of a chain of layers before there is an image.
//
// S, shape: of the images, as far as they are known.
// num_draws, divided: of each layer: how much it draws for an image, and
// whether `fuse` may leave it to an accelerator.
// type: of the result, as a DataType.
// problem, problem_layer: why the layers cannot take such images, to go on from
// 'The image must ', and which of them; empty if they can.
// version: of what all layers draw and make.
REGISTER_OP("RefurbishTf>DescribeLayers")
    .Output("num_draws: int32")
    .Output("divided: bool")
    .Output("type: int32")
    .Output("problem: string")
    .Output("problem_layer: int32")
    .Output("version: int32")
    .Attr("layers: list(string)")
    .Attr("S: type")
    .Attr("shape: shape")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

// Decodes a part of an image file, and resizes it.
//
// Of a JPEG only the part is decoded, and smaller where that is enough.
//
// layers: one random resized crop, or a resize, which takes the whole image.
// resizes: false to take only the part of the layer, at its full size.
// apply_exif_orientation: whether the photograph is turned as its EXIF block
// says, before the layer.
// max_pixels: of what the file claims.
REGISTER_OP("RefurbishTf>DecodeAndCrop")
    .Input("file: string")
    .Input("seed: Tseed")
    .Output("image: T")
    .Attr("layers: list(string)")
    .Attr("T: {uint8, uint16}")
    .Attr("resizes: bool")
    .Attr("apply_exif_orientation: bool")
    .Attr("max_pixels: int >= 1")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(DecodeAndCropShape);

}  // namespace
}  // namespace refurbish_tf

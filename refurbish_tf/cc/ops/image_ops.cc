// Signatures and shapes of the ops of `rtf.augment`: layers, mixup and CutMix.
#include <algorithm>
#include <string>
#include <vector>

#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/targets/target_kind.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/statusor.h"

namespace refurbish_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
using tensorflow::shape_inference::UnknownShape;

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

// Checks that `images` have 3 dimensions, or fewer for sound, and before these
// at most a batch, the frames of a clip, or both.
absl::Status CheckImages(InferenceContext* c, ShapeHandle images) {
  bool clips;
  TF_RETURN_IF_ERROR(c->GetAttr("clips", &clips));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(images, 1, &images));
  return c->WithRankAtMost(images, clips ? 5 : 4, &images);
}

// Sets the sides of `*image`, a second image whose sides are a multiple of the
// first image's, to the sides that the layers make of them.
absl::Status FollowerShape(InferenceContext* c, int lead, ImageSize given,
                           const ImageSpec& made, ShapeHandle* image) {
  const int64_t before[] = {given.height, given.width};
  const int64_t behind[] = {made.size.height, made.size.width};
  for (int i = 0; i < 2; ++i) {
    if (before[i] == behind[i] && !made.size_is_new) continue;
    const int64_t side = c->Value(c->Dim(*image, lead + i));
    const bool is_known =
        before[i] > 0 && behind[i] > 0 && side > 0 && side % before[i] == 0;
    const auto changed =
        is_known ? c->MakeDim(side / before[i] * behind[i]) : c->UnknownDim();
    TF_RETURN_IF_ERROR(c->ReplaceDim(*image, lead + i, changed, image));
  }
  return absl::OkStatus();
}

// Sets the shapes of the images' targets: the inputs from `input` on, which
// begin with `lead` dimensions of a batch or of frames. `given`: the size of
// the images before the layers; `made`: after them.
absl::Status SetTargetShapes(InferenceContext* c, int input, int lead,
                             ImageSize given, const ImageSpec& made) {
  std::vector<std::string> kinds;
  TF_RETURN_IF_ERROR(c->GetAttr("kinds", &kinds));
  if (static_cast<int>(kinds.size()) != c->num_inputs() - input) {
    return InvalidArgument("Each target must have a kind.");
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    TF_ASSIGN_OR_RETURN(const TargetKind kind, TargetKind::Named(kinds[i]));
    ShapeHandle target = c->input(input + static_cast<int>(i));
    if (c->RankKnown(target) && kind.form != TargetKind::Form::kUnnamed) {
      TF_RETURN_IF_ERROR(
          c->WithRankAtLeast(target, lead + kind.least_dims(), &target));
      TF_RETURN_IF_ERROR(
          c->WithRankAtMost(target, lead + kind.most_dims(), &target));
      if (kind.is_map()) {
        TF_RETURN_IF_ERROR(
            c->ReplaceDim(target, lead, c->MakeDim(made.size.height), &target));
        TF_RETURN_IF_ERROR(c->ReplaceDim(target, lead + 1,
                                         c->MakeDim(made.size.width), &target));
      } else if (kind.form == TargetKind::Form::kImage) {
        TF_RETURN_IF_ERROR(FollowerShape(c, lead, given, made, &target));
      }
    }
    c->set_output(1 + static_cast<int>(i), target);
  }
  return absl::OkStatus();
}

// Sets the shapes that layers return for `images` and targets. The kernel
// checks their types.
absl::Status MadeShape(InferenceContext* c, const LayerChain& chain,
                       ShapeHandle images) {
  if (!c->RankKnown(images)) return UnknownShape(c);
  TF_RETURN_IF_ERROR(CheckImages(c, images));
  const int dims = c->Rank(images), begin = std::max(dims - 3, 0);
  const auto value = [&](int i) {
    return begin + i < dims ? c->Value(c->Dim(images, begin + i)) : 1;
  };
  const ImageSpec given = {{value(0), value(1)},
                           {ValueType::kUnknown, value(2)}};
  TF_ASSIGN_OR_RETURN(const ImageSpec made, chain.Behind(given));
  // A dimension that layers keep stays the same object, so that shape inference
  // knows that it is equal even if it is unknown.
  const auto replace = [&](int i, int64_t from, int64_t to) {
    return (from == to && !made.size_is_new) || begin + i >= dims
               ? absl::OkStatus()
               : c->ReplaceDim(images, begin + i, c->MakeDim(to), &images);
  };
  TF_RETURN_IF_ERROR(replace(0, given.size.height, made.size.height));
  TF_RETURN_IF_ERROR(replace(1, given.size.width, made.size.width));
  TF_RETURN_IF_ERROR(replace(2, given.pixel.channels, made.pixel.channels));
  c->set_output(0, images);
  return SetTargetShapes(c, 2, begin, given.size, made);
}

absl::Status PixelsShape(InferenceContext* c) {
  TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
  ShapeHandle images = c->input(0);
  if (chain.num_draws() == 0) return MadeShape(c, chain, images);
  bool clips;
  TF_RETURN_IF_ERROR(c->GetAttr("clips", &clips));
  if (!c->RankKnown(images) && c->RankKnown(c->input(1)) && !clips) {
    images = c->UnknownShapeOfRank(c->Rank(c->input(1)) + 2);
  }
  if (c->RankKnown(images)) {
    TF_RETURN_IF_ERROR(CheckImages(c, images));
    ShapeHandle draws = c->Vector(chain.num_draws());
    const bool batch = c->Rank(images) == (clips ? 5 : 4);
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

absl::Status DecodeResizedShape(InferenceContext* c) {
  ShapeHandle files;
  TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(0), 1, &files));
  TF_RETURN_IF_ERROR(SeedIsPair(c, 1));
  bool resizes;
  TF_RETURN_IF_ERROR(c->GetAttr("resizes", &resizes));
  ImageSpec made;
  if (resizes) {
    TF_ASSIGN_OR_RETURN(const LayerChain chain, ChainOf(c));
    TF_ASSIGN_OR_RETURN(made, chain.Behind({}));
  }
  made.size_is_new = true;
  if (!c->RankKnown(files)) return UnknownShape(c);
  ShapeHandle image =
      c->MakeShape({c->MakeDim(made.size.height), c->MakeDim(made.size.width),
                    c->MakeDim(3)});
  TF_RETURN_IF_ERROR(c->Concatenate(files, image, &image));
  c->set_output(0, image);
  return SetTargetShapes(c, 2, c->Rank(files), {kUnknown, kUnknown}, made);
}

absl::Status MixedImagesShape(InferenceContext* c) {
  ShapeHandle images;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
  TF_RETURN_IF_ERROR(SeedIsPair(c, 1));
  c->set_output(0, images);
  c->set_output(1, c->Vector(c->Dim(images, 0)));
  c->set_output(2, c->Vector(c->Dim(images, 0)));
  return absl::OkStatus();
}

absl::Status MixedRowsShape(InferenceContext* c) {
  ShapeHandle lambdas, partners, rows = c->input(0);
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &lambdas));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2), lambdas, &partners));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(rows, 1, &rows));
  TF_RETURN_IF_ERROR(c->WithRankAtMost(rows, 2, &rows));
  DimensionHandle batch = c->Dim(partners, 0);
  if (c->RankKnown(rows)) {
    TF_RETURN_IF_ERROR(c->Merge(batch, c->Dim(rows, 0), &batch));
  }
  int64_t num_classes;
  TF_RETURN_IF_ERROR(c->GetAttr("num_classes", &num_classes));
  if (num_classes > 0) {
    rows = c->Matrix(batch, num_classes);
  } else if (c->RankKnown(rows)) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, batch, &rows));
  }
  c->set_output(0, rows);
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

// The draws of a chain of layers: [D], or [batch_size, D] for a batch.
//
// layers: their descriptions, such as 'random_crop position=0 padding=4
// reflect=0', in pieces. See `refurbish_tf/cc/image/layer_chain.h`.
// batch_size: not given for a single image.
REGISTER_OP("RefurbishTf>ImageDraws")
    .Input("seed: Tseed")
    .Input("batch_size: num_batch_sizes * int64")
    .Output("draws: int32")
    .Attr("layers: list(string)")
    .Attr("Tseed: {int32, int64}")
    .Attr("num_batch_sizes: int >= 0")
    .SetShapeFn(DrawsShape);

// An op on images, with their draws or a seed, and on their targets.
#define IMAGE_OP(name, second)                                  \
  REGISTER_OP("RefurbishTf>" name)                              \
      .Input("images: S")                                       \
      .Input(second)                                            \
      .Input("targets: Ttargets")                               \
      .Output("made: T")                                        \
      .Output("moved: Tmoved")                                  \
      .Attr("layers: list(string)")                             \
      .Attr("clips: bool")                                      \
      .Attr("looks_at_channels: bool = false")                  \
      .Attr("kinds: list(string)")                              \
      .Attr("names: list(string)")                              \
      .Attr("Ttargets: list(type) >= 0")                        \
      .Attr("Tmoved: list(type) >= 0")                          \
      .Attr("S: {uint8, uint16, int16, float, bfloat16, half}") \
      .Attr("T: {uint8, uint16, int16, float, bfloat16, half}")

// Applies a chain of layers, with their draws, to an image or to each image of
// a batch, and to its targets.
//
// If the layers draw nothing, `draws` may have any shape.
// clips: whether an image of four dimensions is a clip, [frames, height, width,
// channels], whose frames have the same draws. One more leading dimension is a
// batch of clips.
// looks_at_channels: whether to warn if channels seem to come first.
// targets: begin with the dimensions that the images have before their height.
// kinds, names: for each target, its kind, as in `targets=` of
// `rtf.augment.compose`, and its name in errors.
// Tmoved: as Ttargets, except for a second image, whose type the layers change
// as they change the first image's.
IMAGE_OP("ImagePixels", "draws: int32").SetShapeFn(PixelsShape);

// Applies a chain of layers: `ImagePixels` with the `ImageDraws` of `seed`.
IMAGE_OP("ImageLayers", "seed: Tseed")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(LayersShape);

// What is known about a chain of layers before there is an image.
//
// S, shape: the dtype and shape of the images, as far as they are known.
// num_draws, is_policy: for each layer, how many numbers it draws for an image,
// and whether `offload` may leave it to an accelerator.
// type: the type of the result, as a DataType.
// problem, problem_layer: why a layer cannot take such images, to continue 'The
// image must ', and which one; empty if all can.
// version: raised whenever draws or pixels of any layer change.
// moves: for each layer, whether it moves pixels.
// changes: for each layer, what it may do that disparities, or any targets,
// cannot follow, to continue 'may ', or empty.
// refused_in: if a nested layer refuses, where it is, such as "cutout in ".
REGISTER_OP("RefurbishTf>DescribeLayers")
    .Output("num_draws: int32")
    .Output("is_policy: bool")
    .Output("type: int32")
    .Output("problem: string")
    .Output("problem_layer: int32")
    .Output("version: int32")
    .Output("moves: bool")
    .Output("refused_in: string")
    .Output("changes: string")
    .Attr("layers: list(string)")
    .Attr("S: type")
    .Attr("shape: shape")
    .SetShapeFn(UnknownShape);

// Decodes a part of an image file, and resizes it.
//
// Only the part of a JPEG is decoded, at a smaller scale if that suffices.
// Several files, of one size, are the frames of a clip: all have the same part.
//
// targets, kinds, names: as for `ImagePixels`. Targets belong to the upright
// image.
// layers: one random resized crop, or a resize, which takes the whole image.
// resizes: if false, the part that the layer takes is returned at full size.
// apply_exif_orientation: whether to turn the photograph as its EXIF block
// says, before the layer.
// max_pixels: the most pixels that the header of a file may claim.
REGISTER_OP("RefurbishTf>DecodeResized")
    .Input("file: string")
    .Input("seed: Tseed")
    .Input("targets: Ttargets")
    .Output("image: T")
    .Output("moved: Ttargets")
    .Attr("layers: list(string)")
    .Attr("kinds: list(string)")
    .Attr("names: list(string)")
    .Attr("Ttargets: list(type) >= 0")
    .Attr("T: {uint8, uint16}")
    .Attr("resizes: bool")
    .Attr("apply_exif_orientation: bool")
    .Attr("max_pixels: int >= 1")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(DecodeResizedShape);

// Mixes each image of a batch with another one. See
// `refurbish_tf/cc/image/mixing.h`.
//
// lambdas: the fraction of each mixed image that is the image itself.
// partners: for each image, the position of the image that it is mixed with.
REGISTER_OP("RefurbishTf>MixImages")
    .Input("images: T")
    .Input("seed: Tseed")
    .Output("mixed: T")
    .Output("lambdas: float")
    .Output("partners: int32")
    .Attr("mixup_alpha: float")
    .Attr("cutmix_alpha: float")
    .Attr("switch_prob: float")
    .Attr("T: {uint8, float}")
    .Attr("Tseed: {int32, int64}")
    .SetShapeFn(MixedImagesShape);

// Mixes rows that belong to images, such as labels, as `MixImages` mixed the
// images.
//
// rows: numbers of classes, int64 [batch] or [batch, 1], which become one-hot;
// or floats, [batch, num_classes].
// called: the name of the rows in errors.
// num_classes: 0 for floats of shape [batch], or [batch, n] with any n.
REGISTER_OP("RefurbishTf>MixRows")
    .Input("rows: R")
    .Input("lambdas: float")
    .Input("partners: int32")
    .Output("mixed: float")
    .Attr("called: string")
    .Attr("num_classes: int >= 0")
    .Attr("R: {int64, float}")
    .SetShapeFn(MixedRowsShape);

// An op on a batch of images and what follows them.
//
// images: for their size.
// height, width: the size of the result; 0 for the size of the images.
// called: the name in errors of what it works on.
#define COMPOSITE_OP(name)           \
  REGISTER_OP("RefurbishTf>" name)   \
      .SetShapeFn(UnknownShape)      \
      .Input("images: I")            \
      .Attr("I: type")               \
      .Attr("height: int >= 0")      \
      .Attr("width: int >= 0")       \
      .Attr("min_visibility: float") \
      .Attr("called: string")

// Draws mosaics. See `refurbish_tf/cc/image/composites.h`.
//
// p: [batch].
// pieces: [batch, pieces of each result, 7], the numbers of `Piece`.
COMPOSITE_OP("MosaicPieces")
    .Input("seed: Tseed")
    .Input("p: float")
    .Output("pieces: int32")
    .Attr("Tseed: {int32, int64}");

// Draws which objects of another image are pasted over each image.
//
// instances: [batch, height, width, 1], whose pixels are in `ids` or 0.
// ids: [batch, rows].
// pasted: [batch, height, width]: whether a pixel is pasted.
// stays: [batch, 2, rows], for both images whether an object is in the result.
// visible: [batch, rows, 4], the box x, y, x, y around what is left of each
// object of the image itself. -1, ... if all of it is left.
COMPOSITE_OP("PastedObjects")
    .Input("seed: Tseed")
    .Input("p: float")
    .Input("instances: int32")
    .Input("ids: int32")
    .Output("pieces: int32")
    .Output("pasted: bool")
    .Output("stays: bool")
    .Output("visible: double")
    .Attr("Tseed: {int32, int64}");

// Moves boxes or key points to where their pieces are.
//
// rows: [batch, rows, 2, 3 or 4].
// visible: as of `PastedObjects`, or empty.
// kind: as in `targets=` of `rtf.augment.compose`.
// moved: [batch, pieces, rows, 2, 3 or 4].
// stays: whether a point is in the piece, or enough of a box; true for boxes of
// which `visible` has another one.
COMPOSITE_OP("PieceRows")
    .Input("rows: double")
    .Input("visible: double")
    .Input("pieces: int32")
    .Output("moved: double")
    .Output("stays: bool")
    .Attr("kind: string");

// Makes maps of pieces. What is not in a piece has the value `fill`.
//
// maps: [batch, height, width, channels], with the sides of the images or a
// multiple of them.
// pasted: as of `PastedObjects`, or empty. Other pieces than the first are only
// there.
// numbers: [batch, pieces, n], for a map of instances what becomes of each
// number below n; all others become 0. Otherwise empty.
COMPOSITE_OP("PlacePieces")
    .Input("maps: T")
    .Input("fill: T")
    .Input("pieces: int32")
    .Input("pasted: bool")
    .Input("numbers: int32")
    .Output("made: T")
    .Attr(
        "T: {bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, "
        "half, bfloat16, float, double}");

}  // namespace
}  // namespace refurbish_tf

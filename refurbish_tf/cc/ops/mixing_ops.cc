// The ops of mixup and CutMix: signatures and shapes.
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace refurbish_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status MixedImagesShape(InferenceContext* c) {
  ShapeHandle images, seed;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &images));
  TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->Vector(2), &seed));
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

// Mixes each image of a batch with another one. See
// `refurbish_tf/cc/image/mixing.h`.
//
// lambdas: which part of each mixed image is of the image itself.
// partners: the positions of the images that they are mixed with.
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

// Mixes what belongs to images, [batch] or [batch, n], as `MixImages` did with
// these.
//
// rows: numbers of classes, int64 [batch] or [batch, 1], which become one-hot;
// or floats, [batch, num_classes].
// called: what errors call them.
// num_classes: 0 for floats of any number, or [batch] of them.
REGISTER_OP("RefurbishTf>MixRows")
    .Input("rows: R")
    .Input("lambdas: float")
    .Input("partners: int32")
    .Output("mixed: float")
    .Attr("called: string")
    .Attr("num_classes: int >= 0")
    .Attr("R: {int64, float}")
    .SetShapeFn(MixedRowsShape);

}  // namespace
}  // namespace refurbish_tf

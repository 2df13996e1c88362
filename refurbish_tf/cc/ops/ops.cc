#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace refurbish_tf {
namespace {

using tensorflow::shape_inference::ScalarShape;

template <int size>
absl::Status VectorShape(tensorflow::shape_inference::InferenceContext* c) {
  c->set_output(0, c->Vector(size));
  return absl::OkStatus();
}

// Names, and rows of numbers that have them.
absl::Status NamedRowsShape(tensorflow::shape_inference::InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->Matrix(c->UnknownDim(), c->UnknownDim()));
  return absl::OkStatus();
}

REGISTER_OP("RefurbishTf>StageName")
    .Output("stage: string")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("A name for a stage, another one at each execution and in each process.");

REGISTER_OP("RefurbishTf>RefurbishDataset")
    .Input("input_dataset: variant")
    .Input("partial_arguments: Tpartial")
    .Input("final_arguments: Tfinal")
    .Input("stage: string")
    .Input("seed: int64")
    .Input("order_seed: int64")
    .Input("reuse_factor: double")
    .Input("store: string")
    .Input("max_bytes: int64")
    .Input("shuffle_buffer_size: int64")
    .Input("num_parallel_calls: int64")
    .Output("handle: variant")
    .Attr("partial_fn: func")
    .Attr("final_fn: list(func) >= 0")
    .Attr("Tpartial: list(type) >= 0")
    .Attr("Tfinal: list(type) >= 0")
    .Attr("eviction: {'balanced', 'reference_count'}")
    .Attr("shuffle: {'cache_aware', 'uniform'}")
    .Attr("deterministic: {'true', 'false', 'default'}")
    .Attr("any_seed: bool")
    .Attr("partial_seed: bool")
    .Attr("final_seed: bool")
    .Attr("sample_types: list(type) >= 0")
    .Attr("sample_shapes: list(shape) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Every sample of `input_dataset` once: `final_fn` of what `partial_fn` returns, which
is cached.

Where `partial_seed` or `final_seed` says so, the function gets a seed (int32 [2])
behind the components of its element. `any_seed`: the seeds are not the user's, so
those of a checkpoint may take their place. num_parallel_calls: -1 for as many as the
thread pool has threads, 0 for no thread.
)doc");

REGISTER_OP("RefurbishTf>RefurbishCounts")
    .Input("stage: string")
    .Output("names: string")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(NamedRowsShape)
    .Doc("The counts of refurbish_tf.EpochStats, by name, a row per epoch.");

REGISTER_OP("RefurbishTf>RefurbishDescription")
    .Input("stage: string")
    .Output("names: string")
    .Output("description: int64")
    .SetIsStateful()
    .SetShapeFn(NamedRowsShape)
    .Doc(R"doc(
What describes a stage, by name, in one row. Numbers of samples are -1 while unknown.
)doc");

REGISTER_OP("RefurbishTf>FirstStream")
    .Input("input_dataset: variant")
    .Output("op: string")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The first dataset, from the files on, by which `input_dataset` cannot be asked for
single elements; empty where it can.
)doc");

REGISTER_OP("RefurbishTf>RefurbishState")
    .Input("stage: string")
    .Output("state: int64")
    .Output("reuse_factor: double")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(1, c->Scalar());
      return VectorShape<7>(c);
    })
    .Doc(R"doc(
Where a stage is between two epochs: the seed and the seed of the order, the number
of the next epoch; whether there is a schedule, and of it the number of samples, how
many of them are kept, and the epoch that it begins with.
)doc");

REGISTER_OP("RefurbishTf>RefurbishRestore")
    .Input("stage: string")
    .Input("state: int64")
    .Input("reuse_factor: double")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Sets a stage to where it was, with what RefurbishState returned.

Fails, and changes nothing, when that was another stage or is damaged.
)doc");

REGISTER_OP("RefurbishTf>InputWait")
    .Output("seconds: double")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("How long the iterators of this process have been waited for.");

REGISTER_OP("RefurbishTf>EchoDataset")
    .Input("input_dataset: variant")
    .Input("echoing_factor: double")
    .Input("seed: int64")
    .Output("handle: variant")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetShapeFn(ScalarShape)
    .Doc("Each element `echoing_factor` times, in expectation if not whole.");

REGISTER_OP("RefurbishTf>AdaptiveEchoDataset")
    .Input("input_dataset: variant")
    .Input("stage: string")
    .Input("max_echoing_factor: int64")
    .Output("handle: variant")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("Each element again while no newer one is ready.");

REGISTER_OP("RefurbishTf>AugmentDataset")
    .Input("input_dataset: variant")
    .Input("other_arguments: Targuments")
    .Output("handle: variant")
    .Attr("f: func")
    .Attr("Targuments: list(type) >= 0")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetShapeFn(ScalarShape)
    .Doc("A function of each element, run on the stage's own workers.");

REGISTER_OP("RefurbishTf>DataSourceDataset")
    .Input("num_elements: int64")
    .Output("handle: variant")
    .Attr("read_one: func")
    .Attr("read_many: func")
    .Attr("batch_reads: int >= 1")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The elements of a source in Python, by their indices.

Both functions take a vector of indices and capture nothing. They return for each
index an error code (int32) and its message, as two vectors, then the components of
the elements, one element after the other: `read_one` of one element, `read_many` of
`batch_reads`, of which those behind the last index mean nothing. Where `read_many`
returns no codes, each element is to be read alone.
)doc");

REGISTER_OP("RefurbishTf>TfrecordDataset")
    .Input("files: string")
    .Input("index_dir: string")
    .Input("index: string")
    .Input("num_parallel_reads: int64")
    .Output("handle: variant")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    // What it yields depends on the files, and making their index takes long.
    .SetDoNotOptimize()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The records of TFRecord files, by index.

index_dir: where indices are kept; empty for beside the files. index: what copies of
the dataset find it by. num_parallel_reads: -1 to leave it to the op.
)doc");

REGISTER_OP("RefurbishTf>EchoCounts")
    .Input("stage: string")
    .Output("names: string")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(NamedRowsShape)
    .Doc("The counts of refurbish_tf.EchoStats, by name, a row per iterator.");

REGISTER_OP("RefurbishTf>CacheStoreHandle")
    .Input("store: string")
    .Input("max_bytes: int64")
    .Input("mode: string")
    .Output("handle: variant")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Makes a cache store, which lives as long as the handle.

mode: 'open'; 'overwrite', to clear one on disk; 'inspect', for one on disk that
must be there.
)doc");

REGISTER_OP("RefurbishTf>CacheStoreAgree")
    .Input("store: string")
    .Input("names: string")
    .Input("values: string")
    .Input("replace: bool")
    .Output("agreed_names: string")
    .Output("agreed_values: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Adds settings to those that a store on disk was written under, and returns all.

Where one differs it is replaced, or this fails.
)doc");

REGISTER_OP("RefurbishTf>CacheStoreVerify")
    .Input("store: string")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(VectorShape<2>)
    .Doc("Reads every sample of a store on disk. How many are right, and not.");

REGISTER_OP("RefurbishTf>CacheStoreGet")
    .Input("store: string")
    .Input("index: int64")
    .Output("components: output_types")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::DatasetIteratorShape)
    .Doc("The components of the sample at `index`.");

REGISTER_OP("RefurbishTf>CacheStorePut")
    .Input("store: string")
    .Input("index: int64")
    .Input("components: input_types")
    .Attr("input_types: list(type) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Keeps a sample at `index`.");

REGISTER_OP("RefurbishTf>CacheStoreRemove")
    .Input("store: string")
    .Input("index: int64")
    .Output("removed: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("Removes the sample at `index`.");

REGISTER_OP("RefurbishTf>CacheStoreContains")
    .Input("store: string")
    .Input("index: int64")
    .Output("present: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc("Whether there is a sample at `index`.");

REGISTER_OP("RefurbishTf>CacheStoreClear")
    .Input("store: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes all samples.");

REGISTER_OP("RefurbishTf>CacheStoreStats")
    .Input("store: string")
    .Output("names: string")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(NamedRowsShape)
    .Doc("The fields of refurbish_tf.CacheStoreStats by name, in one row.");

}  // namespace
}  // namespace refurbish_tf

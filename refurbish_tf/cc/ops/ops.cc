// Signatures and shapes of the ops of stages, sources and cache stores.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace refurbish_tf {
namespace {

using tensorflow::shape_inference::NoOutputs;
using tensorflow::shape_inference::ScalarShape;
// For ops that are only called eagerly.
using tensorflow::shape_inference::UnknownShape;

#define DATASET_OP(name)                       \
  REGISTER_OP("RefurbishTf>" name)             \
      .Output("handle: variant")               \
      .Attr("output_types: list(type) >= 1")   \
      .Attr("output_shapes: list(shape) >= 1") \
      .Attr("metadata: string = ''")           \
      .SetShapeFn(ScalarShape)

// An op with effects, or whose result changes.
#define STATEFUL_OP(name, shape) \
  REGISTER_OP("RefurbishTf>" name).SetIsStateful().SetShapeFn(shape)

// One on a stage or a store, whose name is the first input.
#define OP_ON(what, name, shape) STATEFUL_OP(name, shape).Input(what ": string")

#define COUNTS_OP(what, name)     \
  OP_ON(what, name, UnknownShape) \
      .Output("names: string")    \
      .Output("counts: int64")

// A new name for a stage, unique across executions and processes.
STATEFUL_OP("StageName", ScalarShape).Output("stage: string");

// How many bytes this process can still get, and how many of them the samples
// must leave free. From this call on, /proc and /sys are read below `root`,
// which is empty except in tests.
STATEFUL_OP("Memory", UnknownShape)
    .Input("root: string")
    .Output("free_and_reserve: int64");

// Yields each sample of `input_dataset` once per epoch, after `partial_fn`,
// whose result is cached, and `final_fn`.
//
// partial_seed, final_seed: whether the function takes a seed (int32 [2]) after
// the components of its element.
// partial_generation, final_epoch: whether it then takes this number (int64
// []), which determines the seed. Without a final function, what it would get
// is yielded after the components.
// any_seed: the user gave no seed, so a checkpoint's seed may replace it.
// shared: the address of a level that machines share, a newline, and the prefix
// of its keys; empty if there is none.
// num_parallel_calls: -1 for the size of the thread pool, 0 for no threads.
// batch_size: 0 to yield samples; otherwise `output_shapes` are of batches.
STATEFUL_OP("RefurbishDataset", ScalarShape)
    .Input("input_dataset: variant")
    .Input("partial_arguments: Tpartial")
    .Input("final_arguments: Tfinal")
    .Input("stage: string")
    .Input("seed: int64")
    .Input("order_seed: int64")
    .Input("reuse_factor: double")
    .Input("store: string")
    .Input("max_bytes: int64")
    .Input("shared: string")
    .Input("shared_max_bytes: int64")
    .Input("shuffle_buffer_size: int64")
    .Input("num_parallel_calls: int64")
    .Input("batch_size: int64")
    .Input("drop_remainder: bool")
    .Output("handle: variant")
    .Attr("partial_fn: func")
    .Attr("final_fn: list(func) >= 0")
    .Attr("Tpartial: list(type) >= 0")
    .Attr("Tfinal: list(type) >= 0")
    .Attr("eviction: string")
    .Attr("shuffle: string")
    .Attr("deterministic: {'true', 'false', 'default'}")
    .Attr("any_seed: bool")
    .Attr("partial_seed: bool")
    .Attr("partial_generation: bool")
    .Attr("final_seed: bool")
    .Attr("final_epoch: bool")
    .Attr("sample_types: list(type) >= 0")
    .Attr("sample_shapes: list(shape) >= 0")
    .Attr("output_types: list(type) >= 0")
    .Attr("output_shapes: list(shape) >= 0")
    .Attr("metadata: string = ''");

// The counts of refurbish_tf.EpochStats, by name, one row per epoch.
COUNTS_OP("stage", "RefurbishCounts");

// The description of a stage, in one row. Unknown numbers of samples are -1.
COUNTS_OP("stage", "RefurbishDescription");

// How often the schedule evicts a sample before its `epoch`-th epoch.
OP_ON("stage", "RefurbishGeneration", ScalarShape)
    .Input("index: int64")
    .Input("epoch: int64")
    .Output("generation: int64");

// The op of the dataset, nearest the files, that prevents random access to
// `input_dataset`; empty if none does.
STATEFUL_OP("FirstStream", ScalarShape)
    .Input("input_dataset: variant")
    .Output("op: string");

// The position of a stage: the numbers by name, in one row; r; and a bit for
// each sample that was yielded.
OP_ON("stage", "RefurbishPosition", UnknownShape)
    .Output("names: string")
    .Output("numbers: int64")
    .Output("reuse_factor: double")
    .Output("yielded: uint8");

// The same for a position in a checkpoint, perhaps of another process.
//
// num_found: how many iterators in the checkpoint are in an epoch of the stage.
// next_epoch: the epoch that the stage would begin next, or -1 if unknown.
OP_ON("stage", "RefurbishSavedPosition", UnknownShape)
    .Input("checkpoint: variant")
    .Output("names: string")
    .Output("numbers: int64")
    .Output("reuse_factor: double")
    .Output("yielded: uint8")
    .Output("num_found: int64")
    .Output("next_epoch: int64");

// Sets a stage to a position, in the form that RefurbishPosition returned.
//
// Fails and changes nothing if the position is damaged or another stage's.
//
// lost_shards: the shards that a joined position says nothing about.
OP_ON("stage", "RefurbishSetPosition", NoOutputs)
    .Input("numbers: int64")
    .Input("reuse_factor: double")
    .Input("yielded: uint8")
    .Input("lost_shards: int64");

// Called after the iterators of a checkpoint were restored: the stage begins no
// epoch before `next_epoch`. If that is negative, it fails to begin any epoch.
OP_ON("stage", "RefurbishKeepPosition", NoOutputs).Input("next_epoch: int64");

// The names of a dataset's refurbish stages, also in functions, upstream first.
//
// For each stage: read_again_by is an operation after it that, restored from a
// symbolic checkpoint, reads an element again; skipped_by is one whose symbolic
// checkpoint lacks what it has skipped. Both may be empty.
STATEFUL_OP("RefurbishStages", UnknownShape)
    .Input("input_dataset: variant")
    .Output("stages: string")
    .Output("read_again_by: string")
    .Output("skipped_by: string");

// The total time that was spent waiting for the iterators of this process.
STATEFUL_OP("InputWait", ScalarShape).Output("seconds: double");

// Repeats each element `echoing_factor` times, on average if not whole.
DATASET_OP("EchoDataset")
    .Input("input_dataset: variant")
    .Input("echoing_factor: double")
    .Input("seed: int64");

// Repeats the newest element while no newer one is ready.
DATASET_OP("AdaptiveEchoDataset")
    .Input("input_dataset: variant")
    .Input("stage: string")
    .Input("max_echoing_factor: int64")
    .SetIsStateful();

// Applies `f` to each element, on the stage's own workers.
DATASET_OP("AugmentDataset")
    .Input("input_dataset: variant")
    .Input("other_arguments: Targuments")
    .Attr("f: func")
    .Attr("Targuments: list(type) >= 0");

// The same in batches, whose rows the workers write.
DATASET_OP("AugmentBatchDataset")
    .Input("input_dataset: variant")
    .Input("other_arguments: Targuments")
    .Input("batch_size: int64")
    .Input("drop_remainder: bool")
    .Attr("f: func")
    .Attr("Targuments: list(type) >= 0");

// Elements for another framework. If `exclusive`, nothing else holds an
// element's memory, so the framework may write into it. Reads `buffer_size`
// elements ahead. A checkpoint resumes before the last `num_ahead` elements.
DATASET_OP("LoaderOutputDataset")
    .Input("input_dataset: variant")
    .Attr("buffer_size: int >= 0")
    .Attr("num_ahead: int >= 0")
    .Attr("exclusive: bool");

// Batches of images with the draws of their layers. Workers run the policy
// layers, except on the images of each part that are left to the accelerator.
//
// eighths: the fraction of a part whose policy layers are left to the
// accelerator, or -1 to adapt it.
// group, tables: of any `group` images in a row, at most `tables` get tables
// on the accelerator.
// image: the component of the input that is the image.
// seeded: the last component of the input is the seed of the image's draws.
// Otherwise the seed is made from `seed`, the epoch and the element's position.
// any_seed: the user gave no seed, so a checkpoint's seed may replace it.
// components: what each component of a batch is: a component of the input, -1
// for the images, -2 for the draws, -3 for the layers' fingerprint, a shape
// without bytes.
DATASET_OP("OffloadDataset")
    .Input("input_dataset: variant")
    .Input("stage: string")
    .Input("seed: int64")
    .Attr("layers: list(string) >= 1")
    .Attr("batch_size: int >= 1")
    .Attr("num_parts: int >= 1")
    .Attr("eighths: int >= -1")
    .Attr("group: int >= 1")
    .Attr("tables: int >= 0")
    .Attr("drop_remainder: bool")
    .Attr("image: int >= 0")
    .Attr("image_height: int >= 1")
    .Attr("image_width: int >= 1")
    .Attr("image_frames: int >= 0")
    .Attr("seeded: bool")
    .Attr("any_seed: bool")
    .Attr("components: list(int) >= 1")
    .SetIsStateful();

// The counts of refurbish_tf.OffloadStats, by name, one row per epoch.
COUNTS_OP("stage", "OffloadCounts");

// The state of an offload stage between two epochs, by name, in one row.
COUNTS_OP("stage", "OffloadState");

OP_ON("stage", "OffloadRestore", NoOutputs).Input("state: int64");

// The elements of a Python source, by index.
//
// Both functions take a vector of indices and capture nothing. They return a
// vector of error codes (int32) and a vector of messages, each with one entry
// per index, then the components of the elements, one element after the other:
// `read_one` of one element, `read_many` of `batch_reads` elements, of which
// those after the last index are ignored. If `read_many` returns no codes, each
// element is read alone.
//
// num_parallel_reads: how many threads call them at once; -1 if the op chooses.
DATASET_OP("DataSourceDataset")
    .Input("num_elements: int64")
    .Input("num_parallel_reads: int64")
    .Attr("read_one: func")
    .Attr("read_many: func")
    .Attr("batch_reads: int >= 1")
    .SetIsStateful();

// The records of TFRecord files, by index.
//
// index_dir: where indices are kept; if empty, next to the files.
// index: the name by which copies of the dataset find the same index.
// num_parallel_reads: -1 if the op chooses.
DATASET_OP("TfrecordDataset")
    .Input("files: string")
    .Input("index_dir: string")
    .Input("index: string")
    .Input("num_parallel_reads: int64")
    // Not folded into a constant: records depend on files.
    .SetDoNotOptimize();

// The contents of files and their labels, by index.
DATASET_OP("ImageFilesDataset")
    .Input("files: string")
    .Input("labels: int32")
    .Input("num_parallel_reads: int64")
    .SetDoNotOptimize();

// Keeps as many elements of a source by index as the store has room for. The
// result can also be read by index.
DATASET_OP("CachedDataset")
    .Input("input_dataset: variant")
    .Input("stage: string")
    .Input("store: string")
    .Input("max_bytes: int64")
    .Input("num_parallel_reads: int64")
    .SetIsStateful();

// The counts of refurbish_tf.EchoStats, by name, one row per iterator.
COUNTS_OP("stage", "EchoCounts");

// Makes a cache store that lives as long as the handle.
//
// mode: 'open'; 'overwrite' to clear a store on disk; 'inspect' for a store
// on disk that must exist.
STATEFUL_OP("CacheStoreHandle", ScalarShape)
    .Input("store: string")
    .Input("max_bytes: int64")
    .Input("mode: string")
    .Output("handle: variant");

// Adds settings to those of a store on disk, and returns all settings.
//
// replace: whether to replace a setting that differs; otherwise the op fails.
OP_ON("store", "CacheStoreAgree", UnknownShape)
    .Input("names: string")
    .Input("values: string")
    .Input("replace: bool")
    .Output("agreed_names: string")
    .Output("agreed_values: string");

// Reads every sample of a store on disk and counts intact and damaged ones.
OP_ON("store", "CacheStoreVerify", UnknownShape).Output("counts: int64");

OP_ON("store", "CacheStoreGet",
      tensorflow::shape_inference::DatasetIteratorShape)
    .Input("index: int64")
    .Output("components: output_types")
    .Attr("output_types: list(type) >= 1")
    .Attr("output_shapes: list(shape) >= 1");

OP_ON("store", "CacheStorePut", NoOutputs)
    .Input("index: int64")
    .Input("components: input_types")
    .Attr("input_types: list(type) >= 1");

OP_ON("store", "CacheStoreRemove", ScalarShape)
    .Input("index: int64")
    .Output("removed: bool");

OP_ON("store", "CacheStoreContains", ScalarShape)
    .Input("index: int64")
    .Output("present: bool");

OP_ON("store", "CacheStoreClear", NoOutputs);

// The fields of refurbish_tf.CacheStoreStats by name, in one row.
COUNTS_OP("store", "CacheStoreStats");

// The running jobs on a store on disk, one row per job: its process, its epoch,
// and how many samples of the epoch were handed out.
COUNTS_OP("store", "CacheStoreJobs");

}  // namespace
}  // namespace refurbish_tf

// Refuses sources that have no end, or whose order changes, and finds out
// whether a source can be read by index.
#pragma once

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/source_shard.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

// What the graph of a source shows. A `shard` that was written with SHARD_HINT
// is filled in by tf.data itself, differently in each worker.
struct SourceFacts {
  bool hinted = false;  // A SHARD_HINT is not filled in: length unknown.
  SourceShard shard;
  // The defaults below are for a source whose graph cannot be made.
  SourceKind kind = SourceKind::kMayChange;
  bool computes_floats = true;
};

// Fails if `source` is known to have no elements or no end, or to change its
// order between iterations, because a sample is identified by its position.
// `method`: whose source it is, for the error.
//
// The order is checked in the graph of the source. Only the graph has the
// arguments of some stages, the stages within the functions of `interleave` and
// `flat_map`, and the effects of an option of the whole pipeline.
absl::Status CheckSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceFacts* facts);

// Returns the dataset, nearest the files, that makes `dataset` a stream.
// Returns null if `dataset` can be read by index: in any order that an index
// mapper gives, even if elements are left out.
const DatasetBase* FirstStream(const DatasetBase* dataset);

}  // namespace refurbish_tf

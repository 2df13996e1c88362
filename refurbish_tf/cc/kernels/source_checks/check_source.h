// Refuses sources that have no end, or whose order changes.
#pragma once

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/source_shard.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

// What the graph of a source shows. tf.data itself fills in `shard`s that were
// written with SHARD_HINT, differently in each worker.
struct SourceFacts {
  bool hinted = false;  // Not filled in yet, so the length is unknown.
  SourceShard shard;
  // A source that has no graph cannot be examined.
  SourceKind kind = SourceKind::kMayChange;
  bool computes_floats = true;
};

// Fails if `source` is known to have no elements or no end, or if its order is
// known to change between iterations: a sample is known by its position.
// `method`: whose source it is, for the error.
//
// The order is looked up in the graph of the source: only the graph has the
// arguments of some stages, the stages within the functions of `interleave` and
// `flat_map`, and the effects of an option of the whole pipeline.
absl::Status CheckSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceFacts* facts);

}  // namespace refurbish_tf

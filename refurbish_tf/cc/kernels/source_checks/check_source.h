// Refuses sources that have no end or whose order changes.
#pragma once

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/plan/source_shard.h"
#include "refurbish_tf/cc/refurbish/source_checks.h"

namespace refurbish_tf {

// What the graph of a source tells. tf.data itself fills in `shard`s that were
// written with SHARD_HINT, with another one in each worker.
struct SourceFacts {
  bool hinted = false;  // Not filled in yet, so there is no length either.
  SourceShard shard;
  // A source that has no graph cannot be examined.
  SourceKind kind = SourceKind::kMayChange;
  bool computes_floats = true;
};

// Fails if `source` is known to have no elements or no end, or if its order is
// known to change between iterations: a sample is known by its position.
// `method`: which method's source it is, for the error.
//
// The order is looked up in the graph of the source: only there are the
// arguments of some stages, the stages within the functions of `interleave` and
// `flat_map`, and what an option of the whole pipeline has made of them.
absl::Status CheckSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceFacts* facts);

}  // namespace refurbish_tf

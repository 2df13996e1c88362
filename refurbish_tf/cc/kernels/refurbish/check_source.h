// Refuses sources that have no end or whose order changes.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/stage/source_checks.h"

namespace refurbish_tf {

// Which share a source is, by the `shard`s in it. tf.data itself fills in those
// that were written with SHARD_HINT, with another share in each worker.
struct Shards {
  bool hinted = false;  // Not filled in yet, so there is no length either.
  std::string names;    // "0 of 2", by commas if several; empty for the whole.
};

// Fails if `source` is known to have no elements or no end, or if its order is
// known to change between iterations: a sample is known by its position.
//
// The order is looked up in the graph of the source: only there are the
// arguments of some stages, the stages within the functions of `interleave` and
// `flat_map`, and what an option of the whole pipeline has made of them.
absl::Status CheckSource(OpKernelContext* ctx, const DatasetBase* source,
                         Shards* shards, SourceKind* kind);

}  // namespace refurbish_tf

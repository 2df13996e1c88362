// Compares what a source yields with what it yielded before.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/refurbish/source_checks.h"
#include "refurbish_tf/cc/store/samples/sample_store.h"

namespace refurbish_tf {

// A checksum, never 0, of types, shapes and contents: in its upper half that of
// images and the like, in its lower half that of labels and weights. Components
// that have none, such as ragged ones, are left out. `whole`, if not null, gets
// one of all, or of all but an image's labels and weights, in 32 bits.
uint32_t ElementSum(const std::vector<Tensor>& element,
                    uint32_t* whole = nullptr, bool with_labels = true);

// What elements may depend on, besides the source: the version of TensorFlow
// and, if floating-point numbers are computed, the processor and how many there
// are, as the last bits may differ.
uint64_t Platform(bool computes_floats);

// Compares an element of the checksum `sum` that a source of `method` yielded.
// Fails if it is not the one that a store on disk was filled from, and warns
// once if the source changes by itself.
absl::Status CheckElement(SourceChecks* checks, const char* method,
                          const DatasetBase* source, IteratorContext* ctx,
                          uint32_t index, uint32_t sum);

// Compares the position of an element, whose checksum is `sum`, with where it
// came in earlier epochs. Fails if the order has changed, and warns of a source
// that does not end.
absl::Status CheckOrder(SourceChecks* checks, uint64_t epoch, bool length_known,
                        uint32_t index, uint32_t sum);

// Does what `CheckElement` does for some elements that the store has samples
// of, spread over all, which are read from a source by index.
absl::Status ProbeSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceChecks* checks,
                         const CacheStore<Sample>& store);

}  // namespace refurbish_tf

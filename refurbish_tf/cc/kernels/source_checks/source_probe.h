// Compares what a source yields with what it yielded before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

// The file that an element of a source was made from, or "" if it is unknown.
// It is known if it exists, and element i is made from slice i of a tensor of
// names, or by a source that knows its files. Slow, because it looks for the
// file: only for error messages.
std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index);

// A checksum of types, shapes and contents, never 0. The upper half is for
// large components such as images, the lower half for labels and weights. The
// contents of ragged and similar components are left out. `whole`, if not null,
// gets 32 bits for all components, enough to distinguish millions of elements.
uint32_t ElementChecksum(const std::vector<Tensor>& element,
                         uint32_t* whole = nullptr);

// A hash of what elements depend on besides the source: the version of
// TensorFlow and, if floating-point numbers are computed, the CPU model and the
// number of cores, which may change the last bits.
uint64_t Platform(bool computes_floats);

// Compares `sum`, the checksum of an element, with an earlier one. `method`:
// whose source it is, for messages. Fails if a store on disk was filled from
// another source, and warns once if the source changes by itself.
absl::Status CheckElement(SourceChecks* checks, const char* method,
                          const DatasetBase* source, IteratorContext* ctx,
                          uint32_t index, uint32_t sum);

// Warns if the source of refurbish repeats its elements, as if it had no end.
// `whole`: see `ElementChecksum`.
void CheckEnds(SourceChecks* checks, uint32_t index, uint32_t whole);

// Checks up to 64 elements as `CheckElement` does, spread over those whose
// samples are in the store. The source must be readable by index.
absl::Status ProbeSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceChecks* checks,
                         const SampleMap<Sample>& store);

}  // namespace refurbish_tf

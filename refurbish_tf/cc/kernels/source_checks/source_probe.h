// Compares what a source yields with what it yielded before.
#pragma once

#include <cstdint>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

// A checksum, never 0, of types, shapes and contents: the upper half is of
// images and the like, the lower half of labels and weights. The contents of
// ragged and similar components are left out. `whole`, if not null, gets a
// checksum of 32 bits, which distinguishes millions of elements.
uint32_t ElementChecksum(const std::vector<Tensor>& element,
                         uint32_t* whole = nullptr);

// What elements may depend on besides the source: the version of TensorFlow
// and, if floating-point numbers are computed, the CPU model and the number of
// its cores, because the last bits may differ.
uint64_t Platform(bool computes_floats);

// Compares an element with checksum `sum`, which a source of `method` has
// yielded. Fails if a store on disk was filled from another one, and warns once
// if the source changes by itself.
absl::Status CheckElement(SourceChecks* checks, const char* method,
                          const DatasetBase* source, IteratorContext* ctx,
                          uint32_t index, uint32_t sum);

// Warns of a source of refurbish that does not end. `whole`: the checksum of an
// element.
void CheckEnds(SourceChecks* checks, uint32_t index, uint32_t whole);

// Does what `CheckElement` does for some elements whose samples are in the
// store, spread over the whole source, which is read by index.
absl::Status ProbeSource(OpKernelContext* ctx, const DatasetBase* source,
                         const char* method, SourceChecks* checks,
                         const SampleMap<Sample>& store);

}  // namespace refurbish_tf

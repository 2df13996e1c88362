// Compares what a source yields with what it yielded before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/stage/source_checks.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {

// A checksum, never 0, of types, shapes and contents. Components that have
// none, such as ragged ones, are left out.
uint32_t ElementSum(const std::vector<Tensor>& element);

// What elements may depend on, besides the source: the version of TensorFlow
// and, if floating-point numbers are computed, the processor and how many there
// are, as the last bits may differ.
uint64_t Platform(bool computes_floats);

// The error of an element that differs from the one that a store on disk was
// filled from. `file` may be empty.
absl::Status OtherSource(const SourceChecks& checks, uint32_t index,
                         const std::string& file);

// The same as a warning, where the source may change by itself.
std::string SourceChanges(uint32_t index, const std::string& file);

// Reads some elements that the store has samples of, spread over all, from a
// source by index. Fails if one differs.
absl::Status ProbeSource(OpKernelContext* ctx, const DatasetBase* source,
                         const SourceChecks& checks, const DiskStore& store);

}  // namespace refurbish_tf

// Finds the file that an element of a source was made from.
#pragma once

#include <cstdint>
#include <string>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Empty if unknown. Known if element i is made from slice i of a tensor of
// names, or by a source that knows its files, and the file exists. Slow,
// because it looks for the file; only for error messages.
std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index);

}  // namespace refurbish_tf

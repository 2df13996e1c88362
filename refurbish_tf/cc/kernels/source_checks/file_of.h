// Finds the file that an element of a source was made from.
#pragma once

#include <cstdint>
#include <string>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Empty if unknown. It is known if each element of `source` is made from one
// slice of a tensor of names, and this slice is the name of an existing file.
// Slow, because it looks for the file; for error messages.
std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index);

}  // namespace refurbish_tf

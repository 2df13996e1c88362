// Finds the file that an element of a source was made from.
#pragma once

#include <cstdint>
#include <string>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Returns "" if the file is unknown. It is known if it exists, and element i is
// made from slice i of a tensor of names, or by a source that knows its files.
// Slow, because it looks for the file: only for error messages.
std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index);

}  // namespace refurbish_tf

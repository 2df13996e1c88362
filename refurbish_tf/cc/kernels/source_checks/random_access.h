// Finds out whether a source can be read by index.
#pragma once

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Returns the dataset, nearest the files, that makes `dataset` a stream.
// Returns null if `dataset` can be read by index: in any order that an index
// mapper gives, even if elements are left out.
const DatasetBase* FirstStream(const DatasetBase* dataset);

}  // namespace refurbish_tf

// Which sources can be asked for single elements.
#ifndef REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_
#define REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The first dataset, from the files on, by which `dataset` is a stream; null where
// elements can be asked for in any order, by an index mapper, and some left out.
const DatasetBase* FirstStream(const DatasetBase* dataset);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_

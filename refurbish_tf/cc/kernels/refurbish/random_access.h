// Which sources can be read by index.
#ifndef REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_
#define REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// The first dataset, from the files on, that makes `dataset` a stream. Null if
// it can be read by index: in any order that an index mapper gives, with some
// left out.
const DatasetBase* FirstStream(const DatasetBase* dataset);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_REFURBISH_RANDOM_ACCESS_H_

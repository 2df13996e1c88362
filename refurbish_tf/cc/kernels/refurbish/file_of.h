// Which file an element of a source is made of.
#ifndef REFURBISH_TF_CC_KERNELS_REFURBISH_FILE_OF_H_
#define REFURBISH_TF_CC_KERNELS_REFURBISH_FILE_OF_H_

#include <cstdint>
#include <string>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Empty where that is not known: where `source` is not made, one by one, of the
// slices of a tensor of names, of which this one is that of a file. For an error,
// as it looks at the file.
std::string FileOf(const DatasetBase* source, IteratorContext* ctx,
                   int64_t index);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_REFURBISH_FILE_OF_H_

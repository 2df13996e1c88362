#ifndef REFURBISH_TF_CC_KERNELS_CHECK_SOURCE_H_
#define REFURBISH_TF_CC_KERNELS_CHECK_SOURCE_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace refurbish_tf {

// An error when `source` is known to have no elements or no end, or when its
// order is known to change from one iteration to the next: a sample is known by
// its position in the source.
//
// The order is looked up in the graph of the source. The arguments of some
// stages are to be found nowhere else, nor are those within the functions of
// `interleave` and `flat_map`, nor what an option of the whole pipeline has made
// of them.
absl::Status CheckSource(tensorflow::OpKernelContext* ctx,
                         const tensorflow::data::DatasetBase* source);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_CHECK_SOURCE_H_

#ifndef REFURBISH_TF_CC_KERNELS_SOURCE_ORDER_H_
#define REFURBISH_TF_CC_KERNELS_SOURCE_ORDER_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace refurbish_tf {

// An error when the order of `source` is known to change from one iteration to
// the next. A sample is known by its position in the source, so such a source
// cannot be refurbished.
//
// Looks at the graph of the source: the arguments of some stages are to be found
// nowhere else, nor are those within the functions of `interleave` and
// `flat_map`, nor what an option of the whole pipeline has made of them.
absl::Status CheckSourceOrder(tensorflow::OpKernelContext* ctx,
                              const tensorflow::data::DatasetBase* source);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_SOURCE_ORDER_H_

// What class a sample is of.
#ifndef REFURBISH_TF_CC_KERNELS_LABELS_H_
#define REFURBISH_TF_CC_KERNELS_LABELS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/tensor.h"

namespace refurbish_tf {

// A number for the class of a sample, equal for equal classes. The label is the last
// component: a whole number, of any type and also alone in a vector, a short string, or
// a one-hot vector. None where it is none of these, or the only component.
std::optional<int64_t> LabelOf(const std::vector<tensorflow::Tensor>& sample);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_LABELS_H_

// Properties of TensorFlow's operations that can only be looked up by name.
#ifndef REFURBISH_TF_CC_KERNELS_OP_LISTS_H_
#define REFURBISH_TF_CC_KERNELS_OP_LISTS_H_

#include <string>

namespace refurbish_tf {

// Datasets that an index mapper can ask for any of their elements, in any
// order, provided that it can ask their inputs.
bool HasRandomAccessIfInputHas(const std::string& dataset);

// Datasets that count the elements they yield also with an index mapper, and
// end or fail after as many as they have.
bool CountsElements(const std::string& dataset);

// Datasets that are infinite if their inputs are, though they report an unknown
// cardinality.
bool EndsOnlyWithInput(const std::string& dataset);

// Operations that the single-threaded executor cannot run: primitives of
// control flow, as in functions traced by version 1, and operations that wait
// for other processes.
bool NeedsDefaultExecutor(const std::string& op);

bool CallsPython(const std::string& op);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_OP_LISTS_H_

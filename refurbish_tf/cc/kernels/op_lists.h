// What has to be known of TensorFlow's operations by name, as none of them tells
// by itself.
#ifndef REFURBISH_TF_CC_KERNELS_OP_LISTS_H_
#define REFURBISH_TF_CC_KERNELS_OP_LISTS_H_

#include <string>

namespace refurbish_tf {

// Datasets whose elements can be asked for in any order, by an index mapper, and
// some of them left out, where their inputs' can.
bool HasRandomAccessIfInputHas(const std::string& dataset);

// Datasets that count what they have yielded by an index mapper, and end, or fail,
// after as many as they have elements.
bool CountsElements(const std::string& dataset);

// Datasets that go on for ever if their inputs do, though they say that their
// cardinality is unknown.
bool EndsOnlyWithInput(const std::string& dataset);

// Operations of a function that the single-threaded executor does not take:
// primitives of control flow, of which functions traced by version 1 consist, and
// what waits for other processes.
bool NeedsDefaultExecutor(const std::string& op);

bool CallsPython(const std::string& op);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_KERNELS_OP_LISTS_H_

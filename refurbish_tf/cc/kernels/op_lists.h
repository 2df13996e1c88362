// Properties of TensorFlow's operations that can only be looked up by name.
#pragma once

#include <string>

namespace refurbish_tf {

// What is known about a dataset op, as a set of bits.
enum DatasetTrait : unsigned {
  kListed = 1,  // It is in the list.
  // Any of its elements can be requested through an index mapper, in any order,
  // if the same is true of its inputs.
  kByIndex = 2,
  // It counts the elements that it yields, even with an index mapper, and ends
  // or fails at its cardinality, even if an element came twice.
  kCounts = 4,
  // It is infinite if its inputs are, though it reports an unknown cardinality.
  kEndsWithInput = 8,
  // It makes one element from each element of its input, in the same order.
  kOneOfEach = 16,
  // See `AlwaysDoesTheSame` and `YieldsWhatIsInGraph`.
  kSame = 32,
  kInGraph = 64,
};

bool HasTrait(const std::string& dataset, DatasetTrait trait);

// Whether the single-threaded executor cannot run `op`. This is true of
// primitives of control flow, which functions traced by TensorFlow 1 contain,
// and of operations that wait for other processes.
bool NeedsDefaultExecutor(const std::string& op);

bool CallsPython(const std::string& op);

// Whether `op` draws random numbers or counts something, so that a source
// yields other elements in each pass.
bool DrawsAnew(const std::string& op);

// Whether `op` certainly yields the same for the same inputs and files, because
// it has no state that matters. Functions that it calls are checked separately.
bool AlwaysDoesTheSame(const std::string& op);

// Whether an `op` that does this yields only tensors that are in the graph.
bool YieldsWhatIsInGraph(const std::string& op);

}  // namespace refurbish_tf

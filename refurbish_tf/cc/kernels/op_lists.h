// Properties of TensorFlow's operations that can only be looked up by name.
#pragma once

#include <string>

namespace refurbish_tf {

// What is known about a dataset, in bits.
enum DatasetTrait : unsigned {
  kListed = 1,  // It is in the list.
  // An index mapper can ask for any of its elements, in any order, if it can
  // ask its inputs.
  kByIndex = 2,
  // It counts the elements that it yields, even with an index mapper, and ends
  // or fails after as many as it has.
  kCounts = 4,
  // It is infinite if its inputs are, though it reports an unknown cardinality.
  kEndsWithInput = 8,
  // It makes one element from each one of its input, in the same order.
  kOneOfEach = 16,
  // See `AlwaysDoesTheSame` and `YieldsWhatIsInGraph`.
  kSame = 32,
  kInGraph = 64,
};

bool HasTrait(const std::string& dataset, DatasetTrait trait);

// Operations that the single-threaded executor cannot run: primitives of
// control flow, as in functions traced by version 1, and operations that wait
// for other processes.
bool NeedsDefaultExecutor(const std::string& op);

bool CallsPython(const std::string& op);

// Operations that draw random numbers or count something, so that a source
// yields other elements each time.
bool DrawsAnew(const std::string& op);

// Operations that certainly yield the same for the same inputs and files: they
// have no state, or it does not matter. Their functions are checked separately.
bool AlwaysDoesTheSame(const std::string& op);

// Those of them that yield tensors of the graph, unchanged.
bool YieldsWhatIsInGraph(const std::string& op);

}  // namespace refurbish_tf

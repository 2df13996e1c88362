// Properties of TensorFlow's operations that can only be looked up by name.
#pragma once

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

// Datasets that make one element of each of their input, in its order.
bool MakesOneOfEach(const std::string& dataset);

// Operations that the single-threaded executor cannot run: primitives of
// control flow, as in functions traced by version 1, and operations that wait
// for other processes.
bool NeedsDefaultExecutor(const std::string& op);

bool CallsPython(const std::string& op);

// Operations that draw random numbers, or count something, so that a source
// yields other elements each time.
bool DrawsAnew(const std::string& op);

// Operations that certainly yield the same for the same inputs and files: they
// have no state, or it does not matter. Their functions are looked at apart.
bool AlwaysDoesTheSame(const std::string& op);

// Of those, the ones that yield tensors which stand in the graph, as they are.
bool YieldsWhatIsInGraph(const std::string& op);

}  // namespace refurbish_tf

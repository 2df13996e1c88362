#include "refurbish_tf/cc/kernels/op_lists.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op.h"

namespace refurbish_tf {
namespace {

template <class... Names>
bool IsOneOf(absl::string_view name, const Names&... names) {
  return ((name == names) || ...);
}

// What is not registered is a function, whose graph is looked at itself.
bool HasState(const std::string& op) {
  const auto* const found = tensorflow::OpRegistry::Global()->LookUp(op);
  return found != nullptr && found->op_def.is_stateful();
}

bool HasInputDataset(const std::string& op) {
  const auto* const found = tensorflow::OpRegistry::Global()->LookUp(op);
  if (found == nullptr) return false;
  const auto& inputs = found->op_def.input_arg();
  return std::any_of(inputs.begin(), inputs.end(), [](const auto& input) {
    return input.type() == tensorflow::DT_VARIANT;
  });
}

}  // namespace

// `RandomIndexingCompatible` cannot be relied on. `cache`, `take` and every
// dataset with an infinite input, such as `enumerate`, promise more than their
// inputs can do. `assert_cardinality` counts its elements, and so does
// `repeat`, whose rounds end too early inside `concatenate` and around
// `concatenate` or `zip`. So this lists the datasets that are known to keep the
// promise; every other one is read as a stream, which is always right.
bool HasRandomAccessIfInputHas(const std::string& dataset) {
  return IsOneOf(dataset, "BatchDataset", "BatchDatasetV2",
                 "ConcatenateDataset", "MapDataset", "OptionsDataset",
                 "ParallelBatchDataset", "ParallelMapDatasetV2",
                 "PrefetchDataset", "RangeDataset",
                 "RefurbishTf>AugmentDataset", "RefurbishTf>CachedDataset",
                 "RefurbishTf>DataSourceDataset", "RefurbishTf>EchoDataset",
                 "RefurbishTf>ImageFilesDataset", "RefurbishTf>TfrecordDataset",
                 "ShardDataset", "SkipDataset", "TakeDataset", "TensorDataset",
                 "TensorSliceDataset", "ZipDataset");
}

bool CountsElements(const std::string& dataset) {
  return IsOneOf(dataset, "AssertCardinalityDataset", "RepeatDataset",
                 "TakeDataset");
}

bool EndsOnlyWithInput(const std::string& dataset) {
  return IsOneOf(dataset, "BatchDataset", "BatchDatasetV2", "CacheDataset",
                 "CacheDatasetV2", "FilterDataset", "FlatMapDataset",
                 "IgnoreErrorsDataset", "InterleaveDataset", "MapDataset",
                 "OptionsDataset", "PaddedBatchDatasetV2",
                 "ParallelBatchDataset", "ParallelFilterDataset",
                 "ParallelInterleaveDatasetV4", "ParallelMapDatasetV2",
                 "PrefetchDataset", "RefurbishTf>AugmentDataset",
                 "ShuffleDatasetV3", "UnbatchDataset", "WindowDataset");
}

bool MakesOneOfEach(const std::string& dataset) {
  return IsOneOf(dataset, "CacheDataset", "CacheDatasetV2", "MapDataset",
                 "OptionsDataset", "ParallelMapDatasetV2", "PrefetchDataset",
                 "RefurbishTf>AugmentDataset", "RefurbishTf>CachedDataset");
}

bool NeedsDefaultExecutor(const std::string& op) {
  return IsOneOf(op, "Enter", "Exit", "Merge", "NextIteration", "RefEnter",
                 "RefExit", "RefMerge", "RefNextIteration", "RefSwitch",
                 "Switch", "_SwitchN") ||
         absl::StartsWith(op, "Collective");
}

bool CallsPython(const std::string& op) {
  return op == "PyFunc" || op == "PyFuncStateless" || op == "EagerPyFunc";
}

bool DrawsAnew(const std::string& op) {
  if (!HasState(op) || absl::StrContains(op, "Dataset") ||
      absl::StrContains(op, "SeedGenerator") ||
      absl::StartsWith(op, "Stateless")) {
    return false;
  }
  // A random operation with a seed, too: it yields the next number at each
  // call, and not all elements are asked for. "Assign": Keras' random layers
  // keep their seed in a variable.
  for (const char* part :
       {"Random", "Multinomial", "TruncatedNormal", "NonDeterministicInts",
        "RngReadAndSkip", "CandidateSampler", "SampleDistortedBoundingBox",
        "StatefulStandardNormal", "StatefulUniform", "Assign"}) {
    if (absl::StrContains(op, part)) return true;
  }
  return false;
}

bool AlwaysDoesTheSame(const std::string& op) {
  return !HasState(op) ||
         IsOneOf(op, "Assert", "Case", "FixedLengthRecordDataset",
                 "FixedLengthRecordDatasetV2", "For", "If", "Print", "PrintV2",
                 "RangeDataset", "ReadFile", "RefurbishTf>ImageFilesDataset",
                 "RefurbishTf>TfrecordDataset", "SparseTensorSliceDataset",
                 "StatefulPartitionedCall", "StatelessRandomGetAlg",
                 "TFRecordDataset", "TFRecordDatasetV2", "TensorDataset",
                 "TensorSliceDataset", "TextLineDataset", "While", "_Arg",
                 "_Retval") ||
         absl::StrContains(op, "SeedGenerator") ||
         (absl::StrContains(op, "Dataset") && HasInputDataset(op));
}

bool YieldsWhatIsInGraph(const std::string& op) {
  return IsOneOf(op, "ConcatenateDataset", "Const", "OptionsDataset",
                 "Placeholder", "PrefetchDataset", "RangeDataset",
                 "RefurbishTf>CachedDataset", "ShardDataset", "SkipDataset",
                 "TakeDataset", "TensorDataset", "TensorSliceDataset",
                 "ZipDataset", "_Retval");
}

}  // namespace refurbish_tf

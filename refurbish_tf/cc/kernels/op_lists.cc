#include "refurbish_tf/cc/kernels/op_lists.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op.h"

namespace refurbish_tf {
namespace {

template <class... Names>
bool IsOneOf(absl::string_view name, const Names&... names) {
  return ((name == names) || ...);
}

// An unregistered operation is a function, whose nodes are checked as well.
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

// All datasets of this package, and TensorFlow's datasets that have a trait.
//
// TensorFlow's `RandomIndexingCompatible` is unreliable, so `kByIndex` marks
// datasets that certainly allow random access. `cache`, `take` and every
// dataset with an infinite input, such as `enumerate`, claim it even if their
// inputs do not allow it. `assert_cardinality` counts its elements; so does
// `repeat`, whose rounds end too early inside `concatenate` and around
// `concatenate` or `zip`.
constexpr std::pair<unsigned, const char*> kDatasets[] = {
    {kListed,
     "RefurbishTf>AdaptiveEchoDataset RefurbishTf>LoaderOutputDataset "
     "RefurbishTf>OffloadDataset RefurbishTf>RefurbishDataset"},
    {kByIndex, "RefurbishTf>DataSourceDataset RefurbishTf>EchoDataset"},
    {kByIndex | kSame,
     "RefurbishTf>ImageFilesDataset RefurbishTf>TfrecordDataset"},
    {kByIndex | kSame | kInGraph,
     "RangeDataset TensorDataset TensorSliceDataset"},
    {kByIndex | kInGraph,
     "ConcatenateDataset ShardDataset SkipDataset ZipDataset"},
    {kByIndex | kCounts | kInGraph, "TakeDataset"},
    {kByIndex | kOneOfEach | kInGraph, "RefurbishTf>CachedDataset"},
    {kByIndex | kEndsWithInput,
     "BatchDataset BatchDatasetV2 ParallelBatchDataset"},
    {kByIndex | kEndsWithInput | kOneOfEach,
     "MapDataset ParallelMapDatasetV2 RefurbishTf>AugmentDataset"},
    {kByIndex | kEndsWithInput | kOneOfEach | kInGraph,
     "OptionsDataset PrefetchDataset"},
    {kEndsWithInput | kOneOfEach, "CacheDataset CacheDatasetV2"},
    {kEndsWithInput,
     "FilterDataset FlatMapDataset IgnoreErrorsDataset InterleaveDataset "
     "PaddedBatchDatasetV2 ParallelFilterDataset ParallelInterleaveDatasetV4 "
     "RefurbishTf>AugmentBatchDataset ShuffleDatasetV3 UnbatchDataset "
     "WindowDataset"},
    {kCounts, "AssertCardinalityDataset RepeatDataset"},
    {kSame,
     "FixedLengthRecordDataset FixedLengthRecordDatasetV2 "
     "SparseTensorSliceDataset TFRecordDataset TFRecordDatasetV2 "
     "TextLineDataset"},
};

}  // namespace

bool HasTrait(const std::string& dataset, DatasetTrait trait) {
  for (const auto& [traits, names] : kDatasets) {
    for (const absl::string_view name : absl::StrSplit(names, ' ')) {
      if (name == dataset) return (traits | kListed) & trait;
    }
  }
  // Any other dataset, of TensorFlow or a user, is treated as a stream that may
  // change, which is always correct.
  return false;
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
  // Operations with a fixed seed are included: they draw another number at each
  // call, and not every element is requested in each epoch. "Assign": Keras'
  // random layers keep their seed in a variable.
  for (const char* part :
       {"Random", "Multinomial", "TruncatedNormal", "NonDeterministicInts",
        "RngReadAndSkip", "CandidateSampler", "SampleDistortedBoundingBox",
        "StatefulStandardNormal", "StatefulUniform", "Assign"}) {
    if (absl::StrContains(op, part)) return true;
  }
  return false;
}

bool AlwaysDoesTheSame(const std::string& op) {
  return !HasState(op) || HasTrait(op, kSame) ||
         IsOneOf(op, "Assert", "Case", "For", "If", "Print", "PrintV2",
                 "ReadFile", "StatefulPartitionedCall", "StatelessRandomGetAlg",
                 "While", "_Arg", "_Retval") ||
         absl::StrContains(op, "SeedGenerator") ||
         (absl::StrContains(op, "Dataset") && HasInputDataset(op));
}

bool YieldsWhatIsInGraph(const std::string& op) {
  return HasTrait(op, kInGraph) ||
         IsOneOf(op, "Const", "Placeholder", "_Retval");
}

}  // namespace refurbish_tf

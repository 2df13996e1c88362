#include "refurbish_tf/cc/kernels/op_lists.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace refurbish_tf {
namespace {

bool IsOneOf(absl::string_view name,
             std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

// `RandomIndexingCompatible` cannot be relied on. `cache`, `take` and every
// dataset with an infinite input, such as `enumerate`, promise more than their
// inputs can do. `assert_cardinality` counts its elements, and so does
// `repeat`, whose rounds end too early inside `concatenate` and around
// `concatenate` or `zip`. So this lists the datasets that are known to keep the
// promise; every other one is read as a stream, which is always right.
bool HasRandomAccessIfInputHas(const std::string& dataset) {
  return IsOneOf(
      dataset,
      {"BatchDataset", "BatchDatasetV2", "ConcatenateDataset", "MapDataset",
       "OptionsDataset", "ParallelBatchDataset", "ParallelMapDatasetV2",
       "PrefetchDataset", "RangeDataset", "RefurbishTf>AugmentDataset",
       "RefurbishTf>DataSourceDataset", "RefurbishTf>EchoDataset",
       "RefurbishTf>TfrecordDataset", "ShardDataset", "SkipDataset",
       "TakeDataset", "TensorDataset", "TensorSliceDataset", "ZipDataset"});
}

bool CountsElements(const std::string& dataset) {
  return IsOneOf(dataset,
                 {"AssertCardinalityDataset", "RepeatDataset", "TakeDataset"});
}

bool EndsOnlyWithInput(const std::string& dataset) {
  return IsOneOf(dataset, {"BatchDataset",
                           "BatchDatasetV2",
                           "CacheDataset",
                           "CacheDatasetV2",
                           "FilterDataset",
                           "FlatMapDataset",
                           "IgnoreErrorsDataset",
                           "InterleaveDataset",
                           "MapDataset",
                           "OptionsDataset",
                           "PaddedBatchDatasetV2",
                           "ParallelBatchDataset",
                           "ParallelFilterDataset",
                           "ParallelInterleaveDatasetV4",
                           "ParallelMapDatasetV2",
                           "PrefetchDataset",
                           "RefurbishTf>AugmentDataset",
                           "ShuffleDatasetV3",
                           "UnbatchDataset",
                           "WindowDataset"});
}

bool NeedsDefaultExecutor(const std::string& op) {
  return IsOneOf(op, {"Enter", "Exit", "Merge", "NextIteration", "RefEnter",
                      "RefExit", "RefMerge", "RefNextIteration", "RefSwitch",
                      "Switch", "_SwitchN"}) ||
         absl::StartsWith(op, "Collective");
}

bool CallsPython(const std::string& op) {
  return op == "PyFunc" || op == "PyFuncStateless" || op == "EagerPyFunc";
}

}  // namespace refurbish_tf

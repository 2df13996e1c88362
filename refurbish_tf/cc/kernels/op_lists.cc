#include "refurbish_tf/cc/kernels/op_lists.h"

#include <unordered_set>

#include "absl/strings/match.h"

namespace refurbish_tf {
namespace {

using Names = std::unordered_set<std::string>;

}  // namespace

// `RandomIndexingCompatible` cannot be relied on. `cache`, `take` and every
// dataset with an infinite input, such as `enumerate`, promise more than their
// inputs can do. `assert_cardinality` counts its elements, and so does
// `repeat`, whose rounds end too early inside `concatenate` and around
// `concatenate` or `zip`. So this lists the datasets that are known to keep the
// promise; every other one is read as a stream, which is always right.
bool HasRandomAccessIfInputHas(const std::string& dataset) {
  static const auto* const kNames = new Names{
      "BatchDataset",
      "BatchDatasetV2",
      "ConcatenateDataset",
      "MapDataset",
      "OptionsDataset",
      "ParallelBatchDataset",
      "ParallelMapDatasetV2",
      "PrefetchDataset",
      "RangeDataset",
      "RefurbishTf>AugmentDataset",
      "RefurbishTf>DataSourceDataset",
      "RefurbishTf>EchoDataset",
      "RefurbishTf>TfrecordDataset",
      "ShardDataset",
      "SkipDataset",
      "TakeDataset",
      "TensorDataset",
      "TensorSliceDataset",
      "ZipDataset",
  };
  return kNames->count(dataset) > 0;
}

bool CountsElements(const std::string& dataset) {
  static const auto* const kNames = new Names{
      "AssertCardinalityDataset",
      "RepeatDataset",
      "TakeDataset",
  };
  return kNames->count(dataset) > 0;
}

bool EndsOnlyWithInput(const std::string& dataset) {
  static const auto* const kNames = new Names{
      "BatchDataset",
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
      "WindowDataset",
  };
  return kNames->count(dataset) > 0;
}

bool NeedsDefaultExecutor(const std::string& op) {
  static const auto* const kNames = new Names{
      "Enter",     "Exit",    "Merge",    "NextIteration",
      "RefEnter",  "RefExit", "RefMerge", "RefNextIteration",
      "RefSwitch", "Switch",  "_SwitchN",
  };
  return kNames->count(op) > 0 || absl::StartsWith(op, "Collective");
}

bool CallsPython(const std::string& op) {
  return op == "PyFunc" || op == "PyFuncStateless" || op == "EagerPyFunc";
}

}  // namespace refurbish_tf

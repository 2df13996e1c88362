#include "refurbish_tf/cc/kernels/stages_upstream.h"

#include <algorithm>
#include <unordered_set>

#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {
namespace {

// `visited`: a dataset may be the input of several others.
void AddStages(const DatasetBase& dataset,
               std::unordered_set<const DatasetBase*>* visited,
               std::vector<std::shared_ptr<Stage>>* stages) {
  std::vector<const DatasetBase*> inputs;
  if (!visited->insert(&dataset).second ||
      !dataset.InputDatasets(&inputs).ok()) {
    return;
  }
  for (const DatasetBase* input : inputs) AddStages(*input, visited, stages);
  const auto* own = dynamic_cast<const StageDataset*>(&dataset);
  if (own != nullptr && std::find(stages->begin(), stages->end(),
                                  own->stage()) == stages->end()) {
    stages->push_back(own->stage());
  }
}

}  // namespace

std::vector<std::shared_ptr<Stage>> StagesUpstream(const DatasetBase& dataset) {
  std::unordered_set<const DatasetBase*> visited;
  std::vector<std::shared_ptr<Stage>> stages;
  AddStages(dataset, &visited, &stages);
  return stages;
}

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage) {
  return writer->WriteScalar(kNextEpochs, stage.id(),
                             static_cast<int64_t>(stage.next_epoch()));
}

}  // namespace refurbish_tf

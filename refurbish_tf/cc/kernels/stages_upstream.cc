#include "refurbish_tf/cc/kernels/stages_upstream.h"

#include <algorithm>

#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {

std::vector<std::shared_ptr<Stage>> StagesUpstream(const DatasetBase& dataset) {
  std::vector<std::shared_ptr<Stage>> stages;
  std::vector<const DatasetBase*> inputs;
  if (!dataset.InputDatasets(&inputs).ok()) return stages;
  for (const DatasetBase* input : inputs) {
    for (auto& stage : StagesUpstream(*input)) {
      if (std::find(stages.begin(), stages.end(), stage) == stages.end()) {
        stages.push_back(std::move(stage));
      }
    }
  }
  const auto* own = dynamic_cast<const StageDataset*>(&dataset);
  if (own != nullptr) stages.push_back(own->stage());
  return stages;
}

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage) {
  return writer->WriteScalar(kNextEpochs, stage.id(),
                             static_cast<int64_t>(stage.next_epoch()));
}

}  // namespace refurbish_tf

// Finds the refurbish stages that a dataset reads, and saves their next epochs
// in an iterator's checkpoint.
//
// TensorFlow's `batch` and others drop their input's iterator at the end of an
// epoch, and a checkpoint then says nothing about the stage. The stage itself
// knows which epoch it begins next, but when elements are read ahead, it may
// have begun an epoch that the consumer has not reached. So an iterator that
// reads ahead saves the next epoch with each element, in snapshots and symbolic
// checkpoints. Its key belongs to no iterator, so it is not dropped.
#pragma once

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"
#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {

// The dataset of a refurbish stage.
class StageDataset {
 public:
  virtual const std::shared_ptr<Stage>& stage() const = 0;

 protected:
  ~StageDataset() = default;
};

inline constexpr char kNextEpochs[] = "refurbish_tf_next_epochs";

// `visited`: a dataset may be the input of several others.
inline void AddStages(const DatasetBase& dataset,
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

// Returns each stage once. Does not search the functions of datasets.
inline std::vector<std::shared_ptr<Stage>> StagesUpstream(
    const DatasetBase& dataset) {
  std::unordered_set<const DatasetBase*> visited;
  std::vector<std::shared_ptr<Stage>> stages;
  AddStages(dataset, &visited, &stages);
  return stages;
}

inline absl::Status SaveNextEpoch(IteratorStateWriter* writer,
                                  const Stage& stage) {
  return writer->WriteScalar(kNextEpochs, stage.id(),
                             static_cast<int64_t>(stage.next_epoch()));
}

}  // namespace refurbish_tf

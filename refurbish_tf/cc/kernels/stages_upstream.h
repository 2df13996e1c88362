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

#include <memory>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

class Stage;

// The dataset of a refurbish stage.
class StageDataset {
 public:
  virtual const std::shared_ptr<Stage>& stage() const = 0;

 protected:
  ~StageDataset() = default;
};

inline constexpr char kNextEpochs[] = "refurbish_tf_next_epochs";

// Returns each stage once. Does not search the functions of datasets.
std::vector<std::shared_ptr<Stage>> StagesUpstream(const DatasetBase& dataset);

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage);

}  // namespace refurbish_tf

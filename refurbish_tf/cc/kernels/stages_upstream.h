// Finds the refurbish stages that a dataset reads, and saves their next epochs
// in an iterator's checkpoint.
//
// TensorFlow's `batch` and others drop their input's iterator at the end of an
// epoch, and the checkpoint then lacks the stage. The stage itself knows which
// epoch it begins next, but it may be ahead of the consumer. So an iterator
// that reads ahead saves the number with each element, in snapshots and in
// symbolic checkpoints, under a name that is not dropped with any iterator.
#pragma once

#include <memory>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

class Stage;

// A dataset that is a stage.
class StageDataset {
 public:
  virtual const std::shared_ptr<Stage>& stage() const = 0;

 protected:
  ~StageDataset() = default;
};

inline constexpr char kNextEpochs[] = "refurbish_tf_next_epochs";

// Returns each stage once. Does not search functions.
std::vector<std::shared_ptr<Stage>> StagesUpstream(const DatasetBase& dataset);

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage);

}  // namespace refurbish_tf

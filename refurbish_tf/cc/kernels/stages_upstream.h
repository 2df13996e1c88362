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
#include <string>
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

// Returns each stage once. Does not search functions. `read_again` gets for
// each stage the type of a dataset after it that, with symbolic checkpoints,
// may read an element again, or an empty string.
std::vector<std::shared_ptr<Stage>> StagesUpstream(
    const DatasetBase& dataset, std::vector<std::string>* read_again = nullptr);

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage);

}  // namespace refurbish_tf

// The refurbish stages that a dataset reads, and what an iterator's checkpoint
// says of them.
//
// TensorFlow's `batch` and others drop their input's iterator at the end of an
// epoch, and the checkpoint then lacks the stage. Which epoch the stage begins
// next is known to itself, but it may be ahead of the consumer. So an iterator
// that reads ahead notes the number with each element, under a name that no
// dropped iterator takes with it: in snapshots, and in symbolic checkpoints.
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

// Each once. Does not look into functions. `read_again` gets, for each, the
// type of a dataset after it that a symbolic checkpoint lets read an element
// again, or nothing.
std::vector<std::shared_ptr<Stage>> StagesUpstream(
    const DatasetBase& dataset, std::vector<std::string>* read_again = nullptr);

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage);

}  // namespace refurbish_tf

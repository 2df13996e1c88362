// Finds the refurbish stages of a dataset, including those in its functions,
// and the operations after them that a symbolic checkpoint restores wrongly.
#pragma once

#include <string>
#include <vector>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

struct StageInGraph {
  std::string name;
  // An operation after the stage that reads an element again after a restore
  // of a symbolic checkpoint, or empty.
  std::string read_again_by;
  // An operation whose symbolic checkpoint lacks what it skipped, or empty.
  std::string skipped_by;
};

// Returns each stage once, upstream first.
std::vector<StageInGraph> StagesInGraph(OpKernelContext* ctx,
                                        const DatasetBase& dataset);

}  // namespace refurbish_tf

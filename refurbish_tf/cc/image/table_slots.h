// Which images of a batch can have their policies done on an accelerator.
//
// There the tables of auto_contrast and equalize are made for a few of the
// images of each group, as a program without branches makes them whether they
// are drawn or not. The host does the policies of images that come too late.
#ifndef REFURBISH_TF_CC_IMAGE_TABLE_SLOTS_H_
#define REFURBISH_TF_CC_IMAGE_TABLE_SLOTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/policy.h"

namespace refurbish_tf {

class TableSlots {
 public:
  // `slots` of each `group` images in a row, counted from the beginning of the
  // batch as well as of each of its parts of `part` images, as replicas may get
  // one or the other. `run` must outlive this.
  TableSlots(const LayerRun& run, int slots, int64_t group, int64_t part);

  // Whether there is a table for image `row` in each layer that needs one;
  // takes them. Rows come in rising order; row 0 begins a new batch.
  bool Take(int64_t row, const int32_t* draws);

 private:
  // How many slots are taken, by layer.
  struct Group {
    int64_t number = -1;
    std::vector<int> taken;
  };

  void Enter(int64_t number, Group* group) const;

  const int slots_;
  const int64_t group_size_, part_;
  // The policies, and where their draws are.
  std::vector<std::pair<const Policy*, int>> policies_;
  Group of_batch_, of_part_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_IMAGE_TABLE_SLOTS_H_

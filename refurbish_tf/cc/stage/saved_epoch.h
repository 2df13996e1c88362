// What a checkpoint says of an epoch.
#ifndef REFURBISH_TF_CC_STAGE_SAVED_EPOCH_H_
#define REFURBISH_TF_CC_STAGE_SAVED_EPOCH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

inline constexpr int64_t kUnknownSamples = -1;

// The error of a checkpoint that does not fit.
absl::Status OtherPipeline(const char* what, const std::string& given,
                           const std::string& saved);

// What a checkpoint says of an epoch: enough to go on with it in another process,
// and nothing that the cache store holds.
struct SavedEpoch {
  int64_t seed = 0;
  int64_t order_seed = 0;
  double reuse_factor = 1;  // Of the stage, and so is the next one.
  uint64_t next_epoch = 0;
  bool begun = false;  // Else it has no number, and nothing was yielded.
  uint64_t number = 0;
  int64_t num_samples = kUnknownSamples;
  bool scheduled = false;
  int64_t num_kept = 0;  // With a schedule only.
  uint64_t origin = 0;   // Likewise.
  // By sample, eight to a byte from the lowest bit on: was yielded (uint8). Then
  // the samples that were yielded after that (uint32): symbolic checkpoints are
  // saved with every element, and must not copy everything each time.
  tensorflow::Tensor yielded{tensorflow::DT_UINT8, tensorflow::TensorShape({0})};
  tensorflow::Tensor yielded_since{tensorflow::DT_UINT32,
                                   tensorflow::TensorShape({0})};
};

// Whatever a damaged checkpoint says must neither end the process, as tensors of
// another type do when they are read, nor be written beyond an end.
// `num_samples` is how many the source has now, as far as is known.
absl::Status CheckSaved(const SavedEpoch& saved, int64_t num_samples);

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_SAVED_EPOCH_H_

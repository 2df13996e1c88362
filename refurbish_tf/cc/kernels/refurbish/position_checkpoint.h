// The position of a refurbish stage in the checkpoint of an iterator.
#pragma once

#include <string>

#include "refurbish_tf/cc/kernels/checkpoint.h"
#include "refurbish_tf/cc/refurbish/epoch_position.h"

namespace refurbish_tf {

// The key under which an iterator saves the name of its stage.
inline constexpr char kSavedStage[] = "stage";

absl::Status WritePosition(IteratorStateWriter* writer,
                           const std::string& prefix, const std::string& stage,
                           EpochPosition position);

// Fails if the position is missing, or was saved in another version.
absl::Status ReadPosition(const CheckpointReader& reader,
                          EpochPosition* position);

}  // namespace refurbish_tf

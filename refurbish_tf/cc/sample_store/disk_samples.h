// A store of samples that keeps them on disk: encodes tensors as records.
#pragma once

#include <memory>
#include <string>

#include "refurbish_tf/cc/sample_store/sample_store.h"

namespace refurbish_tf {

absl::StatusOr<std::shared_ptr<SampleStore>> OpenDiskSamples(
    const std::string& directory, int64_t max_bytes, bool overwrite,
    bool must_exist);

}  // namespace refurbish_tf

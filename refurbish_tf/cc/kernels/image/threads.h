// Work on the images of a batch, on the device's threads.
#pragma once

#include <cstdint>
#include <functional>

#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// Calls work(begin, end) for parts of `count` pieces of work, on the device's
// threads if that pays. `bytes`: what each reads and writes. Returns whether
// memory was lacking.
bool ForEachPart(OpKernelContext* ctx, int64_t count, int64_t bytes,
                 const std::function<void(int64_t, int64_t)>& work);

}  // namespace refurbish_tf

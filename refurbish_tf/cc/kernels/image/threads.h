// Work on the images of a batch, on the device's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "refurbish_tf/cc/kernels/names.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/util/work_sharder.h"

namespace refurbish_tf {

// Waking a thread pays only if it reads and writes at least this many bytes.
inline constexpr int64_t kBytesForAThread = 1 << 18;

// Calls work(begin, end) for parts of `count` pieces of work, on the device's
// threads if that pays. `bytes`: how many bytes a piece reads and writes.
// Returns whether memory was lacking.
template <class Work>
bool ForEachPart(OpKernelContext* ctx, int64_t count, int64_t bytes,
                 const Work& work) {
  std::atomic<bool> lacks_memory{false};
  const auto part = [&](int64_t begin, int64_t end) {
    try {
      work(begin, end);
    } catch (const std::bad_alloc&) {
      lacks_memory = true;
    }
  };
  if (count == 1 || bytes * count < 2 * kBytesForAThread) {
    part(0, count);
    return lacks_memory;
  }
  const auto* const workers = ctx->device()->tensorflow_cpu_worker_threads();
  // `Shard` makes shards of cost 10,000, which stands for kBytesForAThread.
  tensorflow::Shard(workers->num_threads, workers->workers, count,
                    std::max<int64_t>(1, bytes * 10000 / kBytesForAThread),
                    part);
  return lacks_memory;
}

}  // namespace refurbish_tf

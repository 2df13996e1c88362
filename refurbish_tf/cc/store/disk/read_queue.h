// Reads of files, begun together and waited for one by one.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {

// A read of a file. From `Start` until its `Wait` has returned, it must stay
// alive at its address, with its buffer and its open file. After that, it may
// be changed and started again.
struct Read {
  int fd = -1;
  uint64_t offset = 0;
  char* data = nullptr;
  size_t size = 0;

  // Used by the queue. `done` is set last: the owner then has the read back.
  std::atomic<bool> done{false};
  int64_t result = 0;
  std::condition_variable* waiting = nullptr;  // Of the thread in Wait.
};

// Reads by system calls. `Start` itself reads what is in the page cache,
// because passing it to another thread would cost several times as much as
// copying a small sample. Threads of the queue read the rest. If `Wait` is
// called for a read that none of them has begun, the caller reads it. (io_uring
// saved 5 to 8 % of the CPU time of a read of 3 KiB in the page cache and
// nothing for 150 KiB, was slower for reads from a disk, and is often forbidden
// in containers.)
//
// Thread-safe. A child made by fork() must neither use nor destroy its copy,
// whose threads exist only in the parent. Tests override the methods.
class ReadQueue {
 public:
  // Has at most `depth` threads. On a file system without RWF_NOWAIT, each read
  // under way takes one of these.
  explicit ReadQueue(int depth) : depth_(std::max(depth, 1)) {}
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;
  // All reads must have been waited for.
  virtual ~ReadQueue();

  // Begins the reads, in this order. Does not wait for the disk; what is in
  // the page cache is read at once.
  virtual void Start(Read* const* reads, size_t count) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the end of a read, once for each `Start`, in any thread. Returns
  // the bytes read, fewer than `size` only at the end of the file, or -errno.
  virtual int64_t Wait(Read* read) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Reads what is in the page cache. False if that is not all; `result` is then
  // the number of bytes read.
  bool ReadCached(Read* read);
  // Wakes or starts one thread. That thread calls the next one if there is more
  // to read, so few threads are started if reads are fast. If the system
  // refuses to start one, the threads that wait do the reading.
  void CallThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const size_t depth_;
  // Cleared if the file system turns out not to support RWF_NOWAIT.
  std::atomic<bool> can_read_cached_{true};

  std::mutex mu_;
  std::condition_variable work_;                  // For idle threads.
  std::deque<Read*> turns_ ABSL_GUARDED_BY(mu_);  // To be read by a thread.
  int idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  // Changes only under `mu_`, and not at all once `closing_` is set, so the
  // destructor reads it without the lock.
  std::vector<pthread_t> threads_;
};

}  // namespace refurbish_tf

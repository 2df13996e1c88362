// Reads that run ahead of their consumer: many under way at a time, begun
// together, waited for one by one.
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

// A read of a file. From Start until its Wait has returned, it must stay alive
// at its address, with its buffer and its open file. Then it may be changed and
// started again.
struct Read {
  int fd = -1;
  uint64_t offset = 0;
  char* data = nullptr;
  size_t size = 0;

  // Used by the queue. `done` is set last, and gives the read back to its
  // owner.
  std::atomic<bool> done{false};
  int64_t result = 0;
  std::condition_variable* waiting = nullptr;  // Of the thread in Wait.
};

// Reads by system calls. Start reads what is in the page cache, because passing
// it to another thread would cost several times as much as copying a small
// sample. The rest is left to threads of the queue. If Wait is called for a
// read that none of them has begun, the thread that waits does it. (io_uring
// saved 5 to 8 % of the CPU time of a read of 3 KiB in the page cache and
// nothing for 150 KiB, was slower for reads from a disk, and is often forbidden
// in containers.)
//
// Thread-safe. A child made by fork() must neither use nor destroy its copy; it
// does not disturb the parent's. Tests override the methods.
class ReadQueue {
 public:
  // Has at most `depth` threads. Without RWF_NOWAIT, each read under way takes
  // one of these.
  explicit ReadQueue(int depth) : depth_(std::max(depth, 1)) {}
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;
  // Every read must have been waited for.
  virtual ~ReadQueue();

  // Begins the reads, in this order. Does not wait for the disk; what is in
  // the page cache is read at once.
  virtual void Start(Read* const* reads, size_t count) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for the end of a read, once for each Start. Returns the bytes read,
  // fewer than `size` only at the end of the file, or -errno. The thread that
  // started it may have ended.
  virtual int64_t Wait(Read* read) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Reads what is in the page cache. False if that is not all; `result` is then
  // the number of bytes read.
  bool ReadCached(Read* read);
  // Wakes or starts one thread, which calls the next one if there is more to
  // read, so few threads are started if reads are fast. If the system refuses
  // to start one, the threads that wait do the reading.
  void CallThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const size_t depth_;
  // Not every file system supports RWF_NOWAIT.
  std::atomic<bool> can_read_cached_{true};

  std::mutex mu_;
  std::condition_variable work_;                  // For idle threads.
  std::deque<Read*> turns_ ABSL_GUARDED_BY(mu_);  // Waiting for a thread.
  int idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  // Written under mu_. Once closing, it does not change.
  std::vector<pthread_t> threads_;
};

}  // namespace refurbish_tf

// Reads that run ahead of their consumer: many under way at a time, begun
// together, waited for one by one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>

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

// Thread-safe. A child made by fork() must neither use nor destroy its copy; it
// does not disturb the parent's.
class ReadQueue {
 public:
  // A queue that reads by system calls, in the threads that call Start and Wait
  // and, for what is not in the page cache, in at most `depth` threads of its
  // own. Without RWF_NOWAIT, each read under way takes one of these. (io_uring
  // saved 5 to 8 % of the CPU time of a read of 3 KiB in the page cache and
  // nothing for 150 KiB, was slower for reads from a disk, and is often
  // forbidden in containers.)
  static std::unique_ptr<ReadQueue> Create(int depth);

  ReadQueue() = default;
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;
  // Every read must have been waited for.
  virtual ~ReadQueue() = default;

  // Begins the reads, in this order. Does not wait for the disk; what is in
  // the page cache is read at once.
  virtual void Start(Read* const* reads, size_t count) = 0;

  // Waits for the end of a read, once for each Start. Returns the bytes read,
  // fewer than `size` only at the end of the file, or -errno. The thread that
  // started it may have ended.
  virtual int64_t Wait(Read* read) = 0;
};

}  // namespace refurbish_tf

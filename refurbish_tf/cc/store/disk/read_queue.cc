#include "refurbish_tf/cc/store/disk/read_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {
namespace {

// The reads that wait their turn, linked through themselves.
class ReadList {
 public:
  bool empty() const { return first_ == nullptr; }

  void Append(Read* read) {
    read->waiting_its_turn = true;
    read->previous = last_;
    read->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = read;
    last_ = read;
  }

  void Remove(Read* read) {
    read->waiting_its_turn = false;
    (read->previous == nullptr ? first_ : read->previous->next) = read->next;
    (read->next == nullptr ? last_ : read->next->previous) = read->previous;
  }

  Read* TakeFirst() {
    Read* const read = first_;
    Remove(read);
    return read;
  }

 private:
  Read* first_ = nullptr;
  Read* last_ = nullptr;
};

void Finish(Read* read, int64_t result) {
  read->result = result;
  read->done.store(true, std::memory_order_release);
}

bool Done(const Read& read) {
  return read.done.load(std::memory_order_acquire);
}

// Reads what is missing after the first `bytes`. Returns as Wait does.
int64_t ReadRest(const Read& read, size_t bytes) {
  do {
    const ssize_t more = pread(read.fd, read.data + bytes, read.size - bytes,
                               read.offset + bytes);
    if (more == 0) break;
    if (more > 0) {
      bytes += more;
    } else if (errno != EINTR) {
      return -errno;
    }
  } while (bytes < read.size);
  return bytes;
}

// By pread. What is in the page cache is read by Start: to hand it to another
// thread would cost several times what it costs to copy a small sample. The
// rest is left to the threads of the pool, and what none has begun when it is
// waited for is read by the thread that waits for it.
class PoolReadQueue : public ReadQueue {
 public:
  explicit PoolReadQueue(int depth)
      : num_threads_(std::clamp(depth, 1, kMaxThreads)) {}

  ~PoolReadQueue() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      closing_ = true;
    }
    work_.notify_all();
    for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  }

  const char* name() const override { return "pread"; }

  void Start(Read* const* reads, size_t count) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    ReadList left;
    for (size_t i = 0; i < count; ++i) {
      reads[i]->done.store(false, std::memory_order_relaxed);
      if (!ReadCached(reads[i])) left.Append(reads[i]);
    }
    if (left.empty()) return;
    std::lock_guard<std::mutex> lock(mu_);
    while (!left.empty()) turns_.Append(left.TakeFirst());
    if (threads_.empty()) StartThreads();
    // One thread is woken. It wakes the next one, if it is needed.
    if (idle_ > 0) work_.notify_one();
  }

  int64_t Wait(Read* read) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (Done(*read)) return read->result;
    std::unique_lock<std::mutex> lock(mu_);
    if (read->waiting_its_turn) {
      turns_.Remove(read);
      lock.unlock();
      return ReadRest(*read, read->result);
    }
    ++waiting_;
    while (!Done(*read)) done_.wait(lock);
    --waiting_;
    return read->result;
  }

 private:
  // Recent kernels have a disk begin what ReadCached did not find, so that few
  // threads would do. Under older ones, every read under way takes a thread:
  // more of them load a fast disk better, but cost a switch each.
  static constexpr int kMaxThreads = 8;

  // Reads what is in the page cache. False if that is not all; `result` says
  // then how much was.
  bool ReadCached(Read* read) {
    read->result = 0;
#ifdef RWF_NOWAIT
    if (!can_read_cached_.load(std::memory_order_relaxed)) return false;
    size_t bytes = 0;
    do {
      const iovec rest = {read->data + bytes, read->size - bytes};
      const ssize_t more =
          preadv2(read->fd, &rest, 1, read->offset + bytes, RWF_NOWAIT);
      if (more < 0) {
        if (errno == EOPNOTSUPP || errno == ENOSYS) {
          can_read_cached_.store(false, std::memory_order_relaxed);
        }
        read->result = bytes;
        return false;
      }
      if (more == 0) break;
      bytes += more;
    } while (bytes < read->size);
    Finish(read, bytes);
    return true;
#else
    return false;
#endif
  }

  // Where the system has no thread for us, those that wait do the reading.
  void StartThreads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (static_cast<int>(threads_.size()) < num_threads_) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, &RunThread, this) != 0) break;
      threads_.push_back(thread);
    }
  }

  static void* RunThread(void* queue) {
    static_cast<PoolReadQueue*>(queue)->Run();
    return nullptr;
  }

  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      while (turns_.empty() && !closing_) {
        ++idle_;
        work_.wait(lock);
        --idle_;
      }
      if (closing_) return;
      Read* const read = turns_.TakeFirst();
      if (!turns_.empty() && idle_ > 0) work_.notify_one();
      lock.unlock();
      const int64_t result = ReadRest(*read, read->result);
      lock.lock();
      Finish(read, result);
      if (waiting_ > 0) done_.notify_all();
    }
  }

  const int num_threads_;
  // Not every file system can tell without waiting.
  std::atomic<bool> can_read_cached_{true};

  std::mutex mu_;
  std::condition_variable work_;  // For idle threads of the pool.
  std::condition_variable done_;  // For threads in Wait.
  ReadList turns_ ABSL_GUARDED_BY(mu_);
  int idle_ ABSL_GUARDED_BY(mu_) = 0;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  // Written once, under mu_; the destructor is alone.
  std::vector<pthread_t> threads_;
};

// Headers older than Linux 5.5 lack what is needed below.
#ifdef IORING_FEAT_NODROP

// IORING_OP_READ, which headers older than Linux 5.6 do not name.
constexpr uint8_t kReadOperation = 22;

// The size of a read is a 32-bit number there. ReadRest reads the rest.
constexpr size_t kMaxUringRead = size_t{1} << 30;

uint32_t LoadAcquire(const uint32_t* value) {
  return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

void StoreRelease(uint32_t* value, uint32_t to) {
  __atomic_store_n(value, to, __ATOMIC_RELEASE);
}

// The file and the memory shared with the kernel of an io_uring.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  ~Ring() {
    if (entries_ != nullptr) munmap(entries_, entries_bytes_);
    if (rings_ != nullptr) munmap(rings_, rings_bytes_);
    if (fd_ >= 0) close(fd_);
  }

  bool Open(uint32_t depth) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    // No flags. Those that spare the kernel the interruption of the thread that
    // submitted, when a read has come, want that thread to be the one that
    // waits; here it may be any.
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params));
    if (fd_ < 0) return false;
    constexpr uint32_t kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP;
    if ((params.features & kNeeded) != kNeeded) return false;
    rings_bytes_ = std::max<size_t>(
        params.sq_off.array + params.sq_entries * sizeof(uint32_t),
        params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    rings_ = static_cast<char*>(Map(rings_bytes_, IORING_OFF_SQ_RING));
    if (rings_ == nullptr) return false;
    entries_ = static_cast<io_uring_sqe*>(Map(entries_bytes_, IORING_OFF_SQES));
    if (entries_ == nullptr) return false;

    submitted_head_ = Number(params.sq_off.head);
    submitted_tail_ = Number(params.sq_off.tail);
    submitted_mask_ = *Number(params.sq_off.ring_mask);
    completed_head_ = Number(params.cq_off.head);
    completed_tail_ = Number(params.cq_off.tail);
    completed_mask_ = *Number(params.cq_off.ring_mask);
    completed_ = reinterpret_cast<io_uring_cqe*>(rings_ + params.cq_off.cqes);
    // The kernel takes the entries by way of this array: in their order.
    for (uint32_t i = 0; i < params.sq_entries; ++i) {
      Number(params.sq_off.array)[i] = i;
    }
    return true;
  }

  // At most `depth` between two calls of Submit.
  void Append(Read* read) {
    const uint32_t tail = *submitted_tail_;
    io_uring_sqe* const entry = &entries_[tail & submitted_mask_];
    std::memset(entry, 0, sizeof(*entry));
    entry->opcode = kReadOperation;
    entry->fd = read->fd;
    entry->off = read->offset;
    entry->addr = reinterpret_cast<uintptr_t>(read->data);
    entry->len = static_cast<uint32_t>(std::min(read->size, kMaxUringRead));
    entry->user_data = reinterpret_cast<uintptr_t>(read);
    StoreRelease(submitted_tail_, tail + 1);
  }

  // Hands over what was appended. What the kernel does not take is passed to
  // `refused`.
  template <class Refused>
  void Submit(Refused refused) {
    const uint32_t tail = *submitted_tail_;
    while (const uint32_t left = tail - LoadAcquire(submitted_head_)) {
      const int64_t taken = Enter(left, 0, 0);
      if (taken == 0 || (taken < 0 && errno != EINTR)) break;
    }
    const uint32_t head = LoadAcquire(submitted_head_);
    for (uint32_t i = head; i != tail; ++i) {
      refused(reinterpret_cast<Read*>(entries_[i & submitted_mask_].user_data));
    }
    StoreRelease(submitted_tail_, head);
  }

  // Passes every read that has come, with the kernel's result, to `completed`.
  // Returns how many there were.
  template <class Completed>
  uint32_t Reap(Completed completed) {
    const uint32_t head = *completed_head_;
    const uint32_t tail = LoadAcquire(completed_tail_);
    for (uint32_t i = head; i != tail; ++i) {
      const io_uring_cqe& entry = completed_[i & completed_mask_];
      completed(reinterpret_cast<Read*>(entry.user_data), entry.res);
    }
    StoreRelease(completed_head_, tail);
    return tail - head;
  }

  // Returns when there is something to reap, or now and then without. Nobody
  // may reap meanwhile: the kernel compares with what had been reaped when the
  // call began.
  void Await() {
    if (Enter(0, 1, IORING_ENTER_GETEVENTS) < 0 && errno != EINTR) {
      // The kernel may write into the buffers at any time: nobody can go on.
      std::perror("refurbish_tf: io_uring_enter");
      std::abort();
    }
  }

 private:
  void* Map(size_t bytes, uint64_t offset) {
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_POPULATE, fd_, offset);
    if (mapped == MAP_FAILED) return nullptr;
    // A child must not move the ring of its parent.
    madvise(mapped, bytes, MADV_DONTFORK);
    return mapped;
  }

  uint32_t* Number(uint32_t offset) {
    return reinterpret_cast<uint32_t*>(rings_ + offset);
  }

  int64_t Enter(uint32_t submit, uint32_t wait_for, uint32_t flags) {
    return syscall(__NR_io_uring_enter, fd_, submit, wait_for, flags, nullptr,
                   0);
  }

  int fd_ = -1;
  char* rings_ = nullptr;
  size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  size_t entries_bytes_ = 0;
  uint32_t* submitted_head_ = nullptr;
  uint32_t* submitted_tail_ = nullptr;
  uint32_t submitted_mask_ = 0;
  uint32_t* completed_head_ = nullptr;
  uint32_t* completed_tail_ = nullptr;
  uint32_t completed_mask_ = 0;
  io_uring_cqe* completed_ = nullptr;
};

class UringReadQueue : public ReadQueue {
 public:
  explicit UringReadQueue(int depth) : depth_(std::clamp(depth, 1, 4096)) {}

  // Whether reads work here. That there is a ring does not say that it can
  // read.
  bool Open() {
    if (!ring_.Open(depth_)) return false;
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char magic[4] = {};
    Read read;
    read.fd = fd;
    read.data = magic;
    read.size = sizeof(magic);
    Read* const reads[] = {&read};
    Start(reads, 1);
    Wait(&read);
    close(fd);
    // The kernel's own result: Wait makes up for an error.
    return read.result == sizeof(magic) &&
           std::memcmp(magic, "\177ELF", sizeof(magic)) == 0;
  }

  const char* name() const override { return "io_uring"; }

  void Start(Read* const* reads, size_t count) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    for (size_t i = 0; i < count; ++i) {
      reads[i]->done.store(false, std::memory_order_relaxed);
      turns_.Append(reads[i]);
    }
    Submit();
  }

  int64_t Wait(Read* read) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (!Done(*read)) WaitUntilDone(*read);
    const int64_t bytes = read->result;
    if (bytes == static_cast<int64_t>(read->size)) return bytes;
    // The end of the file, or an error, which this will show to be one; or none
    // at all: the kernel drops reads whose thread exits before they have come,
    // and may be short of memory.
    return ReadRest(*read, std::max<int64_t>(bytes, 0));
  }

 private:
  // One of the threads that wait does so in the kernel, for all of them.
  void WaitUntilDone(const Read& read) ABSL_LOCKS_EXCLUDED(mu_) {
    std::unique_lock<std::mutex> lock(mu_);
    while (!Done(read)) {
      if (reaping_) {
        ++waiting_;
        done_.wait(lock);
        --waiting_;
        continue;
      }
      if (Reap() == 0) {
        // The read is under way: Submit leaves no turns while there is room.
        reaping_ = true;
        lock.unlock();
        ring_.Await();
        lock.lock();
        reaping_ = false;
        Reap();
      }
      Submit();
    }
  }

  void Submit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!turns_.empty() && under_way_ < depth_) {
      for (; !turns_.empty() && under_way_ < depth_; ++under_way_) {
        ring_.Append(turns_.TakeFirst());
      }
      bool refused = false;
      ring_.Submit([&](Read* read) {
        refused = true;
        --under_way_;
        Finish(read, -EAGAIN);
      });
      if (refused && waiting_ > 0) done_.notify_all();
      // What was in the page cache has come already.
      if (!reaping_) Reap();
    }
  }

  // Not while another thread waits for all. A thread that leaves Wait has
  // reaped its read, or another has: those that still wait have been woken, and
  // one of them is the next to reap.
  uint32_t Reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint32_t reaped = ring_.Reap(&Finish);
    under_way_ -= reaped;
    if (reaped > 0 && waiting_ > 0) done_.notify_all();
    return reaped;
  }

  const uint32_t depth_;

  std::mutex mu_;
  std::condition_variable done_;
  // While `reaping_`, Ring::Await is called without the lock.
  Ring ring_;
  ReadList turns_ ABSL_GUARDED_BY(mu_);
  uint32_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  bool reaping_ ABSL_GUARDED_BY(mu_) = false;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

#endif  // IORING_FEAT_NODROP

}  // namespace

std::unique_ptr<ReadQueue> MakeUringReadQueue([[maybe_unused]] int depth) {
#ifdef IORING_FEAT_NODROP
  auto queue = std::make_unique<UringReadQueue>(depth);
  if (queue->Open()) return queue;
#endif
  return nullptr;
}

std::unique_ptr<ReadQueue> MakePoolReadQueue(int depth) {
  return std::make_unique<PoolReadQueue>(depth);
}

std::unique_ptr<ReadQueue> ReadQueue::Create(int depth) {
  std::unique_ptr<ReadQueue> queue = MakeUringReadQueue(depth);
  if (queue == nullptr) queue = MakePoolReadQueue(depth);
  return queue;
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/store/disk/read_queue.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace refurbish_tf {
namespace {

// The most threads if `ReadCached` works: it makes the disk begin to read what
// is not in the page cache. With more threads, a read of 150 KB cost 15 % more
// CPU time.
constexpr size_t kFewThreads = 8;

bool Done(const Read& read) {
  return read.done.load(std::memory_order_acquire);
}

// Reads what follows the first `result` bytes. Returns what `Wait` does.
int64_t ReadRest(const Read& read) {
  size_t bytes = read.result;
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

}  // namespace

ReadQueue::~ReadQueue() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    closing_ = true;
  }
  work_.notify_all();
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void ReadQueue::Start(Read* const* reads, size_t count) {
  std::vector<Read*> left;
  for (size_t i = 0; i < count; ++i) {
    reads[i]->done.store(false, std::memory_order_relaxed);
    reads[i]->waiting = nullptr;
    if (!ReadCached(reads[i])) left.push_back(reads[i]);
  }
  if (left.empty()) return;
  std::lock_guard<std::mutex> lock(mu_);
  turns_.insert(turns_.end(), left.begin(), left.end());
  CallThread();
}

int64_t ReadQueue::Wait(Read* read) {
  if (Done(*read)) return read->result;
  std::unique_lock<std::mutex> lock(mu_);
  const auto turn = std::find(turns_.begin(), turns_.end(), read);
  if (turn != turns_.end()) {
    turns_.erase(turn);
    lock.unlock();
    return ReadRest(*read);
  }
  std::condition_variable done;
  read->waiting = &done;
  while (!Done(*read)) done.wait(lock);
  return read->result;
}

bool ReadQueue::ReadCached(Read* read) {
  read->result = 0;
  while (can_read_cached_.load(std::memory_order_relaxed)) {
    const size_t bytes = read->result;
    const iovec rest = {read->data + bytes, read->size - bytes};
    const ssize_t more =
        preadv2(read->fd, &rest, 1, read->offset + bytes, RWF_NOWAIT);
    if (more < 0) {
      if (errno == EOPNOTSUPP || errno == ENOSYS) can_read_cached_ = false;
      return false;
    }
    read->result += more;
    if (more == 0 || bytes + more == read->size) {
      read->done.store(true, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void ReadQueue::CallThread() {
  if (turns_.empty()) return;
  const size_t most = can_read_cached_ ? kFewThreads : depth_;
  const auto run = [](void* queue) -> void* {
    static_cast<ReadQueue*>(queue)->Run();
    return nullptr;
  };
  pthread_t thread;
  if (idle_ > 0) {
    work_.notify_one();
  } else if (threads_.size() < std::min(most, depth_) &&
             pthread_create(&thread, nullptr, run, this) == 0) {
    threads_.push_back(thread);
  }
}

void ReadQueue::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    while (turns_.empty() && !closing_) {
      ++idle_;
      work_.wait(lock);
      --idle_;
    }
    if (closing_) return;
    Read* const read = turns_.front();
    turns_.pop_front();
    CallThread();
    lock.unlock();
    const int64_t result = ReadRest(*read);
    lock.lock();
    std::condition_variable* const waiting = read->waiting;
    read->result = result;
    read->done.store(true, std::memory_order_release);
    if (waiting != nullptr) waiting->notify_one();
  }
}

}  // namespace refurbish_tf

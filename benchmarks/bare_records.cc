// What `python benchmarks/run.py sources` compares records by index with: the
// same reads of the same file, in the same order, and nothing else.
//
//   bare_records FILE PLAN WAY DEPTH
//
// PLAN has a line for each read: offset and size. WAY is "pread", one after the
// other, or "io_uring", DEPTH at once. Prints nanoseconds a read. Exit status 3
// where the kernel does not allow io_uring.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Place {
  unsigned long long offset;
  unsigned long long size;
};

void OneAfterTheOther(int fd, const std::vector<Place>& places, size_t most) {
  std::vector<char> buffer(most);
  for (const Place& place : places) {
    const ssize_t read = pread(fd, buffer.data(), place.size, place.offset);
    if (read != static_cast<ssize_t>(place.size)) abort();
  }
}

// The rings that a kernel shares with a process; see io_uring(7).
class Ring {
 public:
  explicit Ring(unsigned depth) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    fd_ = syscall(SYS_io_uring_setup, depth, &params);
    if (fd_ < 0) exit(3);
    char* const submitted =
        Map(params.sq_off.array + params.sq_entries * sizeof(unsigned),
            IORING_OFF_SQ_RING);
    char* const completed =
        Map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe),
            IORING_OFF_CQ_RING);
    entries_ = reinterpret_cast<io_uring_sqe*>(
        Map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    tail_ = reinterpret_cast<std::atomic<unsigned>*>(submitted +
                                                     params.sq_off.tail);
    mask_ = *reinterpret_cast<unsigned*>(submitted + params.sq_off.ring_mask);
    array_ = reinterpret_cast<unsigned*>(submitted + params.sq_off.array);
    done_head_ = reinterpret_cast<std::atomic<unsigned>*>(completed +
                                                          params.cq_off.head);
    done_tail_ = reinterpret_cast<std::atomic<unsigned>*>(completed +
                                                          params.cq_off.tail);
    done_mask_ =
        *reinterpret_cast<unsigned*>(completed + params.cq_off.ring_mask);
    done_ = reinterpret_cast<io_uring_cqe*>(completed + params.cq_off.cqes);
  }

  void Add(int file, const Place& place, char* data, size_t slot) {
    const unsigned tail = tail_->load(std::memory_order_relaxed);
    io_uring_sqe& entry = entries_[tail & mask_];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = IORING_OP_READ;
    entry.fd = file;
    entry.off = place.offset;
    entry.len = place.size;
    entry.addr = reinterpret_cast<unsigned long long>(data);
    entry.user_data = slot;
    array_[tail & mask_] = tail & mask_;
    tail_->store(tail + 1, std::memory_order_release);
    ++added_;
  }

  // Hands over what was added and waits for one at least.
  void Enter() {
    if (syscall(SYS_io_uring_enter, fd_, added_, 1, IORING_ENTER_GETEVENTS,
                nullptr, 0) < 0) {
      abort();
    }
    added_ = 0;
  }

  // The slot and the result of one that is done.
  bool Take(size_t* slot, int* result) {
    const unsigned head = done_head_->load(std::memory_order_relaxed);
    if (head == done_tail_->load(std::memory_order_acquire)) return false;
    *slot = done_[head & done_mask_].user_data;
    *result = done_[head & done_mask_].res;
    done_head_->store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  char* Map(size_t size, off_t what) {
    void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_POPULATE, fd_, what);
    if (mapped == MAP_FAILED) exit(3);
    return static_cast<char*>(mapped);
  }

  int fd_;
  unsigned added_ = 0;
  io_uring_sqe* entries_;
  std::atomic<unsigned>* tail_;
  unsigned mask_;
  unsigned* array_;
  std::atomic<unsigned>* done_head_;
  std::atomic<unsigned>* done_tail_;
  unsigned done_mask_;
  io_uring_cqe* done_;
};

void ManyAtOnce(int fd, const std::vector<Place>& places, size_t most,
                size_t depth) {
  Ring ring(depth);
  std::vector<std::vector<char>> buffers(depth, std::vector<char>(most));
  std::vector<size_t> free(depth), reading(depth);
  for (size_t slot = 0; slot < depth; ++slot) free[slot] = slot;
  size_t next = 0;
  for (size_t ended = 0; ended < places.size();) {
    for (; !free.empty() && next < places.size(); ++next) {
      const size_t slot = free.back();
      free.pop_back();
      reading[slot] = next;
      ring.Add(fd, places[next], buffers[slot].data(), slot);
    }
    ring.Enter();
    size_t slot;
    int result;
    while (ring.Take(&slot, &result)) {
      if (result != static_cast<int>(places[reading[slot]].size)) abort();
      free.push_back(slot);
      ++ended;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int fd = open(argv[1], O_RDONLY);
  std::FILE* const plan = std::fopen(argv[2], "r");
  if (fd < 0 || plan == nullptr) return 1;
  std::vector<Place> places;
  size_t most = 0;
  for (Place place;
       std::fscanf(plan, "%llu %llu", &place.offset, &place.size) == 2;) {
    places.push_back(place);
    most = std::max<size_t>(most, place.size);
  }
  const auto begin = std::chrono::steady_clock::now();
  if (std::string(argv[3]) == "pread") {
    OneAfterTheOther(fd, places, most);
  } else {
    ManyAtOnce(fd, places, most, std::atoi(argv[4]));
  }
  const std::chrono::duration<double, std::nano> time =
      std::chrono::steady_clock::now() - begin;
  std::printf("%.1f\n", time.count() / places.size());
  return 0;
}

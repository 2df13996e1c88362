#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace refurbish_tf {

struct Memory {
  // How much the process may use: the machine's memory, within the limits of
  // its control groups, such as a container's.
  int64_t limit;
  // How much more it can get. Memory that the system can reclaim, such as
  // cached pages of files, counts as free.
  int64_t free;

  // How much memory kept samples must leave free for everything else that
  // grows: a tenth of the limit, but at least 1 GiB, or a quarter of a limit
  // below 4 GiB.
  int64_t reserve() const {
    return std::max(limit / 10, std::min(limit / 4, int64_t{1} << 30));
  }
};

// Does I/O, which takes about 0.1 ms.
Memory ReadMemory();

// For tests: from now on, `ReadMemory` reads /proc and /sys below `root`. A
// parameter would not help, because stages create the stores that call it.
void SetMemoryRoot(const std::string& root);
std::string SystemRoot();

// Gives freed memory back to the system. By itself, the allocator returns only
// memory at the end of a heap.
void ReturnFreedMemory();

// Gives all pages that are completely in this memory back to the system, even
// if its allocator would keep them. The content is lost: call it just before
// the memory is freed.
void ReturnPages(void* data, size_t bytes);

}  // namespace refurbish_tf

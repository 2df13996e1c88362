// The memory of this process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace refurbish_tf {

struct Memory {
  // What it may have: what the machine has, within the limits of its control
  // groups, as of a container.
  int64_t limit;
  // What it can still have. What the system would give back counts as free,
  // such as the pages of files.
  int64_t free;

  // What is to stay free of samples that are kept, for all else that grows: a
  // tenth, and at least 1 GiB or, of less than 4 GiB, a quarter.
  int64_t reserve() const {
    return std::max(limit / 10, std::min(limit / 4, int64_t{1} << 30));
  }
};

// Does I/O, of about 0.1 ms.
Memory ReadMemory();

// From now on what is below `root` is read in place of /proc and /sys, as by
// tests. An argument of `ReadMemory` would not reach the stores, which stages
// make.
void SetMemoryRoot(const std::string& root);

// Gives what was freed back to the system. The allocator keeps it otherwise,
// unless it is at the end of a heap.
void ReturnFreedMemory();

// Gives the whole pages of memory that is about to be freed back to the system,
// whatever its allocator keeps. Its content is lost.
void ReturnPages(void* data, size_t bytes);

}  // namespace refurbish_tf

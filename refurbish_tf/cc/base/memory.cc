#include "refurbish_tf/cc/base/memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <map>
#include <mutex>

namespace refurbish_tf {
namespace {

constexpr char kControlGroups[] = "/sys/fs/cgroup";

std::mutex root_mu;

// The folder below which /proc and /sys are read. Guarded by `root_mu`. Never
// destroyed, because a thread may read it at exit.
std::string& Root() {
  static std::string* const root = new std::string();
  return *root;
}

// Reads a file that has a name and a number on each line.
std::map<std::string, int64_t> NumbersIn(const std::string& path) {
  std::map<std::string, int64_t> numbers;
  std::ifstream file(path);
  for (std::string name; file >> name;) {
    int64_t number;
    if (file >> number) numbers[name] = number;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return numbers;
}

// How much of a control group's memory the system can reclaim: the kinds of
// memory that MemAvailable includes for the whole machine.
int64_t Reclaimable(const std::string& group) {
  auto numbers = NumbersIn(group + "/memory.stat");
  int64_t bytes = 0;
  for (const char* name :
       {"inactive_file", "active_file", "slab_reclaimable"}) {
    // Version 1 of control groups also has totals that include nested groups. A
    // group's usage includes them as well, so the totals match it.
    const auto total = numbers.find(std::string("total_") + name);
    bytes += total != numbers.end() ? total->second : numbers[name];
  }
  return bytes;
}

// Lowers `*memory` to the limits of a control group and of all its parents up
// to the folder `root`. Handles both versions of control groups.
void ApplyLimits(const std::string& root, const std::string& path,
                 int64_t machine, Memory* memory) {
  std::string group = root + path;
  while (true) {
    for (const auto& [limit_name, usage_name] :
         {std::pair("/memory.max", "/memory.current"),
          std::pair("/memory.limit_in_bytes", "/memory.usage_in_bytes")}) {
      int64_t limit, usage;
      // Without a limit, version 2 has "max", which is not a number, and
      // version 1 has a huge number.
      if (!(std::ifstream(group + limit_name) >> limit) || limit > machine)
        continue;
      memory->limit = std::min(memory->limit, limit);
      if (std::ifstream(group + usage_name) >> usage) {
        memory->free = std::clamp<int64_t>(limit - usage + Reclaimable(group),
                                           0, memory->free);
      }
    }
    if (group.size() <= root.size()) return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

Memory ReadMemory() {
  const std::string root = SystemRoot();
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  Memory memory{kUnknown, kUnknown};
  for (const auto& [name, kilobytes] : NumbersIn(root + "/proc/meminfo")) {
    if (name == "MemTotal:") memory.limit = 1024 * kilobytes;
    if (name == "MemAvailable:") memory.free = 1024 * kilobytes;
  }
  const int64_t machine = memory.limit;
  std::ifstream own(root + "/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    // "4:memory:/path" in version 1, or "0::/path" in version 2.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers != "" && controllers != "memory") continue;
    const std::string path = line.substr(second + 1);
    const std::string groups =
        root + kControlGroups + (controllers.empty() ? "" : "/memory");
    ApplyLimits(groups, path, machine, &memory);
    // In a container, `path` may be the group's path outside the container. The
    // group is then mounted at the top.
    ApplyLimits(groups, "", machine, &memory);
  }
  return memory;
}

void SetMemoryRoot(const std::string& root) {
  std::lock_guard<std::mutex> lock(root_mu);
  Root() = root;
}

std::string SystemRoot() {
  std::lock_guard<std::mutex> lock(root_mu);
  return Root();
}

void ReturnFreedMemory() { malloc_trim(0); }

void ReturnPages(void* data, size_t bytes) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + bytes) / page * page;
  if (begin >= end) return;
  void* const pages = reinterpret_cast<void*>(begin);
  // MADV_FREE splits huge pages. With MADV_DONTNEED alone, a huge page that is
  // only partly unused would stay.
  madvise(pages, end - begin, MADV_FREE);
  madvise(pages, end - begin, MADV_DONTNEED);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace refurbish_tf {
namespace {

constexpr char kControlGroups[] = "/sys/fs/cgroup";

// Lowers `*limit` to those of a control group and of all around it, of the
// second version of control groups or of the first.
void ApplyLimits(std::string group, int64_t* limit) {
  while (true) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      int64_t bytes;
      // "max" is no number.
      if (std::ifstream(group + name) >> bytes)
        *limit = std::min(*limit, bytes);
    }
    if (group.size() <= sizeof(kControlGroups)) return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

int64_t MemoryLimit() {
  int64_t limit = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    // Such as "4:memory:/path", or "0::/path" of the second version.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers != "" && controllers != "memory") continue;
    const std::string path = line.substr(second + 1);
    const std::string root =
        kControlGroups + std::string(controllers.empty() ? "" : "/memory");
    ApplyLimits(root + path, &limit);
    // In a container the own path may be seen from outside.
    ApplyLimits(root, &limit);
  }
  return limit;
}

}  // namespace refurbish_tf

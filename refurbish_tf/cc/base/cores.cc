#include "refurbish_tf/cc/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "refurbish_tf/cc/base/memory.h"

namespace refurbish_tf {
namespace {

int CoresOfAffinity() {
  cpu_set_t cores;
  // Of the main thread: other threads may be bound to fewer.
  if (sched_getaffinity(getpid(), sizeof(cores), &cores) == 0) {
    return CPU_COUNT(&cores);
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

const int cores_at_load = CoresOfAffinity();

// Microseconds of CPU time in `period`. False without a quota.
bool ReadQuota(const std::string& groups, double* quota, double* period) {
  // Without a quota, version 2 has "max", and version 1 has -1.
  return (std::ifstream(groups + "/cpu.max") >> *quota >> *period ||
          (std::ifstream(groups + "/cpu/cpu.cfs_quota_us") >> *quota &&
           std::ifstream(groups + "/cpu/cpu.cfs_period_us") >> *period)) &&
         *quota > 0 && *period > 0;
}

}  // namespace

int ReadCores() {
  const int cores = CoresOfAffinity();
  double quota, period;
  if (!ReadQuota(SystemRoot() + "/sys/fs/cgroup", &quota, &period)) {
    return cores;
  }
  return std::clamp(static_cast<int>((quota + period - 1) / period), 1, cores);
}

bool IsOfAllCores(int pool_size) {
  return pool_size == cores_at_load || pool_size == CoresOfAffinity();
}

}  // namespace refurbish_tf

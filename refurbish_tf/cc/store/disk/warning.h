#pragma once

#include <atomic>
#include <cstdio>
#include <string>

namespace refurbish_tf {

// A warning on standard error that is printed once.
class Warning {
 public:
  void Say(const std::string& directory, const std::string& what) {
    if (said_.exchange(true)) return;
    std::fprintf(stderr, "refurbish_tf: the cache store %s: %s\n",
                 directory.c_str(), what.c_str());
  }

 private:
  std::atomic<bool> said_{false};
};

}  // namespace refurbish_tf

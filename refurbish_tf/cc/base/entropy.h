// A number that no other process has.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace refurbish_tf {

// A random number. Needs no file descriptor and never throws, unlike
// std::random_device, which may throw if the process has no descriptor left.
inline uint64_t NewNumber() {
  uint64_t number;
  if (getentropy(&number, sizeof(number)) == 0) return number;
  // Only where the system call is forbidden.
  return static_cast<uint64_t>(
             std::chrono::system_clock::now().time_since_epoch().count()) ^
         static_cast<uint64_t>(getpid()) << 40;
}

}  // namespace refurbish_tf

#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace refurbish_tf {

// A random number that no other process is likely to get. Unlike
// std::random_device, this needs no file descriptor, so it does not throw in a
// process that has none left.
inline uint64_t NewNumber() {
  uint64_t number;
  if (getentropy(&number, sizeof(number)) == 0) return number;
  // Reached only if a sandbox forbids the system call.
  return static_cast<uint64_t>(
             std::chrono::system_clock::now().time_since_epoch().count()) ^
         static_cast<uint64_t>(getpid()) << 40;
}

}  // namespace refurbish_tf

// Waits without sleeping, for events that take microseconds.
#pragma once

#include <mutex>

namespace refurbish_tf {

// This many pauses take less time than putting a thread to sleep and waking it.
inline constexpr int kSpins = 256;

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // Most CPUs ignore `yield`.
#endif
}

// Spins before it sleeps, because the lock is held only for microseconds. Tries
// less and less often: a try takes the lock's cache line from its owner.
inline void Acquire(std::unique_lock<std::mutex>& lock) {
  for (int spins = 1; spins < kSpins; spins *= 2) {
    if (lock.try_lock()) return;
    for (int i = 0; i < spins; ++i) Pause();
  }
  lock.lock();
}

}  // namespace refurbish_tf

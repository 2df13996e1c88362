// Threads of a test.
#pragma once

#include <thread>
#include <vector>

namespace refurbish_tf {

// Calls body(0), body(1), ..., each in a thread of its own.
class Threads {
 public:
  template <class Body>
  Threads(int number, const Body& body) {
    for (int i = 0; i < number; ++i) threads_.emplace_back([body, i] { body(i); });
  }
  ~Threads() { Join(); }

  // Waits for the ends of all threads.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace refurbish_tf

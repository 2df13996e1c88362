// Requests what an epoch will want later, without waiting.
#pragma once

namespace refurbish_tf {

// While an object of this class exists on a thread, `Epoch::Request` returns
// Unavailable on that thread instead of waiting.
//
// A source that reads several elements at once requests their indices before it
// has yielded the first of them. If it waited there for places to be claimed,
// it might wait for a thread that itself waits for that first element. This
// cannot be an argument of `Request`, because requests come through tf.data's
// index mapper.
class NonBlockingRequests {
 public:
  NonBlockingRequests() { ++depth(); }
  ~NonBlockingRequests() { --depth(); }
  NonBlockingRequests(const NonBlockingRequests&) = delete;
  NonBlockingRequests& operator=(const NonBlockingRequests&) = delete;

  static bool OnThisThread() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
};

}  // namespace refurbish_tf

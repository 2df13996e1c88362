// Asking an epoch what it will want later, without waiting.
#pragma once

namespace refurbish_tf {

// While one exists on a thread, `Epoch::Request` returns Unavailable on that
// thread where it would wait.
//
// A source that reads several elements at once asks for their indices before it
// has handed out the first of them. If it waited there for places to be
// claimed, it might wait for a thread that waits for that first element. This
// cannot be an argument, as requests come through tf.data's index mapper.
class AskingAhead {
 public:
  AskingAhead() { ++depth(); }
  ~AskingAhead() { --depth(); }
  AskingAhead(const AskingAhead&) = delete;
  AskingAhead& operator=(const AskingAhead&) = delete;

  static bool OnThisThread() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int depth = 0;
    return depth;
  }
};

}  // namespace refurbish_tf

#include "refurbish_tf/cc/stage/notices.h"

namespace refurbish_tf {
namespace {

// Of Python's C interface, whose headers are not needed for it.
using CallFunction = void* (*)(void* callable, const char* format, ...);
using DecRef = void (*)(void* object);

// Set before there is a handler, and never again.
CallFunction call_function = nullptr;
DecRef dec_ref = nullptr;
void* hear = nullptr;

// An exception comes out of whatever line the main thread is at, as that of an
// interrupt would have.
int Hear(void* notice) {
  void* const result =
      call_function(hear, "s", static_cast<const char*>(notice));
  if (result == nullptr) return -1;
  dec_ref(result);
  return 0;
}

}  // namespace
}  // namespace refurbish_tf

// Python's functions Py_AddPendingCall, PyObject_CallFunction and Py_DecRef, and
// the one of ours that is to be called, which takes a text and lives for ever.
//
// Not an op: a graph, which may come from anywhere, is not to name addresses.
extern "C" __attribute__((visibility("default"))) void
refurbish_tf_tell_python(refurbish_tf::Notices::AddCall add_call,
                         refurbish_tf::CallFunction call_function,
                         refurbish_tf::DecRef dec_ref, void* hear) {
  refurbish_tf::call_function = call_function;
  refurbish_tf::dec_ref = dec_ref;
  refurbish_tf::hear = hear;
  refurbish_tf::Notices::Global().SetHandler(add_call, refurbish_tf::Hear);
}

// Before the interpreter ends.
extern "C" __attribute__((visibility("default"))) void
refurbish_tf_tell_nobody() {
  refurbish_tf::Notices::Global().SetHandler(nullptr, nullptr);
}

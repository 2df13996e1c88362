#include "refurbish_tf/cc/base/python_warning.h"

#include <memory>

#include "refurbish_tf/cc/base/printable.h"

// Functions of Python's stable interface. They are weak symbols: the library is
// not linked with Python, but finds it in the process.
#define REFURBISH_TF_PYTHON __attribute__((weak, visibility("default")))
extern "C" {
struct _object;
REFURBISH_TF_PYTHON int Py_IsInitialized();
REFURBISH_TF_PYTHON int Py_AddPendingCall(int (*)(void*), void*);
REFURBISH_TF_PYTHON _object* PyImport_ImportModule(const char*);
REFURBISH_TF_PYTHON _object* PyObject_CallMethod(_object*, const char*,
                                                 const char*, ...);
REFURBISH_TF_PYTHON void Py_DecRef(_object*);
}

namespace refurbish_tf {
namespace {

// Python's main thread calls this. If the user turns warnings into errors, the
// -1 raises the error in that thread.
int Warn(void* argument) {
  const std::unique_ptr<std::string> text(static_cast<std::string*>(argument));
  _object* const module =
      PyImport_ImportModule("refurbish_tf._internal.pipeline_warnings");
  if (module == nullptr) return -1;
  _object* const done = PyObject_CallMethod(module, "warn", "s", text->c_str());
  Py_DecRef(module);
  if (done == nullptr) return -1;
  Py_DecRef(done);
  return 0;
}

}  // namespace

void WarnInPython(const std::string& text) {
  if (Py_AddPendingCall == nullptr || !Py_IsInitialized()) return;
  auto argument = std::make_unique<std::string>(Printable(text));
  // If too many calls are pending already, this warning is lost.
  if (Py_AddPendingCall(Warn, argument.get()) == 0) argument.release();
}

}  // namespace refurbish_tf

// What stages tell Python while they run.
#ifndef REFURBISH_TF_CC_STAGE_NOTICES_H_
#define REFURBISH_TF_CC_STAGE_NOTICES_H_

#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refurbish_tf {

// No thread of tf.data runs Python for that: Python's main thread calls `Handler`
// when it comes to it. Without Python nobody hears of anything.
//
// Lock order: any lock, then `mu_`. Python's own lock is never waited for.
class Notices {
 public:
  using Handler = int (*)(void* notice);
  // Py_AddPendingCall.
  using AddCall = int (*)(Handler handler, void* notice);

  static Notices& Global() {
    static Notices* const notices = new Notices;
    return *notices;
  }

  // Null, both of them, before the interpreter ends.
  void SetHandler(AddCall add_call, Handler handler)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    add_call_ = add_call;
    handler_ = handler;
  }

  // `what` is one word.
  void Post(const std::string& what, const std::string& stage)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (add_call_ == nullptr) return;
    const auto notice = posted_.insert(what + " " + stage).first;
    // Python has room for 32 calls. What finds none is lost, which is better than
    // to wait for Python.
    add_call_(handler_, const_cast<char*>(notice->c_str()));
  }

 private:
  absl::Mutex mu_;
  AddCall add_call_ ABSL_GUARDED_BY(mu_) = nullptr;
  Handler handler_ ABSL_GUARDED_BY(mu_) = nullptr;
  // Kept, as Python reads them later.
  std::set<std::string> posted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STAGE_NOTICES_H_

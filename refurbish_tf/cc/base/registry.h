#ifndef REFURBISH_TF_CC_BASE_REGISTRY_H_
#define REFURBISH_TF_CC_BASE_REGISTRY_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {

// Process-wide: finds what several ops share again by a string in their graph.
// Rewriting a dataset graph makes new dataset objects with the same string, so
// they find the same state. The registry keeps nothing alive: what is found
// dies with the last object that uses it.
//
// Thread-safe. The lock is not held while an object is made, which may take as
// long as another process pleases: only who wants that very object waits.
template <class T>
class Registry {
 public:
  static Registry& Global() {
    static Registry* const registry = new Registry;  // Never destroyed.
    return *registry;
  }

  // Null when `create` returns null; whoever waits for the same id then tries
  // for itself. `create` must not ask for its own id.
  std::shared_ptr<T> GetOrCreate(
      const std::string& id, const std::function<std::shared_ptr<T>()>& create)
      ABSL_LOCKS_EXCLUDED(mu_) {
    {
      std::unique_lock<std::mutex> lock(mu_);
      while (making_.count(id) > 0) made_.wait(lock);
      if (std::shared_ptr<T> object = Lookup(id)) return object;
      making_.insert(id);
    }
    std::shared_ptr<T> object = create();
    {
      std::lock_guard<std::mutex> lock(mu_);
      making_.erase(id);
      if (object != nullptr) {
        entries_[id] = object;
        // Forgets the dead now and then, so that a process that makes many
        // pipelines does not grow.
        if (entries_.size() > 2 * live_when_swept_ + 16) Sweep();
      }
    }
    made_.notify_all();
    return object;
  }

  // Null when it is not there, as while it is still being made: who may ask for
  // an object was given its id by somebody who has it, and none of these is to
  // wait for a maker who may yet fail.
  std::shared_ptr<T> Find(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_) {
    std::lock_guard<std::mutex> lock(mu_);
    return Lookup(id);
  }

 private:
  std::shared_ptr<T> Lookup(const std::string& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto entry = entries_.find(id);
    return entry == entries_.end() ? nullptr : entry->second.lock();
  }

  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      entry = entry->second.expired() ? entries_.erase(entry) : ++entry;
    }
    live_when_swept_ = entries_.size();
  }

  std::mutex mu_;
  std::condition_variable made_;  // Or given up.
  std::unordered_map<std::string, std::weak_ptr<T>> entries_
      ABSL_GUARDED_BY(mu_);
  std::unordered_set<std::string> making_ ABSL_GUARDED_BY(mu_);
  size_t live_when_swept_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_BASE_REGISTRY_H_

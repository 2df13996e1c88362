#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"

namespace refurbish_tf {

// A process-wide table of objects that several ops share, found by a string in
// their graph. Rewriting a dataset graph makes new dataset objects with the
// same string, and they find the same state. The registry keeps nothing alive:
// an object dies with the last shared_ptr to it.
//
// Thread-safe. The lock is not held during `create`, which may wait for another
// process. Only callers with the same id wait for it.
template <class T>
class Registry {
 public:
  static Registry& Global() {
    static Registry* const registry = new Registry;  // Never destroyed.
    return *registry;
  }

  // Returns the object of this id; calls `create` if there is none. Null if
  // `create` returns null; another caller that waits for the same id then tries
  // its own `create`. `create` must not ask for its own id.
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
        // Removes expired entries now and then. Otherwise, the table of a
        // process that makes many pipelines would grow without limit.
        if (entries_.size() > 2 * live_when_swept_ + 16) Sweep();
      }
    }
    made_.notify_all();
    return object;
  }

  // Null if there is no such object, or if it is still being created. Does not
  // wait, because the creation may still fail.
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
  std::condition_variable made_;  // A creation succeeded or failed.
  std::unordered_map<std::string, std::weak_ptr<T>> entries_
      ABSL_GUARDED_BY(mu_);
  std::unordered_set<std::string> making_ ABSL_GUARDED_BY(mu_);
  size_t live_when_swept_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#ifndef REFURBISH_TF_CC_STORE_REGISTRY_H_
#define REFURBISH_TF_CC_STORE_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refurbish_tf {

// Process-wide: finds what several ops share again by a string in their graph.
// Rewriting a dataset graph makes new dataset objects with the same string, so
// they find the same state. The registry keeps nothing alive: what is found
// dies with the last object that uses it.
template <class T>
class Registry {
 public:
  static Registry& Global() {
    static Registry* const registry = new Registry;  // Never destroyed.
    return *registry;
  }

  // Null when `create` returns null.
  std::shared_ptr<T> GetOrCreate(
      const std::string& id, const std::function<std::shared_ptr<T>()>& create)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    std::weak_ptr<T>& entry = entries_[id];
    std::shared_ptr<T> object = entry.lock();
    if (object == nullptr) {
      object = create();
      if (object == nullptr) return nullptr;
      entry = object;
      // Forgets the dead now and then, so that a process that makes many
      // pipelines does not grow.
      if (entries_.size() > 2 * live_when_swept_ + 16) Sweep();
    }
    return object;
  }

  std::shared_ptr<T> Find(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto entry = entries_.find(id);
    return entry == entries_.end() ? nullptr : entry->second.lock();
  }

 private:
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      entry = entry->second.expired() ? entries_.erase(entry) : ++entry;
    }
    live_when_swept_ = entries_.size();
  }

  absl::Mutex mu_;
  std::unordered_map<std::string, std::weak_ptr<T>> entries_
      ABSL_GUARDED_BY(mu_);
  size_t live_when_swept_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_REGISTRY_H_

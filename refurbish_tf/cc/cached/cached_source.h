// The kept elements of a source by index, shared by the copies of the dataset
// op of `cached` and by all their iterators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"
#include "refurbish_tf/cc/source_checks/source_checks.h"

namespace refurbish_tf {

// Found by its id, like a stage (stage.h). No element is evicted to make room:
// those that come first stay. `Put` gives every element generation 0.
//
// Thread-safe. No lock is held while the store is used.
class CachedSource : public std::enable_shared_from_this<CachedSource> {
 public:
  static std::shared_ptr<CachedSource> GetOrCreate(const std::string& id) {
    return Registry<CachedSource>::Global().GetOrCreate(
        id, [&] { return std::make_shared<CachedSource>(id); });
  }

  explicit CachedSource(std::string id) : id_(std::move(id)) {}

  // Called for each dataset object, before the other methods. Only the first
  // call sets anything; later ones fail if `num_elements` differs. `shards`:
  // which part of its files the source reads; empty if it reads them all. Fails
  // if another stage uses the store, or if it was filled from a source of
  // another length. Does I/O on a store on disk.
  absl::Status Configure(int64_t num_elements, const std::string& shards,
                         std::shared_ptr<SampleStore> store,
                         const SampleTypes& types) ABSL_LOCKS_EXCLUDED(mu_);

  int64_t num_elements() const { return num_elements_; }
  SampleStore& store() { return *store_; }

  // Whether the element is kept. `Get` also returns it.
  bool Contains(uint32_t index);
  bool Get(uint32_t index, Sample* element);
  // Keeps the element, if there is room. A store in memory replaces components
  // of `*element` that are views of larger buffers by copies. `sum` is the
  // element's checksum, or 0 if unknown.
  void Put(uint32_t index, uint32_t sum, Sample* element);

  SourceChecks& source_checks() { return source_checks_; }

 private:
  const std::string id_;
  SourceChecks source_checks_;

  absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Set by the first `Configure`, then never changed, so reads need no lock.
  int64_t num_elements_ = 0;
  std::shared_ptr<SampleStore> store_;
};

}  // namespace refurbish_tf

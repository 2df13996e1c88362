// The kept elements of a source by index, shared by the copies of the dataset
// op of `cached` and by all their iterators.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/base/status_macros.h"
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
                         const SampleTypes& types) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (configured_ && num_elements != num_elements_) {
        return FailedPrecondition(
            "The source of cached has ", num_elements,
            " elements after a rewrite of the pipeline, but had ",
            num_elements_,
            " before. Shard after cached, and set "
            "experimental_distribute.auto_shard_policy to OFF.");
      }
      if (configured_) return absl::OkStatus();
    }
    const int64_t most = store->limits().samples;
    if (num_elements > most) {
      return InvalidArgument(
          "The source has ", num_elements, " elements; cached takes at most ",
          most, store->store().shared() ? " with a store on disk." : ".");
    }
    const int64_t bytes = store->FixedBytes(types);
    const int64_t max_bytes = store->store().max_bytes();
    if (bytes > max_bytes) {
      return InvalidArgument(
          "An element takes ", bytes, " bytes, more than max_bytes=", max_bytes,
          " of the CacheStore, so none would be kept. Raise max_bytes to hold "
          "many elements, or leave cached out.");
    }
    Cooperation& jobs = store->cooperation();
    RTF_RETURN_IF_ERROR(jobs.AgreeOnElements(num_elements, shards));
    RTF_RETURN_IF_ERROR(store->Reserve(id_, weak_from_this(), types));
    jobs.MakeRoomFor(num_elements);
    absl::MutexLock lock(&mu_);
    // Another thread may have configured it since the first check.
    if (configured_) return absl::OkStatus();
    num_elements_ = num_elements;
    store_ = std::move(store);
    configured_ = true;
    return absl::OkStatus();
  }

  int64_t num_elements() const { return num_elements_; }
  SampleStore& store() { return *store_; }

  // Whether the element is kept. `Get` also returns it.
  bool Contains(uint32_t index) {
    return store_->store().Contains(index, kAnyElement);
  }
  bool Get(uint32_t index, Sample* element) {
    // Puts also check whether memory is short, but a full store gets none.
    store_->store().LookAtMemory();
    Generation found;
    return store_->store().Get(index, kAnyElement, element, &found);
  }
  // Keeps the element, if there is room. A store in memory replaces components
  // of `*element` that are views of larger buffers by copies. `sum` is the
  // element's checksum, or 0 if unknown.
  void Put(uint32_t index, uint32_t sum, Sample* element) {
    const PutResult result =
        store_->PutElement(index, kElementGeneration, element);
    if (sum != 0) {
      source_checks_.Note(index, sum, result == PutResult::kStored);
    }
  }

  SourceChecks& source_checks() { return source_checks_; }

 private:
  static constexpr Generation kElementGeneration = 0;
  // Any generation, because users may also put elements into the store.
  static constexpr GenerationRange kAnyElement = {};

  const std::string id_;
  SourceChecks source_checks_;

  absl::Mutex mu_;
  bool configured_ ABSL_GUARDED_BY(mu_) = false;
  // Set by the first `Configure`, then never changed, so reads need no lock.
  int64_t num_elements_ = 0;
  std::shared_ptr<SampleStore> store_;
};

}  // namespace refurbish_tf

#include "refurbish_tf/cc/cached/cached_source.h"

#include <utility>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr Generation kElementGeneration = 0;
// Any generation, because users may also put elements into the store.
constexpr GenerationRange kAnyElement = {};

}  // namespace

absl::Status CachedSource::Configure(int64_t num_elements,
                                     const std::string& shards,
                                     std::shared_ptr<SampleStore> store,
                                     const SampleTypes& types) {
  {
    absl::MutexLock lock(&mu_);
    if (configured_ && num_elements != num_elements_) {
      return FailedPrecondition(
          "The source of cached has ", num_elements,
          " elements after a rewrite of the pipeline, and had ", num_elements_,
          ". Shard after cached, and set "
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

bool CachedSource::Contains(uint32_t index) {
  return store_->store().Contains(index, kAnyElement);
}

bool CachedSource::Get(uint32_t index, Sample* element) {
  // Puts also check whether memory is short, but a full store gets none.
  store_->store().LookAtMemory();
  Generation found;
  return store_->store().Get(index, kAnyElement, element, &found);
}

void CachedSource::Put(uint32_t index, uint32_t sum, Sample* element) {
  const PutResult result =
      store_->PutElement(index, kElementGeneration, element);
  if (sum != 0) {
    source_checks_.Note(index, sum, result == PutResult::kStored);
  }
}

}  // namespace refurbish_tf

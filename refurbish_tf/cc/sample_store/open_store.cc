// Opens the stores, and finds them by name.
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/sample_store/disk_samples.h"
#include "refurbish_tf/cc/sample_store/memory_samples.h"

namespace refurbish_tf {

absl::StatusOr<std::shared_ptr<SampleStore>> SampleStore::GetOrCreate(
    const std::string& id, int64_t max_bytes, const std::string& mode) {
  const bool overwrite = mode == "overwrite";
  absl::Status status;
  bool created = false;
  std::shared_ptr<SampleStore> store =
      Registry<SampleStore>::Global().GetOrCreate(
          id, [&]() -> std::shared_ptr<SampleStore> {
            created = true;
            if (id.empty() || id[0] != '/') {
              return std::make_shared<MemorySamples>(max_bytes);
            }
            auto disk = OpenDiskSamples(id, max_bytes, overwrite,
                                        /*must_exist=*/mode == "inspect");
            status = disk.status();
            return disk.ok() ? *std::move(disk) : nullptr;
          });
  if (!status.ok()) return status;
  if (created) return store;
  if (overwrite) {
    return FailedPrecondition(
        "The cache store ", id,
        " is in use in this process, so it cannot be emptied "
        "with overwrite=True. Drop the CacheStore and the datasets that use "
        "it first (del, gc.collect()), or give another directory.");
  }
  if (max_bytes != kUnlimited && store->store().max_bytes() != max_bytes) {
    return FailedPrecondition(
        "The cache store ", id, " is in use in this process with max_bytes=",
        store->store().max_bytes(), ", got ", max_bytes,
        ". Use one CacheStore object for both, or the same max_bytes.");
  }
  return store;
}

absl::StatusOr<std::shared_ptr<SampleStore>> SampleStore::Find(
    const std::string& id) {
  std::shared_ptr<SampleStore> store = Registry<SampleStore>::Global().Find(id);
  if (store == nullptr) {
    return NotFound(
        "This CacheStore no longer exists: keep a reference to the Python "
        "object for as long as a function uses it.");
  }
  return store;
}

}  // namespace refurbish_tf

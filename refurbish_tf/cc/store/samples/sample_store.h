// The cache store of tensors, shared by the dataset ops and the lookup ops.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/store/cache_store.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

// The components of a partially augmented sample. Copying it copies no data.
using Sample = std::vector<tensorflow::Tensor>;

// The types and shapes of the components of every sample of a stage.
struct SampleTypes {
  tensorflow::DataTypeVector dtypes;
  std::vector<tensorflow::PartialTensorShape> shapes;

  bool operator==(const SampleTypes& other) const;
  bool Allow(const Sample& sample) const;
};

// The bytes of the data, including that of ragged and sparse components. A
// sample keeps just these in memory only if it owns its buffers.
int64_t SampleBytes(const Sample& sample);

// Copies components that are views of a larger buffer, as a slice is: they
// would keep all of it in memory. Also copies memory that is not TensorFlow's,
// as of a NumPy array, which may be written to.
void OwnBuffers(Sample* sample);

// Copies what others may hold, too, such as the store or the source: for a
// function that calls Python, which may write into its arguments.
void CopyHeldByOthers(Sample* sample);

// The bytes of every sample of these types, or -1 if they vary.
int64_t FixedSampleBytes(const SampleTypes& types);

class DiskSamples;
class DiskStore;

// The error of a stage that is given a store with samples of unknown origin.
absl::Status SamplesPutByHand();

// A cache store, the types of its samples, and which stage uses it.
//
// Lock order: `mu_` is taken before the lock of `store()`.
class SampleStore {
 public:
  // Finds the store of this name in the process, or makes one: on disk if the
  // name is an absolute path, else in memory. On disk, the mode "overwrite"
  // clears it, and "inspect" requires that it exists.
  static absl::StatusOr<std::shared_ptr<SampleStore>> GetOrCreate(
      const std::string& id, int64_t max_bytes,
      const std::string& mode = "open");
  static absl::StatusOr<std::shared_ptr<SampleStore>> Find(
      const std::string& id);

  explicit SampleStore(int64_t max_bytes);
  explicit SampleStore(std::unique_ptr<DiskStore> disk);
  ~SampleStore();

  CacheStore<Sample>& store() { return *store_; }
  // Null for a store in memory.
  DiskStore* disk();
  // What numbers the samples of a shard have here: on disk, where they are
  // found again when the source is divided otherwise, those of the whole
  // source.
  Shard Keys(const Shard& shard) const {
    return disk_samples_ == nullptr ? Shard() : shard;
  }
  // As DiskStore's; for a store on disk.
  PutResult PutInTransit(uint64_t index, Generation generation,
                         const Sample& sample);

  // The bytes that a sample counts, and that every sample of these types
  // counts, or -1 if they vary.
  int64_t Bytes(const Sample& sample) const;
  int64_t FixedBytes(const SampleTypes& types) const;

  // In memory: reserves the store for one stage, as to another stage the same
  // index means another sample. Clears what an earlier stage has left that no
  // longer exists.
  absl::Status Reserve(const std::string& stage, std::weak_ptr<void> alive,
                       const tensorflow::DataTypeVector& dtypes)
      ABSL_LOCKS_EXCLUDED(mu_);

  // On disk: a stored sample of other types or shapes is missing from now on,
  // as one that is damaged. Fails if such samples cannot be stored, or if
  // another stage expects others.
  absl::Status Expect(const SampleTypes& types);

  // On disk: fails if the directory was deleted. A stage that is at work goes
  // on to the end; no other may begin on a store that nobody can find again.
  absl::Status CheckDirectory();

  // On disk: compares settings with those that the store was written under, and
  // adds the missing ones. Waits for another process for at most `patience`.
  absl::Status Agree(
      const std::map<std::string, std::string>& settings, bool replace = false,
      std::chrono::milliseconds patience = std::chrono::minutes(1));

  // As the store's `Put`, for a sample from a user: checks its types, and gives
  // it the generation of the one it replaces.
  absl::Status Put(uint64_t index, Sample sample) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status CheckTypes(const tensorflow::DataTypeVector& dtypes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::unique_ptr<CacheStore<Sample>> store_;
  DiskSamples* const disk_samples_ = nullptr;  // `store_`, if on disk.
  absl::Mutex mu_;
  std::string stage_ ABSL_GUARDED_BY(mu_);
  std::weak_ptr<void> stage_alive_ ABSL_GUARDED_BY(mu_);
  std::optional<tensorflow::DataTypeVector> dtypes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

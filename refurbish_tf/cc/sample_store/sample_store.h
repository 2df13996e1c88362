// The cache store of tensors, shared by the dataset ops and the lookup ops.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/shard.h"
#include "refurbish_tf/cc/cooperation/cooperation.h"
#include "refurbish_tf/cc/source_checks/source_checksums.h"
#include "refurbish_tf/cc/store/sample_map.h"
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

// The bytes of the data, including ragged and sparse components. If a component
// is a view, it keeps more memory alive (see `OwnBuffers`).
int64_t SampleBytes(const Sample& sample);

// Copies components that are views of a larger buffer, such as slices, which
// would keep all of it in memory. Also copies memory that is not TensorFlow's,
// such as that of a NumPy array, which may be written to.
void OwnBuffers(Sample* sample);

// Copies components that others, such as the store, may hold. Called before
// Python code, which may write into its arguments.
void CopyHeldByOthers(Sample* sample);

// The bytes of each sample of these types, or -1 if they vary.
int64_t FixedSampleBytes(const SampleTypes& types);

// A cache store in memory or on disk, with the types of its samples and the
// stage that uses it.
//
// Lock order: `mu_` is taken before the lock of `store()`.
class SampleStore {
 public:
  // Finds this process's store named `id`, or makes one: on disk if the name is
  // an absolute path, otherwise in memory. On disk, the mode "overwrite" clears
  // it, and "inspect" requires that it exists.
  static absl::StatusOr<std::shared_ptr<SampleStore>> GetOrCreate(
      const std::string& id, int64_t max_bytes,
      const std::string& mode = "open");
  static absl::StatusOr<std::shared_ptr<SampleStore>> Find(
      const std::string& id);

  virtual ~SampleStore() = default;

  virtual SampleMap<Sample>& store() = 0;
  virtual Cooperation& cooperation() = 0;

  // How the store numbers the samples of a shard: in memory as the shard does,
  // on disk as the whole source does, because these numbers stay valid when the
  // source is divided differently.
  virtual Shard Keys(const Shard& /*shard*/) const { return Shard(); }
  // Puts a sample that is not kept into the ring, if there is one, for other
  // jobs.
  virtual PutResult PutInTransit(uint64_t /*index*/, Generation /*generation*/,
                                 const Sample& /*sample*/) {
    return PutResult::kNoRoom;
  }

  // How many bytes the store counts for a sample, and for each sample of these
  // types (-1 if they vary).
  virtual int64_t Bytes(const Sample& sample) const = 0;
  virtual int64_t FixedBytes(const SampleTypes& types) const = 0;

  // How many samples the store can hold, and how large each may be.
  struct Limits {
    int64_t samples = kMaxSamples;
    int64_t bytes = std::numeric_limits<int64_t>::max();
  };
  virtual Limits limits() const { return {}; }

  // Called when a stage begins to use the store. In memory: reserves the store,
  // because an index means another sample to another stage, and clears what a
  // stage that no longer exists has left. On disk: from then on, stored samples
  // of other types or shapes count as missing, like damaged ones. Fails if
  // samples of `types` cannot be stored, or if another stage has reserved the
  // store (in memory) or expects other types (on disk).
  virtual absl::Status Reserve(const std::string& stage,
                               std::weak_ptr<void> alive,
                               const SampleTypes& types) = 0;

  // On disk: fails if the directory was deleted. A running stage continues
  // without it, but no stage may begin on a store that nobody can find again.
  virtual absl::Status CheckDirectory() const { return absl::OkStatus(); }

  // The checksums of the source elements. Null in memory.
  virtual SourceChecksums* source_sums() { return nullptr; }

  // Like the store's `Put`, for an element that `cached` also hands over. In
  // memory, the element afterwards owns its buffers and shares them with the
  // store.
  virtual PutResult PutElement(uint64_t index, Generation generation,
                               Sample* element) = 0;

  // Like the store's `Put`, for a sample that a user puts: checks its types,
  // and gives it the generation of the sample that it replaces.
  absl::Status Put(uint64_t index, Sample sample) ABSL_LOCKS_EXCLUDED(mu_);

  // The counts of `CacheStoreStats` in cache_store.py. Counts that only a store
  // on disk has are 0 by default there.
  virtual NamedNumbers Counts();
  // Reads every record of a store on disk. Returns how many are intact, and how
  // many are damaged and count as missing from now on.
  virtual absl::StatusOr<std::pair<int64_t, int64_t>> Verify() {
    return absl::InvalidArgumentError("This CacheStore is not on disk.");
  }

 protected:
  // `Put` after its checks. On disk, waits until the sample is written.
  virtual absl::StatusOr<PutResult> PutNow(uint64_t index,
                                           Generation generation,
                                           Sample sample) = 0;

  absl::Mutex mu_;
  std::optional<tensorflow::DataTypeVector> dtypes_ ABSL_GUARDED_BY(mu_);

 private:
  absl::Status CheckTypes(const tensorflow::DataTypeVector& dtypes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
};

}  // namespace refurbish_tf

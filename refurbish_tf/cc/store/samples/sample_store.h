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
#include "refurbish_tf/cc/store/cache_store.h"
#include "refurbish_tf/cc/store/source_sums.h"
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

// A cache store, the types of its samples, and which stage uses it: in memory
// or on disk.
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

  virtual ~SampleStore() = default;

  virtual CacheStore<Sample>& store() = 0;
  virtual Cooperation& cooperation() = 0;

  // What numbers the samples of a shard have here: on disk, where they are
  // found again when the source is divided otherwise, those of the whole
  // source.
  virtual Shard Keys(const Shard& /*shard*/) const { return Shard(); }
  // Hands a sample that is not kept to other jobs; for a store with a ring.
  virtual PutResult PutInTransit(uint64_t /*index*/, Generation /*generation*/,
                                 const Sample& /*sample*/) {
    return PutResult::kNoRoom;
  }

  // The bytes that a sample counts, and that every sample of these types
  // counts, or -1 if they vary.
  virtual int64_t Bytes(const Sample& sample) const = 0;
  virtual int64_t FixedBytes(const SampleTypes& types) const = 0;

  // How many samples it can have room for, and how large one may be.
  struct Limits {
    int64_t samples = kMaxSamples;
    int64_t bytes = std::numeric_limits<int64_t>::max();
  };
  virtual Limits limits() const { return {}; }

  // Begins the use by a stage. In memory: reserves the store for it, as to
  // another stage the same index means another sample; clears what an earlier
  // stage has left that no longer exists. On disk: a stored sample of other
  // types or shapes is missing from now on, as one that is damaged; fails if
  // such samples cannot be stored, or if another stage expects others.
  virtual absl::Status Reserve(const std::string& stage,
                               std::weak_ptr<void> alive,
                               const SampleTypes& types) = 0;

  // On disk: fails if the directory was deleted. A stage that is at work goes
  // on to the end; no other may begin on a store that nobody can find again.
  virtual absl::Status CheckDirectory() const { return absl::OkStatus(); }

  // The checksums of what samples were prepared from. Null in memory.
  virtual SourceSums* source_sums() { return nullptr; }

  // As the store's `Put`, for an element that is handed out as well: in memory
  // it owns its buffers afterwards, which the store shares.
  virtual PutResult PutElement(uint64_t index, Generation generation,
                               Sample* element) = 0;

  // As the store's `Put`, for a sample from a user: checks its types, and gives
  // it the generation of the one it replaces.
  absl::Status Put(uint64_t index, Sample sample) ABSL_LOCKS_EXCLUDED(mu_);

  // The counts of `CacheStoreStats` in cache_store.py; those of a disk are 0 if
  // they are not there.
  virtual NamedNumbers Counts();
  // Reads every record of a store on disk: how many are intact, and how many
  // were damaged and are missing from now on.
  virtual absl::StatusOr<std::pair<int64_t, int64_t>> Verify() {
    return absl::InvalidArgumentError("This CacheStore is not on disk.");
  }

 protected:
  // What `Put` does after its checks. On disk it waits until it is written.
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

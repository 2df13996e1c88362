// A position in training: the epoch that a stage is in, or the next one; which
// of its samples were yielded; r, the seeds and the schedule. It is one value,
// which checkpoints, loaders and callbacks save. It has no elements of the
// source and no samples of the store: a restored stage reads the source again.
//
// `Stage::Save` and `Epoch::Save` fill it; `Stage::Restore` checks it
// (`CheckSaved`) before it changes anything; `Epoch::Resume` walks the rest of
// the order. After a restore on a shared store, a job uses nothing newer than
// its schedule wants until it is back where it was
// (`SharedJob::exact_before_`), so that it yields what it yielded before. It
// uses no sample in transit from before `ring_head`, because it may have used
// that sample already.
//
// The positions of all workers can be joined (epoch_position.py). `yielded` is
// then about the samples of the whole source, and each worker continues with
// its own part of them, regardless of the number of workers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

struct EpochPosition {
  void SetSchedule(const Schedule& schedule, uint32_t num_shards_now);

  int64_t seed = 0;
  int64_t order_seed = 0;
  double reuse_factor = 1;
  uint64_t next_epoch = 0;
  bool begun = false;  // If false, `number` is not set and nothing was yielded.
  uint64_t number = 0;
  // Whether it joins all workers' positions. `num_samples` and `yielded` are
  // then for the whole source; `num_kept` only tells whether all are kept.
  bool joined = false;
  int64_t num_samples = kUnknownSamples;
  bool scheduled = false;
  int64_t num_kept = 0;  // Only with a schedule.
  uint64_t origin = 0;   // Only with a schedule.
  // The id of a store on disk, and one after the last position of its ring that
  // the job may have used. 0 for other stores.
  int64_t store_id = 0;
  int64_t ring_head = 0;
  // The policies, by number.
  int64_t eviction = 0;
  int64_t shuffle = 0;
  // The shard of the source. `num_shards`: 0 if it was not known yet. `whole`:
  // how many samples all shards had, if known. `schedule_shards`: the number of
  // shards when the schedule began; 0 if it is not known which samples of the
  // source a shard has.
  int64_t num_shards = 0;
  int64_t shard = 0;
  int64_t whole = kUnknownSamples;
  int64_t schedule_shards = 0;
  // Which samples were yielded. `yielded` has a bit for each, the lowest of a
  // byte first. The other two list the indices of samples yielded after these
  // bits were copied, in two steps: symbolic checkpoints are saved with every
  // element, and must copy neither all bits nor many numbers each time.
  tensorflow::Tensor yielded{tensorflow::DT_UINT8,
                             tensorflow::TensorShape({0})};
  tensorflow::Tensor yielded_since{tensorflow::DT_UINT32,
                                   tensorflow::TensorShape({0})};
  tensorflow::Tensor yielded_last{tensorflow::DT_UINT32,
                                  tensorflow::TensorShape({0})};
  // In a joined position: the shards whose position was lost. Their samples are
  // yielded and prepared again.
  tensorflow::Tensor lost_shards{tensorflow::DT_INT64,
                                 tensorflow::TensorShape({0})};
};

// The samples of an epoch that were handed out, or whose errors were handed
// out.
class YieldedSamples {
 public:
  void Resize(uint64_t num_samples) { bits_.resize((num_samples + 7) / 8); }
  void Note(uint32_t index);
  // Continues from a saved position.
  void Resume(const EpochPosition& saved);
  void Save(EpochPosition* saved);
  // `Has` is for indices below this; at or above it no sample was handed out.
  uint64_t end() const { return 8 * bits_.size(); }
  bool Has(uint64_t index) const { return bits_[index / 8] >> index % 8 & 1; }
  // All bits in one tensor, as in `EpochPosition::yielded`.
  tensorflow::Tensor bits() const;
  int64_t bytes() const;

 private:
  // See `EpochPosition::yielded`. `saved_` has the bits except those of the
  // samples in `since_` and `last_`; `since_saved_` is a copy of `since_`. If
  // one of the two copies is outdated, it is empty until the next save.
  std::vector<uint8_t> bits_;
  std::optional<tensorflow::Tensor> saved_;
  std::vector<uint32_t> since_;
  std::optional<tensorflow::Tensor> since_saved_;
  std::vector<uint32_t> last_;
};

// Calls `field(key, &value)` for each field that an iterator saves.
template <class Field>
void ForEachField(EpochPosition* position, const Field& field) {
  field("seed", &position->seed);
  field("order_seed", &position->order_seed);
  field("reuse_factor", &position->reuse_factor);
  field("next_epoch", &position->next_epoch);
  field("begun", &position->begun);
  field("number", &position->number);
  field("joined", &position->joined);
  field("scheduled", &position->scheduled);
  field("num_samples", &position->num_samples);
  field("num_kept", &position->num_kept);
  field("origin", &position->origin);
  field("store_id", &position->store_id);
  field("ring_head", &position->ring_head);
  field("eviction", &position->eviction);
  field("shuffle", &position->shuffle);
  field("num_shards", &position->num_shards);
  field("shard", &position->shard);
  field("whole", &position->whole);
  field("schedule_shards", &position->schedule_shards);
  field("yielded", &position->yielded);
  field("yielded_since", &position->yielded_since);
  field("yielded_last", &position->yielded_last);
}

// Fails if only a damaged checkpoint can hold these values. A damaged
// checkpoint must not end the process, as reading a tensor of another type
// would, and must not cause writes out of bounds. `num_samples`: how many the
// source has now, if known.
absl::Status CheckSaved(const EpochPosition& saved, int64_t num_samples);

}  // namespace refurbish_tf

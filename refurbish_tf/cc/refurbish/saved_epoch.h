// What a checkpoint holds: one bit for each sample of the epoch, whether it or
// its error was handed out; the number of the epoch and its schedule; r and the
// seeds. `RefurbishIterator` adds a format version and whether it has ended. It
// holds nothing that is under way or in the store: the source is read again.
// `Stage::Restore` checks it (`CheckSaved`) before it changes anything;
// `Epoch::Resume` walks the rest of the order. After a restore on a shared
// store a job uses nothing newer than its schedule wants until it is back where
// it was (`SharedUse::exact_before`), so that it yields what it had yielded
// before. Of what is in transit there it takes nothing that was put before
// `ring_head`, as it may have used that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/plan/schedule.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

// The error of a checkpoint that does not fit.
absl::Status OtherPipeline(const char* what, const std::string& given,
                           const std::string& saved);

// Enough to continue an epoch in another process.
struct SavedEpoch {
  int64_t seed = 0;
  int64_t order_seed = 0;
  double reuse_factor = 1;
  uint64_t next_epoch = 0;
  bool begun = false;  // Else there is no `number`, and nothing was yielded.
  uint64_t number = 0;
  int64_t num_samples = kUnknownSamples;
  bool scheduled = false;
  int64_t num_kept = 0;  // With a schedule only.
  uint64_t origin = 0;   // Likewise.
  // Of a store on disk its id, and one after the last position of its ring that
  // the job may have used. 0 elsewhere.
  int64_t store_id = 0;
  int64_t ring_head = 0;
  // As numbers.
  int64_t eviction = 0;
  int64_t shuffle = 0;
  // In how many shards the source was divided, 0 if that was not known yet; how
  // many samples all of them had, if known; and in how many it was divided when
  // the schedule began: 0 if it is not known which samples of the source a
  // shard has.
  int64_t num_shards = 0;
  int64_t whole = kUnknownSamples;
  int64_t schedule_shards = 0;
  // Which samples were yielded: a bit for each, the lowest of a byte first
  // (uint8). Then the samples yielded since, and those yielded last (uint32):
  // symbolic checkpoints are saved with every element, and must copy neither
  // all bits nor many numbers each time.
  tensorflow::Tensor yielded{tensorflow::DT_UINT8,
                             tensorflow::TensorShape({0})};
  tensorflow::Tensor yielded_since{tensorflow::DT_UINT32,
                                   tensorflow::TensorShape({0})};
  tensorflow::Tensor yielded_last{tensorflow::DT_UINT32,
                                  tensorflow::TensorShape({0})};
};

// Which samples of an epoch were handed out, or their errors.
class YieldedSamples {
 public:
  void Resize(uint32_t num_samples) { bits_.resize((num_samples + 7) / 8); }
  void Note(uint32_t index);
  // Continues what was saved.
  void Resume(const SavedEpoch& saved);
  void Save(SavedEpoch* saved);
  // More than every sample that was handed out.
  uint32_t end() const { return 8 * bits_.size(); }
  bool Has(uint32_t index) const { return bits_[index / 8] >> index % 8 & 1; }
  int64_t bytes() const;

 private:
  // As in SavedEpoch. `saved_` and `since_saved_` are the tensors of what is in
  // `bits_` and `since_`, but for what was yielded later; empty if nothing was
  // saved for some time.
  std::vector<uint8_t> bits_;
  std::optional<tensorflow::Tensor> saved_;
  std::vector<uint32_t> since_;
  std::optional<tensorflow::Tensor> since_saved_;
  std::vector<uint32_t> last_;
};

// Calls `field(key, &value)` for each whole number that `Stage::Save` sets.
template <class Field>
void ForEachNumberOfStage(SavedEpoch* saved, const Field& field) {
  field("seed", &saved->seed);
  field("order_seed", &saved->order_seed);
  field("next_epoch", &saved->next_epoch);
  field("scheduled", &saved->scheduled);
  field("num_samples", &saved->num_samples);
  field("num_kept", &saved->num_kept);
  field("origin", &saved->origin);
  field("store_id", &saved->store_id);
  field("ring_head", &saved->ring_head);
  field("eviction", &saved->eviction);
  field("shuffle", &saved->shuffle);
  field("num_shards", &saved->num_shards);
  field("whole", &saved->whole);
  field("schedule_shards", &saved->schedule_shards);
}

// The same for all fields.
template <class Field>
void ForEachField(SavedEpoch* saved, const Field& field) {
  ForEachNumberOfStage(saved, field);
  field("reuse_factor", &saved->reuse_factor);
  field("begun", &saved->begun);
  field("number", &saved->number);
  field("yielded", &saved->yielded);
  field("yielded_since", &saved->yielded_since);
  field("yielded_last", &saved->yielded_last);
}

// Fails on what only a damaged checkpoint can say. It must not end the process,
// as reading a tensor of another type does, nor be written out of bounds.
// `num_samples` is how many the source has now, if known.
absl::Status CheckSaved(const SavedEpoch& saved, int64_t num_samples);

}  // namespace refurbish_tf

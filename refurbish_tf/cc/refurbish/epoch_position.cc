#include "refurbish_tf/cc/refurbish/epoch_position.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "refurbish_tf/cc/base/printable.h"

namespace refurbish_tf {
namespace {

// The most samples of `last_`. With one more, they move to `since_`.
constexpr size_t kMostYieldedLast = 1024;

// The most samples of `since_`, unless the bits take fewer bytes than that.
// With one more, the next checkpoint copies the bits again.
constexpr size_t kMostYieldedSince = 1 << 16;

template <class T>
tensorflow::Tensor VectorOf(const std::vector<T>& values) {
  tensorflow::Tensor tensor(
      tensorflow::DataTypeToEnum<T>::v(),
      tensorflow::TensorShape({static_cast<int64_t>(values.size())}));
  std::copy(values.begin(), values.end(), tensor.vec<T>().data());
  return tensor;
}

}  // namespace

void EpochPosition::SetSchedule(const Schedule& schedule,
                                uint32_t num_shards_now) {
  scheduled = true;
  num_samples = schedule.num_samples();
  num_kept = schedule.capacity();
  origin = schedule.origin();
  if (schedule_shards > 0)
    schedule_shards = schedule.ShardsThen(num_shards_now);
}

absl::Status CheckSaved(const EpochPosition& saved, int64_t num_samples) {
  for (const auto& [key, number, least, most] :
       {std::tuple<const char*, int64_t, int64_t, int64_t>{
            "next_epoch", saved.next_epoch, 0, kMaxEpochs - 1},
        {"number", saved.number, 0, kMaxEpochs - 1},
        {"origin", saved.origin, 0, kMaxEpochs - 1},
        {"eviction", saved.eviction, 0, kEvictions.names.size() - 1},
        {"shuffle", saved.shuffle, 0, kShuffles.names.size() - 1},
        {"num_shards", saved.num_shards, 0, kMaxSamples},
        {"shard", saved.shard, 0, kMaxSamples},
        {"whole", saved.whole, kUnknownSamples, kMaxSamples},
        {"schedule_shards", saved.schedule_shards, 0, kMaxShards},
        {"ring_head", saved.ring_head, 0,
         std::numeric_limits<int64_t>::max()}}) {
    if (number < least || number > most) {
      return DamagedCheckpoint("refurbish", "its ", key, " is ", number,
                               ", but must be at least ", least,
                               " and at most ", most);
    }
  }
  if ((saved.num_samples != kUnknownSamples || saved.scheduled) &&
      (saved.num_samples <= 0 || saved.num_samples > MostSamples())) {
    return DamagedCheckpoint(
        "refurbish", "its num_samples is ", saved.num_samples,
        ", but must be at least 1 and at most ", MostSamples(),
        ", the number for which this machine has memory: a machine with more "
        "memory saved it, or it was changed");
  }
  if (saved.scheduled &&
      (saved.num_kept < 0 || saved.num_kept > saved.num_samples)) {
    return DamagedCheckpoint(
        "refurbish", "its num_kept is ", saved.num_kept,
        ", but must be at least 0 and at most num_samples, ",
        saved.num_samples);
  }
  if (saved.scheduled && saved.begun && saved.number < saved.origin) {
    return DamagedCheckpoint("refurbish", "its epoch ", saved.number,
                             " is before the first epoch of its schedule, ",
                             saved.origin);
  }
  for (const auto& [key, tensor, dtype] :
       {std::tuple<const char*, const tensorflow::Tensor&,
                   tensorflow::DataType>{"yielded", saved.yielded,
                                         tensorflow::DT_UINT8},
        {"yielded_since", saved.yielded_since, tensorflow::DT_UINT32},
        {"yielded_last", saved.yielded_last, tensorflow::DT_UINT32},
        {"lost_shards", saved.lost_shards, tensorflow::DT_INT64}}) {
    if (tensor.dtype() != dtype || tensor.dims() != 1) {
      return DamagedCheckpoint("refurbish", "its ", key, " is ",
                               tensorflow::DataTypeString(tensor.dtype()),
                               tensor.shape().DebugString(),
                               ", but must be a vector of ",
                               tensorflow::DataTypeString(dtype));
    }
  }
  const auto yielded = saved.yielded.vec<uint8_t>();
  const int64_t bytes = yielded.size();
  // While the number of samples is unknown, `yielded` grows with the samples.
  const bool fits = !saved.begun ? bytes == 0
                    : saved.num_samples == kUnknownSamples
                        ? bytes <= static_cast<int64_t>(kMaxSamples / 8 + 1)
                        : bytes == (saved.num_samples + 7) / 8;
  if (!fits) {
    return DamagedCheckpoint("refurbish", "its yielded has ", bytes,
                             " bytes, which is not one bit for each of ",
                             saved.num_samples, " samples");
  }
  if (saved.num_samples != kUnknownSamples || saved.joined) {
    num_samples = saved.num_samples;
  }
  if (num_samples == kUnknownSamples) return absl::OkStatus();
  const auto beyond = [num_samples](int64_t index) {
    return DamagedCheckpoint("refurbish", "it says that sample ", index,
                             " was yielded, but there are ", num_samples);
  };
  for (int64_t byte = num_samples / 8; byte < bytes; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      const int64_t index = 8 * byte + bit;
      if (index >= num_samples && yielded(byte) >> bit & 1) {
        return beyond(index);
      }
    }
  }
  for (const auto* tensor : {&saved.yielded_since, &saved.yielded_last}) {
    const auto since = tensor->vec<uint32_t>();
    for (int64_t i = 0; i < since.size(); ++i) {
      if (since(i) >= num_samples) return beyond(since(i));
    }
  }
  return absl::OkStatus();
}

void YieldedSamples::Note(uint32_t index) {
  if (index / 8 >= bits_.size()) bits_.resize(index / 8 + 1);
  bits_[index / 8] |= 1 << index % 8;
  if (!saved_.has_value()) return;
  last_.push_back(index);
  if (last_.size() <= kMostYieldedLast) return;
  since_.insert(since_.end(), last_.begin(), last_.end());
  since_saved_.reset();
  last_.clear();
  const size_t most = std::min(kMostYieldedSince, bits_.size() / 4);
  if (since_.size() <= most) return;
  saved_.reset();
  since_.clear();
}

void YieldedSamples::Resume(const EpochPosition& saved) {
  const auto yielded = saved.yielded.vec<uint8_t>();
  bits_.assign(yielded.data(), yielded.data() + yielded.size());
  for (const auto* tensor : {&saved.yielded_since, &saved.yielded_last}) {
    const auto since = tensor->vec<uint32_t>();
    for (int64_t i = 0; i < since.size(); ++i) Note(since(i));
  }
}

tensorflow::Tensor YieldedSamples::bits() const { return VectorOf(bits_); }

void YieldedSamples::Save(EpochPosition* saved) {
  if (!saved_.has_value()) saved_ = VectorOf(bits_);
  if (!since_saved_.has_value()) since_saved_ = VectorOf(since_);
  saved->yielded = *saved_;
  saved->yielded_since = *since_saved_;
  saved->yielded_last = VectorOf(last_);
}

int64_t YieldedSamples::bytes() const {
  const size_t saved = saved_.has_value() ? bits_.size() : 0;
  const size_t numbers = 2 * since_.size() + last_.size();
  return bits_.size() + saved + numbers * sizeof(uint32_t);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/kernels/stage.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/registry.h"
#include "refurbish_tf/cc/kernels/sample_codec.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tensorflow/core/platform/logging.h"

namespace refurbish_tf {
namespace {

// Settings of a store on disk.
constexpr char kSeedSetting[] = "seed";
constexpr char kReuseSetting[] = "r";
constexpr char kSamplesSetting[] = "num_samples";
constexpr char kKeptSetting[] = "num_kept_samples";
constexpr char kOriginSetting[] = "first_epoch";
constexpr char kShardSetting[] = "shard";

// After so many, all that was yielded is copied for a checkpoint.
constexpr size_t kMostYieldedSince = 1024;

// So far ahead of what is used next are samples looked up.
constexpr uint64_t kReadAheadPlaces = 1024;

// With all digits that it takes to tell it from every other number.
std::string Exactly(double number) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  return {digits, end};
}

// Whatever a damaged checkpoint says must neither end the process, as tensors of
// another type do when they are read, nor be written beyond an end.
// `num_samples` is how many the source has now, as far as is known.
absl::Status CheckSaved(const SavedEpoch& saved, int64_t num_samples) {
  for (const auto& [key, number] :
       {std::pair<const char*, uint64_t>{"next_epoch", saved.next_epoch},
        {"number", saved.number},
        {"origin", saved.origin}}) {
    if (number >= kMaxEpochs) {
      return DamagedCheckpoint(absl::StrCat(
          "its ", key, " is ", static_cast<int64_t>(number),
          ", but must be at least 0 and below ", kMaxEpochs));
    }
  }
  if ((saved.num_samples != kUnknownSamples || saved.scheduled) &&
      (saved.num_samples <= 0 ||
       saved.num_samples > static_cast<int64_t>(kMaxSamples))) {
    return DamagedCheckpoint(absl::StrCat(
        "its num_samples is ", saved.num_samples, ", but must be at least 1 and "
        "at most ", kMaxSamples));
  }
  if (saved.scheduled &&
      (saved.num_kept < 0 || saved.num_kept > saved.num_samples)) {
    return DamagedCheckpoint(absl::StrCat(
        "its num_kept is ", saved.num_kept, ", but must be at least 0 and at "
        "most num_samples, ", saved.num_samples));
  }
  if (saved.scheduled && saved.begun && saved.number < saved.origin) {
    return DamagedCheckpoint(absl::StrCat(
        "its epoch ", saved.number, " is before the first one that its schedule "
        "has, ", saved.origin));
  }
  for (const auto& [key, tensor, dtype] :
       {std::tuple<const char*, const tensorflow::Tensor&, tensorflow::DataType>{
            "yielded", saved.yielded, tensorflow::DT_UINT8},
        {"yielded_since", saved.yielded_since, tensorflow::DT_UINT32}}) {
    if (tensor.dtype() != dtype || tensor.dims() != 1) {
      return DamagedCheckpoint(absl::StrCat(
          "its ", key, " is ", tensorflow::DataTypeString(tensor.dtype()),
          tensor.shape().DebugString(), ", but must be a vector of ",
          tensorflow::DataTypeString(dtype)));
    }
  }
  const auto yielded = saved.yielded.vec<uint8_t>();
  const int64_t bytes = yielded.size();
  // Until the length of the source is known there are as many as it takes.
  const bool fits =
      !saved.begun ? bytes == 0
      : saved.num_samples == kUnknownSamples
          ? bytes <= static_cast<int64_t>(kMaxSamples / 8 + 1)
          : bytes == (saved.num_samples + 7) / 8;
  if (!fits) {
    return DamagedCheckpoint(absl::StrCat(
        "its yielded has ", bytes, " bytes, which is not one bit for each of ",
        saved.num_samples, " samples"));
  }
  if (saved.num_samples != kUnknownSamples) num_samples = saved.num_samples;
  if (num_samples == kUnknownSamples) return absl::OkStatus();
  const auto beyond = [num_samples](int64_t index) {
    return DamagedCheckpoint(absl::StrCat(
        "it says that sample ", index, " was yielded, but there are ",
        num_samples));
  };
  for (int64_t byte = num_samples / 8; byte < bytes; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      const int64_t index = 8 * byte + bit;
      if (index >= num_samples && yielded(byte) >> bit & 1) {
        return beyond(index);
      }
    }
  }
  const auto since = saved.yielded_since.vec<uint32_t>();
  for (int64_t i = 0; i < since.size(); ++i) {
    if (since(i) >= num_samples) return beyond(since(i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OtherPipeline(const char* what, const std::string& given,
                           const std::string& saved) {
  return absl::InvalidArgumentError(absl::StrCat(
      "The checkpoint was saved by another pipeline: of refurbish ", what, " is ",
      given, ", but it was ", saved, " when the checkpoint was saved. Build the "
      "pipeline as it was then, or begin the epoch anew without this part of the "
      "checkpoint."));
}

absl::Status DamagedCheckpoint(const std::string& what) {
  return absl::DataLossError(absl::StrCat(
      "The checkpoint of refurbish is damaged: ", what,
      ". Use another checkpoint, or begin the epoch anew without this part of "
      "it."));
}

GenerationRange UsedGenerations::Wanted(uint32_t index,
                                        Generation generation) const {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size()) return {generation};
  const Uses& uses = uses_[index];
  if (uses.count == 0 || uses.generation < generation) return {generation};
  return {uses.generation + (uses.count >= most_uses_)};
}

bool UsedGenerations::Use(uint32_t index, Generation used) {
  absl::MutexLock lock(&mu_);
  if (index >= uses_.size()) uses_.resize(index + 1);
  Uses& uses = uses_[index];
  if (uses.count == 0 || used > uses.generation) {
    uses = {used, 1};
    return true;
  }
  if (used < uses.generation || uses.count >= most_uses_) return false;
  ++uses.count;
  return true;
}

void UsedGenerations::Clear() {
  absl::MutexLock lock(&mu_);
  uses_.clear();
}

Epoch::Epoch(uint64_t number, uint64_t seed,
             std::optional<EpochSchedule> schedule,
             std::shared_ptr<const Schedule> owner,
             std::shared_ptr<SampleStore> store,
             std::shared_ptr<SharedUse> shared,
             std::shared_ptr<EpochCounters> counters)
    : number_(number),
      seed_(seed),
      owner_(std::move(owner)),
      schedule_(std::move(schedule)),
      store_(std::move(store)),
      shared_(std::move(shared)),
      counters_(std::move(counters)),
      read_ahead_(store_->store().MakeReadAhead()) {
  absl::MutexLock lock(&mu_);
  if (schedule_.has_value()) {
    stream_length_ = schedule_->num_samples();
    requested_.resize(schedule_->num_samples());
    served_.resize(schedule_->num_samples());
    yielded_.resize((schedule_->num_samples() + 7) / 8);
  }
}

void Epoch::Yield(uint32_t index) {
  if (index / 8 >= yielded_.size()) yielded_.resize(index / 8 + 1);
  yielded_[index / 8] |= 1 << index % 8;
  if (!saved_.has_value()) return;
  yielded_since_.push_back(index);
  if (yielded_since_.size() <= kMostYieldedSince) return;
  saved_.reset();
  yielded_since_.clear();
}

void Epoch::Resume(const SavedEpoch& saved) {
  absl::MutexLock lock(&mu_);
  resumed_ = true;
  const auto yielded = saved.yielded.vec<uint8_t>();
  yielded_.assign(yielded.data(), yielded.data() + yielded.size());
  const auto since = saved.yielded_since.vec<uint32_t>();
  for (int64_t i = 0; i < since.size(); ++i) Yield(since(i));
  if (schedule_.has_value()) {
    yielded_.resize((schedule_->num_samples() + 7) / 8);
  } else {
    served_.resize(8 * yielded_.size());
  }
  uint32_t num_yielded = 0;
  for (size_t i = 0; i < served_.size(); ++i) {
    served_[i] = yielded_[i / 8] >> i % 8 & 1;
    num_yielded += served_[i];
  }
  if (!schedule_.has_value()) return;
  const uint32_t num_samples = schedule_->num_samples();
  first_position_ = next_position_ = frontier_ = read_position_ = num_yielded;
  rest_.reserve(num_samples - num_yielded);
  uint32_t passed = 0;
  for (uint32_t position = num_yielded; position < num_samples; ++position) {
    Slot slot = schedule_->At(position);
    if (served_[slot.index]) {
      // As many were yielded before their place as there are places before this
      // whose samples were not.
      do {
        slot = schedule_->At(passed++);
      } while (served_[slot.index]);
    }
    rest_.push_back(slot);
  }
}

SavedEpoch Epoch::Save() {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved;
  saved.begun = true;
  saved.number = number_;
  if (schedule_.has_value()) saved.num_samples = schedule_->num_samples();
  if (scheduled()) {
    saved.scheduled = true;
    saved.num_kept = owner_->capacity();
    saved.origin = owner_->origin();
  }
  if (!saved_.has_value()) {
    saved_.emplace(
        tensorflow::DT_UINT8,
        tensorflow::TensorShape({static_cast<int64_t>(yielded_.size())}));
    std::copy(yielded_.begin(), yielded_.end(), saved_->vec<uint8_t>().data());
  }
  saved.yielded = *saved_;
  saved.yielded_since = tensorflow::Tensor(
      tensorflow::DT_UINT32,
      tensorflow::TensorShape({static_cast<int64_t>(yielded_since_.size())}));
  std::copy(yielded_since_.begin(), yielded_since_.end(),
            saved.yielded_since.vec<uint32_t>().data());
  return saved;
}

Generation Epoch::PreparedGeneration(uint32_t index) const {
  if (shared_ != nullptr) {
    absl::MutexLock lock(&mu_);
    const auto other = other_generations_.find(index);
    if (other != other_generations_.end()) return other->second;
  }
  return GenerationOf(index);
}

GenerationRange Epoch::Wanted(uint32_t index) const {
  const Generation generation = GenerationOf(index);
  if (Exact()) return {generation, generation};
  return shared_->generations.Wanted(index, generation);
}

bool Epoch::ToKeep(uint32_t index) const {
  if (Reused(index)) return true;
  return shared_ != nullptr && schedule_.has_value() &&
         schedule_->Kept(index) && shared_->job->OthersAreAlive();
}

bool Epoch::ClaimedByOther(uint32_t index) {
  // What is not kept is of no use to others.
  return shared_ != nullptr && schedule_->Kept(index) &&
         !shared_->job->Claim(index, Wanted(index).least);
}

void Epoch::Ask(uint32_t index) {
  requested_[index] = true;
  if (Exact()) return;
  // Another iterator may use it meanwhile.
  Generation least;
  do {
    least = Wanted(index).least;
  } while (!shared_->generations.Use(index, least));
  if (least != GenerationOf(index)) other_generations_[index] = least;
}

int64_t Epoch::num_samples() const {
  absl::MutexLock lock(&mu_);
  return stream_length_;
}

void Epoch::BeginInput(Source source) {
  absl::MutexLock lock(&mu_);
  source_ = source;
  stream_position_ = 0;
  requests_.clear();
  emitted_.clear();
  if (deferred_.empty()) return;
  // The order has been walked to its end, so what was requested before is of no
  // more use: from here on it means the deferred samples.
  std::fill(requested_.begin(), requested_.end(), false);
  for (uint32_t index : deferred_) Ask(index);
  if (source == Source::kRandomAccess) {
    requests_ = deferred_;
  }
  num_deferred_left_ = deferred_.size();
  deferred_.clear();
}

absl::StatusOr<size_t> Epoch::Request(size_t n) {
  absl::MutexLock lock(&mu_);
  frontier_ = std::max(frontier_, next_position_);
  while (n >= requests_.size()) {
    if (frontier_ >= schedule_->num_samples()) {
      return absl::OutOfRangeError("No more samples to prepare.");
    }
    const uint32_t index = At(frontier_++).index;
    if (served_[index] || IsStored(index) || ClaimedByOther(index)) continue;
    Ask(index);
    requests_.push_back(index);
  }
  return requests_[n];
}

std::optional<uint32_t> Epoch::Requested(size_t n) const {
  absl::MutexLock lock(&mu_);
  if (n >= requests_.size()) return std::nullopt;
  return requests_[n];
}

Epoch::Advance Epoch::AdvanceStream() {
  // Bounds both how long the lock is held and an iterator's uninterrupted work.
  constexpr int64_t kMaxPassOver = 4096;
  absl::MutexLock lock(&mu_);
  Advance advance;
  if (!schedule_.has_value()) {
    // Yielded before the epoch was resumed.
    for (; stream_position_ < static_cast<int64_t>(served_.size()) &&
           served_[stream_position_] && advance.pass_over < kMaxPassOver;
         ++stream_position_) {
      ++advance.pass_over;
    }
    if (advance.pass_over == kMaxPassOver) return advance;
    advance.wanted = true;
    advance.index = static_cast<uint32_t>(stream_position_++);
    return advance;
  }
  while (stream_position_ < stream_length_ &&
         advance.pass_over < kMaxPassOver) {
    const uint32_t index = static_cast<uint32_t>(stream_position_++);
    const bool all_decided = next_position_ >= schedule_->num_samples();
    if (!requested_[index] && !served_[index] && !all_decided &&
        !IsStored(index) && !ClaimedByOther(index)) {
      Ask(index);
    }
    if (requested_[index]) {
      advance.wanted = true;
      advance.index = index;
      return advance;
    }
    ++advance.pass_over;
  }
  advance.at_end = stream_position_ == stream_length_;
  return advance;
}

void Epoch::StreamEnded() {
  absl::MutexLock lock(&mu_);
  // The last position was the end itself.
  stream_length_ = stream_position_ - 1;
}

tensorflow::Tensor Epoch::Emitted(uint32_t index) {
  absl::MutexLock lock(&mu_);
  emitted_.push_back(index);
  if (spare_indices_.empty()) {
    return tensorflow::Tensor(static_cast<int64_t>(index));
  }
  tensorflow::Tensor tensor = std::move(spare_indices_.back());
  spare_indices_.pop_back();
  tensor.scalar<int64_t>()() = index;
  return tensor;
}

bool Epoch::GetStored(uint32_t index, std::optional<uint32_t> position,
                      Sample* sample) {
  CacheStore<Sample>& store = store_->store();
  const GenerationRange wanted = Wanted(index);
  Generation found;
  bool hit;
  if (read_ahead_ != nullptr) {
    // What is not there is upstream's, at its place in the order.
    if (!store.Contains(index, wanted)) return false;
    // Upstream goes on while we read, and leaves the sample to us.
    served_[index] = true;
    mu_.Unlock();
    {
      Stopwatch wait(&counters_->store_wait_nanos);
      hit = position.has_value()
                ? read_ahead_->Get({*position, index, wanted}, sample, &found)
                : store.Get(index, wanted, sample, &found);
    }
    mu_.Lock();
    hit = hit && (Exact() || shared_->generations.Use(index, found));
    served_[index] = hit;
  } else {
    // After its last use a sample would only lie there until its successor
    // comes. When every sample is fresh, nothing is known of the next epoch.
    hit = scheduled() && !Reused(index)
              ? store.Take(index, wanted, sample, &found)
              : store.Get(index, wanted, sample, &found);
    served_[index] = hit;
  }
  if (hit) {
    Yield(index);
    ++counters_->cached;
  }
  return hit;
}

void Epoch::ReadAhead() {
  size_t room = read_ahead_->Room();
  if (room == 0) return;
  to_read_.clear();
  {
    absl::MutexLock lock(&mu_);
    if (!schedule_.has_value()) return;
    read_position_ = std::max(read_position_, next_position_);
    // Not too far: what is fresh now may be in the store later, and the other
    // way round.
    const uint32_t end = std::min<uint64_t>(schedule_->num_samples(),
                                            next_position_ + kReadAheadPlaces);
    for (; room > 0 && read_position_ < end; ++read_position_) {
      const uint32_t index = At(read_position_).index;
      if (requested_[index]) continue;
      to_read_.push_back({read_position_, index, Wanted(index)});
      --room;
    }
  }
  read_ahead_->Start(to_read_);
}

Epoch::Step Epoch::Next(Sample* sample, uint32_t* index, bool* last) {
  if (read_ahead_ != nullptr) ReadAhead();
  absl::MutexLock lock(&mu_);
  *last = false;
  if (!schedule_.has_value()) {
    return source_ == Source::kNone ? Step::kMakeInput : Step::kArrival;
  }
  while (next_position_ < schedule_->num_samples()) {
    const Slot slot = At(next_position_);
    if (!requested_[slot.index]) {
      if (absent_position_ != next_position_ &&
          GetStored(slot.index, next_position_, sample)) {
        ++next_position_;
        *index = slot.index;
        *last = AtEnd();
        return Step::kCached;
      }
      if (source_ == Source::kNone) {
        absent_position_ = next_position_;
        return Step::kMakeInput;
      }
      const bool passed = source_ == Source::kRandomAccess
                              ? next_position_ < frontier_
                              : slot.index < stream_position_;
      if (passed || ClaimedByOther(slot.index)) {
        deferred_.push_back(slot.index);
        ++next_position_;
        continue;
      }
      Ask(slot.index);
      if (source_ == Source::kRandomAccess) {
        requests_.push_back(slot.index);
        frontier_ = next_position_ + 1;
      }
    }
    ++next_position_;
    if (!slot.fresh) ++counters_->absent;
    *last = AtEnd();
    return Step::kArrival;
  }
  while (shared_ != nullptr && !deferred_.empty()) {
    const uint32_t deferred = deferred_.back();
    deferred_.pop_back();
    if (GetStored(deferred, std::nullopt, sample)) {
      *index = deferred;
      *last = AtEnd();
      return Step::kCached;
    }
    missing_.push_back(deferred);
  }
  if (!missing_.empty()) std::swap(deferred_, missing_);
  if (!deferred_.empty()) return Step::kMakeInputAnew;
  if (num_deferred_left_ > 0) {
    --num_deferred_left_;
    ++counters_->absent;
    *last = AtEnd();
    return Step::kArrival;
  }
  return Step::kEnd;
}

uint32_t Epoch::Arrived(tensorflow::Tensor index) {
  ++counters_->fresh;
  const uint32_t value = static_cast<uint32_t>(index.scalar<int64_t>()());
  absl::MutexLock lock(&mu_);
  Yield(value);
  const auto emitted = std::find(emitted_.begin(), emitted_.end(), value);
  if (emitted != emitted_.end()) emitted_.erase(emitted);
  // Whoever else refers to it must not see it change.
  if (index.RefCountIsOne()) spare_indices_.push_back(std::move(index));
  return value;
}

std::vector<uint32_t> Epoch::Failed(bool in_order) {
  absl::MutexLock lock(&mu_);
  if (emitted_.empty() || (!in_order && emitted_.size() > 1)) {
    return {emitted_.begin(), emitted_.end()};
  }
  const uint32_t index = emitted_.front();
  emitted_.pop_front();
  return {index};
}

std::shared_ptr<Stage> Stage::GetOrCreate(const std::string& id) {
  return Registry<Stage>::Global().GetOrCreate(
      id, [&] { return std::make_shared<Stage>(id); });
}

std::shared_ptr<Stage> Stage::Find(const std::string& id) {
  return Registry<Stage>::Global().Find(id);
}

absl::Status Stage::SetShards(const std::string& shards) {
  absl::MutexLock lock(&mu_);
  if (!shards_.has_value()) shards_ = shards;
  if (*shards_ == shards) return absl::OkStatus();
  const auto name = [](const std::string& which) {
    return which.empty() ? std::string("the whole source")
                         : absl::StrCat("shard ", which, " of the source");
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "A refurbish stage in use on ", name(*shards_), " was made for ",
      name(shards), ", too, but a sample is known by its position, so they "
      "cannot share what is cached. Let each worker of a tf.data service be a "
      "process of its own."));
}

absl::Status Stage::Configure(const StageOptions& options,
                              std::shared_ptr<SampleStore> store,
                              const tensorflow::DataTypeVector& dtypes) {
  absl::MutexLock lock(&mu_);
  const bool length_became_known =
      options.num_samples != kUnknownSamples &&
      options_.num_samples == kUnknownSamples && counters_.empty();
  if (configured_ && !length_became_known) {
    if (options.num_samples == kUnknownSamples ||
        options_.num_samples == kUnknownSamples ||
        options.num_samples == options_.num_samples) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "A refurbish stage was built on a source of ", options_.num_samples,
        " elements, which a later rewrite of the pipeline changed to ",
        options.num_samples,
        ". Shard before the stage, source.shard(n, i).refurbish(...), and set "
        "experimental_distribute.auto_shard_policy to OFF."));
  }
  const int64_t max_bytes = store->store().max_bytes();
  const bool limited = max_bytes != kUnlimited;
  if (options.num_samples > static_cast<int64_t>(kMaxSamples)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The source has ", options.num_samples,
                     " elements; refurbish takes at most ", kMaxSamples,
                     ". Shard it, one stage a shard."));
  }
  if (limited && options.sample_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "A partially augmented sample takes ", options.sample_bytes,
        " bytes, more than max_bytes=", max_bytes,
        " of the CacheStore, so none could be kept. Give it room for many "
        "samples, or use r=1, which keeps none."));
  }
  if (store->disk() != nullptr) {
    if (options.num_samples > static_cast<int64_t>(Index::kMaxSamples)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The source has ", options.num_samples,
          " elements; a cache store on disk takes at most ",
          Index::kMaxSamples, ". Shard it, one stage and one store a shard."));
    }
    if (options.sample_bytes > static_cast<int64_t>(kMaxRecord)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "A partially augmented sample takes ", options.sample_bytes,
          " bytes; a cache store on disk takes samples of at most ", kMaxRecord,
          ". Keep them in memory with store=None, or make them smaller."));
    }
  }
  if (store->disk() == nullptr) {
    absl::Status reserved = store->Reserve(id_, weak_from_this(), dtypes);
    if (!reserved.ok()) return reserved;
  } else {
    absl::Status encodable = CheckEncodable(dtypes);
    if (!encodable.ok()) return encodable;
  }
  options_ = options;
  store_ = std::move(store);
  if (options.num_samples != kUnknownSamples &&
      (!limited || options.sample_bytes >= 0)) {
    uint32_t capacity = options.num_samples;
    if (limited && options.sample_bytes > 0) {
      capacity = std::min(options.num_samples, max_bytes / options.sample_bytes);
    }
    schedule_ = std::make_shared<Schedule>(
        options_.schedule, options.num_samples, capacity);
  }
  if (store_->disk() != nullptr) {
    absl::Status agreed = AgreeWithStore();
    if (!agreed.ok()) {
      // As before this call.
      if (!configured_) store_ = nullptr;
      schedule_ = nullptr;
      options_.num_samples = kUnknownSamples;
      return agreed;
    }
  }
  configured_ = true;
  return absl::OkStatus();
}

absl::Status Stage::AgreeWithStore() {
  const std::map<std::string, std::string> before = store_->disk()->settings();
  if (before.count(kReuseSetting) == 0 && store_->store().Stats().entries > 0) {
    return SamplesPutByHand();
  }
  std::map<std::string, std::string> settings = {
      {kSeedSetting, absl::StrCat(static_cast<int64_t>(options_.schedule.seed))},
      {kReuseSetting, Exactly(options_.schedule.reuse_factor)},
      {"eviction", options_.schedule.eviction == Eviction::kBalanced
                       ? "balanced"
                       : "reference_count"}};
  if (options_.num_samples != kUnknownSamples) {
    settings[kSamplesSetting] = absl::StrCat(options_.num_samples);
  }
  if (shards_.has_value() && !shards_->empty()) {
    settings[kShardSetting] = *shards_;
  }
  // All that keep samples must keep the same ones, from the same epoch on.
  if (schedule_ != nullptr) {
    settings[kKeptSetting] = absl::StrCat(schedule_->capacity());
    settings[kOriginSetting] = absl::StrCat(schedule_->origin());
  }
  absl::Status status = store_->Agree(settings);
  // Without knowing which part of the source we are we know no schedule either.
  if (!status.ok() || schedule_ != nullptr || !shards_.has_value()) {
    return status;
  }
  const std::map<std::string, std::string> agreed = store_->disk()->settings();
  const auto number = [&agreed](const char* name, uint64_t* value) {
    const auto setting = agreed.find(name);
    return setting != agreed.end() && absl::SimpleAtoi(setting->second, value);
  };
  uint64_t num_samples, kept, origin;
  if (number(kSamplesSetting, &num_samples) && number(kKeptSetting, &kept) &&
      number(kOriginSetting, &origin)) {
    options_.num_samples = num_samples;
    schedule_ = std::make_shared<Schedule>(options_.schedule, num_samples, kept,
                                           origin);
  }
  return absl::OkStatus();
}

absl::Status Stage::JoinOthers() {
  if (store_->disk() == nullptr || shared_ != nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SharedState::Job>> job =
      store_->disk()->Join();
  if (!job.ok()) return job.status();
  shared_ = std::make_shared<SharedUse>(options_.schedule.reuse_factor);
  shared_->job = *std::move(job);
  next_epoch_ = shared_->job->BeginFirstEpoch();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::StartEpoch() {
  uint64_t number;
  {
    absl::MutexLock lock(&mu_);
    absl::Status joined = JoinOthers();
    if (!joined.ok()) return joined;
    // Another job may have ended its first pass meanwhile.
    if (shared_ != nullptr && schedule_ == nullptr) {
      absl::Status agreed = AgreeWithStore();
      if (!agreed.ok()) return agreed;
    }
    // The schedule of another job may have begun later than we are, and so may our
    // own after a restore.
    if (schedule_ != nullptr) {
      next_epoch_ = std::max(next_epoch_, schedule_->origin());
    }
    number = next_epoch_++;
  }
  return MakeEpoch(number, /*scheduled=*/true);
}

std::shared_ptr<Epoch> Stage::MakeEpoch(uint64_t number, bool scheduled) {
  int64_t num_samples;
  ScheduleOptions options;
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<SampleStore> store;
  std::shared_ptr<SharedUse> shared;
  auto counters = std::make_shared<EpochCounters>();
  {
    absl::MutexLock lock(&mu_);
    if (shared_ != nullptr) shared_->job->BeginEpoch(number);
    last_begun_ = std::max(last_begun_, number);
    shared = shared_;
    num_samples = options_.num_samples;
    options = options_.schedule;
    if (scheduled) schedule = schedule_;
    store = store_;
    if (!counters_.empty()) {
      counters_.back()->bytes = store_->store().Stats().bytes;
    }
    counters_.push_back(counters);
  }
  // Outside the lock, as it takes time proportional to the number of samples.
  std::optional<EpochSchedule> order;
  if (schedule != nullptr) {
    order = schedule->Epoch(number);
    counters->evicted = schedule->NumEvicted(number);
  } else if (num_samples != kUnknownSamples) {
    order = EpochSchedule::AllFresh(options, num_samples, number);
  }
  auto epoch = std::make_shared<Epoch>(
      number, options.seed, std::move(order), std::move(schedule),
      std::move(store), std::move(shared), std::move(counters));
  absl::MutexLock lock(&mu_);
  epochs_.erase(std::remove_if(epochs_.begin(), epochs_.end(),
                               [](const auto& weak) { return weak.expired(); }),
                epochs_.end());
  epochs_.push_back(epoch);
  return epoch;
}

SavedEpoch Stage::Save() const {
  absl::MutexLock lock(&mu_);
  SavedEpoch saved;
  saved.yielded =
      tensorflow::Tensor(tensorflow::DT_UINT8, tensorflow::TensorShape({0}));
  saved.yielded_since =
      tensorflow::Tensor(tensorflow::DT_UINT32, tensorflow::TensorShape({0}));
  saved.next_epoch = next_epoch_;
  if (schedule_ != nullptr) {
    saved.scheduled = true;
    saved.num_samples = schedule_->num_samples();
    saved.num_kept = schedule_->capacity();
    saved.origin = schedule_->origin();
  }
  return saved;
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::Restore(const SavedEpoch& saved) {
  {
    absl::MutexLock lock(&mu_);
    absl::Status sound = CheckSaved(saved, options_.num_samples);
    if (!sound.ok()) return sound;
    if (saved.num_samples != kUnknownSamples &&
        options_.num_samples != kUnknownSamples &&
        saved.num_samples != options_.num_samples) {
      return OtherPipeline("num_samples", absl::StrCat(options_.num_samples),
                           absl::StrCat(saved.num_samples));
    }
    if (saved.scheduled && schedule_ != nullptr &&
        saved.num_kept != schedule_->capacity()) {
      return OtherPipeline("the number of samples that the store can keep",
                           absl::StrCat(schedule_->capacity()),
                           absl::StrCat(saved.num_kept));
    }
    absl::Status joined = JoinOthers();
    if (!joined.ok()) return joined;
    if (saved.scheduled &&
        (schedule_ == nullptr || schedule_->origin() != saved.origin)) {
      schedule_ = std::make_shared<Schedule>(
          options_.schedule, saved.num_samples, saved.num_kept, saved.origin);
      options_.num_samples = saved.num_samples;
      kept_keys_.clear();
    }
    if (shared_ != nullptr) {
      shared_->exact_before =
          std::max<uint64_t>(shared_->exact_before, next_epoch_);
      shared_->generations.Clear();
    }
    next_epoch_ = saved.next_epoch;
  }
  if (!saved.begun) return nullptr;
  std::shared_ptr<Epoch> epoch = MakeEpoch(saved.number, saved.scheduled);
  epoch->Resume(saved);
  return epoch;
}

absl::Status Stage::EndEpoch(const Epoch& epoch) {
  const int64_t num_samples = epoch.num_samples();
  absl::MutexLock lock(&mu_);
  if (schedule_ != nullptr) {
    // Two first passes at once, of which this one ended second.
    if (num_samples == options_.num_samples) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "The source of refurbish has yielded ", num_samples,
        " elements and, to another iterator, ", options_.num_samples,
        ", so its samples cannot be told apart by position. Use a source that "
        "is the same in every epoch."));
  }
  if (num_samples == 0) {
    return absl::InvalidArgumentError(
        "The source of refurbish has no elements. Check the file names, filters "
        "and splits it is made from.");
  }
  options_.num_samples = num_samples;
  // How many fit is not known of what was read before the restore.
  if (epoch.resumed() && store_->store().max_bytes() != kUnlimited) {
    return absl::OkStatus();
  }
  uint32_t capacity = 0;
  for (uint32_t i = 0; i < num_samples; ++i) {
    capacity += EvictionKey(options_.schedule.seed, i) < key_limit_;
  }
  // Counted from the epoch begun last, so that no generation is used by an
  // epoch of the time before the schedule and again by one after.
  schedule_ = std::make_shared<Schedule>(options_.schedule, num_samples,
                                         capacity, last_begun_);
  kept_keys_.clear();
  if (store_->disk() != nullptr) {
    absl::Status agreed = AgreeWithStore();
    if (absl::IsFailedPrecondition(agreed)) {
      // Another job has ended its first pass before us. Its schedule is as good.
      schedule_ = nullptr;
      return AgreeWithStore();
    }
    // On a full disk it is not written down; the next run begins anew.
    if (!agreed.ok()) LOG(WARNING) << agreed.message();
  }
  return absl::OkStatus();
}

absl::Status Stage::Keep(const Epoch& epoch, uint32_t index,
                         const Sample& sample) {
  absl::MutexLock lock(&mu_);
  CacheStore<Sample>& store = store_->store();
  // Of samples of one size this was seen when the stage was built.
  const bool may_be_too_large =
      store.max_bytes() != kUnlimited && options_.sample_bytes < 0;
  if (const int64_t bytes = may_be_too_large ? store_->Bytes(sample) : 0;
      bytes > store.max_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The partially augmented sample ", index, " takes ", bytes,
        " bytes, more than max_bytes=", store.max_bytes(),
        " of the CacheStore. Give it room for many samples, or use r=1, which "
        "keeps none."));
  }
  if (epoch.scheduled()) {
    if (epoch.ToKeep(index)) {
      const Generation generation = epoch.PreparedGeneration(index);
      if (store.Put(index, generation, sample) == PutResult::kNewerKept &&
          !store.shared() && !NewerEpochIsAlive(epoch.number())) {
        // The stage was set back to before that one was prepared, and nobody is
        // left to use it.
        store.Remove(index);
        store.Put(index, generation, sample);
      }
    }
  } else if (schedule_ != nullptr) {
    // Another iterator has come to the end of its first pass meanwhile.
    if (epoch.number() == schedule_->origin() && schedule_->Kept(index)) {
      store.Put(index, epoch.number(), sample);
    }
  } else if (options_.schedule.reuse_factor > 1) {
    KeepWhatFits(epoch.number(), index, sample);
  }
  return absl::OkStatus();
}

bool Stage::NewerEpochIsAlive(uint64_t number) const {
  for (const std::weak_ptr<Epoch>& weak : epochs_) {
    const std::shared_ptr<Epoch> epoch = weak.lock();
    if (epoch != nullptr && epoch->number() > number) return true;
  }
  return false;
}

void Stage::KeepWhatFits(Generation generation, uint32_t index,
                         const Sample& sample) {
  CacheStore<Sample>& store = store_->store();
  if (store.max_bytes() == kUnlimited) {
    store.Put(index, generation, sample);
    return;
  }
  const uint64_t key = EvictionKey(options_.schedule.seed, index);
  if (key >= key_limit_) return;
  bool all_known = false;
  PutResult result;
  while ((result = store.Put(index, generation, sample)) ==
         PutResult::kNoRoom) {
    kept_keys_.erase(key);
    const bool is_largest =
        kept_keys_.empty() || *kept_keys_.rbegin() < key;
    // What others have put competes from the beginning. Else a sample of our own
    // would go before one with a larger key of an earlier run.
    if (store.shared() && !all_known && (is_largest || !others_found_)) {
      others_found_ = all_known = true;
      FindKeptKeys();
      continue;
    }
    if (is_largest) {
      key_limit_ = key;
      return;
    }
    key_limit_ = *kept_keys_.rbegin();
    kept_keys_.erase(key_limit_);
    // The lower half of a key is the index.
    store.Evict(static_cast<uint32_t>(key_limit_));
  }
  if (result == PutResult::kStored) kept_keys_.insert(key);
}

void Stage::FindKeptKeys() {
  for (const uint64_t index : store_->store().Indices()) {
    kept_keys_.insert(
        EvictionKey(options_.schedule.seed, static_cast<uint32_t>(index)));
  }
}

int64_t Stage::num_samples() const {
  absl::MutexLock lock(&mu_);
  return options_.num_samples;
}

std::vector<EpochCounts> Stage::Counts() const {
  absl::MutexLock lock(&mu_);
  std::vector<EpochCounts> counts;
  counts.reserve(counters_.size());
  for (const auto& epoch : counters_) {
    counts.push_back({epoch->fresh, epoch->cached, epoch->evicted,
                      epoch->absent, epoch->bytes, epoch->fresh_wait_nanos,
                      epoch->store_wait_nanos});
  }
  if (!counts.empty()) counts.back().bytes = store_->store().Stats().bytes;
  return counts;
}

StageDescription Stage::Describe() const {
  absl::MutexLock lock(&mu_);
  StageDescription description;
  description.num_samples = options_.num_samples;
  if (schedule_ != nullptr) description.num_kept = schedule_->capacity();
  description.random_access = random_access_;
  return description;
}

void Stage::SetRandomAccess(bool random_access) {
  absl::MutexLock lock(&mu_);
  random_access_ = random_access;
}

namespace {
thread_local EpochHandover* current_handover = nullptr;
}  // namespace

EpochHandover::EpochHandover(const Stage* stage, std::shared_ptr<Epoch> epoch)
    : stage_(stage), epoch_(std::move(epoch)), outer_(current_handover) {
  current_handover = this;
}

EpochHandover::~EpochHandover() { current_handover = outer_; }

std::shared_ptr<Epoch> EpochHandover::Take(const Stage* stage) {
  for (const EpochHandover* handover = current_handover; handover != nullptr;
       handover = handover->outer_) {
    if (handover->stage_ == stage) return handover->epoch_;
  }
  return nullptr;
}

}  // namespace refurbish_tf

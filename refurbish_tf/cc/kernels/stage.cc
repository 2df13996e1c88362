#include "refurbish_tf/cc/kernels/stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/kernels/registry.h"

namespace refurbish_tf {

Epoch::Epoch(uint64_t number, uint64_t seed,
             std::optional<EpochSchedule> schedule,
             std::shared_ptr<const Schedule> owner,
             std::shared_ptr<SampleStore> store,
             std::shared_ptr<EpochCounters> counters)
    : number_(number),
      seed_(seed),
      owner_(std::move(owner)),
      schedule_(std::move(schedule)),
      store_(std::move(store)),
      counters_(std::move(counters)) {
  absl::MutexLock lock(&mu_);
  if (schedule_.has_value()) {
    stream_length_ = schedule_->num_samples();
    requested_.resize(schedule_->num_samples());
    served_.resize(schedule_->num_samples());
  }
}

Generation Epoch::GenerationOf(uint32_t index) const {
  return schedule_.has_value() ? schedule_->Generation(index) : number_;
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
  for (uint32_t index : deferred_) requested_[index] = true;
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
    const uint32_t index = schedule_->At(frontier_++).index;
    if (IsStored(index)) continue;
    requested_[index] = true;
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
    advance.wanted = true;
    advance.index = static_cast<uint32_t>(stream_position_++);
    return advance;
  }
  while (stream_position_ < stream_length_ &&
         advance.pass_over < kMaxPassOver) {
    const uint32_t index = static_cast<uint32_t>(stream_position_++);
    const bool all_decided = next_position_ >= schedule_->num_samples();
    if (!requested_[index] && !served_[index] && !all_decided &&
        !IsStored(index)) {
      requested_[index] = true;
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

bool Epoch::GetStored(uint32_t index, Sample* sample) {
  CacheStore<Sample>& store = store_->store();
  // After its last use a sample would only lie there until its successor comes.
  // When every sample is fresh, nothing is known of the next epoch.
  return scheduled() && !Reused(index)
             ? store.Take(index, GenerationOf(index), sample)
             : store.Get(index, GenerationOf(index), sample);
}

Epoch::Step Epoch::Next(Sample* sample, uint32_t* index, bool* last) {
  absl::MutexLock lock(&mu_);
  *last = false;
  if (!schedule_.has_value()) {
    return source_ == Source::kNone ? Step::kMakeInput : Step::kArrival;
  }
  while (next_position_ < schedule_->num_samples()) {
    const Slot slot = schedule_->At(next_position_);
    if (!requested_[slot.index]) {
      if (absent_position_ != next_position_ &&
          GetStored(slot.index, sample)) {
        served_[slot.index] = true;
        ++next_position_;
        ++counters_->cached;
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
      if (passed) {
        deferred_.push_back(slot.index);
        ++next_position_;
        continue;
      }
      requested_[slot.index] = true;
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

absl::Status Stage::Configure(const StageOptions& options,
                              std::shared_ptr<SampleStore> store,
                              const tensorflow::DataTypeVector& dtypes) {
  absl::MutexLock lock(&mu_);
  if (configured_) {
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
  absl::Status reserved = store->Reserve(id_, weak_from_this(), dtypes);
  if (!reserved.ok()) return reserved;
  configured_ = true;
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
  return absl::OkStatus();
}

std::shared_ptr<Epoch> Stage::StartEpoch() {
  uint64_t number;
  int64_t num_samples;
  ScheduleOptions options;
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<SampleStore> store;
  auto counters = std::make_shared<EpochCounters>();
  {
    absl::MutexLock lock(&mu_);
    number = next_epoch_++;
    num_samples = options_.num_samples;
    options = options_.schedule;
    schedule = schedule_;
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
  return std::make_shared<Epoch>(number, options.seed, std::move(order),
                                 std::move(schedule), std::move(store),
                                 std::move(counters));
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
  uint32_t capacity = 0;
  for (uint32_t i = 0; i < num_samples; ++i) {
    capacity += EvictionKey(options_.schedule.seed, i) < key_limit_;
  }
  // Counted from the epoch begun last, so that no generation is used by an
  // epoch of the time before the schedule and again by one after.
  schedule_ = std::make_shared<Schedule>(options_.schedule, num_samples,
                                         capacity, next_epoch_ - 1);
  kept_keys_.clear();
  return absl::OkStatus();
}

absl::Status Stage::Keep(const Epoch& epoch, uint32_t index,
                         const Sample& sample) {
  absl::MutexLock lock(&mu_);
  CacheStore<Sample>& store = store_->store();
  if (store.max_bytes() != kUnlimited &&
      SampleBytes(sample) > store.max_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The partially augmented sample ", index, " takes ",
        SampleBytes(sample), " bytes, more than max_bytes=", store.max_bytes(),
        " of the CacheStore. Give it room for many samples, or use r=1, which "
        "keeps none."));
  }
  if (epoch.scheduled()) {
    if (epoch.Reused(index)) store.Put(index, epoch.GenerationOf(index), sample);
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

void Stage::KeepWhatFits(Generation generation, uint32_t index,
                         const Sample& sample) {
  CacheStore<Sample>& store = store_->store();
  if (store.max_bytes() == kUnlimited) {
    store.Put(index, generation, sample);
    return;
  }
  const uint64_t key = EvictionKey(options_.schedule.seed, index);
  if (key >= key_limit_) return;
  while (store.Put(index, generation, sample) == PutResult::kNoRoom) {
    kept_keys_.erase(key);
    if (kept_keys_.empty() || *kept_keys_.rbegin() < key) {
      key_limit_ = key;
      return;
    }
    key_limit_ = *kept_keys_.rbegin();
    kept_keys_.erase(key_limit_);
    // The lower half of a key is the index.
    store.Evict(static_cast<uint32_t>(key_limit_));
  }
  kept_keys_.insert(key);
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
                      epoch->absent, epoch->bytes});
  }
  if (!counts.empty()) counts.back().bytes = store_->store().Stats().bytes;
  return counts;
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

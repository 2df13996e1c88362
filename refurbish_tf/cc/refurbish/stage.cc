#include "refurbish_tf/cc/refurbish/stage.h"

#include <algorithm>
#include <utility>

#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/cooperation/counted_job.h"
#include "tensorflow/core/platform/logging.h"

namespace refurbish_tf {

std::shared_ptr<Stage> Stage::GetOrCreate(const std::string& id) {
  return Registry<Stage>::Global().GetOrCreate(
      id, [&] { return std::make_shared<Stage>(id); });
}

void Stage::AdoptSchedule(std::shared_ptr<const Schedule> schedule) {
  if (schedule_ != nullptr || schedule == nullptr) return;
  options_.num_samples = schedule->num_samples();
  schedule_ = std::move(schedule);
}

absl::Status Stage::JoinOthers() {
  std::shared_ptr<SampleStore> store;
  std::shared_ptr<SharedLevel> level;
  double reuse_factor;
  {
    absl::MutexLock lock(&mu_);
    if (job_ != nullptr) return absl::OkStatus();
    store = store_;
    reuse_factor = options_.schedule.reuse_factor;
    level = options_.level;
  }
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<Job> job,
                       store->cooperation().Join(reuse_factor));
  if (level != nullptr && job->alone()) {
    job = std::make_shared<CountedJob>(reuse_factor);
  }
  const uint64_t first_epoch = job->BeginFirstEpoch();
  absl::MutexLock lock(&mu_);
  // Another thread may have joined already.
  if (job_ == nullptr) {
    job_ = std::move(job);
    next_epoch_ = first_epoch;
  }
  return absl::OkStatus();
}

absl::Status Stage::Agree(std::shared_ptr<const Schedule> schedule) {
  std::shared_ptr<SampleStore> store;
  Cooperation::Terms terms;
  {
    absl::MutexLock lock(&mu_);
    if (schedule_ != nullptr) return absl::OkStatus();
    store = store_;
    terms = TermsOf(options_, shard_);
  }
  // If the store's directory was deleted, the stage continues on its own.
  if (store->CheckDirectory().ok()) {
    Cooperation& jobs = store->cooperation();
    auto agreed = jobs.Agree(terms, schedule, kPatienceOfAStep);
    if (schedule != nullptr && absl::IsFailedPrecondition(agreed.status())) {
      // Another job has ended its first pass before this one, and its schedule
      // differs. That one is as good, so this stage follows it, unless it is a
      // shard of which fewer samples fit. Others then follow its schedule.
      RTF_ASSIGN_OR_RETURN(auto other,
                           jobs.Agree(terms, nullptr, kPatienceOfAStep));
      if (other == nullptr || terms.shard->num_sharing() == 1 ||
          other->origin() != schedule->origin() ||
          other->capacity() <= schedule->capacity()) {
        schedule = std::move(other);
      } else {
        jobs.AgreeAnew(terms, *schedule).IgnoreError();
      }
    } else if (agreed.ok()) {
      schedule = *std::move(agreed);
    } else if (schedule != nullptr) {
      // On a full disk, or if another process stops while it writes, the
      // schedule is not recorded. Training continues, and the next run makes a
      // new one.
      LOG(WARNING) << agreed.status().message();
    } else if (!absl::IsUnavailable(agreed.status())) {
      return agreed.status();
    }
  }
  absl::MutexLock lock(&mu_);
  AdoptSchedule(std::move(schedule));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Epoch>> Stage::StartEpoch() {
  RTF_RETURN_IF_ERROR(JoinOthers());
  // Another job may have ended its first pass, and begun a schedule.
  RTF_RETURN_IF_ERROR(Agree(/*schedule=*/nullptr));
  if (fitting_.num_seen() == num_samples()) {
    RTF_RETURN_IF_ERROR(BeginSchedule(num_samples()));
  }
  {
    absl::MutexLock lock(&mu_);
    if (!end_error_.ok()) {
      return std::exchange(end_error_, absl::OkStatus());
    }
    if (told_ == Told::kLost) {
      return FailedPrecondition(
          "The restored checkpoint has no position of refurbish, so the next "
          "epoch is not known: it was saved inside a tf.function, or while a "
          "stage captured by a function was starting. Save it with "
          "tf.train.Checkpoint outside of a tf.function, or use "
          "rtf.keras.BackupAndRestore or a loader. To begin with the first "
          "epoch again, even if the restore itself has failed, build the "
          "pipeline again and restore everything except the iterator.");
    }
  }
  if (std::shared_ptr<Epoch> rest = ResumeRest()) return rest;
  EpochParts epoch;
  {
    absl::MutexLock lock(&mu_);
    // A schedule of another job, or one from before a restore, may begin at a
    // later epoch.
    if (schedule_ != nullptr) {
      next_epoch_ = std::max(next_epoch_, schedule_->origin());
    }
    if (next_epoch_ >= kMaxEpochs) {
      return FailedPrecondition(
          "refurbish has no epoch ", next_epoch_,
          ": epochs are numbered below ", kMaxEpochs,
          ". Build the stage again, or restore an earlier checkpoint; "
          "clear a store on disk with overwrite=True.");
    }
    // The number and the schedule are taken under one lock. Otherwise a
    // schedule that begins at a later epoch might come in between.
    epoch = BeginEpoch(next_epoch_++, /*scheduled=*/true);
  }
  return MakeEpoch(std::move(epoch));
}

void Stage::CountBytes() const {
  if (counters_.empty()) return;
  counters_.back()->bytes = store_->store().Stats().bytes;
}

EpochParts Stage::BeginEpoch(uint64_t number, bool scheduled) {
  EpochParts parts;
  // The job counts its epochs here, under the lock, and not where the epoch is
  // made: if two were made at once, both would count as the last that began.
  parts.num_begun = job_->BeginEpoch(number);
  last_begun_ = std::max(last_begun_, number);
  CountBytes();
  counters_.push_back(std::make_shared<EpochCounters>());
  epochs_.erase(
      std::remove_if(epochs_.begin(), epochs_.end(),
                     [](const auto& other) { return other.alive.expired(); }),
      epochs_.end());
  parts.alive = std::make_shared<std::atomic<int64_t>>(0);
  epochs_.push_back({number, parts.alive});
  parts.number = number;
  parts.stage = options_;
  parts.shard = numbering();
  if (scheduled && schedule_ != nullptr) {
    parts.schedule = schedule_;
    parts.hands_on = schedule_->capacity() < schedule_->num_samples() &&
                     MayShare(RoomOf(options_, shard_, *store_));
  }
  parts.store = store_;
  parts.job = job_;
  parts.counters = counters_.back();
  return parts;
}

std::shared_ptr<Epoch> Stage::MakeEpoch(EpochParts parts) {
  std::optional<EpochSchedule> order;
  if (parts.schedule != nullptr) {
    order = parts.schedule->Epoch(parts.number);
    parts.counters->evicted = order->num_evicted();
    fitting_.Free();
  } else if (parts.stage.num_samples != kUnknownSamples) {
    order = EpochSchedule::AllFresh(
        parts.stage.schedule, static_cast<uint32_t>(parts.stage.num_samples),
        parts.number);
  }
  return std::make_shared<Epoch>(std::move(parts), std::move(order));
}

absl::Status Stage::EndEpoch(const Epoch& epoch) {
  const int64_t num_samples = epoch.num_samples();
  {
    absl::MutexLock lock(&mu_);
    if (schedule_ != nullptr) return CheckLength(num_samples);
    if (num_samples == 0) {
      return InvalidArgument(
          "The source of refurbish has no elements. Check its file names, "
          "filters and splits.");
    }
    options_.num_samples = num_samples;
    // Under a limit, the first pass must choose among all samples, but a
    // resumed epoch has not put those that were read before the restore.
    if (epoch.resumed() && store_->store().max_bytes() != kUnlimited) {
      return absl::OkStatus();
    }
  }
  return BeginSchedule(num_samples);
}

void Stage::LeaveEpoch(const Epoch& epoch) {
  absl::MutexLock lock(&mu_);
  const int64_t num_samples = options_.num_samples;
  // Another process may have put the samples that were handed out before a
  // restore, so a resumed epoch does not count.
  if (schedule_ != nullptr || epoch.resumed() || epoch.num_to_come() == 0 ||
      num_samples == kUnknownSamples) {
    return;
  }
  fitting_.NoteSeen(num_samples,
                    [&](uint32_t index) { return epoch.WasHandedOut(index); });
}

absl::Status Stage::BeginSchedule(int64_t num_samples) {
  std::shared_ptr<const Schedule> schedule;
  {
    absl::MutexLock lock(&mu_);
    if (schedule_ != nullptr) return CheckLength(num_samples);
    const uint32_t capacity =
        fitting_.Count(options_.schedule.seed, num_samples);
    // The schedule begins with the epoch begun last, so that no generation is
    // used by an epoch before the schedule and again by one under it. For a job
    // that is alone, this lock ensures that; with other jobs, `Job` does.
    schedule = std::make_shared<Schedule>(options_.schedule, num_samples,
                                          capacity, last_begun_);
    if (job_->alone()) {
      AdoptSchedule(std::move(schedule));
      return absl::OkStatus();
    }
  }
  RTF_RETURN_IF_ERROR(Agree(std::move(schedule)));
  absl::MutexLock lock(&mu_);
  return schedule_ == nullptr ? absl::OkStatus() : CheckLength(num_samples);
}

absl::Status Stage::CheckLength(int64_t num_samples) const {
  // If two first passes overlap, the second to end must have the same length.
  if (num_samples == options_.num_samples) return absl::OkStatus();
  return DataLoss(
      "The source of refurbish yielded ", num_samples,
      " elements to one iterator and ", options_.num_samples,
      " to another, so its samples cannot be identified by position. Use a "
      "source that is the same in every epoch.");
}

absl::Status Stage::PutPrepared(const Epoch& epoch, uint32_t index,
                                Generation generation, const Sample& sample,
                                uint32_t source_sum) {
  SampleStore& sample_store = epoch.sample_store();
  SampleMap<Sample>& store = sample_store.store();
  const uint64_t key = epoch.keys().InWhole(index);
  const bool is_bounded = sizes_vary_ && store.max_bytes() != kUnlimited;
  if (const int64_t bytes = is_bounded ? sample_store.Bytes(sample) : 0;
      bytes > store.max_bytes()) {
    return InvalidArgument(
        "The partially augmented sample ", index, " takes ", bytes,
        " bytes, more than max_bytes=", store.max_bytes(),
        " of the CacheStore. Raise max_bytes to hold many samples, or use r=1 "
        "without a store, which keeps none.");
  }
  bool put = true;
  if (!epoch.scheduled()) {
    put = PutInFirstPass(epoch, index, generation, sample);
  } else if (epoch.ToKeep(index)) {
    const auto is_newest = [&] {
      absl::MutexLock lock(&mu_);
      return NumAlive(epoch.number() + 1) == 0;
    };
    if (store.Put(key, generation, sample) == PutResult::kNewerKept &&
        !store.shared() && is_newest()) {
      // The newer sample was prepared before a restore set the stage back, and
      // no iterator is left that could use it.
      store.Remove(key, /*evict=*/false);
      store.Put(key, generation, sample);
    }
  } else if (epoch.ToShare(index)) {
    sample_store.PutInTransit(key, generation, sample);
  } else {
    put = false;
  }
  if (source_sum != 0) source_checks_.Note(index, source_sum, put);
  return absl::OkStatus();
}

bool Stage::PutInFirstPass(const Epoch& epoch, uint32_t index,
                           Generation generation, const Sample& sample) {
  std::shared_ptr<const Schedule> schedule;
  uint64_t seed;
  int64_t room;
  {
    absl::MutexLock lock(&mu_);
    schedule = schedule_;
    seed = options_.schedule.seed;
    room = RoomOf(options_, shard_, *store_).max_bytes;
    if (options_.schedule.reuse_factor == 1 && schedule == nullptr)
      return false;
  }
  SampleMap<Sample>& store = epoch.sample_store().store();
  const uint64_t key = epoch.keys().InWhole(index);
  if (schedule != nullptr) {
    // Another iterator has ended its first pass since this epoch began.
    const bool kept =
        epoch.number() == schedule->origin() && schedule->Kept(index);
    if (kept) store.Put(key, generation, sample);
    return kept;
  }
  if (store.max_bytes() == kUnlimited) {
    store.Put(key, generation, sample);
  } else {
    fitting_.Put(seed, generation, index, sample, epoch.keys(),
                 epoch.sample_store(), room);
  }
  return true;
}

int64_t Stage::NumAlive(uint64_t least) const {
  return std::count_if(epochs_.begin(), epochs_.end(), [=](const auto& epoch) {
    return epoch.number >= least && !epoch.alive.expired();
  });
}

std::vector<std::shared_ptr<const EpochCounters>> Stage::Counts() const {
  absl::MutexLock lock(&mu_);
  CountBytes();
  return {counters_.begin(), counters_.end()};
}

int64_t Stage::BytesBesideStore() const {
  int64_t bytes = fitting_.bytes() + source_checks_.bytes_in_memory();
  if (schedule_ != nullptr) bytes += schedule_->bytes();
  if (job_ != nullptr) bytes += job_->bytes();
  for (const BegunEpoch& begun : epochs_) {
    const std::shared_ptr<const std::atomic<int64_t>> alive =
        begun.alive.lock();
    if (alive != nullptr) bytes += *alive;
  }
  return bytes;
}

absl::StatusOr<int64_t> Stage::GenerationOf(int64_t index,
                                            int64_t epoch) const {
  std::shared_ptr<const Schedule> schedule;
  {
    absl::MutexLock lock(&mu_);
    schedule = schedule_;
    if (schedule == nullptr) {
      const auto number = static_cast<uint32_t>(
          options_.num_samples < 0 ? kMaxSamples : options_.num_samples);
      schedule = std::make_shared<Schedule>(options_.schedule, number, number);
    }
  }
  const uint64_t origin = schedule->origin();
  if (index < 0 || index >= schedule->num_samples() || epoch < 0 ||
      epoch >= static_cast<int64_t>(kMaxEpochs - origin)) {
    return InvalidArgument("The stage has no sample ", index, " in an epoch ",
                           epoch, ".");
  }
  return schedule->Generation(static_cast<uint32_t>(index), origin + epoch) -
         origin;
}

NamedNumbers Stage::Describe() const {
  absl::MutexLock lock(&mu_);
  const ScheduleOptions& schedule = options_.schedule;
  const int64_t num_kept =
      schedule_ == nullptr ? kUnknownSamples : schedule_->capacity();
  int64_t num_in_transit = store_->cooperation().num_in_transit();
  if (num_in_transit > 0 && options_.sample_bytes < 0) {
    num_in_transit = kUnknownSamples;
  }
  return {{"num_samples", options_.num_samples},
          {"num_kept", num_kept},
          {"sample_bytes", options_.sample_bytes},
          {"num_in_transit", num_in_transit},
          {"random_access", options_.random_access},
          {"seed", static_cast<int64_t>(schedule.seed)},
          {"order_seed", static_cast<int64_t>(schedule.order_seed.value_or(0))},
          {"epochs_under_way", NumAlive()},
          {"bytes_beside_store", BytesBesideStore()},
          {"source_draws", source_checks_.draws()},
          {"partial_inline", options_.partial_inline},
          {"final_inline", options_.final_inline}};
}

}  // namespace refurbish_tf

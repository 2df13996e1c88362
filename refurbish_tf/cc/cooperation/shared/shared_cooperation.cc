#include "refurbish_tf/cc/cooperation/shared/shared_cooperation.h"

#include <charconv>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/cooperation/shared/shared_job.h"

namespace refurbish_tf {
namespace {

constexpr char kSeedSetting[] = "seed";
constexpr char kReuseSetting[] = "r";
constexpr char kEvictionSetting[] = "eviction";
constexpr char kSamplesSetting[] = "num_samples";
constexpr char kKeptSetting[] = "num_kept_samples";
constexpr char kOriginSetting[] = "first_epoch";
constexpr char kShardSetting[] = "shard";
// The number of shards when the schedule began.
constexpr char kFormerSetting[] = "shards_of_schedule";
// The bytes that a stage and its job take for each sample (measured).
constexpr int64_t kBytesPerSample = 13;

// Replaces the reuse factor in a store of elements (`cached`).
constexpr char kOfElements[] = "elements";

// With enough digits to distinguish it from every other number.
std::string Exactly(double number) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  return {digits, end};
}

bool ReadNumber(const Settings& settings, const char* name, uint64_t* value) {
  const auto setting = settings.find(name);
  return setting != settings.end() && absl::SimpleAtoi(setting->second, value);
}

bool HoldsElements(const Settings& settings) {
  const auto reuse = settings.find(kReuseSetting);
  return reuse != settings.end() && reuse->second == kOfElements;
}

constexpr char kLimits[] =
    "Which samples a limited store keeps depends on max_bytes, on the number of "
    "shards and on LOCAL_WORLD_SIZE. ";
constexpr char kElements[] = "elements of a source for cached";
constexpr char kSamples[] = "samples of a refurbish stage";

// Whether a stage, or `cached`, has agreed on settings with this store.
bool HasStageSettings(const Settings& settings) {
  return settings.count(kReuseSetting) != 0;
}

// What the shards that share a store have together.
struct Together {
  explicit Together(const Cooperation::Terms& terms)
      : shard(terms.shard.value_or(SourceShard())),
        shards(shard.num_sharing()),
        samples(shards > 1 ? shard.whole : terms.num_samples) {}

  // Every shard keeps as many samples as the others, or all of its own.
  uint64_t Kept(const Schedule& schedule) const {
    return schedule.capacity() == schedule.num_samples()
               ? samples
               : uint64_t{schedule.capacity()} * shards;
  }

  const SourceShard shard;
  const uint64_t shards;
  const int64_t samples;
};

// `schedule` is null until there is one. Shards that share the store have the
// same settings.
Settings StageSettings(const Cooperation::Terms& terms,
                       const Schedule* schedule) {
  const ScheduleOptions& options = terms.options;
  const Together all(terms);
  Settings settings = {
      {kSeedSetting, absl::StrCat(static_cast<int64_t>(options.seed))},
      {kReuseSetting, Exactly(options.reuse_factor)},
      {kEvictionSetting, kEvictions.NameOf(options.eviction)}};
  if (all.samples >= 0) settings[kSamplesSetting] = absl::StrCat(all.samples);
  if (terms.shard.has_value()) {
    settings[kShardSetting] = all.shards > 1 ? "" : all.shard.names;
  }
  if (schedule != nullptr) {
    settings[kKeptSetting] = absl::StrCat(all.Kept(*schedule));
    settings[kOriginSetting] = absl::StrCat(schedule->origin());
    settings[kFormerSetting] = absl::StrCat(schedule->ShardsThen(all.shards));
  }
  return settings;
}

std::shared_ptr<const Schedule> AgreedSchedule(
    const Settings& settings, const Cooperation::Terms& terms) {
  const Together all(terms);
  const auto number = [&settings](const char* name, uint64_t* value) {
    return ReadNumber(settings, name, value);
  };
  uint64_t samples, kept, origin, former;
  const uint64_t least = all.samples < 0 ? 1 : all.samples;
  const uint64_t most =
      all.samples < 0 ? MostSamples(kBytesPerSample) : all.samples;
  if (!number(kSamplesSetting, &samples) || !number(kKeptSetting, &kept) ||
      !number(kOriginSetting, &origin) || !number(kFormerSetting, &former) ||
      samples < least || samples > most || kept > samples ||
      origin >= kMaxEpochs) {
    return nullptr;
  }
  if (former == all.shards) {
    const uint64_t own = all.shards > 1 ? terms.num_samples : samples;
    return std::make_shared<Schedule>(
        terms.options, own, kept == samples ? own : kept / all.shards, origin);
  }
  const std::optional<MovedShard> moved = MovedFrom(all.shard, former);
  if (!moved.has_value() || kept != samples ||
      moved->shard.Size(moved->whole) !=
          static_cast<uint64_t>(terms.num_samples)) {
    return nullptr;
  }
  return std::make_shared<Schedule>(terms.options, *moved, origin);
}

class SharedCooperation : public Cooperation {
 public:
  // The store must outlive it.
  explicit SharedCooperation(DiskStore* disk) : disk_(*disk) {}

  std::shared_ptr<const Schedule> Agreed(const Terms& terms) override {
    return AgreedSchedule(disk_.settings(), terms);
  }
  absl::StatusOr<std::shared_ptr<const Schedule>> Agree(
      const Terms& terms, std::shared_ptr<const Schedule> schedule,
      std::chrono::milliseconds patience) override {
    const Settings before = disk_.settings();
    if (HoldsElements(before)) return HoldsOther(kElements, kSamples);
    if (!HasStageSettings(before) && disk_.Stats().entries > 0) {
      return SamplesPutByHand();
    }
    RTF_RETURN_IF_ERROR(AgreeAsStage(StageSettings(terms, schedule.get()),
                                     /*replace=*/false, patience));
    // While the shard of the source is unknown, so is its schedule.
    if (schedule != nullptr || !terms.shard.has_value()) return schedule;
    Settings settings = disk_.settings();
    schedule = AgreedSchedule(settings, terms);
    if (schedule != nullptr || settings.count(kKeptSetting) == 0)
      return schedule;
    return FailedPrecondition(
        "The settings of the cache store ", disk_.directory(),
        " do not fit this source: num_samples=", settings[kSamplesSetting],
        ", num_kept_samples=", settings[kKeptSetting],
        ", first_epoch=", settings[kOriginSetting],
        ", shards_of_schedule=", settings[kFormerSetting], ". ", kLimits,
        "Use the former ones, use a machine with more memory, or ", kStartEmpty,
        ".");
  }
  absl::Status AgreeAnew(const Terms& terms,
                         const Schedule& schedule) override {
    return AgreeAsStage(StageSettings(terms, &schedule), /*replace=*/true,
                        kPatienceOfAStep);
  }
  absl::Status AgreeOnElements(int64_t num_elements,
                               const std::string& shard) override {
    const Settings before = disk_.settings();
    if (HasStageSettings(before) && !HoldsElements(before)) {
      return HoldsOther(kSamples, kElements);
    }
    if (!HasStageSettings(before) && disk_.Stats().entries > 0) {
      return SamplesPutByHand();
    }
    const absl::Status agreed =
        disk_.Agree({{kReuseSetting, kOfElements},
                     {kSamplesSetting, absl::StrCat(num_elements)},
                     {kShardSetting, shard}});
    if (!absl::IsFailedPrecondition(agreed)) return agreed;
    return Unfit(
        "was filled from another source: ", Printable(agreed.message()),
        ". Use that source, or ", kStartEmpty, ".");
  }
  absl::StatusOr<Settings> AgreeOn(const Settings& settings,
                                   bool replace) override {
    RTF_RETURN_IF_ERROR(disk_.CheckDirectory());
    RTF_RETURN_IF_ERROR(AgreeAsStage(settings, replace));
    return disk_.settings();
  }
  absl::StatusOr<std::vector<NamedNumbers>> LivingJobs() override {
    return disk_.state().LivingJobs();
  }
  absl::StatusOr<std::shared_ptr<Job>> Join(double reuse_factor) override {
    absl::StatusOr<std::unique_ptr<SharedState::Job>> job = disk_.Join();
    if (!job.ok()) {
      RTF_RETURN_IF_ERROR(disk_.CheckDirectory());
      return job.status();
    }
    return std::make_shared<SharedJob>(reuse_factor, &disk_, *std::move(job));
  }
  void MakeRoomFor(uint64_t num_elements) override {
    disk_.MakeRoomFor(num_elements);
  }
  absl::Status PlanTransit(int64_t bytes, int64_t sample_bytes) override {
    return disk_.PlanTransit(bytes, sample_bytes);
  }
  int64_t num_in_transit() override {
    const TransitRing* const ring = disk_.transit();
    return ring == nullptr ? 0 : ring->num_units();
  }
  Place place() override {
    // The job has used no sample that was put after the head.
    const TransitRing* const ring = disk_.transit();
    return {static_cast<int64_t>(disk_.records().store_id()),
            ring == nullptr ? 0 : static_cast<int64_t>(ring->head())};
  }

 private:
  // Like `DiskStore::Agree`, with an error message for users of a stage.
  absl::Status AgreeAsStage(const Settings& settings, bool replace = false,
                            std::chrono::milliseconds patience = kPatience) {
    absl::Status status = disk_.Agree(settings, replace, patience);
    if (!absl::IsFailedPrecondition(status)) return status;
    return FailedPrecondition(
        "The samples in the cache store ", disk_.directory(),
        " were prepared differently: ", status.message(), ". ",
        absl::StrContains(status.message(), kKeptSetting) ||
                absl::StrContains(status.message(), kFormerSetting)
            ? kLimits
            : "",
        "To use these samples, give the former value, here or in version=. "
        "Otherwise ",
        kStartEmpty, ".");
  }
  // The error that the store cannot be used: its name, followed by `why`.
  template <class... Parts>
  absl::Status Unfit(const Parts&... why) const {
    return FailedPrecondition("The cache store ", disk_.directory(), " ",
                              why...);
  }
  absl::Status HoldsOther(const char* held, const char* wanted) const {
    return Unfit("holds ", held, ", not ", wanted,
                 ". Give refurbish and cached separate directories, or ",
                 kStartEmpty, ".");
  }

  DiskStore& disk_;
};

}  // namespace

std::unique_ptr<Cooperation> MakeSharedCooperation(DiskStore* disk) {
  return std::make_unique<SharedCooperation>(disk);
}

}  // namespace refurbish_tf

#include "refurbish_tf/cc/cooperation/shared/shared_cooperation.h"

#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "refurbish_tf/cc/base/printable.h"
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
// The number of samples of the undivided source, or "unknown"; always set
// with a shard. Then the number of shards when the schedule began, if it
// was different.
constexpr char kWholeSetting[] = "num_samples_of_all_shards";
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

// Parses a setting such as "0 of 2", or the empty one of a whole source.
std::optional<Shard> ReadShard(const std::string& text) {
  if (text.empty()) return Shard();
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Shard shard;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &shard.index) ||
      !absl::SimpleAtoi(words[2], &shard.count) || shard.index >= shard.count ||
      shard.count > kMaxShards) {
    return std::nullopt;
  }
  return shard;
}

bool HoldsElements(const Settings& settings) {
  const auto reuse = settings.find(kReuseSetting);
  return reuse != settings.end() && reuse->second == kOfElements;
}

constexpr char kElements[] = "elements of a source, which cached has kept";
constexpr char kSamples[] = "samples of a refurbish stage";

// Whether a stage, or `cached`, has agreed on settings with this store.
bool HasStageSettings(const Settings& settings) {
  return settings.count(kReuseSetting) != 0;
}

// `schedule` is null until there is one.
Settings StageSettings(const Cooperation::Terms& terms,
                       const Schedule* schedule) {
  const ScheduleOptions& options = terms.options;
  const SourceShard shard = terms.shard.value_or(SourceShard());
  Settings settings = {
      {kSeedSetting, absl::StrCat(static_cast<int64_t>(options.seed))},
      {kReuseSetting, Exactly(options.reuse_factor)},
      {kEvictionSetting, kEvictions.NameOf(options.eviction)}};
  if (terms.num_samples >= 0) {
    settings[kSamplesSetting] = absl::StrCat(terms.num_samples);
  }
  if (!shard.names.empty()) {
    settings[kShardSetting] = shard.names;
    settings[kWholeSetting] =
        shard.whole < 0 ? "unknown" : absl::StrCat(shard.whole);
  }
  if (schedule != nullptr) {
    settings[kKeptSetting] = absl::StrCat(schedule->capacity());
    settings[kOriginSetting] = absl::StrCat(schedule->origin());
    if (schedule->moved().has_value()) {
      settings[kFormerSetting] = absl::StrCat(schedule->moved()->former);
    }
  }
  return settings;
}

std::shared_ptr<const Schedule> AgreedSchedule(
    const Settings& settings, const Cooperation::Terms& terms) {
  const int64_t num_samples = terms.num_samples;
  const SourceShard shard = terms.shard.value_or(SourceShard());
  const auto number = [&settings](const char* name, uint64_t* value) {
    return ReadNumber(settings, name, value);
  };
  uint64_t samples, kept, origin, former;
  const uint64_t least = num_samples < 0 ? 1 : num_samples;
  const uint64_t most =
      num_samples < 0 ? MostSamples(kBytesPerSample) : num_samples;
  if (!number(kSamplesSetting, &samples) || !number(kKeptSetting, &kept) ||
      !number(kOriginSetting, &origin) || samples < least || samples > most ||
      kept > samples || origin >= kMaxEpochs) {
    return nullptr;
  }
  if (!number(kFormerSetting, &former) || former == shard.numbering().count) {
    return std::make_shared<Schedule>(terms.options, samples, kept, origin);
  }
  const std::optional<MovedShard> moved = MovedFrom(shard, former);
  if (!moved.has_value() || kept != samples ||
      moved->shard.Size(moved->whole) != samples) {
    return nullptr;
  }
  return std::make_shared<Schedule>(terms.options, *moved, origin);
}

}  // namespace

absl::Status SharedCooperation::HoldsOther(const char* held,
                                           const char* wanted) const {
  return Unfit("holds ", held, ", not ", wanted,
               ". Give refurbish and cached a directory of their own each, or ",
               kStartEmpty, ".");
}

absl::Status SharedCooperation::AgreeAsStage(
    const Settings& settings, bool replace,
    std::chrono::milliseconds patience) {
  absl::Status status = disk_.Agree(settings, replace, patience);
  if (!absl::IsFailedPrecondition(status)) return status;
  return FailedPrecondition(
      "The samples in the cache store ", disk_.directory(),
      " were prepared in another way: ", status.message(),
      ". To use these samples, give the former value, here or in version=. "
      "Otherwise, ",
      kStartEmpty, ".");
}

absl::StatusOr<std::shared_ptr<Job>> SharedCooperation::Join(
    double reuse_factor) {
  absl::StatusOr<std::unique_ptr<SharedState::Job>> job = disk_.Join();
  if (!job.ok()) {
    RTF_RETURN_IF_ERROR(disk_.CheckDirectory());
    return job.status();
  }
  return std::make_shared<SharedJob>(reuse_factor, &disk_, *std::move(job));
}

Cooperation::Place SharedCooperation::place() {
  // The job has used no sample that was put after the head.
  const TransitRing* const ring = disk_.transit();
  return {static_cast<int64_t>(disk_.records().store_id()),
          ring == nullptr ? 0 : static_cast<int64_t>(ring->head())};
}

std::shared_ptr<const Schedule> SharedCooperation::Agreed(const Terms& terms) {
  return AgreedSchedule(disk_.settings(), terms);
}

absl::Status SharedCooperation::TakeOver(const Terms& terms,
                                         std::optional<uint32_t> num_kept) {
  if (!terms.shard.has_value()) return absl::OkStatus();
  const SourceShard& shard = *terms.shard;
  // Agreeing on no settings only reads what other processes have written.
  RTF_RETURN_IF_ERROR(AgreeAsStage({}));
  const Settings settings = disk_.settings();
  const auto text = [&settings](const char* name) -> std::string {
    const auto setting = settings.find(name);
    return setting == settings.end() ? "" : setting->second;
  };
  const std::optional<Shard> former = ReadShard(text(kShardSetting));
  // A stage whose shard tf.data had not filled in has written neither setting.
  const bool undivided =
      settings.count(kShardSetting) + settings.count(kSamplesSetting) == 0;
  if (!HasStageSettings(settings) || HoldsElements(settings) || undivided ||
      !former.has_value() || !shard.shard.has_value() ||
      former->count == shard.shard->count) {
    return absl::OkStatus();
  }
  Settings own = StageSettings(terms, nullptr);
  for (const char* name : {kSeedSetting, kReuseSetting, kEvictionSetting}) {
    if (text(name) != own[name]) return absl::OkStatus();
  }
  const auto refused = [&](const auto&... why) {
    return Unfit("was filled by a worker of ", former->count,
                 ", and this is one of ", shard.shard->count, ". ", why...);
  };
  uint64_t then = 0, kept = 0, origin = 0, before = 0;
  const bool known =
      ReadNumber(settings, kSamplesSetting, &before) &&
      ReadNumber(settings, kKeptSetting, &kept) &&
      ReadNumber(settings, kOriginSetting, &origin) &&
      ReadNumber(settings, former->count == 1 ? kSamplesSetting : kWholeSetting,
                 &then) &&
      shard.whole >= 0;
  const bool keeps_all = kept == before && num_kept == terms.num_samples &&
                         MovedFrom(shard, former->count).has_value();
  const bool keeps_none = kept == 0 && num_kept == 0;
  if (!known || !(keeps_all || keeps_none)) {
    return refused(
        "It can be taken over only where the number of samples is known and "
        "all of them are kept. To prepare every sample once more, ",
        kStartEmpty, ".");
  }
  if (then != static_cast<uint64_t>(shard.whole)) {
    return refused(
        "But all workers together had ", then, " samples, and now have ",
        shard.whole,
        ". Divide the same samples, as by take(n) with an n that both numbers "
        "of workers divide. To prepare every sample once more, ",
        kStartEmpty, ".");
  }
  RTF_ASSIGN_OR_RETURN(const auto living, disk_.state().LivingJobs());
  if (!living.empty()) {
    return refused(
        "A job of the former number is at work on it. Give each worker a store "
        "of its own, and begin when those of the former number have ended.");
  }
  own[kShardSetting] = shard.names;  // Replaces the former one even if empty.
  own[kWholeSetting] = absl::StrCat(shard.whole);
  own[kKeptSetting] = absl::StrCat(*num_kept);
  if (keeps_all && settings.count(kFormerSetting) == 0) {
    own[kFormerSetting] = absl::StrCat(former->count);
  }
  // Removed before the settings change: if this process is killed in between,
  // the next one still sees that the store is to be taken over.
  for (const uint64_t sample : disk_.Indices()) {
    if (!shard.shard->Has(sample)) disk_.Remove(sample, /*evict=*/false);
  }
  return AgreeAsStage(own, /*replace=*/true);
}

absl::Status SharedCooperation::AgreeAnew(const Terms& terms,
                                          const Schedule& schedule) {
  Settings settings = StageSettings(terms, &schedule);
  settings.emplace(kFormerSetting,
                   absl::StrCat(terms.shard->numbering().count));
  return AgreeAsStage(settings, /*replace=*/true, kPatienceOfAStep);
}

absl::StatusOr<std::shared_ptr<const Schedule>> SharedCooperation::Agree(
    const Terms& terms, std::shared_ptr<const Schedule> schedule,
    std::chrono::milliseconds patience) {
  const Settings before = disk_.settings();
  if (HoldsElements(before)) return HoldsOther(kElements, kSamples);
  if (!HasStageSettings(before) && disk_.Stats().entries > 0) {
    return SamplesPutByHand();
  }
  if (before.count(kShardSetting) > before.count(kWholeSetting)) {
    return Unfit(
        "was filled from shard ", Printable(before.at(kShardSetting)),
        " by an older refurbish_tf, which gave its samples other numbers. Use "
        "that version, or ",
        kStartEmpty, ".");
  }
  RTF_RETURN_IF_ERROR(AgreeAsStage(StageSettings(terms, schedule.get()),
                                   /*replace=*/false, patience));
  // While the shard of the source is unknown, so is its schedule.
  if (schedule != nullptr || !terms.shard.has_value()) return schedule;
  Settings settings = disk_.settings();
  schedule = AgreedSchedule(settings, terms);
  if (schedule != nullptr || settings.count(kKeptSetting) == 0) return schedule;
  return FailedPrecondition(
      "The settings of the cache store ", disk_.directory(),
      " fit no source that this machine has memory for: num_samples=",
      settings[kSamplesSetting], ", num_kept_samples=", settings[kKeptSetting],
      ", first_epoch=", settings[kOriginSetting],
      ". Use a machine with more, or ", kStartEmpty, ".");
}

absl::Status SharedCooperation::AgreeOnElements(int64_t num_elements,
                                                const std::string& shard) {
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
  return Unfit("was filled from another source: ", Printable(agreed.message()),
               ". Use that source, or ", kStartEmpty, ".");
}

}  // namespace refurbish_tf

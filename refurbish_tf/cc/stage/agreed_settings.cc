#include "refurbish_tf/cc/stage/agreed_settings.h"

#include <charconv>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/printable.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/stage/saved_epoch.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {
namespace {

constexpr char kSeedSetting[] = "seed";
constexpr char kReuseSetting[] = "r";
constexpr char kEvictionSetting[] = "eviction";
constexpr char kSamplesSetting[] = "num_samples";
constexpr char kKeptSetting[] = "num_kept_samples";
constexpr char kOriginSetting[] = "first_epoch";
constexpr char kShardSetting[] = "shard";

// The reuse factor where elements are kept.
constexpr char kOfElements[] = "elements";

// With as many digits as distinguish it from every other number.
std::string Exactly(double number) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  return {digits, end};
}

bool HoldsElements(const Settings& settings) {
  const auto reuse = settings.find(kReuseSetting);
  return reuse != settings.end() && reuse->second == kOfElements;
}

absl::Status HoldsOther(const DiskStore& disk, const char* held,
                        const char* wanted) {
  return absl::FailedPreconditionError(absl::StrCat(
      "The cache store ", disk.directory(), " holds ", held, ", not ", wanted,
      ". Give refurbish and cached a directory of their own each, or start "
      "with an empty store by store=rtf.CacheStore(path, overwrite=True)."));
}

constexpr char kElements[] = "elements of a source, which cached has kept";
constexpr char kSamples[] = "samples of a refurbish stage";

}  // namespace

bool HasStageSettings(const Settings& settings) {
  return settings.count(kReuseSetting) != 0;
}

Settings StageSettings(const ScheduleOptions& options, int64_t num_samples,
                       const std::string& shard, const Schedule* schedule) {
  Settings settings = {
      {kSeedSetting, absl::StrCat(static_cast<int64_t>(options.seed))},
      {kReuseSetting, Exactly(options.reuse_factor)},
      {kEvictionSetting, options.eviction == Eviction::kBalanced
                             ? "balanced"
                             : "reference_count"}};
  if (num_samples >= 0) settings[kSamplesSetting] = absl::StrCat(num_samples);
  if (!shard.empty()) settings[kShardSetting] = shard;
  if (schedule != nullptr) {
    settings[kKeptSetting] = absl::StrCat(schedule->capacity());
    settings[kOriginSetting] = absl::StrCat(schedule->origin());
  }
  return settings;
}

std::shared_ptr<const Schedule> AgreedSchedule(const Settings& settings,
                                               const ScheduleOptions& options,
                                               int64_t num_samples) {
  const auto number = [&settings](const char* name, uint64_t* value) {
    const auto setting = settings.find(name);
    return setting != settings.end() &&
           absl::SimpleAtoi(setting->second, value);
  };
  uint64_t samples, kept, origin;
  const uint64_t least = num_samples < 0 ? 1 : num_samples;
  const uint64_t most = num_samples < 0 ? MostSamples() : num_samples;
  if (!number(kSamplesSetting, &samples) || !number(kKeptSetting, &kept) ||
      !number(kOriginSetting, &origin) || samples < least || samples > most ||
      kept > samples || origin >= kMaxEpochs) {
    return nullptr;
  }
  return std::make_shared<Schedule>(options, samples, kept, origin);
}

absl::StatusOr<std::shared_ptr<const Schedule>> AgreeWithStore(
    SampleStore& store, const ScheduleOptions& options, int64_t num_samples,
    const std::optional<std::string>& shard,
    std::shared_ptr<const Schedule> schedule,
    std::chrono::milliseconds patience) {
  if (HoldsElements(store.disk()->settings())) {
    return HoldsOther(*store.disk(), kElements, kSamples);
  }
  if (!HasStageSettings(store.disk()->settings()) &&
      store.store().Stats().entries > 0) {
    return SamplesPutByHand();
  }
  RTF_RETURN_IF_ERROR(store.Agree(
      StageSettings(options, num_samples, shard.value_or(""), schedule.get()),
      /*replace=*/false, patience));
  // While the shard of the source is unknown, so is its schedule.
  if (schedule != nullptr || !shard.has_value()) return schedule;
  Settings settings = store.disk()->settings();
  schedule = AgreedSchedule(settings, options, num_samples);
  if (schedule != nullptr || settings.count(kKeptSetting) == 0) return schedule;
  return absl::FailedPreconditionError(absl::StrCat(
      "The settings of the cache store ", store.disk()->directory(),
      " fit no source that this machine has memory for: num_samples=",
      settings[kSamplesSetting], ", num_kept_samples=", settings[kKeptSetting],
      ", first_epoch=", settings[kOriginSetting],
      ". Use a machine with more, or start with an empty store, by "
      "overwrite=True or in another directory."));
}

absl::Status AgreeOnElements(SampleStore& store, int64_t num_elements,
                             const std::string& shard) {
  DiskStore& disk = *store.disk();
  const Settings before = disk.settings();
  if (HasStageSettings(before) && !HoldsElements(before)) {
    return HoldsOther(disk, kSamples, kElements);
  }
  if (!HasStageSettings(before) && store.store().Stats().entries > 0) {
    return SamplesPutByHand();
  }
  const Settings settings = {{kReuseSetting, kOfElements},
                             {kSamplesSetting, absl::StrCat(num_elements)},
                             {kShardSetting, shard}};
  for (const auto& [name, value] : settings) {
    const auto found = before.find(name);
    if (found == before.end() || found->second == value) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "The cache store ", disk.directory(),
        " was filled from another source: ", name, " was ",
        Printable(found->second), " and is ", value,
        ". To start with an empty store, use "
        "store=rtf.CacheStore(path, overwrite=True) or another directory."));
  }
  return store.Agree(settings);
}

}  // namespace refurbish_tf

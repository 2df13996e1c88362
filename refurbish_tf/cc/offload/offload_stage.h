// What an offload stage keeps across its epochs: its seed, the next epoch, the
// fraction of a batch that the accelerator does, and counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "refurbish_tf/cc/base/counters.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/plan/device_fraction_rule.h"

namespace refurbish_tf {

struct OffloadCounters : Counters {
  Count batches{this, "batches"};
  Count host_images{this, "host_images"};
  Count device_images{this, "device_images"};
  Count host_wait_nanos{this, "host_wait_nanos"};
};

class OffloadStage : public CountsOfIterators<OffloadCounters> {
 public:
  // Epoch numbers must fit into 32 bits, because seeds are made from them.
  static constexpr int64_t kMostEpochs = (int64_t{1} << 32) - 1;
  static constexpr char kSeed[] = "seed";
  static constexpr char kNextEpoch[] = "next_epoch";

  // `any_seed`: the user gave no seed, so the seed of a checkpoint replaces
  // `seed`. `eighths`: see the argument of DeviceFractionRule.
  OffloadStage(int64_t seed, bool any_seed, int eighths)
      : any_seed_(any_seed), seed_(seed), rule_(eighths) {}

  struct Iteration {
    int64_t seed = 0;
    int64_t epoch = 0;
    std::shared_ptr<OffloadCounters> counters;
  };
  // Begins the next epoch, or continues `epoch`, which a checkpoint gives.
  Iteration BeginEpoch(std::optional<int64_t> epoch = std::nullopt)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<OffloadCounters> counters = Begin();
    absl::MutexLock lock(&mu_);
    return {seed_, epoch.has_value() ? *epoch : next_epoch_++,
            std::move(counters)};
  }

  // See DeviceFractionRule.
  DeviceFractionRule::Batch BeginBatch() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return rule_.Begin();
  }
  void Record(const DeviceFractionRule::Batch& batch,
              std::optional<int64_t> since, int64_t waited)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    rule_.Record(batch, since, waited);
  }

  // What a checkpoint saves.
  NamedNumbers Save() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return {{kSeed, seed_}, {kNextEpoch, next_epoch_}};
  }
  // Fails if the user gave another seed.
  absl::Status CheckSeed(int64_t seed) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (seed == seed_ || any_seed_) return absl::OkStatus();
    return InvalidArgument(
        "The checkpoint of offload was saved with seed=", seed,
        ", but this stage has seed=", seed_, ". Build the same pipeline.");
  }
  void Restore(int64_t seed, int64_t next_epoch) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    seed_ = seed;
    next_epoch_ = next_epoch;
  }

 private:
  const bool any_seed_;
  mutable absl::Mutex mu_;
  int64_t seed_ ABSL_GUARDED_BY(mu_);
  int64_t next_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  DeviceFractionRule rule_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

// The order of the next epoch, made while this one is under way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "refurbish_tf/cc/plan/schedule.h"

namespace refurbish_tf {

// To arrange an order takes 28 ns a sample. One that is not wanted after all,
// as after a restore, is dropped when another one is taken. Thread-safe.
class NextOrder {
 public:
  // Which order. With a schedule, `options` and `num_samples` are the
  // schedule's.
  struct Of {
    std::shared_ptr<const Schedule> schedule;
    ScheduleOptions options;
    uint32_t num_samples;
    uint64_t epoch;
  };

  // Waits for the one that was begun, or makes another one now.
  EpochSchedule Take(const Of& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins to make it. Does nothing if that takes no time to speak of.
  void Begin(const Of& next) ABSL_LOCKS_EXCLUDED(mu_);
  // How many bytes it takes.
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Made {
    explicit Made(const Of& of) : of(of) {}
    const Of of;
    absl::Notification done;
    std::optional<EpochSchedule> order;  // Once it is done.
  };

  mutable absl::Mutex mu_;
  std::shared_ptr<Made> made_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refurbish_tf

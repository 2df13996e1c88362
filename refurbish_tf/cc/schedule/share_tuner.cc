#include "refurbish_tf/cc/schedule/share_tuner.h"

#include <algorithm>

namespace refurbish_tf {
namespace {

// An average gives its latest value this weight.
constexpr double kWeight = 1.0 / 8;

// What the CPU works longer at than the queue lasts would leave the device
// without work. The queue is a little longer than its whole batches: one is
// at the device.
constexpr double kQueueLasts = 1.1;

// Where the smaller share was found too slow it is tried again, as that may
// have changed: for one batch, after so many times its work.
constexpr int kRetryAfter = 100;

void Average(double value, double* average) {
  *average =
      *average == 0
          ? value
          : *average + kWeight * (std::min(value, 4 * *average) - *average);
}

}  // namespace

void ShareTuner::Record(const HandedOut& batch) {
  const Side late = batch.room_was_full      ? Side::kDeviceIsLate
                    : batch.waited_nanos > 0 ? Side::kCpuIsLate
                                             : Side::kNeither;
  UpdateTimes(batch, late);
  // Moves the pair when even its share for the late side has not helped.
  const int best = late == Side::kCpuIsLate ? lower_ + 1 : lower_;
  if (late != late_) {
    late_ = late;
    in_a_row_ = 0;
  } else if (late != Side::kNeither && batch.share == best &&
             ++in_a_row_ >= patience_ + batch.num_queued) {
    MovePair(late);
  }
  const bool wants_lower = late == Side::kDeviceIsLate ||
                           (late == Side::kNeither && share_ <= lower_);
  share_ = wants_lower && LowerKeepsUp(batch) ? lower_ : lower_ + 1;
}

void ShareTuner::MovePair(Side late) {
  if (moved_for_ != Side::kNeither && moved_for_ != late) {
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  moved_for_ = late;
  in_a_row_ = 0;
  lower_ = std::clamp(lower_ + (late == Side::kCpuIsLate ? 1 : -1), 0,
                      static_cast<int>(kEighths.size()) - 2);
}

void ShareTuner::UpdateTimes(const HandedOut& batch, Side late) {
  const double taken = std::max<double>(1, batch.work_nanos);
  double& work = work_nanos_[batch.share];
  const double before = work;
  // The first batches take long, as files and caches are cold.
  if (taken < work / 2) work = 0;
  Average(taken, &work);
  // When the CPU becomes slower or faster, it does so for all shares.
  if (before > 0) {
    for (double& other : work_nanos_) {
      if (&other != &work) other *= work / before;
    }
  }
  // A pause of the consumer is one long interval, which Average() limits.
  if (last_nanos_ && late == Side::kDeviceIsLate) {
    Average(static_cast<double>(batch.now_nanos - *last_nanos_),
            &device_nanos_);
  }
  last_nanos_ = batch.now_nanos;
}

bool ShareTuner::LowerKeepsUp(const HandedOut& batch) {
  const double work = work_nanos_[lower_];
  if (work <= kQueueLasts * std::max(1, batch.num_queued) * device_nanos_) {
    return true;
  }
  refused_nanos_ += device_nanos_;
  if (refused_nanos_ < kRetryAfter * work) return false;
  refused_nanos_ = 0;
  return true;
}

}  // namespace refurbish_tf

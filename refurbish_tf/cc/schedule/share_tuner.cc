#include "refurbish_tf/cc/schedule/share_tuner.h"

#include <algorithm>
#include <cstdlib>

namespace refurbish_tf {
namespace {

// An average gives its latest value this weight.
constexpr double kWeight = 1.0 / 8;
// The device's time one that is longer: threads that wake late make intervals
// longer, not shorter.
constexpr double kLongerWeight = 1.0 / 16;

// What the CPU works longer at than the queue lasts would leave the device
// without work. The queue is a little longer than its whole batches: one is
// at the device.
constexpr double kQueueLasts = 1.1;

// Where the smaller share was found too slow it is tried again, as that may
// have changed: for one batch, after so many times its work.
constexpr int kRetryAfter = 100;

// A consumer that waits for less than this part of a batch's time is not held
// up: threads wake with some delay.
constexpr double kLate = 1.0 / 16;

void Average(double value, double weight, double* average) {
  if (*average == 0) *average = value;
  *average += weight * (std::min(value, 4 * *average) - *average);
}

}  // namespace

void ShareTuner::Record(const HandedOut& batch) {
  const Side late = Late(batch);
  UpdateTimes(batch, late);
  // Moves the pair when even its share for the late side has not helped.
  const int direction = late == Side::kCpuIsLate      ? 1
                        : late == Side::kDeviceIsLate ? -1
                                                      : 0;
  if (direction * evidence_ < 0 || direction == 0) {
    evidence_ += evidence_ > 0 ? -1 : evidence_ < 0 ? 1 : 0;
  } else if ((batch.share > lower_) == (direction > 0)) {
    evidence_ += direction;
  }
  if (std::abs(evidence_) >= patience_ + batch.num_queued) MovePair(late);
  const bool wants_lower = late == Side::kDeviceIsLate ||
                           (late == Side::kNeither && share_ <= lower_);
  share_ = wants_lower && LowerKeepsUp(batch) ? lower_ : lower_ + 1;
}

ShareTuner::Side ShareTuner::Late(const HandedOut& batch) const {
  if (batch.waited_nanos > kLate * interval_nanos_) return Side::kCpuIsLate;
  return batch.room_was_full ? Side::kDeviceIsLate : Side::kNeither;
}

void ShareTuner::MovePair(Side late) {
  if (moved_for_ != Side::kNeither && moved_for_ != late) {
    patience_ = std::min(2 * patience_, kMostPatience);
  }
  moved_for_ = late;
  evidence_ = 0;
  lower_ = std::clamp(lower_ + (late == Side::kCpuIsLate ? 1 : -1), 0,
                      static_cast<int>(kEighths.size()) - 2);
}

void ShareTuner::UpdateTimes(const HandedOut& batch, Side late) {
  const double taken = std::max<double>(1, batch.work_nanos);
  double& work = work_nanos_[batch.share];
  const double before = work;
  Average(taken, kWeight, &work);
  // When the CPU becomes slower or faster, it does so for all shares.
  if (before > 0) {
    for (double& other : work_nanos_) {
      if (&other != &work) other *= work / before;
    }
  }
  // A pause of the consumer is one long interval, which Average() limits.
  if (last_nanos_) {
    const auto interval = static_cast<double>(batch.now_nanos - *last_nanos_);
    Average(interval, kWeight, &interval_nanos_);
    if (late == Side::kDeviceIsLate) {
      Average(interval, interval < device_nanos_ ? kWeight : kLongerWeight,
              &device_nanos_);
    }
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

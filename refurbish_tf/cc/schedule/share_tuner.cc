#include "refurbish_tf/cc/schedule/share_tuner.h"

#include <algorithm>
#include <cmath>

namespace refurbish_tf {
namespace {

// So many batches of a share go by before it is measured, as others are queued
// before them. So many are measured at a time.
constexpr int kSettling = 4;
constexpr int kMeasured = 10;
// A device that is late works at what is queued for so many batches more, if
// the queue is long: the time stays as it was with the greater share.
constexpr int kDrained = 34;
constexpr double kAsBefore = 0.05;

// Of the time, what the CPU works if it is late: threads lose the rest. Between
// the two numbers both sides may be late, by turns.
constexpr double kBusy = 0.82;
constexpr double kHalfBusy = 0.65;

// A greater share is worth it if it saves this part of the time. Else the CPU
// may as well work.
constexpr double kWorthIt = 0.02;

// Something has changed if the time differs by this part, or if the CPU's work
// takes less than this part of what it took, or the other way round.
constexpr double kOtherTime = 0.15;
constexpr double kOtherSpeed = 0.6;
// So many measurements of a share that was not known do not tell the speed: at
// first the CPU fills the room, which takes it longer.
constexpr int kFirstWindows = 3;

// A neighbour that was worse is measured again after kLeastPatience batches,
// then after twice as many, and so on. One that was worse by more than this
// waits for the longest time at once.
constexpr double kFarWorse = 1.25;
constexpr int kMostPatience = 1600;

// A time that is so many times as long as those before is a pause of the
// training, unless the next ones are as long.
constexpr int kPause = 5;
constexpr int kMostPauses = 3;

bool Differs(double nanos, double from) {
  return std::abs(nanos - from) > kOtherTime * from;
}

}  // namespace

bool ShareTuner::Mean::IsCpuLate() const { return work_nanos > kBusy * nanos; }

void ShareTuner::Record(const HandedOut& batch) {
  const int64_t nanos = batch.now_nanos - last_nanos_;
  last_nanos_ = batch.now_nanos;
  if (batch.share != share_) return;
  if (++num_batches_ <= kSettling || IsPause(nanos)) return;
  sum_.nanos += nanos;
  sum_.work_nanos += batch.work_nanos;
  if (++num_measured_ < kMeasured) return;
  const Mean window = {std::max(1.0, sum_.nanos / kMeasured),
                       std::max(1.0, sum_.work_nanos / kMeasured)};
  usual_nanos_ = window.nanos;
  num_measured_ = 0;
  sum_ = {};
  const bool is_as_before =
      std::abs(window.nanos - left_nanos_) < kAsBefore * left_nanos_;
  if (is_as_before && num_batches_ < kDrained) return;
  if (!Update(window)) return;
  const int towards = known_[share_].cpu_is_late ? 1 : -1;
  for (const int share : {share_ + towards, share_ - towards}) {
    if (IsWanted(share)) return MoveTo(share);
  }
}

bool ShareTuner::IsPause(int64_t nanos) {
  const double usual =
      num_measured_ > 0 ? sum_.nanos / num_measured_ : usual_nanos_;
  const bool is_pause =
      usual > 0 && nanos > kPause * usual && num_pauses_ < kMostPauses;
  num_pauses_ = is_pause ? num_pauses_ + 1 : 0;
  return is_pause;
}

bool ShareTuner::Update(const Mean& window) {
  Known& here = known_[share_];
  if (here.num_windows == 0) {
    here = {window, 1, window.IsCpuLate()};
    return true;
  }
  if (++here.num_windows <= kFirstWindows) {
    here.mean.work_nanos = window.work_nanos;
  }
  const double speed = here.mean.work_nanos / window.work_nanos;
  if (speed > kOtherSpeed && 1 / speed > kOtherSpeed &&
      !Differs(window.nanos, here.mean.nanos)) {
    new_.reset();
    here.mean.nanos += (window.nanos - here.mean.nanos) / 2;
    here.mean.work_nanos += (window.work_nanos - here.mean.work_nanos) / 8;
    here.cpu_is_late = here.mean.IsCpuLate();
    return true;
  }
  if (!new_.has_value() || Differs(window.nanos, new_->nanos)) {
    new_ = window;
    return false;
  }
  UpdateOthers(window, speed);
  patience_ = kLeastPatience;
  here = {window, kFirstWindows, window.IsCpuLate()};
  new_.reset();
  return true;
}

void ShareTuner::UpdateOthers(const Mean& window, double speed) {
  const Known& here = known_[share_];
  for (Known& other : known_) {
    if (&other == &here || !other.cpu_is_late) continue;
    if (here.cpu_is_late && window.IsCpuLate()) {
      other.mean.nanos *= window.nanos / here.mean.nanos;
    } else if (speed < kOtherSpeed) {
      other.mean.nanos /= speed;
    } else if (1 / speed < kOtherSpeed) {
      other = {};
    }
  }
}

bool ShareTuner::IsBetter(int share) const {
  const bool is_greater = share > share_;
  const double lower = known_[is_greater ? share_ : share].mean.nanos;
  const double greater = known_[is_greater ? share : share_].mean.nanos;
  return is_greater == (greater <= (1 - kWorthIt) * lower);
}

bool ShareTuner::IsWanted(int share) {
  if (share < 0 || share >= static_cast<int>(kEighths.size())) return false;
  const Known& here = known_[share_];
  Known& neighbour = known_[share];
  if ((share > share_) != here.cpu_is_late) {
    // Not that of the side that is late.
    if (share < share_) return false;
    return neighbour.num_windows > 0
               ? IsBetter(share)
               : here.mean.work_nanos > kHalfBusy * here.mean.nanos;
  }
  if (neighbour.num_windows == 0 || neighbour.cpu_is_late == here.cpu_is_late ||
      IsBetter(share)) {
    return true;
  }
  const bool is_far = neighbour.mean.nanos > kFarWorse * here.mean.nanos;
  if (num_batches_ < (is_far ? kMostPatience : patience_)) return false;
  patience_ = std::min(2 * patience_, kMostPatience);
  neighbour = {};
  return true;
}

void ShareTuner::MoveTo(int share) {
  left_nanos_ = share < share_ ? known_[share_].mean.nanos : 0;
  share_ = share;
  num_batches_ = 0;
}

}  // namespace refurbish_tf

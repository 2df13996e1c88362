#include "refurbish_tf/cc/schedule/portion_tuner.h"

#include <cmath>
#include <utility>

namespace refurbish_tf {
namespace {

// So many batches of a portion go by before it is measured, as others are begun
// before them. So many are measured at a time, at least.
constexpr int kSettling = 3;
constexpr int kMeasured = 10;
// Training may take batches in turns: it waits for long, then takes several at
// once. A measurement is of whole turns: it begins behind a batch that was
// waited for long, and ends with another one. Long is kLong of the longest wait
// at least, if that is more than kLongest of all waits together; otherwise a
// measurement may end anywhere. A long wait that none follows within
// kLongestTurn batches was a pause, and is left out.
constexpr int kLongestTurn = 33;
constexpr int kMostMeasured = 2 * kLongestTurn + 4;
constexpr double kLong = 0.5;
constexpr double kLongest = 0.25;

// If the time stays as it was with the portion before, a device that is late
// may work at a long queue of those batches: for so many batches more.
constexpr int kDrained = 34;
constexpr double kAsBefore = 0.05;

// Of the time, what the CPU works if it is late: threads lose the rest. Between
// the two numbers both sides may be late, by turns.
constexpr double kBusy = 0.82;
constexpr double kHalfBusy = 0.65;

// A greater portion is worth it if it saves this part of the time. Else the CPU
// may as well work.
constexpr double kWorthIt = 0.02;

// Something has changed if two measurements in turn differ from what is known:
// in the time by this part of it, or in the CPU's work by this factor.
constexpr double kOtherTime = 0.15;
constexpr double kOtherWork = 1.3;

// A neighbour that was worse is measured again after kPatience times as many
// batches as that took the last time: so this takes 2 % of them. If it was more
// than kFarWorse times as slow, it waits longer, by as much as it was slower.
constexpr double kPatience = 50;
constexpr double kFarWorse = 2;
// Within the first batches, which may have been slow, it is measured again once
// behind kEarlyPatience, but not if it took kNotNear times as long.
constexpr int64_t kEarly = 200;
constexpr double kEarlyPatience = 40;
constexpr double kNotNear = 1.15;
// Of at least kProbing batches one is a probe. The slower probes are, the
// rarer: by kPatience they lose 2 % of the time at most. One that is faster, by
// kOtherProbe, tells little, as a load holds up some batches and not others:
// more follow it, and kFastProbes in turn are believed.
constexpr double kProbing = 16;
constexpr double kOtherProbe = 1.5;
constexpr int kFastProbes = 5;
// A visit that probes led to may turn out to be wrong. The wait for the next
// one makes what was lost 2 % of the time. After the first wrong visit it is an
// eighth of that, after each further one in turn twice as long, up to all of
// it.
constexpr int kMostRefuted = 4;
// A trial from which the tuner has not returned after so many batches has found
// something better.
constexpr int kLongestTrial = 200;

bool Differs(double nanos, double from) {
  return std::abs(nanos - from) > kOtherTime * from;
}

bool IsOtherWork(double times) {
  return times > kOtherWork || times < 1 / kOtherWork;
}

}  // namespace

bool PortionTuner::Mean::IsCpuLate() const { return work > kBusy * nanos; }

void PortionTuner::Record(const HandedOut& batch) {
  ++since_trial_;
  HandedOut counted = batch;
  if (batch.portion + 1 == portion_ && num_batches_ > kSettling &&
      known_[portion_].is_measured) {
    AddProbe(batch.work);
    // When it was handed out says how fast those before it were.
    counted.portion = portion_;
    counted.work = static_cast<int64_t>(known_[portion_].mean.work);
  }
  if (counted.portion != portion_ || !counted.since.has_value() ||
      ++num_batches_ <= kSettling) {
    return;
  }
  ++since_probe_;
  if (IsProbeDue()) {
    since_probe_ = 0;
    is_probe_due_ = true;
  }
  measured_.push_back(counted);
  const std::optional<Mean> window = EndWindow();
  if (!window.has_value()) return;
  if (std::abs(window->nanos - left_nanos_) < kAsBefore * left_nanos_) {
    is_queued_ = true;
  }
  if (is_queued_ && num_batches_ < kDrained) return;
  if (!Update(*window)) return;
  const int towards = known_[portion_].mean.IsCpuLate() ? 1 : -1;
  for (const int portion : {portion_ + towards, portion_ - towards}) {
    const Verdict verdict = Judge(portion);
    if (verdict == Verdict::kStay) continue;
    return MoveTo(portion, verdict == Verdict::kTrial);
  }
}

std::optional<PortionTuner::Mean> PortionTuner::EndWindow() {
  const int least = std::max(kMeasured, turn_);
  const int num_measured = static_cast<int>(measured_.size());
  if (num_measured <= least) return std::nullopt;
  int64_t longest = 0, total = 0;
  for (const HandedOut& batch : measured_) {
    longest = std::max(longest, *batch.since);
    total += *batch.since;
  }
  // If no time is long beside all of them it does not matter where they end.
  const double least_long = longest > kLongest * total ? kLong * longest : 0;
  const auto is_long = [least_long](const HandedOut& batch) {
    return *batch.since >= least_long;
  };
  auto begin = std::find_if(measured_.begin(), measured_.end(), is_long) + 1;
  const bool is_whole =
      is_long(measured_.back()) && measured_.end() - begin >= least;
  if (!is_whole && num_measured < kMostMeasured) return std::nullopt;
  turn_ = 1;
  int num_short = 0;
  for (auto batch = begin; batch != measured_.end(); ++batch) {
    num_short = is_long(*batch) ? 0 : num_short + 1;
    turn_ = std::max(turn_, num_short + 1);
  }
  const bool by_turns = is_whole && turn_ <= kLongestTurn;
  if (!by_turns) {
    turn_ = 1;
    measured_.erase(std::remove_if(measured_.begin(), measured_.end(), is_long),
                    measured_.end());
    begin = measured_.begin();
  }
  double since = 0, work = 0;
  for (auto batch = begin; batch != measured_.end(); ++batch) {
    since += *batch->since;
    work += batch->work;
  }
  const double num = measured_.end() - begin;
  // The last batch ends this measurement, and begins the next one.
  measured_.erase(measured_.begin(), measured_.end() - (by_turns ? 1 : 0));
  return Mean{std::max(1.0, since / num), std::max(1.0, work / num)};
}

bool PortionTuner::Update(const Mean& window) {
  Known& here = known_[portion_];
  const bool is_told = here.is_told;
  if (!std::exchange(here.is_measured, true)) {
    here.mean = window;
    return true;
  }
  // What other portions told of the CPU may hold for this one in part only.
  const double scale = std::exchange(here.scale, 1);
  if (scale != 1 &&
      window.work * kOtherWork > here.mean.work / std::max(1.0, scale) &&
      window.work < kOtherWork * here.mean.work / std::min(1.0, scale)) {
    here.mean.work = window.work;
  }
  const Mean before = here.mean;
  if (!Differs(window.nanos, before.nanos) &&
      !IsOtherWork(window.work / before.work)) {
    is_new_ = false;
    here.is_told = false;
    here.mean.nanos += (window.nanos - before.nanos) / 2;
    here.mean.work += (window.work - before.work) / 8;
    return true;
  }
  is_new_ = !is_new_;
  if (is_new_) return false;
  here.mean = window;
  here.is_told = false;
  if (!is_told) UpdateOthers(before, window);
  return true;
}

void PortionTuner::UpdateOthers(const Mean& before, const Mean& now) {
  const bool is_other_side = before.IsCpuLate() != now.IsCpuLate();
  const bool is_other_device =
      is_other_side || (!now.IsCpuLate() && Differs(now.nanos, before.nanos));
  const double times = now.work / before.work;
  // Workers that work all the time hold each other up a little.
  const bool is_other_cpu = !is_other_side || IsOtherWork(times);
  if (is_other_device) patience_with_probes_ = 0;
  for (Known& other : known_) {
    if (&other == &known_[portion_]) continue;
    if (is_other_device && !other.mean.IsCpuLate()) other = {};
    if (!is_other_cpu) continue;
    if (other.mean.IsCpuLate()) other.mean.nanos *= times;
    other.mean.work *= times;
    other.scale *= times;
    other.mean.nanos = std::max(other.mean.nanos, other.mean.work);
  }
}

bool PortionTuner::IsProbeDue() const {
  const Known& here = known_[portion_];
  if (portion_ == 0 || !here.is_measured || here.mean.IsCpuLate()) return false;
  const Known& probed = known_[portion_ - 1];
  if (!probed.is_measured || !probed.mean.IsCpuLate()) return false;
  const double longer = probed.mean.nanos / here.mean.nanos - 1;
  return since_probe_ >= std::max(kProbing, kPatience * longer);
}

void PortionTuner::AddProbe(double work) {
  Known& probed = known_[portion_ - 1];
  Mean& mean = probed.mean;
  if (!probed.is_measured || !mean.IsCpuLate()) return;
  const bool is_fast = work * kOtherProbe < mean.work;
  num_fast_probes_ = is_fast ? num_fast_probes_ + 1 : 0;
  const bool is_believed = num_fast_probes_ == kFastProbes;
  is_probe_due_ = is_fast;
  if (is_believed) {
    num_fast_probes_ = 0;
    mean = {work, work};
  } else {
    work = std::clamp(work, mean.work / kOtherProbe, mean.work * kOtherProbe);
    mean.nanos += (work - mean.nanos) / 8;
    mean.work += (work - mean.work) / 8;
  }
  probed.scale = 1;
  probed.is_told = true;
  is_probed_better_ = IsBetter(portion_ - 1);
  // What is believed is measured as if it never was.
  probed.is_measured = !is_believed || !is_probed_better_;
}

bool PortionTuner::IsBetter(int portion) const {
  const bool is_greater = portion > portion_;
  const double lower = known_[is_greater ? portion_ : portion].mean.nanos;
  const double greater = known_[is_greater ? portion : portion_].mean.nanos;
  return is_greater == (greater <= (1 - kWorthIt) * lower);
}

PortionTuner::Verdict PortionTuner::Judge(int portion) const {
  if (portion < 0 || portion >= static_cast<int>(kEighths.size())) {
    return Verdict::kStay;
  }
  const Mean& here = known_[portion_].mean;
  const bool is_measured = known_[portion].is_measured;
  const bool is_better = is_measured && IsBetter(portion);
  if ((portion > portion_) != here.IsCpuLate()) {
    // Not that of the side that is late.
    const bool both_late =
        is_measured ? is_better : here.work > kHalfBusy * here.nanos;
    return portion > portion_ && both_late ? Verdict::kMove : Verdict::kStay;
  }
  if (portion < portion_ && num_batches_ < patience_with_probes_) {
    return Verdict::kStay;
  }
  if (!is_measured || is_better) return Verdict::kMove;
  if (portion < portion_ && known_[portion].mean.IsCpuLate())
    return Verdict::kStay;
  const double times = known_[portion].mean.nanos / here.nanos;
  double patience = kPatience * trial_length_;
  if (is_early_ && since_trial_ < kEarly && times < kNotNear) {
    patience = kEarlyPatience;
  }
  if (times > kFarWorse) patience *= times;
  return num_batches_ < patience ? Verdict::kStay : Verdict::kTrial;
}

void PortionTuner::MoveTo(int portion, bool is_trial) {
  patience_with_probes_ = 0;
  if (portion == trial_from_) {
    trial_from_ = -1;
    if (since_trial_ >= kLongestTrial) {
      num_refuted_ = 0;
    } else {
      trial_length_ = since_trial_;
      if (portion > portion_ && known_[portion].is_measured) {
        num_refuted_ = std::min(num_refuted_ + 1, kMostRefuted);
        const double longer =
            known_[portion_].mean.nanos / known_[portion].mean.nanos - 1;
        patience_with_probes_ = std::ldexp(kPatience * trial_length_ * longer,
                                           num_refuted_ - kMostRefuted);
      }
    }
  }
  if (is_trial || (portion < portion_ && is_probed_better_)) {
    is_early_ = false;
    trial_from_ = portion_;
    since_trial_ = 0;
  }
  is_probed_better_ = false;
  // If the CPU is late nothing is queued.
  const Mean& here = known_[portion_].mean;
  left_nanos_ = here.IsCpuLate() ? 0 : here.nanos;
  portion_ = portion;
  num_batches_ = 0;
  since_probe_ = 0;
  is_queued_ = is_probe_due_ = false;
  num_fast_probes_ = 0;
  measured_.clear();
  is_new_ = false;
}

}  // namespace refurbish_tf

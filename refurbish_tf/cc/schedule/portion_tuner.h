// Which portion of each batch an accelerator finishes in place of the CPU.
//
// The idea is FusionFlow's (Kim et al., VLDB 2023, section 5.2.2): more is
// given to the side that has time. While the CPU works all the time, a greater
// portion can only help it; while it rests, a smaller one can only help the
// device. So measurements are compared where both hold: one portion keeps the
// CPU busy, and the next one the device, or both are so by turns. There the
// tuner stays at the better.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace refurbish_tf {

// Reads no clock: the portions are a function of what is recorded. Not
// thread-safe.
class PortionTuner {
 public:
  // The portions of a batch that the accelerator does, in eighths.
  static constexpr std::array<int, 5> kEighths = {0, 1, 2, 4, 8};

  // Times in nanoseconds.
  struct HandedOut {
    int portion;  // Index into kEighths with which the batch was made.
    // From the batch before to this one, if it is of the same iterator.
    std::optional<int64_t> since;
    int64_t work;  // See `Work`.
  };

  // How long the CPU was busy with a batch: the time of all workers, over their
  // number, or that of reading the input, which is one worker's at a time.
  static int64_t Work(int64_t fetch, int64_t run, int num_workers) {
    return std::max(fetch, (fetch + run) / std::max(1, num_workers));
  }

  // The portion for the next batch that is begun, as an index into kEighths.
  int Begin() {
    if (!is_probe_due_) return portion_;
    is_probe_due_ = false;
    return portion_ - 1;
  }

  // The portion without probes.
  int portion() const { return portion_; }

  void Record(const HandedOut& batch);

 private:
  // A mean of some batches.
  struct Mean {
    double nanos = 1;  // From one batch to the next.
    double work = 1;   // How long the CPU was busy with one.
    bool IsCpuLate() const;
  };
  struct Known {
    Mean mean;
    bool is_measured = false;
    bool is_told = false;  // By probes, since then.
    // How many times slower the CPU has become since `mean` was measured, as
    // measurements of other portions tell. `mean` allows for it already.
    double scale = 1;
  };

  // What was measured, if that is enough.
  std::optional<Mean> EndWindow();
  // Adds it to what is known of the portion. False if it differs from that, and
  // the one before did not: only two in turn are believed.
  bool Update(const Mean& window);
  // After a change.
  void UpdateOthers(const Mean& before, const Mean& now);
  bool IsBetter(int portion) const;
  // Of a neighbour. A trial measures again one that was worse, if no probe can
  // tell.
  enum class Verdict { kStay, kMove, kTrial };
  Verdict Judge(int portion) const;
  // A probe is a single batch of the next smaller portion, if the CPU was late
  // there. Its work tells whether it still would be. That of the batches of
  // `portion_` does not: a CPU that has little to do does it as fast under a
  // load as without.
  bool IsProbeDue() const;
  void AddProbe(double work);
  void MoveTo(int portion, bool is_trial);

  int portion_ = 0;
  std::array<Known, kEighths.size()> known_;
  // Batches since the last trial began, how many it took, and where it leads
  // back to.
  int64_t since_trial_ = 0;
  int64_t trial_length_ = 14;
  int trial_from_ = -1;
  bool is_early_ = true;  // There was no trial.
  // The length of the last turn, in batches.
  int turn_ = 1;

  // Since the tuner has moved to `portion_`:
  int64_t num_batches_ = 0;
  std::vector<HandedOut> measured_;
  bool is_new_ = false;    // The last measurement was.
  double left_nanos_ = 0;  // Of the portion before, if its batches are queued.
  bool is_queued_ = false;
  int since_probe_ = 0;  // Batches.
  bool is_probe_due_ = false;
  int num_fast_probes_ = 0;        // In turn.
  bool is_probed_better_ = false;  // Probes say that their portion is better.
  // How often in turn that was wrong, and for how many batches behind the last
  // time it is not followed.
  int num_refuted_ = 0;
  double patience_with_probes_ = 0;
};

}  // namespace refurbish_tf

// Which share of each batch an accelerator finishes in place of the CPU.
//
// The idea is FusionFlow's (Kim et al., VLDB 2023, section 5.2.2): more is
// given to the side that has time. While the CPU works all the time, a greater
// share can only help it; while it rests, a smaller one can only help the
// device. So measurements are compared where both hold: one share keeps the CPU
// busy, and the next one the device, or both are so by turns. There the tuner
// stays at the better.
#ifndef REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_
#define REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace refurbish_tf {

// Reads no clock: the shares are a function of what is recorded. Not
// thread-safe.
class ShareTuner {
 public:
  // The shares of a batch that the accelerator does, in eighths.
  static constexpr std::array<int, 5> kEighths = {0, 1, 2, 4, 8};

  // Times in nanoseconds.
  struct HandedOut {
    int share;      // Index into kEighths with which the batch was made.
    int64_t since;  // From the batch before to this one.
    int64_t work;   // See `Work`.
  };

  // How long the CPU was busy with a batch: the time of all workers, over their
  // number, or that of reading the input, which is one worker's at a time.
  static int64_t Work(int64_t fetch, int64_t run, int num_workers) {
    return std::max(fetch, (fetch + run) / std::max(1, num_workers));
  }

  // The share for the next batch that is begun, as an index into kEighths.
  int Next() const { return share_; }

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
    // So many times the CPU has become slower since, by what other shares told.
    double scale = 1;
  };

  // What was measured, if that is enough.
  std::optional<Mean> TakeWindow();
  // Takes it into what is known of the share. False for something new, which
  // is believed when the next one is new, too.
  bool Update(const Mean& window);
  // After a change.
  void UpdateOthers(const Mean& before, const Mean& now);
  // The CPU takes so many times as long as it did.
  void ScaleOthers(double times);
  bool IsBetter(int share) const;
  // Of a neighbour. A trial measures again one that was worse.
  enum class Verdict { kStay, kMove, kTrial };
  Verdict Judge(int share) const;
  void MoveTo(int share, bool is_trial);

  int share_ = 0;
  std::array<Known, kEighths.size()> known_;
  // Batches since the last trial began, how many it took, and where it leads
  // back to.
  int64_t since_trial_ = 0;
  int64_t trial_length_ = 14;
  int trial_from_ = -1;
  bool is_early_ = true;  // The next trial is due soon.
  // The length of the last turn, in batches.
  int turn_ = 1;

  // Since the tuner has moved to `share_`:
  int64_t num_batches_ = 0;
  std::vector<HandedOut> measured_;
  bool is_new_ = false;    // The last measurement was.
  double left_nanos_ = 0;  // Of the share before, if its batches are queued.
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_

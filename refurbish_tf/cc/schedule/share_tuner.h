// Which share of each batch an accelerator finishes in place of the CPU.
//
// The idea is FusionFlow's (Kim et al., VLDB 2023, section 5.2.2): more is
// given to the side that has time. While the CPU works all the time, a greater
// share can only help it; while it rests, a smaller one can only help the
// device. So measurements are only compared where both hold: one share keeps
// the CPU busy, and the next one the device. There the tuner stays at the
// better.
#ifndef REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_
#define REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_

#include <array>
#include <cstdint>
#include <optional>

namespace refurbish_tf {

// Reads no clock: the shares are a function of what is recorded. Not
// thread-safe.
class ShareTuner {
 public:
  // The shares of a batch that the accelerator does, in eighths.
  static constexpr std::array<int, 5> kEighths = {0, 1, 2, 4, 8};

  struct HandedOut {
    int share;          // Index into kEighths with which the batch was made.
    int64_t now_nanos;  // When it was handed out.
    // How long the CPU worked at it: the time of all workers, over their
    // number.
    int64_t work_nanos;
  };

  // The share for the next batch that is begun, as an index into kEighths.
  int Next() const { return share_; }

  void Record(const HandedOut& batch);

 private:
  static constexpr int kLeastPatience = 100;

  // A mean of some batches.
  struct Mean {
    double nanos = 0;       // From one batch to the next.
    double work_nanos = 0;  // The CPU's.
    bool IsCpuLate() const;
  };
  struct Known {
    Mean mean;
    int num_windows = 0;  // 0: the share was not measured.
    bool cpu_is_late = false;
  };

  bool IsPause(int64_t nanos);
  // Takes what was measured into what is known of the share. False for
  // something new, which is believed when it comes again.
  bool Update(const Mean& window);
  // The CPU has become so much faster, or slower.
  void UpdateOthers(const Mean& window, double speed);
  // Whether the neighbour is better, or is to be measured.
  bool IsWanted(int share);
  bool IsBetter(int share) const;
  void MoveTo(int share);

  int share_ = 0;
  std::array<Known, kEighths.size()> known_;
  // Of batches with `share_`: how many went by, how many of these are
  // measured, and the sum of those.
  int num_batches_ = 0;
  int num_measured_ = 0;
  Mean sum_;
  std::optional<Mean> new_;  // See `Update`.
  double left_nanos_ = 0;    // Of the share before, if that was greater.
  int patience_ = kLeastPatience;
  int64_t last_nanos_ = 0;
  double usual_nanos_ = 0;
  int num_pauses_ = 0;  // In a row.
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_

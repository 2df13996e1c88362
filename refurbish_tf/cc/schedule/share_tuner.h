// Which share of each batch an accelerator finishes in place of the CPU.
//
// The idea is FusionFlow's (Kim et al., VLDB 2023, section 5.2.2): after each
// batch more is given to the side that waited. Theirs stops when the share
// oscillates. This one goes on between two neighbours, by what each batch
// finds: batches of the greater share while the consumer waits, of the smaller
// while finished ones pile up. With something queued between the two sides both
// are then always at work, which is at least as good as either share alone; and
// there is nothing to measure through batches that are still queued, and
// nothing to try.
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
    int64_t
        waited_nanos;  // How long the consumer waited for it; 0: not at all.
    // Finished batches filled the stage's room when it was asked for, so the
    // workers slept.
    bool room_was_full;
    int num_queued;  // Batches begun and not yet handed out, this one left out.
    // How long the CPU worked at it: the time of all workers, over their
    // number.
    int64_t work_nanos;
  };

  // The share for the next batch that is begun, as an index into kEighths.
  int Next() const { return share_; }

  void Record(const HandedOut& batch);

 private:
  enum class Side { kNeither, kCpuIsLate, kDeviceIsLate };

  // So many batches, and those that the stage has queued, are to show that both
  // neighbours are too small or too great. What a prefetch holds cannot be
  // seen: when it is deep, the shares swing to and fro in step with it, so the
  // patience doubles each time that the pair turns back.
  static constexpr int kLeastPatience = 4;
  static constexpr int kMostPatience = 16;

  void MovePair(Side late);
  Side Late(const HandedOut& batch) const;
  void UpdateTimes(const HandedOut& batch, Side late);
  bool LowerKeepsUp(const HandedOut& batch);

  int lower_ = 0;  // Of the two neighbours.
  int share_ = 0;
  int evidence_ =
      0;  // Batches for which the share on the late side was no help.
  int patience_ = kLeastPatience;
  Side moved_for_ = Side::kNeither;
  std::array<double, kEighths.size()> work_nanos_ = {};  // 0: not known.
  double interval_nanos_ = 0;
  double device_nanos_ = 0;   // Between two batches while the device is late.
  double refused_nanos_ = 0;  // Since the smaller share was last tried.
  std::optional<int64_t> last_nanos_;
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_SCHEDULE_SHARE_TUNER_H_

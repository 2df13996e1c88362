"""Which share of a batch the accelerator finishes."""
from support.mutants import Mutant

SHARE_TUNER_TEST = "tests/test_cc.py::test_cc[address_undefined-share_tuner_test]"
SHARE_TUNER = "refurbish_tf/cc/schedule/share_tuner.cc"
SHARE_TUNER_HEADER = "refurbish_tf/cc/schedule/share_tuner.h"


def _mutant(name, text, instead, file=SHARE_TUNER):
  return Mutant(name, file, text, instead, SHARE_TUNER_TEST)


MUTANTS = [
    # What is measured.
    _mutant("batches of another share are measured", "if (batch.share != share_ || ++", "if (++"),
    _mutant("what was queued before is measured", "++num_batches_ <= kSettling", "++num_batches_ <= 0"),
    _mutant("a measurement begins and ends anywhere", "longest > kLongest * total", "longest < 0"),
    _mutant("what is measured when no time is long waits for one", "longest > kLongest * total", "longest > 0"),
    _mutant("a pause is an interval as any other", "std::remove_if(measured_.begin(), measured_.end(), is_long)",
            "measured_.end()"),
    _mutant("training takes few batches at once", "kLongestTurn = 33", "kLongestTurn = 10"),
    _mutant("it is forgotten how many batches training takes at once", "turn_ = std::max(turn_, num_short + 1);", ""),
    _mutant("a long queue of the share before is measured", "if (is_as_before && num_batches_ < kDrained) return;",
            "if (is_as_before && num_batches_ < 0) return;"),
    _mutant("behind a late CPU batches are queued", "here.IsCpuLate() ? 0 : here.nanos;", "here.nanos;"),
    # What is known.
    _mutant("what is new is believed at once", "if (is_new_) return false;", ""),
    _mutant("what is new is never believed", "is_new_ = !is_new_;", "is_new_ = true;"),
    _mutant("something new stays so", "    is_new_ = false;\n    here.mean.nanos", "    here.mean.nanos"),
    _mutant("the first measurement counts for ever", "    here.mean.nanos += (window.nanos - before.nanos) / 2;\n", ""),
    _mutant("the first work counts for ever", "    here.mean.work += (window.work - before.work) / 8;\n", ""),
    _mutant("what other shares tell of the CPU holds", "  if (scale != 1 &&\n", "  if (scale == 0 &&\n"),
    _mutant("what other shares tell of the CPU is forgotten", "    other.scale *= times;\n", ""),
    _mutant("a CPU that drifts does so for one share", "    ScaleOthers(here.mean.work / before.work);\n", ""),
    _mutant("a CPU that jumps does so for one share", "IsOtherWork(times)) ScaleOthers(times);", "IsOtherWork(times)) ScaleOthers(1);"),
    _mutant("only the time tells that the CPU is another", "&&\n      !IsOtherWork(window.work / before.work)) {", ") {"),
    _mutant("another device is so for one share", "if (is_other_device && !other.mean.IsCpuLate()) other = {};", ""),
    # What is done.
    _mutant("the share does not shrink", "IsCpuLate() ? 1 : -1;", "IsCpuLate() ? 1 : 1;"),
    _mutant("the other side is never late", "share_ + towards, share_ - towards", "share_ + towards, share_ + towards"),
    _mutant("workers lose no time", "kBusy = 0.82", "kBusy = 0.99"),
    _mutant("workers lose much time", "kBusy = 0.82", "kBusy = 0.6"),
    _mutant("a greater share need not be worth it", "kWorthIt = 0.02", "kWorthIt = 0"),
    _mutant("the worse neighbour", "return is_greater == (", "return is_greater != ("),
    _mutant("a neighbour is tried often", "kPatience = 50", "kPatience = 25"),
    _mutant("a neighbour that takes far longer is tried as often", "if (times > kFarWorse) patience *= times;", ""),
    _mutant("a trial that took long is no reason to wait", "trial_length_ = since_trial_;", "{}"),
    _mutant("a trial that was kept is one", "if (since_trial_ < kLongestTrial) trial_length_", "trial_length_"),
    _mutant("all neighbours are tried soon", "kNotNear = 1.15", "kNotNear = 100"),
    _mutant("no neighbour is tried soon", "kNotNear = 1.15", "kNotNear = 0"),
    _mutant("each neighbour is tried soon for ever", "    is_early_ = false;\n", ""),
    _mutant("after a change no neighbour is tried soon", "  if (since_trial_ > kSoon) is_early_ = true;\n", ""),
    _mutant("what does not come back soon comes back", "is_whole && turn_ <= kLongestTurn;", "is_whole;"),
    _mutant("a worker that reads is one of many", "std::max(fetch, (fetch + run) / std::max(1, num_workers));",
            "(fetch + run) / std::max(1, num_workers);", SHARE_TUNER_HEADER),
]

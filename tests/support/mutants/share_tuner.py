"""Which share of a batch the accelerator finishes."""
from support.mutants import Mutant

SHARE_TUNER_TEST = "tests/test_cc.py::test_cc[address_undefined-share_tuner_test]"
SHARE_TUNER = "refurbish_tf/cc/schedule/share_tuner.cc"


def _mutant(name, text, instead):
  return Mutant(name, SHARE_TUNER, text, instead, SHARE_TUNER_TEST)


MUTANTS = [
    # What is measured.
    _mutant("batches of another share are measured", "  if (batch.share != share_) return;\n", ""),
    _mutant("what was queued before is measured", "kSettling = 4", "kSettling = 0"),
    _mutant("a pause is an interval as any other", "nanos > kPause * usual", "nanos < 0 * usual"),
    _mutant("all that takes longer is a pause", "num_pauses_ < kMostPauses", "num_pauses_ >= 0"),
    _mutant("a pause is measured by what another share took", "num_measured_ > 0 ? sum_.nanos / num_measured_ : usual_nanos_",
            "usual_nanos_"),
    _mutant("a long queue of a greater share is measured", "if (is_as_before && num_batches_ < kDrained) return;",
            "if (is_as_before && num_batches_ < 0) return;"),
    # What is known.
    _mutant("what is new is believed at once", "if (!new_.has_value() || Differs(window.nanos, new_->nanos)) {",
            "if (new_.has_value() && Differs(window.nanos, new_->nanos)) {"),
    _mutant("any two that are new are one", "if (!new_.has_value() || Differs(window.nanos, new_->nanos)) {",
            "if (!new_.has_value()) {"),
    _mutant("the first measurement counts for ever", "    here.mean.nanos += (window.nanos - here.mean.nanos) / 2;\n", ""),
    _mutant("the first work counts for ever", "    here.mean.work_nanos += (window.work_nanos - here.mean.work_nanos) / 8;\n",
            ""),
    _mutant("who was late first is for ever", "    here.cpu_is_late = here.mean.IsCpuLate();\n", ""),
    _mutant("what fills the room is a slow CPU", "if (++here.num_windows <= kFirstWindows) {", "if (here.num_windows++ < 0) {"),
    _mutant("a busy CPU that is slower is so for one share", "other.mean.nanos *= window.nanos / here.mean.nanos;",
            "other.mean.nanos *= 1;"),
    _mutant("a CPU with time left that is slower is so for one share", "other.mean.nanos /= speed;", "other.mean.nanos /= 1;"),
    _mutant("a CPU with time left that is faster is so for one share", "1 / speed < kOtherSpeed) {\n      other = {};",
            "1 / speed < 0) {\n      other = {};"),
    # What is done.
    _mutant("the share does not shrink", "cpu_is_late ? 1 : -1;", "cpu_is_late ? 1 : 1;"),
    _mutant("the other side is never late", "share_ + towards, share_ - towards", "share_ + towards, share_ + towards"),
    _mutant("workers lose no time", "kBusy = 0.82", "kBusy = 0.99"),
    _mutant("workers lose much time", "kBusy = 0.82", "kBusy = 0.6"),
    _mutant("a greater share need not be worth it", "kWorthIt = 0.02", "kWorthIt = 0"),
    _mutant("the worse neighbour", "return is_greater == (", "return is_greater != ("),
    _mutant("what can only be mended is measured", "neighbour.cpu_is_late == here.cpu_is_late ||", ""),
    _mutant("all neighbours are tried soon", "kFarWorse = 1.25", "kFarWorse = 100"),
    _mutant("no neighbour is tried soon", "kFarWorse = 1.25", "kFarWorse = 0"),
    _mutant("the patience does not grow", "std::min(2 * patience_, kMostPatience)", "kLeastPatience"),
    _mutant("the patience stays after a change", "  patience_ = kLeastPatience;\n", ""),
]

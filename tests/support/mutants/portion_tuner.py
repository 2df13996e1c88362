"""Which portion of a batch the accelerator finishes."""
from support.mutants import Mutant

PORTION_TUNER_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-portion_tuner_test]"
PORTION_TUNER = "refurbish_tf/cc/schedule/portion_tuner.cc"
PORTION_TUNER_HEADER = "refurbish_tf/cc/schedule/portion_tuner.h"


def _mutant(name, text, instead, file=PORTION_TUNER):
  return Mutant(name, file, text, instead, PORTION_TUNER_TEST)


MUTANTS = [
    # What is measured.
    _mutant("batches of another portion are measured", "if (counted.portion != portion_ || !", "if (!"),
    _mutant("what was queued before is measured", "++num_batches_ <= kSettling", "++num_batches_ <= 0"),
    _mutant("a measurement begins and ends anywhere", "longest > kLongest * total", "longest < 0"),
    _mutant("what is measured when no time is long waits for one", "longest > kLongest * total", "longest > 0"),
    _mutant("a pause is an interval as any other", "std::remove_if(measured_.begin(), measured_.end(), is_long)",
            "measured_.end()"),
    _mutant("training takes few batches at once", "kLongestTurn = 33", "kLongestTurn = 10"),
    _mutant("it is forgotten how many batches training takes at once", "turn_ = std::max(turn_, num_short + 1);", ""),
    _mutant("a long queue of the portion before is measured", "if (is_queued_ && num_batches_ < kDrained) return;",
            ""),
    _mutant("a queue that is partly of the portion before is measured", "    is_queued_ = true;\n",
            "    if (num_batches_ < kDrained) return;\n"),
    _mutant("behind a late CPU batches are queued", "here.IsCpuLate() ? 0 : here.nanos;", "here.nanos;"),
    # What is known.
    _mutant("what is new is believed at once", "if (is_new_) return false;", ""),
    _mutant("what is new is never believed", "is_new_ = !is_new_;", "is_new_ = true;"),
    _mutant("something new stays so", "    is_new_ = false;\n    here.is_told", "    here.is_told"),
    _mutant("the first measurement counts for ever", "    here.mean.nanos += (window.nanos - before.nanos) / 2;\n", ""),
    _mutant("the first work counts for ever", "    here.mean.work += (window.work - before.work) / 8;\n", ""),
    _mutant("what other portions tell of the CPU holds", "  if (scale != 1 &&\n", "  if (scale == 0 &&\n"),
    _mutant("what other portions tell of the CPU is forgotten", "    other.scale *= times;\n", ""),
    _mutant("a CPU that jumps does so for one portion", "    if (!is_other_cpu) continue;\n", "    continue;\n"),
    _mutant("only the time tells that the CPU is another", "&&\n      !IsOtherWork(window.work / before.work)) {", ") {"),
    _mutant("another device is so for one portion", "if (is_other_device && !other.mean.IsCpuLate()) other = {};", ""),
    # What is done.
    _mutant("the portion does not shrink", "IsCpuLate() ? 1 : -1;", "IsCpuLate() ? 1 : 1;"),
    _mutant("the other side is never late", "portion_ + towards, portion_ - towards", "portion_ + towards, portion_ + towards"),
    _mutant("workers lose no time", "kBusy = 0.82", "kBusy = 0.99"),
    _mutant("workers lose much time", "kBusy = 0.82", "kBusy = 0.6"),
    _mutant("a greater portion need not be worth it", "kWorthIt = 0.02", "kWorthIt = 0"),
    _mutant("the worse neighbour", "return is_greater == (", "return is_greater != ("),
    _mutant("a neighbour is tried often", "kPatience = 50", "kPatience = 25"),
    _mutant("a neighbour that takes far longer is tried as often", "if (times > kFarWorse) patience *= times;", ""),
    _mutant("a trial that took long is no reason to wait", "trial_length_ = since_trial_;", "{}"),
    _mutant("a trial that was kept is one", "if (since_trial_ >= kLongestTrial) {", "if (false) {"),
    _mutant("a neighbour of which probes tell is tried, too",
            "  if (portion < portion_ && known_[portion].mean.IsCpuLate())\n    return Verdict::kStay;\n", ""),
    _mutant("all neighbours are tried soon", "kNotNear = 1.15", "kNotNear = 100"),
    _mutant("no neighbour is tried soon", "kNotNear = 1.15", "kNotNear = 0"),
    _mutant("each neighbour is tried soon for ever", "    is_early_ = false;\n", ""),
    _mutant("a neighbour is tried soon at any time", "is_early_ && since_trial_ < kEarly &&", "is_early_ &&"),
    _mutant("no batch is a probe", "  if (IsProbeDue()) {", "  if (false) {"),
    _mutant("what is left of a portion is a probe", "&& num_batches_ > kSettling &&", "&&"),
    _mutant("the time of a probe is lost", "    counted.portion = portion_;\n", ""),
    _mutant("the first batch of an iterator is no probe", "if (batch.portion + 1 == portion_ &&", "if (batch.since.has_value() && batch.portion + 1 == portion_ &&"),
    _mutant("a probe is believed at once", "kFastProbes = 5", "kFastProbes = 1"),
    _mutant("odd probes add up", "num_fast_probes_ + 1 : 0;", "num_fast_probes_ + 1 : num_fast_probes_;"),
    _mutant("a probe that is fast waits for its turn", "  is_probe_due_ = is_fast;\n", ""),
    _mutant("probes tell only of what is far from known", "    mean.work += (work - mean.work) / 8;\n", ""),
    _mutant("a time that was too long stays", "    mean.nanos += (work - mean.nanos) / 8;\n", ""),
    _mutant("probes that are far off count in full", "    work = std::clamp(work, mean.work / kOtherProbe, mean.work * kOtherProbe);\n", ""),
    _mutant("probes that take long are made as often", "std::max(kProbing, kPatience * longer);", "kProbing;"),
    _mutant("a late CPU is probed, too", "!here.is_measured || here.mean.IsCpuLate()) return", "!here.is_measured) return"),
    _mutant("what is believed is not measured anew", "  probed.is_measured = !is_believed || !is_probed_better_;\n", ""),
    _mutant("what probes told is a change of all portions", "  if (!is_told) UpdateOthers(before, window);", "  UpdateOthers(before, window);"),
    _mutant("a visit that was wrong is made again at once", "  if (portion < portion_ && num_batches_ < patience_with_probes_) {", "  if (false) {"),
    _mutant("each visit that is wrong is as the first", "std::min(num_refuted_ + 1, kMostRefuted);", "1;"),
    _mutant("another device does not count", "  if (is_other_device) patience_with_probes_ = 0;\n", ""),
    _mutant("a visit that was right is wrong", "      num_refuted_ = 0;\n", ""),
    _mutant("visits of a portion that was not measured are wrong", "if (portion > portion_ && known_[portion].is_measured) {", "if (portion > portion_) {"),
    _mutant("a visit is no trial", "if (is_trial || (portion < portion_ && is_probed_better_)) {", "if (is_trial) {"),
    _mutant("what does not come back soon comes back", "is_whole && turn_ <= kLongestTurn;", "is_whole;"),
    _mutant("a worker that reads is one of many", "std::max(fetch, (fetch + run) / std::max(1, num_workers));",
            "(fetch + run) / std::max(1, num_workers);", PORTION_TUNER_HEADER),
]

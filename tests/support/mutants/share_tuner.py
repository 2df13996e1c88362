"""Which share of a batch the accelerator finishes."""
from support.mutants import Mutant

SHARE_TUNER_TEST = "tests/test_cc.py::test_cc[address_undefined-share_tuner_test]"
SHARE_TUNER = "refurbish_tf/cc/schedule/share_tuner.cc"

MUTANTS = [
    Mutant("the share does not grow when the CPU is late", SHARE_TUNER, "lower_ + (late == Side::kCpuIsLate ? 1 : -1)", "lower_ - 1 + 0 * (late == Side::kCpuIsLate)",
           SHARE_TUNER_TEST),
    Mutant("the share does not shrink when finished batches pile up", SHARE_TUNER, "lower_ + (late == Side::kCpuIsLate ? 1 : -1)",
           "lower_ + (late == Side::kCpuIsLate ? 1 : 0)", SHARE_TUNER_TEST),
    Mutant("the pair moves at each batch", SHARE_TUNER, ">= patience_ + batch.num_queued", ">= 1 + 0 * batch.num_queued", SHARE_TUNER_TEST),
    Mutant("the patience does not grow", SHARE_TUNER, "std::min(2 * patience_, kMostPatience)", "kLeastPatience",
           SHARE_TUNER_TEST),
    Mutant("the pair moves before its own share has come through", SHARE_TUNER, "(batch.share > lower_) == (direction > 0)", "direction != 0",
           SHARE_TUNER_TEST),
    Mutant("only one share of the pair", SHARE_TUNER, "wants_lower && LowerKeepsUp(batch) ? lower_ : lower_ + 1",
           "lower_ + 1 + 0 * wants_lower * LowerKeepsUp(batch)", SHARE_TUNER_TEST),
    Mutant("the greater share whenever the room is not full", SHARE_TUNER,
           "(late == Side::kNeither && share_ <= lower_)", "(late == Side::kNeither && share_ < lower_)",
           SHARE_TUNER_TEST),
    Mutant("the smaller share although it takes longer than the queue lasts", SHARE_TUNER,
           "wants_lower && LowerKeepsUp(batch) ?", "wants_lower ?", SHARE_TUNER_TEST),
    Mutant("what was too slow is never tried again", SHARE_TUNER, "if (refused_nanos_ < kRetryAfter * work) return false;",
           "if (refused_nanos_ >= 0) return false;", SHARE_TUNER_TEST),
    Mutant("what was too slow is tried at every other batch", SHARE_TUNER, "refused_nanos_ < kRetryAfter * work",
           "refused_nanos_ < work / kRetryAfter", SHARE_TUNER_TEST),
    Mutant("a slower CPU is slower for the present share alone", SHARE_TUNER, "other *= work / before;",
           "other *= work / work;", SHARE_TUNER_TEST),
    Mutant("a pause is an interval as any other", SHARE_TUNER, "std::min(value, 4 * *average)", "value",
           SHARE_TUNER_TEST),
    Mutant("the device's time includes waits for the CPU", SHARE_TUNER,
           "    if (late == Side::kDeviceIsLate) {\n", "    if (device_nanos_ >= 0) {\n", SHARE_TUNER_TEST),
    Mutant("a late thread is a slow device", SHARE_TUNER, "constexpr double kLongerWeight = 1.0 / 16;",
           "constexpr double kLongerWeight = 1;", SHARE_TUNER_TEST),
    Mutant("what speaks against a move is not heard", SHARE_TUNER, "evidence_ > 0 ? -1 : evidence_ < 0 ? 1 : 0;", "0;",
           SHARE_TUNER_TEST),
    Mutant("any wait at all is one for the CPU", SHARE_TUNER, "batch.waited_nanos > kLate * interval_nanos_",
           "batch.waited_nanos > 0", SHARE_TUNER_TEST),
    Mutant("shares beyond the last", SHARE_TUNER, "static_cast<int>(kEighths.size()) - 2", "5", SHARE_TUNER_TEST),
]

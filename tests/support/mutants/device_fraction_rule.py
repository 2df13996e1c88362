"""Which fraction of a batch the accelerator finishes."""
from support.mutants import Mutant

DEVICE_FRACTION_RULE_TEST = "tests/cc/test_cc.py::test_cc[address_undefined-device_fraction_rule_test]"


def _mutant(name, text, instead):
  return Mutant(name, "refurbish_tf/cc/plan/device_fraction_rule.h", text, instead, DEVICE_FRACTION_RULE_TEST)


MUTANTS = [
    _mutant("a fraction between two of a device's is the lower one", "    owed_ -= eighths;\n", "    owed_ = 0;\n"),
    _mutant("a fraction that is given changes", "    if (!is_autotuned_) return;\n", ""),
    _mutant("the fraction does not shrink", "      Move(-1);\n", ""),
    _mutant("the fraction grows while batches wait", "waited_ > time_ / kMuch &&", "waited_ < time_ / kMuch &&"),
    _mutant("both sides are never in balance", "waited_ < time_ / kLittle ?", "waited_ < time_ / kMuch ?"),
    _mutant("batches of another fraction are measured", "if (!since.has_value() || batch.fraction != fraction_) return;",
            "if (!since.has_value()) return;"),
    _mutant("beginnings of epochs add up", "    if (!since.has_value()) Forget();\n", ""),
    _mutant("a fall is tried as often however often it is taken back", "std::min(2 * patience_, kMostPatience);", "patience_;"),
    _mutant("a fall that was taken back is never tried as often again", "      if (has_fallen_) patience_ = 1;\n", ""),
]

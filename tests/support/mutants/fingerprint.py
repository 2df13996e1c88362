"""Fingerprints of what samples are prepared with."""
from support.mutants import Mutant

FILE = "refurbish_tf/_internal/fingerprint.py"
TEST = "tests/internal/test_fingerprint.py::"
MUTANTS = [
    Mutant("fingerprint has tokens", FILE, '"shared_name", "token"})', '"shared_name"})', TEST + "test_same_in_other_processes"),
    Mutant("fingerprint without code of Python", FILE, "return code.co_code, code.co_names, constants", "return None",
           TEST + "test_a_changed_function_has_another_one"),
    Mutant("constants must be the same", FILE, "_TOLERANCE = 1e-4", "_TOLERANCE = 0",
           TEST + "test_statistics_come_out_a_bit_different_in_each_run"),
    Mutant("compares across versions", FILE, ' or one["traced_by"] != other["traced_by"]', "",
           TEST + "test_silent_where_it_cannot_be_compared"),
    Mutant("warns of what has prepared nothing", FILE, "if since < end and end >=", "if end >=",
           TEST + "test_another_function_is_warned_of_until_none_of_its_samples_is_left"),
    Mutant("warns permanently", FILE, " and end >= stats.epochs - math.ceil(r) + 2]", "]",
           TEST + "test_another_function_is_warned_of_until_none_of_its_samples_is_left"),
    Mutant("warns of an empty store", FILE, ' if stats.entries else []', "",
           TEST + "test_another_function_is_warned_of_until_none_of_its_samples_is_left"),
]

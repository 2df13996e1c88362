"""What is held over I/O, what is waited for, and how many files are open."""
from support.mutants import Mutant

DISK = "refurbish_tf/cc/store/disk/"
HELD_UP = "tests/cc/test_cc.py::test_cc[address_undefined-held_up_test]"

MUTANTS = [
    Mutant("files are opened with the lock of the reads held", DISK + "read_ahead.cc",
           "  for (Entry* const entry : batch) {\n    if (Open(entry)) reads.push_back(&entry->read);\n  }\n",
           "  lock.lock();\n  for (Entry* const entry : batch) {\n    if (Open(entry)) reads.push_back(&entry->read);\n  }\n"
           "  lock.unlock();\n",
           "tests/cc/test_cc.py::test_cc[address_undefined-disk_store_races_test]"),
    Mutant("a claim makes a file longer", DISK + "shared_state.cc", "seat_ < 0 || !claims_->Has(sample)",
           "seat_ < 0 || !claims_->Reserve(sample).ok()",
           "tests/cc/test_cc.py::test_cc[address_undefined-shared_state_test]"),
    Mutant("settings that are known are locked", DISK + "settings_file.cc",
           "    if (!changed || locked) return", "    if (locked) return", HELD_UP),
    Mutant("an epoch makes no room", "refurbish_tf/cc/cooperation/shared/shared_job.cc",
           "    disk_.MakeRoomFor(plan.keys.InWhole(num_samples - 1) + 1);\n", "",
           "tests/store/test_held_up.py::test_steps_stats_and_the_end_of_an_iterator"),
    Mutant("all segments stay open", DISK + "segments.cc",
           "  while (opened_.size() >= kMostOpen) {", "  while (opened_.size() >= 100 * kMostOpen) {",
           "tests/cc/test_cc.py::test_cc[address_undefined-disk_descriptors_test]"),
    Mutant("who waits for nothing waits permanently", "refurbish_tf/cc/workers/ordered_workers.cc",
           "  stuck_ = claimed == Claimed::kNotNow && !IsUnderWay();", "  stuck_ = false;",
           "tests/cc/test_cc.py::test_cc[address_undefined-ordered_workers_waiting_test]"),
]

"""`rtf.advise`."""
from support.mutants import Mutant

_STRATEGIES = "refurbish_tf/advice/strategies.py"
_MEASURE = "refurbish_tf/advice/measure.py"
_MODEL = "tests/advice/test_advise_model.py::"
MUTANTS = [
    Mutant("advise: a way below the least diversity is picked", _STRATEGIES,
           "  allowed = [strategy for strategy in strategies if strategy.diversity >= min_diversity]\n  most", "  allowed = strategies\n  most",
           f"{_MODEL}test_the_pick"),
    Mutant("advise: rates add up", _STRATEGIES, "samples_per_second=1 / mean(first.seconds, later.seconds)",
           "samples_per_second=mean(1 / first.seconds, 1 / later.seconds)", f"{_MODEL}test_the_slowest_decides"),
    Mutant("advise: the first epoch is free", _STRATEGIES, "    return (one + (given.epochs - 1) * other) / given.epochs",
           "    return other", f"{_MODEL}test_times_add_and_the_first_epoch_counts"),
    Mutant("advise: both takes memory twice", _STRATEGIES, "(self._bytes_of_samples(strategy) if strategy.samples_in == place else 0)", "0",
           f"{_MODEL}test_memory_for_a_part"),
    Mutant("advise: few samples are used three times", _STRATEGIES, "self.num_samples < FEW_SAMPLES", "False",
           f"{_MODEL}test_few_samples_are_used_twice_at_most"),
    Mutant("advise: Python runs on all processors", _STRATEGIES,
           "cpu / given.processors, self._serial(strategy, fresh, share),", "cpu / given.processors,",
           f"{_MODEL}test_the_slowest_decides"),
    Mutant("advise: a part of a stream is kept", _STRATEGIES, "max(LEAST_SHARE * whole, size) <= room if given.is_by_index else whole <= room and place == \"memory\"",
           "max(LEAST_SHARE * whole, size) <= room",
           f"{_MODEL}test_of_a_stream_all_or_nothing_is_kept"),
    Mutant("advise: what draws is kept permanently", "refurbish_tf/advice/advise.py",
           "not traced[prefix].takes_seed and (traced[prefix].is_pure or numbers[prefix] == 1)", "not traced[prefix].takes_seed",
           "tests/advice/test_advise.py::test_decoded_alone_or_behind_its_first_layer"),
    Mutant("advise: what the source draws is kept permanently", _STRATEGIES, "if not form.kept or strategy.split", "if strategy.split",
           "tests/advice/test_advise.py::test_what_the_source_draws_is_not_kept"),
    Mutant("advise: a policy that is split is taken whole", "refurbish_tf/advice/plan.py", "if last - first < size:", "if False:",
           f"{_MODEL}test_parts_of_nested_lists"),
    Mutant("advise: what is decoded whole is not cropped", "refurbish_tf/advice/plan.py", "(before, at, *crop)", "(before, at)",
           f"{_MODEL}test_the_lines_are_what_a_person_would_write"),
    Mutant("advise: another order is not another one", "refurbish_tf/advice/order.py",
           "  if min([best, *same]) < LEAST_GAIN_OF_ORDER * seconds:", "  if best < seconds:", f"{_MODEL}test_an_order_that_would_help"),
    Mutant("advise: a small sample on disk costs its bytes alone", _MEASURE, "if large > 1.5 * small else", "if False else",
           f"{_MODEL}test_each_sample_on_disk_and_each_byte"),
    Mutant("advise: few elements make a short epoch", _MEASURE, "if length > self.num_read else number", "if length > 0 else number",
           "tests/advice/test_advise.py::test_an_epoch_is_long_enough_to_be_measured"),
    Mutant("advise: a long source is not read in place", _MEASURE, "(times == 1 or is_long)", "times == 1",
           "tests/advice/test_advise.py::test_an_epoch_is_long_enough_to_be_measured")]

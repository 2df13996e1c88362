"""Python functions that processes call."""
from support.mutants import Mutant

BYTES, DEATHS = "tests/augment/test_numpy_layer.py", "tests/augment/test_numpy_layer_processes.py"
IN = "refurbish_tf/_internal/processes"

MUTANTS = [
    Mutant("a sample has the generator of its process", f"{IN}/worker.py",
           "    rng = np.random.Generator(np.random.PCG64(sequence))", "    rng = np.random.default_rng()", f"{BYTES}::TestBytes"),
    Mutant("libraries draw on from the sample before", f"{IN}/worker.py",
           "    self._seeder.seed(int(sequence.generate_state(1)[0]))\n", "", f"{BYTES}::TestStatesOfLibraries"),
    Mutant("what the first call makes is not seeded", f"{IN}/worker.py", "      if is_new:\n", "      if False:\n",
           f"{BYTES}::TestStatesOfLibraries::test_what_the_first_call_makes_or_imports_is_seeded_too"),
    Mutant("a function keeps the memory of the next sample", f"{IN}/channel.py",
           "        value = _aligned(shape, dtype, size)\n        if size:\n          np.copyto(value, np.ndarray(shape, dtype, self._of_size(begin + size), begin))\n",
           "        value = np.ndarray(shape, dtype, self._of_size(begin + size), begin)\n", f"{BYTES}::TestArrays::test_are_the_functions_own"),
    Mutant("the byte order is lost", f"{IN}/worker.py", "array.astype(array.dtype.newbyteorder(\"=\"), copy=False)", "array",
           f"{BYTES}::TestArrays::test_are_what_tensorflow_has"),
    Mutant("a sample is lost with its process", f"{IN}/pool.py", "        if deaths == 2 or", "        if deaths == 1 or",
           f"{DEATHS}::TestDeaths::test_the_sample_is_made_once_more"),
    Mutant("a process that dies each time is started for ever", f"{IN}/pool.py", "        deaths += died.in_call\n",
           "        deaths += died.in_call and died.code != 0\n", f"{DEATHS}::TestDeaths::test_also_one_that_ends_as_if_all_were_well"),
    Mutant("memory stays when its process has ended", f"{IN}/pool.py", "        return True\n      self._forget()\n", "        return True\n",
           f"{DEATHS}::TestProcesses::test_none_is_left_of_an_iterator"),
    Mutant("processes outlive a killed trainer", f"{IN}/worker.py", "  while os.getppid() == parent:\n", "  while True:\n",
           f"{DEATHS}::TestProcesses::test_none_is_left_of_a_busy_trainer"),
    Mutant("a process in C code outlives its trainer", f"{IN}/worker.py", "  _end_with(pipe)\n", "",
           f"{DEATHS}::TestProcesses::test_none_is_left_of_a_busy_trainer"),
    Mutant("rows of boxes are lost beside their labels", "refurbish_tf/augment/numpy_layer.py",
           "      if made[number].shape[:-1] != values[number].shape[:-1]:\n", "      if False:\n",
           f"{BYTES}::TestArrays::test_rows_stay_beside_their_labels"),
    Mutant("what cannot be seeded is not told", f"{IN}/worker.py", "        self.is_unsteady = not all(", "        self.is_unsteady = False and all(",
           f"{BYTES}::TestStatesThatAreHidden::test_what_cannot_be_seeded_is_told_once"),
    Mutant("what a class holds is not seeded", f"{IN}/worker.py", "    if _is_own(each):\n", "    if False:\n",
           f"{BYTES}::TestStatesThatAreHidden::test_in_slots_and_classes"),
    Mutant("a program ends within a call", f"{IN}/pool.py", "        atexit.register(_end)\n", "", f"{DEATHS}::TestProcesses::test_none_is_left_of_a_program"),
    Mutant("modules beside a function are imported", "refurbish_tf/augment/numpy_layer.py",
           "        met.append(value)\n", "", f"{DEATHS}::TestProcesses::test_modules_go_by_value"),
    Mutant("the closure of a function is not looked at", "refurbish_tf/_internal/fingerprint.py",
           "    held = [cells, value.__defaults__,", "    held = [value.__defaults__,", f"{BYTES}::TestFingerprint"),
]

"""What goes to other frameworks, and the state of a loader."""
from support.mutants import Mutant

BATCHES = "tests/test_loaders.py::"
RESTART = "tests/test_loader_restart.py::"
STEPS = RESTART + "test_at_every_step_the_rest_is_the_rest"
OP = "refurbish_tf/cc/kernels/loader/hand_over_dataset_op.cc"
END = "refurbish_tf/loaders/hand_over.py"
LOADER = "refurbish_tf/loaders/loader.py"
STATE = "refurbish_tf/loaders/state.py"
TORCH = "refurbish_tf/loaders/torch_loader.py"
JAX = "refurbish_tf/loaders/jax_loader.py"

MUTANTS = [
    # Memory.
    Mutant("shared memory is handed over", OP, "!tensor.RefCountIsOne() &&", "false &&",
           BATCHES + "test_what_is_done_to_a_batch_changes_no_other[cache behind batch-numpy]"),
    Mutant("every batch is copied", OP, "!tensor.RefCountIsOne() &&", "true &&",
           BATCHES + "test_no_copy_where_none_is_needed[numpy]"),
    Mutant("what is read ahead is not the user's own", OP, "MakeWork(ctx, options().exclusive);",
           "MakeWork(ctx, false);",
           BATCHES + "test_what_is_done_to_a_batch_changes_no_other[echo behind batch, prefetch-numpy]"),
    Mutant("a large integer is cut for JAX", JAX, "    if least < limits.min or most > limits.max:\n", "    if False:\n",
           BATCHES + "test_integers_for_jax_must_fit"),
    # Moving.
    Mutant("training does not wait for the copy", TORCH, "    current.wait_event(copied)\n", "",
           BATCHES + "test_copies_to_a_gpu_and_training_wait_for_each_other"),
    Mutant("a batch's memory is used again while training reads it", TORCH, "      tensor.record_stream(current)\n", "      pass\n",
           BATCHES + "test_copies_to_a_gpu_and_training_wait_for_each_other"),
    Mutant("pinned memory is let go during the copy", TORCH, "    self._under_way.append((copied, pinned))\n", "",
           BATCHES + "test_copies_to_a_gpu_and_training_wait_for_each_other"),
    Mutant("nothing is sent ahead", LOADER, "len(self._on_their_way) <= self._mover.num_ahead:", "not self._on_their_way:",
           BATCHES + "test_a_batch_is_sent_to_the_device_ahead"),
    Mutant("an error of the batch ahead is raised at once", LOADER, "      self._on_their_way.append((None, error))\n", "      raise\n",
           BATCHES + "test_an_error_takes_the_place_of_its_batch"),
    Mutant("a crash to come is not told", TORCH, '"triton" not in sys.modules', '"triton" in sys.modules',
           BATCHES + "test_a_crash_to_come_is_told"),
    # The state.
    Mutant("the state of a loader is without the service that it reads", LOADER, "      if self._reads_endless_service:\n",
           "      if False:\n", "tests/test_service_search.py::test_loaders_read_a_service_once_and_have_no_state[numpy]"),
    Mutant("what a service cannot save is taken for random numbers", "refurbish_tf/_internal/checks.py",
           "    if isinstance(error, tf.errors.FailedPreconditionError):\n", "    if error is not None:\n",
           "tests/test_service_search.py::test_what_needs_the_position_in_a_service_says_so"),
    Mutant("the state is of what was read ahead", OP, "LeaveLast(options().num_ahead + 1, &snapshots_)", "LeaveLast(1, &snapshots_)",
           STEPS + "[1-batch, prefetch]"),
    Mutant("the state at the end lacks the last batch", OP, "      LeaveLast(1, &snapshots_);\n", "", STEPS + "[1-batch, prefetch]"),
    Mutant("the batch on its way is not saved", OP, "{&on_their_way_, &restored_}", "{&restored_}", STEPS + "[1-parallel map]"),
    Mutant("a restored batch on its way is not saved again", OP, "{&on_their_way_, &restored_}", "{&on_their_way_}",
           STEPS + "[1-parallel map]"),
    Mutant("the last batch of an epoch is handed out again", OP, "        on_their_way_.clear();\n        return next.status;",
           "        return next.status;", STEPS + "[1-parallel map]"),
    Mutant("a symbolic state is of what was read ahead", OP,
           "static_cast<int64_t>(changes_.size()) > options().num_ahead", "!changes_.empty()", STEPS + "[1-symbolic]"),
    Mutant("TensorFlow reads ahead behind the end", END, "inject_prefetch = False", "inject_prefetch = True",
           STEPS + "[1-parallel map at the end]"),
    Mutant("a state has what is buffered", END, "    if _holds_nothing(upstream):\n", "    if False:\n",
           RESTART + "test_a_state_holds_nothing_that_is_read_ahead"),
    Mutant("a state is as long as its content", STATE, "_power_of_two(max(_LEAST_BYTES, samples // 4, len(content)))", "len(content)",
           RESTART + "test_a_state_holds_nothing_that_is_read_ahead"),
    Mutant("a damaged state is loaded", STATE, " or zlib.crc32(body).to_bytes(4, \"little\") != content[size - 4:size]", "",
           RESTART + "test_a_damaged_state_changes_nothing"),
    Mutant("a refused state leaves the stages changed", LOADER,
           "      for stage, saved in zip(self._stages, before):\n        stage.restore_state(saved)\n", "",
           RESTART + "test_a_state_that_does_not_fit_changes_nothing"),
    Mutant("threads take the batches at once", LOADER, "    with self._loader._lock:\n", "    if True:\n",
           BATCHES + "test_threads_may_share_an_epoch"),
    Mutant("a state is loaded beside a thread that reads", LOADER, "    with self._lock:\n      self._load(", "    if True:\n      self._load(",
           BATCHES + "test_a_state_may_be_loaded_beside_a_thread_that_reads"),
    Mutant("a loader takes the state of fuse for that of refurbish", "refurbish_tf/fuse_op.py", 'return saved["state"][1], 0',
           'return saved["state"][2], 0', STEPS + "[1-fuse]"),
    Mutant("the stages are not saved", STATE, '"stages": saved,', '"stages": [],',
           RESTART + "test_states_between_epochs"),
    Mutant("the stages are saved at another moment than the iterator", STATE, "before is None or any(", "before is None and any(",
           "tests/test_loaders_jax.py::test_the_state_is_of_one_moment"),
    Mutant("an epoch that was left reads on", LOADER, "      self._epoch.leave()\n", "",
           "tests/test_loaders_jax.py::test_an_epoch_that_is_left_takes_the_stage_no_further"),
    Mutant("every empty rest is passed over", LOADER, "self._loader._restored_number != self._loader.batch_sampler.number", "True",
           "tests/test_loaders_jax.py::test_an_empty_rest_is_passed_over_if_another_epoch_is_told"),
    Mutant("an old iterator reads on", LOADER, "    if self._num_loads != self._loader._num_loads:\n", "    if False:\n",
           RESTART + "test_iterators_made_before_the_state_is_loaded"),
    Mutant("an iterator that was not read begins a new epoch", LOADER,
           "self._iterator, self._loader._restored = self._loader._restored, None", "self._iterator = None",
           RESTART + "test_iterators_made_before_the_state_is_loaded"),
    Mutant("what draws other numbers is saved silently", "refurbish_tf/cc/kernels/input_iterator.h",
           ": tensorflow::data::ExternalStatePolicy::POLICY_FAIL;",
           ": tensorflow::data::ExternalStatePolicy::POLICY_IGNORE;", RESTART + "test_what_cannot_be_saved_says_so"),
    Mutant("an input that cannot be saved is saved in part", OP, "      TF_RETURN_IF_ERROR(snapshots_.front().GetStatus());\n", "",
           RESTART + "test_what_cannot_be_saved_says_so"),
]

"""Jobs that share a store, restarts, and what makes a stage at home in tf.data."""
from support.mutants import Mutant

STAGE = "refurbish_tf/cc/stage/stage.cc"
RESTORE = "refurbish_tf/cc/stage/stage_restore.cc"
DECIDE = "refurbish_tf/cc/stage/epoch_decide.cc"

MUTANTS = [
    # Jobs that share a store.
    Mutant("claims of other jobs ignored", DECIDE,
           "  if (!also_claimed && schedule_->Kept(index) &&", "  if (also_claimed && schedule_->Kept(index) &&",
           "tests/test_disk_store_jobs.py::test_jobs_prepare_together_what_one_prepares_alone"),
    Mutant("any number of claims is refused in one walk", DECIDE, "num_refused_ < kMostRefusedToKeep &&", "num_refused_ + 1 > 0 &&",
           "tests/test_disk_store_jobs.py::test_a_place_is_decided_though_others_are_preparing_all"),
    Mutant("one use too many of what jobs share", "refurbish_tf/cc/stage/shared_use.h",
           ": most_uses_(std::min(std::ceil(reuse_factor), 4e9)) {}", ": most_uses_(std::min(std::ceil(reuse_factor) + 1, 4e9)) {}",
           "tests/test_disk_store_jobs.py::test_reuse_is_bounded_for_jobs_of_different_speed_and_for_iterators_side_by_side"),
    Mutant("a job that joins begins anew", STAGE,
           "    next_epoch_ = first_epoch;\n", "    (void)first_epoch;\n",
           "tests/test_disk_store_jobs.py::test_job_that_joins_begins_where_the_others_are"),
    # Restart.
    Mutant("what was handed out is not noted for a checkpoint", "refurbish_tf/cc/stage/saved_epoch.cc",
           "  bits_[index / 8] |= 1 << index % 8;\n", "", "tests/test_restart.py::test_restores_again_and_again"),
    Mutant("a checkpoint of another policy is taken", RESTORE, "  return saved == given || saved == kUnsaved\n",
           "  return saved == saved || saved == given\n", "tests/test_restart.py::test_checkpoint_of_another_pipeline"),
    Mutant("a restart forgets the epoch", RESTORE,
           "    next_epoch_ = saved.next_epoch;\n", "",
           "tests/test_restart.py::test_restoring_sets_the_stage_back_and_harms_no_other_iterator"),
    Mutant("a checkpoint of another seed is taken", RESTORE,
           "  if (!options_.any_seed) {\n", "  if (options_.any_seed) {\n",
           "tests/test_restart.py::test_checkpoint_of_another_pipeline"),
    Mutant("a checkpoint that says what cannot be is taken", "refurbish_tf/cc/stage/saved_epoch.cc",
           "    if (since(i) >= num_samples) return beyond(since(i));\n", "",
           "tests/test_damaged_checkpoint.py::test_nonsense_is_refused"),
    Mutant("a fit that is told to stop loses its backup", "refurbish_tf/keras/restore.py",
           "    if not self.model.stop_training:\n      self._backup.delete()", "    self._backup.delete()",
           "tests/test_keras_callbacks.py::test_a_fit_that_is_told_to_stop_keeps_its_backup"),
    Mutant("steps that were done before a break are done again", "refurbish_tf/keras/restore.py",
           '      self._num_resumed = self._saved["step"]\n', "      self._num_resumed = 0\n",
           "tests/test_keras_callbacks.py::test_a_stopped_fit_goes_on_as_if_it_had_not_been"),
    Mutant("a backup at the end of an epoch forgets the stage", "refurbish_tf/keras/backup.py",
           "    self._restore_stages(dataset_graph.stages_with_state(pipeline(iterator)), state)\n", "",
           "tests/test_keras_callbacks.py::test_a_backup_knows_each_stage_and_its_seed_when_all_of_its_epoch_had_been_read"),
    # At home in tf.data.
    Mutant("a dropped stage stays", "refurbish_tf/cc/base/registry.h",
           "        entries_[id] = object;\n", "        entries_[id] = object;\n        new std::shared_ptr<T>(object);\n",
           "tests/test_citizenship.py::test_a_dropped_stage_is_gone"),
    Mutant("what is being made keeps all others waiting", "refurbish_tf/cc/base/registry.h",
           "    std::shared_ptr<T> object = create();\n    {\n      std::lock_guard<std::mutex> lock(mu_);\n",
           "    std::shared_ptr<T> object;\n    {\n      std::lock_guard<std::mutex> lock(mu_);\n      object = create();\n",
           "tests/test_cc.py::test_cc[address_undefined-registry_test]"),
    Mutant("one stage is used on two shares of a source", "refurbish_tf/cc/stage/stage_configure.cc",
           "  if (shard_->names == shard.names) return absl::OkStatus();\n  const auto name",
           "  if (shard_.has_value()) return absl::OkStatus();\n  const auto name",
           "tests/test_distribution.py::test_shares_cannot_have_one_process"),
    Mutant("a job does not say how far it is", "refurbish_tf/cc/stage/epoch.cc",
           "shared_->job->NoteHandedOut(num_handed_out_)", "shared_->job->NoteHandedOut(0)",
           "tests/test_cli.py::test_says_which_jobs_are_alive_and_where"),
    Mutant("a job does not name its process", "refurbish_tf/cc/store/disk/shared_state.cc",
           "    state_->contents_->processes[seat_] = getpid();\n", "",
           "tests/test_cli.py::test_says_which_jobs_are_alive_and_where"),
]

"""Breaks the package in named ways, one at a time, and sees that the test that each names turns red.

    python tests/mutants.py                 all of them: about half an hour on two processors
    python tests/mutants.py "eviction"      those with this in their name
    python tests/mutants.py --jobs 4        so many at once; default: half of the processors

It is how one sees that the tests guard what they are said to guard, and that leaving some out cost nothing. CI does not run
it. A mutant is a text that is replaced in one file of a copy of the checkout, and the test of the default run that must
fail then. The tests that are named must pass without any mutant, a mutant must compile, and a text that is not there (or
not just once) is an error: so what is listed here stays true. With ccache installed only what a mutant changes is
compiled. The exit status is 0 when all were killed.
"""
import argparse
import collections
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent import futures

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longer than any of the tests takes, with a build before it; a mutant may hang.
LIMIT = 600
TIMED_OUT = 124


@dataclasses.dataclass(frozen=True)
class Mutant:
  name: str
  file: str
  old: str
  new: str
  test: str

  def original(self, root):
    """The file, in which there must be just one place to be replaced."""
    text = (root / self.file).read_text(encoding="utf-8")
    if text.count(self.old) != 1:
      sys.exit(f"{self.name}: {self.file} has this {text.count(self.old)} times, and not once:\n{self.old}")
    return text

  def apply(self, root):
    (root / self.file).write_text(self.original(root).replace(self.old, self.new), encoding="utf-8")


SCHEDULE = "tests/test_cc.py::test_cc[address_undefined-schedule_test]"
DAMAGE = "tests/test_cc.py::test_cc[address_undefined-disk_damage_test]"
DISK = "tests/test_cc.py::test_cc[address_undefined-disk_store_test]"
FULL = "tests/test_cc.py::test_cc[address_undefined-full_disk_test]"
RECORD = "tests/test_cc.py::test_cc[address_undefined-record_test]"
WRITER = "tests/test_cc.py::test_cc[address_undefined-writer_test]"
POWER = "tests/test_cc.py::test_cc[address_undefined-power_loss_test]"
MEMORY = "tests/test_cc.py::test_cc[address_undefined-memory_store_test]"
IMAGE = "tests/test_cc.py::test_cc[address_undefined-image_test]"
WORKERS_TEST = "tests/test_cc.py::test_cc[address_undefined-ordered_workers_test]"
WAITING = "tests/test_cc.py::test_cc[address_undefined-ordered_workers_waiting_test]"
CANCEL = "tests/test_cc.py::test_cc[address_undefined-ordered_workers_cancel_test]"
STAGE = "refurbish_tf/cc/stage/stage.cc"
EPOCH = "refurbish_tf/cc/stage/epoch.cc"
ITERATOR = "refurbish_tf/cc/kernels/refurbish_iterator.cc"
WORK = "refurbish_tf/cc/kernels/sample_work.cc"
SOURCE = "refurbish_tf/cc/kernels/source_reader.cc"
WORKERS = "refurbish_tf/cc/workers/ordered_workers.cc"
DATA_SOURCE = "refurbish_tf/cc/kernels/data_source_dataset_op.cc"
STORE = "refurbish_tf/cc/store/disk/disk_store.cc"
BUFFER = "refurbish_tf/cc/store/disk/write_buffer.cc"
RECORDS = "refurbish_tf/cc/kernels/tfrecord_dataset_op.cc"
OPEN_FILES = "refurbish_tf/cc/sources/open_files.cc"
INDEX = "tests/test_cc.py::test_cc[address_undefined-record_index_test]"

MUTANTS = [
    Mutant("docs: a link to a heading that is not there", "docs/photographs.md", "README.md#peers", "README.md#peer",
           "tests/test_docs.py::test_links_lead_somewhere[docs/photographs.md]"),
    Mutant("docs: a guide that nothing leads to", "docs/index.md", "\nrestart\n", "\n",
           "tests/test_docs.py::test_every_guide_is_in_the_contents"),
    Mutant("docs: an example with a misspelt argument", "docs/disk.md", 'store="/ssd/cache")', 'stores="/ssd/cache")',
           "tests/test_docs.py::test_examples_run[disk]"),
    # The schedule: which samples are fresh, and in what order they come.
    Mutant("an eviction skipped", "refurbish_tf/cc/schedule/schedule.cc",
           "const bool is_fresh = !Kept(i) || Evictions(i, before) !=\n"
           "                                            Evictions(i, schedule.now_);",
           "const bool is_fresh = !Kept(i);", SCHEDULE),
    Mutant("one eviction more in each epoch", "refurbish_tf/cc/schedule/schedule.cc",
           "      EvictionsUntil(count, capacity_, options_.reuse_factor);",
           "      EvictionsUntil(count, capacity_, options_.reuse_factor) + count;",
           "tests/test_guarantees.py::test_unbroken_training"),
    Mutant("evictions counted in floating point", "refurbish_tf/cc/schedule/schedule.cc",
           "  if (shift >= 0) return static_cast<uint64_t>((product << shift) / mantissa);",
           "  if (shift >= 0) return static_cast<uint64_t>(count * (samples / reuse_factor));", SCHEDULE),
    Mutant("fresh samples all at the beginning", "refurbish_tf/cc/schedule/schedule.cc",
           "  if (!fresh_at_.empty()) return {order_[position], fresh_at_[position]};",
           "  if (!fresh_at_.empty()) return {order_[position], fresh_at_[position]};\n"
           "  return {order_[position], position < num_fresh_};", SCHEDULE),
    Mutant("the same order in every epoch", "refurbish_tf/cc/schedule/schedule.cc",
           "  RandomStream random(DeriveKey(seed, Purpose::kOrder, epoch_));",
           "  RandomStream random(DeriveKey(seed, Purpose::kOrder));",
           "tests/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything"),
    Mutant("a shuffle that leaves nothing at its place", "refurbish_tf/cc/schedule/random.h",
           "random.Below(size)]);", "random.Below(size - 1)]);", SCHEDULE),
    Mutant("what is kept for another generation is used", "refurbish_tf/cc/store/memory_store.h",
           "entry.page != nullptr && wanted.Contains(entry.generation());", "entry.present();",
           "tests/test_guarantees.py::test_unbroken_training"),
    Mutant("the seed of final_fn is the same in each epoch", WORK,
           "                                   epoch_->number(), index));", "                                   0, index));",
           "tests/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything"),
    Mutant("the seed of partial_fn is of the epoch and not of the generation", WORK,
           "epoch_->PreparedGeneration(index), index));", "epoch_->number(), index));",
           "tests/test_guarantees.py::test_any_history"),
    Mutant("samples that were to be cached are not counted as absent when they are not", EPOCH,
           "place.from == Place::From::kSource && !slot.fresh;", "false;", "tests/test_stats.py::test_removed_samples_are_absent"),
    # Sources by index.
    Mutant("batches of a Python source are large at once", DATA_SOURCE,
           "next_batch_ = std::min(2 * next_batch_, dataset()->batch_reads_);", "next_batch_ = dataset()->batch_reads_;",
           "tests/test_data_source.py::test_batches_begin_small_and_grow_to_batch_reads"),
    Mutant("who asks ahead waits", DATA_SOURCE, "    const AskingAhead does_not_wait;\n", "",
           "tests/test_data_source.py::test_samples_that_fill_what_may_be_taken_ahead"),
    Mutant("what was read ahead counts as handed out", DATA_SOURCE, "    position_ = next.position + 1;",
           "    position_ = wanted_.back().position + 1;", "tests/test_data_source.py::test_restored_at_every_step"),
    Mutant("elements share memory with their source", "refurbish_tf/sources/data_source.py",
           '  return np.array(array, array.dtype.newbyteorder("="), order="C")', "  return np.ascontiguousarray(array)",
           "tests/test_data_source_elements.py::test_what_was_read_is_nobody_elses"),
    Mutant("a Python source is kept for ever", "refurbish_tf/sources/data_source.py", "    if not tf.executing_eagerly():",
           "    if True:", "tests/test_data_source.py::test_the_source_goes_with_its_dataset"),
    Mutant("a split that is not shuffled", "refurbish_tf/sources/image_folder.py", "  if seed is not None:\n    places",
           "  if seed is None:\n    places", "tests/test_image_folder.py::test_files_are_those_of_keras_in_the_same_order"),
    Mutant("crops that never reach the last row", "refurbish_tf/cc/image/resize.cc",
           "Unit(place[0]) * (image.height - box.height + 1)", "Unit(place[0]) * (image.height - box.height)",
           "tests/test_decoding.py::test_windows_are_those_of_the_reference"),
    Mutant("the part of a planned image is the first one", "refurbish_tf/cc/image/plan.cc", "  rows.Cut(y, height);",
           "  rows.Cut(0, height);", "tests/test_final_layers.py::TestPixels::test_of_a_row_are_those_of_its_parts"),
    # Limits.
    Mutant("the limit of memory is exceeded by one sample", "refurbish_tf/cc/store/memory_store.h",
           "if (bytes > max_bytes_ - stats_.bytes) return", "if (stats_.bytes > max_bytes_) return",
           "tests/test_guarantees.py::test_max_bytes_of_samples_of_different_size"),
    Mutant("the limit on disk is not looked at before writing", BUFFER,
           "    if (max_bytes_ != kUnlimited &&\n", "    if (max_bytes_ == 0 &&\n", DISK),
    Mutant("an older generation replaces a newer one in memory", "refurbish_tf/cc/store/memory_store.h",
           "      if (entry.generation() > generation) return PutResult::kNewerKept;\n", "", MEMORY),
    Mutant("an older generation replaces a newer one on disk", STORE,
           "    if (stored > generation) return PutResult::kNewerKept;\n", "", DISK),
    Mutant("a sample that was left alone for long seems new", "refurbish_tf/cc/store/disk/records.cc",
           "      if (wanted.Contains(record->header().generation)) {", "      if (wanted.least != 1) {", RECORD),
    Mutant("what was being written is not dropped", BUFFER, "  if (entry.dropped) return {word};\n", "", WRITER),
    Mutant("a put does not wait for a busy disk", BUFFER, "kMostBatches * enough_ && !closed_) {", "kMostBatches && closed_) {",
           WRITER),
    Mutant("a compaction is not cancelled", "refurbish_tf/cc/store/disk/writer.cc", "    return !IsStopping();", "    return true;",
           WRITER),
    # A full disk, and files that are cut.
    Mutant("a full disk keeps what came first", "refurbish_tf/cc/store/disk/places.cc",
           "    if (least <= rank) return false;", "    if (least > rank || true) return false;", FULL),
    Mutant("dead records are not written over", "refurbish_tf/cc/store/disk/places.cc",
           "  if (!dead.has_value() && Look()) dead = TakeDead(space);\n", "", FULL),
    Mutant("the rest of a dead record is lost", "refurbish_tf/cc/store/disk/places.cc", "  if (size > space) {",
           "  if (size < space) {", FULL),
    Mutant("room that comes back is not used", "refurbish_tf/cc/store/disk/writer.cc", "  places_.TryToAppend();\n", "", FULL),
    Mutant("what was cut is not mapped again", "refurbish_tf/cc/store/disk/mapped_file.cc",
           "    if (data == nullptr) continue;\n    // In one step", "    if (data != nullptr) continue;\n    // In one step",
           "tests/test_cc.py::test_cc[address_undefined-mapped_file_test]"),
    # Bad data.
    Mutant("the checksum of a sample dropped", "refurbish_tf/cc/store/disk/record.cc",
           "header().payload_crc == Crc32c(payload(), payload_size());", "payload() != nullptr;", DAMAGE),
    Mutant("a record of another sample is taken", "refurbish_tf/cc/store/disk/record.cc",
           "header.index == index &&", "(header.index == index || true) &&", DAMAGE),
    Mutant("a damaged sample stays", "refurbish_tf/cc/store/disk/records.cc",
           "  if (!ClearWord(index, word)) return;", "  if (word == 0 || index_->Load(index) != word) return;", DAMAGE),
    Mutant("components that lie as TensorFlow does not want them", "refurbish_tf/cc/store/samples/sample_codec.cc",
           "  return (in_record + kAlignment - 1) / kAlignment * kAlignment -\n         sizeof(RecordHeader);",
           "  return in_record - sizeof(RecordHeader);", "tests/test_disk_store.py::test_aligned_as_tensorflow_wants_it"),
    Mutant("a store with other settings is taken", "refurbish_tf/cc/store/disk/settings_file.cc",
           "    if (entry->second != value) {", "    if (entry->second.empty()) {",
           "tests/test_disk_store_bad_input.py::test_other_settings"),
    Mutant("settings are not on the disk before they get their name", "refurbish_tf/cc/store/disk/settings_file.cc",
           "  if (status.ok()) status = env.Sync((*file)->fd());\n", "", POWER),
    Mutant("settings have their name on the disk some time later", "refurbish_tf/cc/store/disk/settings_file.cc",
           "  if (status.ok()) return directory_->Sync();", "  if (status.ok()) return status;", POWER),
    Mutant("samples outlive what says how they were prepared", STORE,
           "  absl::Status synced = directory.Sync();\n", "  absl::Status synced;\n", POWER),
    Mutant("a record of the store that was here before is taken", "refurbish_tf/cc/store/disk/record.cc",
           "header.store_id == store_id && ", "(header.store_id == store_id || true) && ", POWER),
    # The workers.
    Mutant("a result out of order", WORKERS,
           "    return ring_.front()->state == State::kDone ? 0 : ring_.size();",
           "    if (ring_.front()->state == State::kDone) return 0;", WORKERS_TEST),
    Mutant("a lost wake-up", WORKERS, "settling_ || IsReady() || ring_.empty())) {", "settling_ || IsReady())) {",
           WORKERS_TEST),
    Mutant("a result is handed out after a cancellation", WORKERS,
           "  while (!cancelled_) {\n    const size_t ready", "  while (!cancelled_ || IsReady()) {\n    const size_t ready",
           CANCEL),
    Mutant("a claim after a cancellation", WORKERS,
           "    if (cancelled_ || !fetching_ || !MayClaim()) return true;", "    if (!fetching_ || !MayClaim()) return true;",
           CANCEL),
    Mutant("help while cancelled", WORKERS, "  if (cancelled_) return;\n", "", CANCEL),
    Mutant("a call too many", WORKERS, "? options.max_calls - 1", "? options.max_calls", WORKERS_TEST),
    Mutant("all threads start at once", WORKERS, "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n",
           "  while (static_cast<int>(threads_.size()) + 1 < num_threads_) {\n    ++num_starting_;\n"
           "    threads_.push_back(start_thread_([this] { Loop(); }));\n  }\n"
           "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n", WORKERS_TEST),
    Mutant("a checkpoint does not wait for what is under way", WORKERS,
           "  while (!cancelled_ && !std::all_of(", "  while (cancelled_ && !std::all_of(", WORKERS_TEST),
    Mutant("work goes on while it is saved", "refurbish_tf/cc/workers/ordered_workers.h",
           "return !settling_ && !claims_ended_", "return !claims_ended_", WORKERS_TEST),
    Mutant("what is under way is not saved", "refurbish_tf/cc/kernels/augment_dataset_op.cc",
           "    for (const OrderedWorkers::Piece* piece : ready) {\n",
           "    for (const OrderedWorkers::Piece* piece : ready) {\n      if (num_ready == 1) break;\n",
           "tests/test_augment_stage.py::test_what_is_under_way_is_saved"),
    Mutant("a thread is woken for each result", WORKERS,
           "      if (num_sleeping_ > 0 && HasRoom(2) && HasWork()) WakeThreads();\n      if (waited)",
           "      if (num_sleeping_ > 0 && HasRoom(1) && HasWork()) WakeThreads();\n      if (waited)", WAITING),
    # Jobs that share a store.
    Mutant("claims of other jobs ignored", EPOCH,
           "  return shared_ != nullptr && schedule_->Kept(index) &&", "  return shared_ == nullptr && schedule_->Kept(index) &&",
           "tests/test_disk_store_jobs.py::test_jobs_prepare_together_what_one_prepares_alone"),
    Mutant("one use too many of what jobs share", "refurbish_tf/cc/stage/shared_use.h",
           ": most_uses_(std::min(std::ceil(reuse_factor), 4e9)) {}", ": most_uses_(std::min(std::ceil(reuse_factor) + 1, 4e9)) {}",
           "tests/test_disk_store_jobs.py::test_reuse_is_bounded_for_jobs_of_different_speed_and_for_iterators_side_by_side"),
    Mutant("a job that joins begins anew", STAGE,
           "  next_epoch_ = shared_->job->BeginFirstEpoch();", "  shared_->job->BeginFirstEpoch();",
           "tests/test_disk_store_jobs.py::test_job_that_joins_begins_where_the_others_are"),
    # Restart.
    Mutant("what was handed out is not noted for a checkpoint", EPOCH,
           "  yielded_[index / 8] |= 1 << index % 8;\n", "", "tests/test_restart.py::test_restores_again_and_again"),
    Mutant("a restart forgets the epoch", STAGE,
           "    next_epoch_ = saved.next_epoch;\n", "",
           "tests/test_restart.py::test_restoring_sets_the_stage_back_and_harms_no_other_iterator"),
    Mutant("a checkpoint of another seed is taken", STAGE,
           "  if (!options_.any_seed) {\n", "  if (options_.any_seed) {\n",
           "tests/test_restart.py::test_checkpoint_of_another_pipeline"),
    Mutant("a checkpoint that says what cannot be is taken", "refurbish_tf/cc/stage/saved_epoch.cc",
           "    if (since(i) >= num_samples) return beyond(since(i));\n", "",
           "tests/test_damaged_checkpoint.py::test_nonsense_is_refused"),
    Mutant("a fit that is told to stop loses its backup", "refurbish_tf/keras.py",
           "    if not self.model.stop_training:\n      self._backup.delete()", "    self._backup.delete()",
           "tests/test_keras_callbacks.py::test_a_fit_that_is_told_to_stop_keeps_its_backup"),
    Mutant("steps that were done before a break are done again", "refurbish_tf/keras.py",
           '      self._num_resumed = self._saved["step"]\n', "      self._num_resumed = 0\n",
           "tests/test_keras_callbacks.py::test_a_stopped_fit_goes_on_as_if_it_had_not_been"),
    Mutant("a backup at the end of an epoch forgets the stage", "refurbish_tf/backup.py",
           "    self._restore_stages(_stages(iterator), state)\n", "",
           "tests/test_keras_callbacks.py::test_a_backup_knows_each_stage_when_all_of_its_epoch_had_been_read"),
    # At home in tf.data.
    Mutant("a dropped stage stays", "refurbish_tf/cc/store/registry.h",
           "        entries_[id] = object;\n", "        entries_[id] = object;\n        new std::shared_ptr<T>(object);\n",
           "tests/test_citizenship.py::test_a_dropped_stage_is_gone"),
    Mutant("what is being made keeps all others waiting", "refurbish_tf/cc/store/registry.h",
           "    std::shared_ptr<T> object = create();\n    {\n      std::lock_guard<std::mutex> lock(mu_);\n",
           "    std::shared_ptr<T> object;\n    {\n      std::lock_guard<std::mutex> lock(mu_);\n      object = create();\n",
           "tests/test_cc.py::test_cc[address_undefined-registry_test]"),
    Mutant("one stage is used on two shares of a source", STAGE,
           "  if (*shards_ == shards) return absl::OkStatus();\n  const auto name",
           "  if (shards_.has_value()) return absl::OkStatus();\n  const auto name",
           "tests/test_distribution.py::test_shares_cannot_have_one_process"),
    # Sources.
    Mutant("the input is not read to its end", ITERATOR,
           "  if (last) end_status_ = End();", "  if (last) ended_ = true;",
           "tests/test_dataset_sources.py::test_a_cached_stream_is_read_to_its_end"),
    Mutant("a source that has grown is not noticed", SOURCE,
           '      if (failed_.ok() && !end) failed_ = OtherLength("more than");\n', "",
           "tests/test_dataset_sources.py::test_a_source_whose_length_changes"),
    Mutant("a source that is shuffled anew in each epoch is taken", "refurbish_tf/cc/kernels/check_source.cc",
           'absl::StartsWith(op, "ShuffleDataset") ||', 'absl::StartsWith(op, "ShuffleDatasets") ||',
           "tests/test_dataset_sources.py::test_bad_sources"),
    Mutant("an error names another sample", SOURCE,
           "  *index = epoch_->Requested(num_read_);", "  *index = epoch_->Requested(num_read_ / 2);",
           "tests/test_dataset_errors.py::test_one_sample_fails"),
    Mutant("what a stream yields after an error is kept", SOURCE,
           "        position_known_ = false;\n", "", "tests/test_workers.py::test_after_an_error_of_a_stream_nothing_is_kept"),
    Mutant("a sample of another shape is taken", WORK,
           "  TF_RETURN_IF_ERROR(CheckShapes(*piece));\n", "",
           "tests/test_dataset_errors.py::test_partial_fn_changes_its_output_structure"),
    # Echo.
    Mutant("the fraction of e dropped", "refurbish_tf/cc/schedule/echo.h",
           "    return whole_ + (Mix(key_ ^ static_cast<uint64_t>(position)) < threshold_);",
           "    return whole_ + (position < 0 && key_ < threshold_);", "tests/test_cc.py::test_cc[address_undefined-echo_test]"),
    Mutant("max_e off by one", "refurbish_tf/cc/kernels/adaptive_echo_dataset_op.cc",
           "num_yields_ < dataset()->max_factor_) {", "num_yields_ <= dataset()->max_factor_) {",
           "tests/test_adaptive_echo.py::test_adaptive_repeats_while_nothing_is_ready"),
    Mutant("a repetition is lost by a checkpoint", "refurbish_tf/cc/kernels/echo_dataset_op.cc",
           "writer->WriteScalar(prefix(), kLeft, left_));", "writer->WriteScalar(prefix(), kLeft, int64_t{0}));",
           "tests/test_echo_checkpoint.py::EchoCheckpointTest"),
    # What needs no C++.
    Mutant("a library for another TensorFlow is loaded", "refurbish_tf/native.py",
           '  return (record is not None and record["sources"] == sources and\n'
           '          _interface(record["tensorflow"]) == _interface(version))',
           '  return record is not None and record["sources"] == sources',
           "tests/test_native.py::test_mismatch_is_found_before_loading"),
    # Mistakes that are warned of.
    Mutant("only an epoch that nothing was looked at before is seen to be sorted", ITERATOR,
           "      stage.stage_->observations().WantLabelOrder()) {",
           "      stage.stage_->observations().WantLabelOrder() && epoch_->number() == 0) {",
           "tests/test_mistakes.py::test_a_look_does_not_silence_it"),
    Mutant("a stream that is shuffled behind the stage is called sorted", ITERATOR,
           "      !IsShuffled(prefix()) &&\n", "",
           "tests/test_mistakes.py::test_what_looks_like_a_sorted_stream"),
    Mutant("shuffled batches are mixed", ITERATOR,
           "(batch == absl::string_view::npos || shuffle > batch)", "(batch == batch)",
           "tests/test_mistakes.py::test_batches_that_are_shuffled"),
    Mutant("what is told while a function is traced gets into it", "refurbish_tf/mistakes.py",
           "    with tf.init_scope():\n", "    if name:\n",
           "tests/test_mistakes.py::test_a_function_that_is_being_traced_stays_as_it_is"),
    Mutant("a part that is gone is forgotten", "refurbish_tf/mistakes.py",
           "  take, skip = _PARTS\n", "  take, skip = _PARTS\n  stage.counts_behind = {kind: set() for kind in _PARTS}\n",
           "tests/test_mistakes.py::test_parts_that_live_as_long_as_they_are_read"),
    Mutant("a decorator's word is taken for its parameters", "refurbish_tf/arguments.py",
           "      signature = inspect.signature(function, follow_wrapped=False)", "      signature = inspect.signature(function)",
           "tests/test_dataset_errors.py::test_decorated_functions"),
    Mutant("any take and skip are a split", "refurbish_tf/mistakes.py",
           "set.intersection(*stage.counts_behind.values())", "set.union(*stage.counts_behind.values())",
           "tests/test_mistakes.py::test_what_looks_like_a_split_behind"),
    Mutant("a label that is one-hot is none", "refurbish_tf/cc/kernels/labels.cc",
           "    place = i;", "    return std::nullopt;", "tests/test_mistakes.py::test_sorted_stream"),
    Mutant("any vector of one number is one-hot", "refurbish_tf/cc/kernels/labels.cc",
           "if (values(i) != T(1) || place.has_value())", "if (place.has_value())",
           "tests/test_mistakes.py::test_what_looks_like_a_sorted_stream"),
    Mutant("what is left is no rest when it is taken", "refurbish_tf/cc/kernels/refurbish_iterator.cc",
           "skip ? Part::kMiddle : Part::kFirst", "skip ? Part::kAll : Part::kFirst",
           "tests/test_mistakes.py::test_parts_that_live_as_long_as_they_are_read"),
    Mutant("any cache behind is one of an epoch", "refurbish_tf/cc/stage/observations.h",
           "if (use.part == Part::kAll) {", "if (use.cached) {",
           "tests/test_mistakes.py::test_what_looks_like_a_cache_behind"),
    Mutant("what is made of a batch is a batch", "refurbish_tf/mistakes.py",
           "      if len(found) == 1 and _first_dimension(each.element_spec) in found:", "      if len(found) == 1:",
           "tests/test_mistakes_in_sources.py::test_what_looks_like_a_batched_source"),
    Mutant("an interrupt while a warning is given is lost", "refurbish_tf/mistakes.py",
           "  except Exception as error:", "  except BaseException as error:",
           "tests/test_mistakes.py::test_an_interrupt_while_it_is_told_arrives"),
    Mutant("a wheel has its libraries where nobody looks", "refurbish_tf/native.py",
           '  return pathlib.Path(package) / "_native" / _interface(version)', '  return pathlib.Path(package) / "_native" / version',
           "tests/test_native.py::test_each_minor_has_a_directory"),
    Mutant("all layers have the same seed", "refurbish_tf/augment/composition.py",
           "image = layers[step](image, seed=seeds[step])", "image = layers[step](image, seed=seeds[positions[0]])",
           "tests/test_augment_compose.py::TestCompose::test_every_layer_has_a_seed_of_its_own"),
    Mutant("a place of a crop that never comes", "refurbish_tf/cc/image/draws.cc",
           "        draws[1] = Below(own, 1, 2 * layer.padding + 1);", "        draws[1] = Below(own, 1, 2 * layer.padding);",
           "tests/test_augment.py::TestRandomCrop::test_takes_each_place_equally_often"),
    Mutant("images of a batch draw the same", "refurbish_tf/cc/kernels/image_ops.cc",
           "Draw(run, seed.SeedAt(image), draws);", "Draw(run, seed.SeedAt(0), draws);",
           "tests/test_augment_batch.py::TestRandomCropAndFlipBatch::test_is_what_compose_makes_of_each_image"),
    Mutant("a crop ignores the flip before it", "refurbish_tf/cc/image/plan.cc",
           "    only_.from += only_.step * (begin + distance - before_);", "    only_.from += begin + distance - before_;", IMAGE),
    Mutant("vectors of three channels mirror a pixel less", "refurbish_tf/cc/image/vector_kernels.cc",
           "  uint8_t* const end = to + 3 * (pixels - 5);", "  uint8_t* const end = to + 3 * (pixels - 6);", IMAGE),
    Mutant("a draw beyond the padding is taken", "refurbish_tf/cc/image/layer.cc",
           "      if (draws[i] < 0 || draws[i] > highest) {", "      if (draws[i] < 0) {", IMAGE),
    Mutant("each layer of a final augmentation is a pair of ops", "refurbish_tf/augment/composition.py",
           "    if run and (not isinstance(layer, FinalLayer)", "    if run and (isinstance(layer, FinalLayer)",
           "tests/test_final_layers.py::TestComposition::test_is_one_op"),
    Mutant("what describes a layer is longer than TensorFlow's cache of kernels can tell apart",
           "refurbish_tf/augment/final_layers.py",
           'return re.split(" |(?=,)", text)', "return [text]",
           "tests/test_final_layers.py::TestComposition::test_eager_calls_tell_layers_apart_that_differ_little"),
    Mutant("a final augmentation's layers all have the seed of the first", "refurbish_tf/augment/composition.py",
           "      run.append((layer, position))", "      run.append((layer, 0))",
           "tests/test_final_layers.py::TestPixels::test_of_layers_in_a_row"),
    Mutant("weights of a resize do not add up to one", "refurbish_tf/cc/image/resize.cc",
           "static_cast<int16_t>(until - given);", "static_cast<int16_t>(weight(place) / total * (1 << kWeightBits));", IMAGE),
    Mutant("uses add up over generations in the theory of diversity", "refurbish_tf/diversity.py",
           "      uses[fresh] = 0\n      uses += 1", "      uses += 1", "tests/test_diversity.py::test_exact_fractions"),
    Mutant("a split below the least diversity is recommended", "refurbish_tf/recommend_split.py",
           "  best = min((row for row in predictions if row.diversity >= min_diversity), key=lambda row: row.time)",
           "  best = min(predictions, key=lambda row: row.time)", "tests/test_recommend_split.py::test_the_floor_decides"),
    Mutant("an interrupted command looks like a finished one", "refurbish_tf/cli/startup.py",
           "    return INTERRUPTED\n", "    return 0\n", "tests/test_cli.py::test_exceptions_become_exit_statuses"),
    Mutant("a damaged store is no failure", "refurbish_tf/cli/store.py", "  return 1 if damaged else 0", "  return 0",
           "tests/test_cli.py::test_prints_what_is_in_a_store"),
    Mutant("what an import writes is not held back", "refurbish_tf/cli/startup.py",
           "    os.dup2(held_back.fileno(), 2)\n", "", "tests/test_cli.py::test_what_an_import_writes_is_held_back"),
    Mutant("accuracies are told apart without their spread", "refurbish_tf/cli/demo/report.py",
           "    if results.differ(row.final(), standard.final()):", "    if row.final()[0] != standard.final()[0]:",
           "tests/test_demo.py::test_accuracies_are_told_apart_by_the_spread_of_the_seeds"),
    Mutant("echo reads the same part again and again", "refurbish_tf/experiments/pipelines.py",
           "index_shuffle(number % e, ", "index_shuffle(0 * number, ", "tests/test_experiments.py::test_echo_reads_all_parts"),
    # Sources by index.
    Mutant("tfrecord: a record is read without its checksum", OPEN_FILES,
           "  if (Load<uint32_t>(footer) != MaskedCrc(record, length)) {", "  if (false) {", INDEX),
    Mutant("tfrecord: a file that has changed goes on being read", OPEN_FILES,
           "  if (!unchanged.ok()) return unchanged;", "  if (absl::IsInternal(unchanged)) return unchanged;", INDEX),
    Mutant("tfrecord: files are never closed", OPEN_FILES, "  while (kept_.size() > most_) {", "  while (kept_.empty()) {", INDEX),
    Mutant("tfrecord: an index that does not end with its file is taken", "refurbish_tf/cc/sources/file_index.cc",
           "  if (index.end_ != identity.size) return std::nullopt;", "  if (index.end_ == 1) return std::nullopt;", INDEX),
    Mutant("tfrecord: what a shard leaves out is read", RECORDS, "    plan_step_ = regular ? step : 1;", "    plan_step_ = 1;",
           "tests/test_tfrecord.py::test_what_is_not_asked_for_is_not_read"),
    Mutant("tfrecord: a restored iterator by a mapper begins anew", RECORDS, "    num_requests_ = num_requests;\n  ", "  ",
           "tests/test_tfrecord.py::TfrecordCheckpointTest"),
    Mutant("tfrecord: who hands out waits for the mapper", RECORDS, "    options.consumer_helps = !work_->may_wait();\n", "",
           "tests/test_tfrecord.py::test_who_reads_ahead_waits_and_nobody_else"),
]


def copy_checkout(to):
  """What git knows or would add, as it is in the working tree."""
  names = subprocess.run(
      ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
      text=True).stdout
  for name in filter(None, names.split("\0")):
    if (ROOT / name).is_file():
      (to / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, to / name)


class Copy:
  """A copy of the checkout, in which a mutant can be built and tested."""

  def __init__(self, checkout, directory):
    self.root = directory / "checkout"
    shutil.copytree(checkout, self.root)
    self.environment = {
        **os.environ, "PYTHONPATH": str(self.root), "XDG_CACHE_HOME": str(directory / "cache"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if shutil.which("ccache"):
      # Of all copies: what is compiled is told apart by its contents.
      self.environment |= {
          "CXX": f"ccache {os.environ.get('CXX', 'g++')}", "CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1",
          "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(pathlib.Path.home() / ".cache" / "ccache"))}

  def run(self, *arguments):
    try:
      return subprocess.run(
          [sys.executable, *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
      return subprocess.CompletedProcess(error.cmd, TIMED_OUT, "", f"not ended after {LIMIT} s")

  def build(self):
    """The library, if the mutant is in C++: one that does not compile would turn every test red."""
    return self.run("-c", "from refurbish_tf import native; native.ops()")

  def test(self, *tests):
    return self.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)


def examine(checkout, mutant):
  """Whether the mutant was killed, and a line that says what became of it."""
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as directory:
    copy = Copy(checkout, pathlib.Path(directory))
    mutant.apply(copy.root)
    built = copy.build()
    if built.returncode != 0:
      return False, f"DOES NOT BUILD  {mutant.name}\n{built.stderr[-3000:]}"
    tested = copy.test(mutant.test)
    # A signal ends the process where TensorFlow aborts it. 1 is the exit status of tests that failed or had an error.
    killed = tested.returncode < 0 or tested.returncode == 1 and re.search(
        r"^\d+ failed", tested.stdout.splitlines()[-1]) is not None
    outcome = "killed  " if killed else "SURVIVED" if tested.returncode == 0 else f"EXIT STATUS {tested.returncode}"
    line = f"{outcome} {mutant.name}: {mutant.test} ({time.monotonic() - began:.0f} s)"
    return killed, line if killed else f"{line}\n{tested.stdout[-3000:]}{tested.stderr[-1000:]}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("name", nargs="*", help="only mutants with one of these in their name")
  parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="so many at once")
  arguments = parser.parse_args()
  chosen = [mutant for mutant in MUTANTS if not arguments.name or any(name in mutant.name for name in arguments.name)]
  if not chosen:
    parser.error(f"no mutant is called so; there are: {'; '.join(mutant.name for mutant in MUTANTS)}")
  twice = [name for name, number in collections.Counter(mutant.name for mutant in MUTANTS).items() if number > 1]
  if twice:
    parser.error(f"two are called: {'; '.join(twice)}")
  with tempfile.TemporaryDirectory() as directory:
    # As it is now, whatever is edited meanwhile.
    checkout = pathlib.Path(directory) / "now"
    copy_checkout(checkout)
    for mutant in chosen:
      mutant.original(checkout)
    print(f"{len(chosen)} mutants. First the tests that they name, without any of them ...", flush=True)
    unharmed = Copy(checkout, pathlib.Path(directory)).test(*dict.fromkeys(mutant.test for mutant in chosen))
    if unharmed.returncode != 0:
      sys.exit(f"These tests do not pass as it is:\n{unharmed.stdout[-6000:]}{unharmed.stderr[-1000:]}")
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
      outcomes = []
      for killed, line in pool.map(functools.partial(examine, checkout), chosen):
        outcomes.append(killed)
        print(line, flush=True)
  print(f"{sum(outcomes)} of {len(outcomes)} mutants killed.")
  return 0 if all(outcomes) else 1


if __name__ == "__main__":
  sys.exit(main())

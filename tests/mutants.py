"""Breaks each guarantee in several ways, one at a time, and checks that the test named for each one fails.

    python tests/mutants.py                 all of them: about ten minutes on two CPU cores
    python tests/mutants.py "eviction"      those whose names contain this
    python tests/mutants.py --jobs 4        four at once; default: half of the CPU cores

A mutant replaces a text in one file of a copy of the checkout. The named tests must pass without a mutant, each mutant
must compile, and its text must occur exactly once. With ccache installed, only what a mutant changes is compiled. The
exit status is 0 if all mutants were killed. CI runs it at night.
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
# No test takes this long, including a build, but a mutant may hang.
LIMIT = 1200
TIMED_OUT = 124


@dataclasses.dataclass(frozen=True)
class Mutant:
  """A text that occurs once in a file of refurbish_tf, its replacement, and the test, in tests, that must then fail."""

  name: str
  file: str
  old: str
  new: str
  test: str

  def original(self, root):
    """Returns the file, in which there must be exactly one place to replace."""
    text = (root / "refurbish_tf" / self.file).read_text(encoding="utf-8")
    if text.count(self.old) != 1:
      sys.exit(f"{self.name}: {self.file} has this {text.count(self.old)} times, and not once:\n{self.old}")
    return text

  def apply(self, root):
    (root / "refurbish_tf" / self.file).write_text(self.original(root).replace(self.old, self.new), encoding="utf-8")


MUTANTS = [
  # G1.
  Mutant(
    "a source that has grown is not noticed",
    "cc/kernels/refurbish/source_reader.h",
    '      if (failed_.ok() && !end) failed_ = OtherLength("more than");\n',
    "",
    "refurbish/test_dataset_sources.py::test_a_source_whose_length_changes",
  ),
  Mutant(
    "what other workers have yielded comes again",
    "cc/refurbish/stage_restore.cc",
    "if (all(in_whole / 8) >> in_whole % 8 & 1) yielded.Note(i);",
    "",
    "refurbish/test_joined_positions.py::test_random_stops",
  ),
  Mutant(
    "the rest of a worker that was lost is lost",
    "_internal/joined_positions.py",
    "    number -= 1",
    "    pass",
    "refurbish/test_joined_positions.py::test_a_lost_worker_while_all_others_have_come_to_their_end",
  ),
  Mutant(
    "a result out of order",
    "cc/workers/ordered_workers.cc",
    "    return ring_.front()->state == State::kDone ? 0 : ring_.size();",
    "    if (ring_.front()->state == State::kDone) return 0;",
    "cc/test_cc.py::test_cc[address_undefined-ordered_workers_test]",
  ),
  # G2.
  Mutant(
    "what is kept for another generation is used",
    "cc/store/memory/memory_store.h",
    "entry.page != nullptr && wanted.Contains(entry.generation());",
    "entry.present();",
    "refurbish/test_guarantees.py::test_unbroken_training",
  ),
  Mutant(
    "samples of a lost worker are used from the store",
    "cc/refurbish/stage_restore.cc",
    "  ForgetLost(saved, *store);\n",
    "",
    "refurbish/test_joined_positions.py::test_samples_of_a_lost_worker_are_prepared_again",
  ),
  # G3.
  Mutant(
    "an eviction skipped",
    "cc/plan/schedule.cc",
    "evicted.count = NumBefore(cycle, now) - evicted.first;",
    "evicted.count = NumBefore(cycle, now) - evicted.first - 1;",
    "cc/test_cc.py::test_cc[address_undefined-schedule_test]",
  ),
  # G4.
  Mutant(
    "fresh samples all at the beginning",
    "cc/plan/schedule.cc",
    "    fresh = remainder + num_fresh_ >= num_samples_;",
    "    fresh = position < num_fresh_;",
    "cc/test_cc.py::test_cc[address_undefined-schedule_test]",
  ),
  # G5.
  Mutant(
    "a generation is prepared twice",
    "cc/store/disk/shared_state.cc",
    "? std::max<Generation>(after, least)",
    "? least",
    "cc/test_cc.py::test_cc[plain-shared_state_test]",
  ),
  Mutant(
    "nothing is taken",
    "cc/cooperation/shared/shared_job.h",
    "  if (!found.position.has_value()) return std::nullopt;",
    "  return std::nullopt;",
    "store/test_sharing.py::test_each_sample_is_prepared_about_once_for_all",
  ),
  # G6.
  Mutant(
    "the same order in every epoch",
    "cc/plan/schedule.cc",
    "  RandomStream random(DeriveKey(seed, Purpose::kOrder, epoch_));",
    "  RandomStream random(DeriveKey(seed, Purpose::kOrder));",
    "refurbish/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything",
  ),
  Mutant(
    "a shuffle that leaves nothing at its place",
    "cc/plan/random.h",
    "random.Below(size)]);",
    "random.Below(size - 1)]);",
    "cc/test_cc.py::test_cc[address_undefined-schedule_test]",
  ),
  Mutant(
    "the seed of final_fn is the same in each epoch",
    "cc/kernels/refurbish/sample_work.h",
    "kFinalFunction,\n                            epoch_->number(), piece));",
    "kFinalFunction, 0, piece));",
    "refurbish/test_guarantees.py::test_seed_fixes_everything_and_another_seed_changes_everything",
  ),
  # G7.
  Mutant(
    "a lost position is the first epoch",
    "cc/kernels/refurbish/refurbish_iterator.cc",
    "  if (to_be_restored_) dataset()",
    "  if (false) dataset()",
    "refurbish/test_epoch_position.py::test_without_the_position_a_lost_stage_is_an_error",
  ),
  Mutant(
    "an iterator reads ahead, and its position is where that is",
    "_internal/positions.py",
    "    if next_epoch >= 0:\n",
    "    if False:\n",
    "refurbish/test_pipeline_shapes.py",
  ),
  Mutant(
    "an iterator that is saved at the end of its epoch",
    "_internal/positions.py",
    '      position["stages"][i]["next_epoch"] = int(next_epoch)\n',
    "",
    "refurbish/test_pipeline_shapes.py",
  ),
  Mutant(
    "an operation after a stream reads elements again",
    "_internal/positions.py",
    "if stage.read_again_by and",
    "if False and",
    "refurbish/test_pipeline_shapes.py",
  ),
  Mutant(
    "what shard has skipped of an interleave is not saved",
    "_internal/positions.py",
    "if stage.skipped_by:",
    "if False:",
    "refurbish/test_pipeline_shapes.py",
  ),
  Mutant(
    "a dataset that a captured one has captured is not known",
    "cc/kernels/refurbish/stages_in_graph.cc",
    "        VisitDataset(*dataset, after);\n",
    "",
    "refurbish/test_pipeline_shapes.py",
  ),
  Mutant(
    "a repetition is lost by a checkpoint",
    "cc/kernels/echo/echo_dataset_op.cc",
    "writer->WriteScalar(prefix(), kLeft, left_));",
    "writer->WriteScalar(prefix(), kLeft, int64_t{0}));",
    "echo/test_echo_checkpoint.py::EchoCheckpointTest",
  ),
  Mutant(
    "a checkpoint of offload is of what was read",
    "cc/kernels/input_iterator.h",
    "    if (snapshot_ == nullptr) return this",
    "    return this",
    "offload/test_offload_restart.py::test_at_every_step[refurbish, prefetch]",
  ),
  Mutant(
    "another number of shards is not noticed within an epoch",
    "cc/refurbish/stage_restore.cc",
    "  if (saved.begun && !saved.joined) {\n    return refused(",
    "  if (false) {\n    return refused(",
    "refurbish/test_shards.py::test_refused_in_the_middle_of_an_epoch",
  ),
  # G8.
  Mutant(
    "the limit of memory is exceeded by one sample",
    "cc/store/memory/memory_store.h",
    "result = room_.Offer(stats_.bytes + bytes)",
    "result = room_.Offer(stats_.bytes)",
    "cc/test_cc.py::test_cc[plain-memory_store_test]",
  ),
  Mutant(
    "a store grows until memory runs out",
    "cc/store/memory/memory_pressure_limit.cc",
    "!is_short_ && memory.free < reserve",
    "memory.free < 0",
    "cc/test_cc.py::test_cc[plain-memory_store_test]",
  ),
  Mutant(
    "what is dropped is spread over all regions",
    "cc/sample_store/memory_samples.h",
    "    return RegionOf(sample);\n",
    "    return MemoryStore<Sample>::Region(sample);\n",
    "store/test_memory_short.py::test_drops_as_many_bytes_as_memory_is_short",
  ),
  # G9.
  Mutant(
    "the checksum of a sample dropped",
    "cc/store/record.cc",
    "header().payload_crc == Crc32c(payload(), payload_size());",
    "payload() != nullptr;",
    "cc/test_cc.py::test_cc[address_undefined-disk_damage_test]",
  ),
  Mutant(
    "a record of another sample is taken",
    "cc/store/record.cc",
    "header.index == index &&",
    "(header.index == index || true) &&",
    "cc/test_cc.py::test_cc[address_undefined-disk_damage_test]",
  ),
  Mutant(
    "an older generation replaces a newer one on disk",
    "cc/store/disk/disk_store.cc",
    "    if (stored > generation) return PutResult::kNewerKept;\n",
    "",
    "cc/test_cc.py::test_cc[plain-disk_store_test]",
  ),
  Mutant(
    "samples outlive what says how they were prepared",
    "cc/store/disk/store_files.cc",
    "  RTF_RETURN_IF_ERROR(directory.Sync());\n",
    "",
    "cc/test_cc.py::test_cc[plain-power_loss_test]",
  ),
  Mutant(
    "a record in transit is not checked",
    "cc/store/disk/read_ahead.cc",
    "entry->buffer.Verify(records.store_id(), wanted.index, bytes)",
    "bytes >= 64",
    "cc/test_cc.py::test_cc[plain-transit_attack_test]",
  ),
  Mutant(
    "samples of another shape come out of a store",
    "cc/sample_store/sample_store.cc",
    "        !shapes[i].IsCompatibleWith(sample[i].shape())) {",
    "        shapes[i].unknown_rank()) {",
    "store/test_disk_foreign.py::test_a_sample_of_another_kind_is_absent",
  ),
  # G10.
  Mutant(
    "a lost wake-up",
    "cc/workers/ordered_workers.cc",
    "settling_ || IsReady() || ring_.empty())) {",
    "settling_ || IsReady())) {",
    "cc/test_cc.py::test_cc[address_undefined-ordered_workers_test]",
  ),
  Mutant(
    "all threads start at once",
    "cc/workers/ordered_workers.cc",
    "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n",
    "  while (static_cast<int>(threads_.size()) + 1 < options_.max_calls) {\n"
    "    ++num_starting_;\n"
    "    threads_.push_back(start_thread_([this] { Loop(); }));\n"
    "  }\n"
    "  if (num_sleeping_ > 0 || num_starting_ > 0 ||\n",
    "cc/test_cc.py::test_cc[address_undefined-ordered_workers_test]",
  ),
  # Boxes, labels and instances of mosaics.
  Mutant(
    "labels are mixed in equal parts",
    "augment/composites.py",
    "areas = tf.reduce_prod(tf.cast(pieces[..., 3:5], tf.float64), 2)",
    "areas = tf.ones_like(pieces[..., 0], tf.float64)",
    "augment/test_composites.py::TestMosaic::test_whole_labels_and_weights_are_mixed_by_area",
  ),
  Mutant(
    "the background becomes an object",
    "augment/composites.py",
    "places = tf.where((old > 0) & (old < end), old + first, -1)",
    "places = tf.where(old < end, old + first, -1)",
    "augment/test_composites.py::TestBoth::test_whole_boxes_are_exact_and_all_kinds_of_maps_follow",
  ),
  Mutant(
    "a box stays however little is left of it",
    "cc/kernels/image/composite_ops.cc",
    "visible > 0 && visible + kPartRounding >= min_visibility;",
    "visible > 0;",
    "augment/test_composites.py::TestMosaic::test_is_its_definition",
  ),
]


def copy_checkout(to):
  """Copies the files that git tracks or would add, as they are in the working tree."""
  names = subprocess.run(
    ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    cwd=ROOT,
    check=True,
    capture_output=True,
    text=True,
  ).stdout
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
      **os.environ,
      "PYTHONPATH": str(self.root),
      "XDG_CACHE_HOME": str(directory / "cache"),
      "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if shutil.which("ccache"):
      # All copies share its cache, because ccache compares contents.
      self.environment |= {
        "CXX": f"ccache {os.environ.get('CXX', 'g++')}",
        "CCACHE_BASEDIR": str(self.root),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(pathlib.Path.home() / ".cache" / "ccache")),
      }

  def run(self, *arguments):
    try:
      return subprocess.run(
        [sys.executable, *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=LIMIT
      )
    except subprocess.TimeoutExpired as error:
      return subprocess.CompletedProcess(error.cmd, TIMED_OUT, "", f"not ended after {LIMIT} s")

  def build(self):
    """Builds the library first, because every test would fail with a C++ mutant that does not compile."""
    return self.run("-c", "from refurbish_tf._internal import native; native.ops()")

  def test(self, *tests):
    return self.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests)


def examine(checkout, mutant):
  """Returns whether the mutant was killed, and a line with the outcome."""
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as directory:
    copy = Copy(checkout, pathlib.Path(directory))
    mutant.apply(copy.root)
    built = copy.build()
    if built.returncode != 0:
      return False, f"DOES NOT BUILD  {mutant.name}\n{built.stderr[-3000:]}"
    tested = copy.test(f"tests/{mutant.test}")
    # 1 is the exit status of failed tests; a signal means that TensorFlow aborted the process.
    killed = (
      tested.returncode < 0
      or tested.returncode == 1
      and re.search(r"^\d+ failed", tested.stdout.splitlines()[-1]) is not None
    )
    outcome = "killed  " if killed else "SURVIVED" if tested.returncode == 0 else f"EXIT STATUS {tested.returncode}"
    line = f"{outcome} {mutant.name}: {mutant.test} ({time.monotonic() - began:.0f} s)"
    return killed, line if killed else f"{line}\n{tested.stdout[-3000:]}{tested.stderr[-1000:]}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("name", nargs="*", help="run only mutants whose names contain one of these")
  parser.add_argument(
    "--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="how many mutants run at once"
  )
  arguments = parser.parse_args()
  chosen = [mutant for mutant in MUTANTS if not arguments.name or any(name in mutant.name for name in arguments.name)]
  if not chosen:
    parser.error(f"no such mutant; choose from: {'; '.join(mutant.name for mutant in MUTANTS)}")
  twice = [name for name, number in collections.Counter(mutant.name for mutant in MUTANTS).items() if number > 1]
  if twice:
    parser.error(f"two mutants have the name: {'; '.join(twice)}")
  with tempfile.TemporaryDirectory() as directory:
    # Mutants use a snapshot, so edits during the run do not matter.
    checkout = pathlib.Path(directory) / "now"
    copy_checkout(checkout)
    for mutant in chosen:
      mutant.original(checkout)
    print(f"{len(chosen)} mutants. First their tests, without mutants ...", flush=True)
    copy = Copy(checkout, pathlib.Path(directory))
    copy.build()
    unharmed = copy.test(*dict.fromkeys(f"tests/{mutant.test}" for mutant in chosen))
    if unharmed.returncode != 0:
      sys.exit(f"These tests fail without mutants:\n{unharmed.stdout[-6000:]}{unharmed.stderr[-1000:]}")
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
      outcomes = []
      for killed, line in pool.map(functools.partial(examine, checkout), chosen):
        outcomes.append(killed)
        print(line, flush=True)
  print(f"{sum(outcomes)} of {len(outcomes)} mutants killed.")
  return 0 if all(outcomes) else 1


if __name__ == "__main__":
  sys.exit(main())

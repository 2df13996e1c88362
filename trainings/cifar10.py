"""Accuracy on all of CIFAR-10, with a network that a GPU trains in seconds (Lee et al., 2021, section 7.1).

    KERAS_BACKEND=jax PYTHONPATH=. python trainings/cifar10.py --minutes 8

docs/results.md has the plan. A *turn* is one training in each setting with the same seed. The first turn is a pilot,
which chooses the policy. A turn is written to the table when it is complete, so all its trainings ran on one machine
and from one commit. The program does not begin a turn that it cannot finish within its minutes; the same command
continues with the next one. Nothing else should run on the machine, because rows include seconds and CPU seconds.
"""

import argparse
import dataclasses
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.experiments import accuracy, images as image_sets, positive_number, results, tables, training
from refurbish_tf.experiments.pipelines import Pipelines

DATASET = "cifar10"
KEY = tuple(
  "what dataset validation images epochs batch_size width precision learning_rate policy setting seed".split()
)
COLUMNS = (*accuracy.COLUMNS, "cpu_seconds")
PRECISION = "mixed_bfloat16"
# As in Page, 2018. Keras decays weights once per step; Page decays them through a momentum of 0.9, which is ten times
# as much.
LEARNING_RATE = 0.4
WEIGHT_DECAY = 5e-3
CROP_AND_FLIP = "simplified by 2"
ALL_PARTIAL = "refurbish r=3 split 4"
NO_POLICY = "none"
# The policies that the pilot compares with crop and flip alone.
POLICIES = ("RandAugment", "TrivialAugment")
# The comparison does not use the pilot's seed.
PILOT_SEED = 100
# Estimates for one training of all images and for compiling the network, used until trainings have been measured.
EXPECTED_SECONDS, COMPILING_SECONDS = 25, 60
# A training may take this many times as long as the longest training so far.
MARGIN = 1.1


@dataclasses.dataclass(frozen=True)
class Plan:
  """The trainings to run. The pilot is validated on `held_out` of the `images`, and trained on the rest."""

  images: int = 50_000
  held_out: int = 10_000
  # A multiple of 2 and of 3, so that refurbish uses each prepared sample exactly r times.
  epochs: int = 24
  batch_size: int = 512
  width: int = 64
  # The number of trainings in each setting.
  seeds: tuple = (
    ("standard", 10),
    ("refurbish r=2", 10),
    ("refurbish r=3", 10),
    (ALL_PARTIAL, 5),
    ("echo augmented e=3", 5),
    (CROP_AND_FLIP, 5),
  )

  def pilot(self):
    """The keys of the pilot's rows."""
    return [
      self._row("pilot", "train", self.images - self.held_out, policy, setting, PILOT_SEED)
      for policy, setting in (*((policy, "standard") for policy in POLICIES), (NO_POLICY, CROP_AND_FLIP))
    ]

  def turns(self, policy):
    """The keys of the comparison's rows, a list for each seed."""
    return [
      [
        self._row("comparison", "test", self.images, NO_POLICY if setting == CROP_AND_FLIP else policy, setting, seed)
        for setting, seeds in self.seeds
        if seed < seeds
      ]
      for seed in range(max(seeds for _, seeds in self.seeds))
    ]

  def _row(self, what, validation, images, policy, setting, seed):
    plan = (self.epochs, self.batch_size, self.width, PRECISION, LEARNING_RATE)
    return dict(zip(KEY, (what, DATASET, validation, images, *plan, policy, setting, seed)))


# A plan that runs completely within a minute on a CPU. Its accuracies are meaningless.
QUICK = Plan(
  images=192,
  held_out=96,
  epochs=1,
  batch_size=32,
  width=2,
  seeds=(("standard", 2), ("refurbish r=3", 2), (ALL_PARTIAL, 1), ("echo augmented e=3", 1), (CROP_AND_FLIP, 1)),
)


def chosen_policy(rows):
  """The policy with the best accuracy in the pilot, or the first of `POLICIES` if none gains enough. None without a
  pilot."""
  if (pilot := tables.pilot_gain(rows)) is None:
    return None
  best, gain = pilot
  return best if gain >= tables.LEAST_GAIN else POLICIES[0]


def load(path, plan):
  """Images and labels to train and to validate on, as pairs of arrays.

  Args:
    path: a file of `numpy.savez` with "train_images", "train_labels", "test_images" and "test_labels", or None for
      TFDS.
    plan: a `Plan`, which says how many images to use.

  Raises:
    OSError, ValueError: the file cannot be read, or is not such a file.
    images.DatasetError: TFDS has not prepared CIFAR-10 and cannot download it.
  """
  if plan is QUICK:
    return [image_sets.draw_shapes(plan.images, seed) for seed in range(2)]
  if path is None:
    found = image_sets.load_all(DATASET, plan.images)
    return [_arrays(part, found.decode) for part in (found.train, found.validation)]
  with np.load(path) as file:
    missing = {f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")} - set(file)
    if missing:
      raise ValueError(
        f"--data must be a file that `benchmarks/offline.py` writes, got {path}, which lacks "
        f"{', '.join(sorted(missing))}."
      )
    return [(file[f"{part}_images"], file[f"{part}_labels"]) for part in ("train", "test")]


def _arrays(part, decode):
  decoded = part.map(lambda record, label: (decode(record), label), tf.data.AUTOTUNE)
  images, labels = zip(*decoded.as_numpy_iterator())
  return np.stack(images), np.array(labels)


def pipeline(data, row):
  """The batches that `row` is trained on, from a pair of arrays."""
  policies = {
    "RandAugment": lambda: augment.rand_augment(2, accuracy.MAGNITUDE),
    "TrivialAugment": lambda: [augment.trivial_augment()],
    NO_POLICY: list,
  }[row["policy"]]()
  layers = [*policies, augment.random_crop(padding=accuracy.PADDING), augment.random_flip()]
  loaded = _as_images(data)
  ways = Pipelines(
    loaded,
    layers,
    len(layers) if row["setting"] == ALL_PARTIAL else len(policies),
    row["seed"],
    row["batch_size"],
    drop_remainder=True,
  )
  make = {**accuracy.SETTINGS, ALL_PARTIAL: lambda ways: ways.refurbished(3)}[row["setting"]]
  return make(ways)


def _validation(data):
  return tf.data.Dataset.from_tensor_slices(data).batch(min(len(data[1]), 2_000))


def _as_images(data):
  images, labels = data
  return image_sets.Images(
    "",
    "",
    tf.data.Dataset.from_tensor_slices((images, labels.astype(np.int64))),
    None,
    tf.identity,
    images.shape[1:],
    int(labels.max()) + 1,
  )


class Trainings:
  """Runs trainings one after the other. Networks with the same shape and number of steps are compiled once."""

  def __init__(self, data):
    self._data = data
    self._models = {}

  def is_compiled(self, row):
    return self._shape(row) in self._models

  def compile(self, row):
    """Compiles the network for `row` and similar rows, so that `run` measures only trainings."""
    if self.is_compiled(row):
      return
    train, test = self._parts(row)
    with training.computing_with(row["precision"]):
      model = training.resnet9(_as_images(train), row["width"])
      steps = row["epochs"] * (row["images"] // row["batch_size"])
      training.compiled(model, steps, row["learning_rate"], training.WARM_UP, WEIGHT_DECAY)
    # This also makes the optimizer's variables.
    model.fit(pipeline(train, row).take(1), validation_data=_validation(test), shuffle=False, verbose=0)
    self._models[self._shape(row)] = model

  def run(self, row):
    """Trains once. Returns the remaining columns of the row."""
    self.compile(row)
    # Set before the pipeline is made, because `Dataset.shuffle` draws its seed from this one.
    keras.utils.set_random_seed(row["seed"])
    train, test = self._parts(row)
    model, dataset = self._models[self._shape(row)], pipeline(train, row)
    with training.computing_with(row["precision"]):
      training.restart(model, training.resnet9(_as_images(train), row["width"]).get_weights())
    began, cpu = time.perf_counter(), time.process_time()
    history = model.fit(
      dataset,
      epochs=row["epochs"],
      validation_data=_validation(test),
      shuffle=False,
      verbose=0,
      validation_freq=[*range(row["epochs"], 0, -max(1, row["epochs"] // 3))],
    ).history
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
      **accuracy.found(model, history, dataset, row["setting"], row["images"] * row["epochs"], len(test[1]), seconds),
      "cpu_seconds": round(cpu, 1),
    }

  def _shape(self, row):
    return tuple(row[name] for name in ("images", "epochs", "batch_size", "width", "precision", "learning_rate"))

  def _parts(self, row):
    """The images and labels that `row` is trained and validated on, as pairs of arrays."""
    train, test = self._data
    if row["validation"] == "train":
      test = tuple(array[row["images"] :] for array in train)
    return tuple(array[: row["images"]] for array in train), test


def complete(table, trainings, plan, minutes, clock=time.monotonic):
  """Adds to `table` the missing turns that end within `minutes`, and prints the progress.

  Args:
    table: a `results.Table`.
    trainings: `Trainings`.
    plan: a `Plan`.
    minutes: the time limit for all trainings, from now.
    clock: a function that returns seconds since any fixed time.

  Returns:
    Whether the table is complete.
  """
  end, measured = clock() + 60 * minutes, {}
  while (turn := _next_turn(table, plan)) is not None:
    if _is_too_late(
      _expected(turn, measured) + (0 if trainings.is_compiled(turn[0]) else COMPILING_SECONDS), end - clock()
    ):
      return False
    trainings.compile(turn[0])
    rows = []
    for number, key in enumerate(turn):
      if _is_too_late(_expected(turn[number:], measured), end - clock()):
        return False
      began = clock()
      rows.append({**key, **trainings.run(key)})
      measured[key["setting"]] = max(measured.get(key["setting"], 0), (clock() - began) / key["images"])
      print(
        f"{key['what']}, seed {key['seed']}, {key['policy']}, {key['setting']}: accuracy {rows[-1]['accuracy']:.4f} "
        f"after {rows[-1]['seconds']:.1f} s",
        flush=True,
      )
    table.add(rows)
  print(f"{table.path} is complete.", flush=True)
  return True


def _expected(keys, measured):
  """Seconds for all of `keys`. `measured` has seconds per image by setting; for a missing setting the slowest is
  used."""
  slowest = max(measured.values(), default=EXPECTED_SECONDS / Plan.images)
  return MARGIN * sum(key["images"] * measured.get(key["setting"], slowest) for key in keys)


def _is_too_late(needed, left):
  """Returns whether a turn, or its rest, cannot end in time. If so, prints a message."""
  if needed <= left:
    return False
  print(
    f"Stopped: the turn needs about {needed:.0f} s more, and {max(0, left):.0f} s are left. Run the same command "
    "again to continue with it.",
    flush=True,
  )
  return True


def _next_turn(table, plan):
  """The keys of the first turn that is not in the table, or None."""
  if missing := [key for key in plan.pilot() if not table.has(key)]:
    return missing
  policy = chosen_policy(row for row in results.read(table.path) if row["images"] == plan.images - plan.held_out)
  return next((turn for turn in plan.turns(policy) if not all(map(table.has, turn))), None)


def main(argv=None):
  """Runs the turns that end in time, and adds them to the table."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  parser.add_argument("--output", type=pathlib.Path, default="cifar10.csv", help="the table to write or to complete")
  parser.add_argument("--minutes", type=positive_number, default=8.0, help="start no turn that would end later")
  parser.add_argument(
    "--data", type=pathlib.Path, help="the images, as benchmarks/offline.py writes them; default: TFDS"
  )
  parser.add_argument(
    "--quick", action="store_true", help="run everything on a few generated images, on any machine, as a test"
  )
  args = parser.parse_args(argv)
  backend, devices = results.backend()
  if not (devices or args.quick):
    parser.error(
      f"it needs a GPU, and Keras{backend} finds none. KERAS_BACKEND chooses the backend; --quick runs anywhere."
    )
  plan = QUICK if args.quick else Plan()
  table, data = results.open_table(parser, args.output, KEY, COLUMNS, lambda: load(args.data, plan))
  complete(table, Trainings(data), plan, args.minutes)


if __name__ == "__main__":
  sys.exit(main())

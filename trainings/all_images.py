"""Accuracy on all 50,000 images of CIFAR-10, on a few CPU cores: docs/results.md has the plan and the results.

    PYTHONPATH=. nohup setsid python trainings/all_images.py STATE >> STATE.log 2>&1 &

It runs the trainings of the plan one after the other, at the lowest priority. The folder STATE has a checkpoint of the
last whole epoch, and the rows of finished trainings in all_images.csv. The program can be killed at any time: the same
command continues after that epoch, with the same results. `kill -STOP $(cat STATE/pid)` pauses it, and `kill -CONT`
continues it. Run it in a separate work tree so that its version does not change.

A row's `seconds` are wall-clock seconds, including pauses and other work of the machine, but not its `cpu_seconds`.
"""

import argparse
import contextlib
import csv
import dataclasses
import fcntl
import io
import json
import os
import pathlib
import shutil
import sys
import time

import cifar10
import keras
import networks
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import results, tables, training

KEY = tuple("what dataset validation images network policy epochs batch_size learning_rate setting seed".split())
MAIN = ("standard", "refurbish r=2", "refurbish r=3")
MOMENTUM, WEIGHT_DECAY, LABEL_SMOOTHING = 0.85, 0.009, 0.2
# The pilot chooses the first number of epochs that reaches the accuracy. All are multiples of both 2 and 3.
EPOCHS, ACCURACY = (12, 18, 24), 0.9
# The padding of CIFAR-10's images; for photographs, the side of cached images and of the network's input.
PADDING, CACHED_SIDE, SIDE = 2, 112, 96
# The whitening and the standardization are computed from this many images.
SOME = 2_000
COLOURS = "resized crop, colours"
POLICIES = {
  "none": list,
  COLOURS: lambda: [
    augment.random_resized_crop(32, scale=(0.6, 1.0)),
    augment.color_jitter(brightness=0.2, contrast=0.2, saturation=0.2),
  ],
  "RandAugment": lambda: augment.rand_augment(1, 5),
  "AutoAugment": lambda: augment.auto_augment("cifar10"),
}


@dataclasses.dataclass(frozen=True)
class Part:
  """Trainings of the plan: all settings seed by seed, so that pairs are complete early."""

  what: str = "comparison"
  settings: tuple = MAIN
  seeds: range = range(4)
  dataset: str = "cifar10"
  validation: str = "test"
  images: int = 50_000
  network: str = "whitened"
  # Decided by the pilot: a policy, and the first of `EPOCHS` that is enough.
  policy: str | None = None
  epochs: int | None = None
  # A divisor of the number of images.
  batch_size: int = 250
  learning_rate: float = 0.4
  # No more seeds are begun once half the interval of each difference is at most this many points.
  enough: float = 0.0

  def keys(self, rows, **decided):
    """The keys of the rows of this part. `rows` is a function that reads the finished rows."""
    fixed = {name: decided.get(name) if value is None else value for name, value in vars(self).items()}
    for seed in self.seeds:
      found = tables.differences(
        [row for row in rows() if row["what"] == self.what and row["seed"] < seed], paired=True
      )
      if self.enough and all(found[setting][1] <= self.enough for setting in self.settings[1:]):
        return
      for setting in self.settings:
        yield {name: {**fixed, "setting": setting, "seed": seed}[name] for name in KEY}


PILOT = Part("pilot", ("standard",), range(100, 101), validation="train", images=45_000)
PARTS = (
  Part(seeds=range(8)),
  Part(seeds=range(8, 12), enough=0.2),
  Part(settings=("refurbish r=5", cifar10.ALL_PARTIAL, "echo augmented e=3")),
  Part("network", network="separable"),
  Part("photographs", dataset="groceries", images=675, policy=COLOURS, epochs=90, batch_size=25, learning_rate=0.04),
  Part("policy", policy="AutoAugment"),
)


def planned(rows):
  """The keys of the rows of all trainings, in order. `rows` is a function that reads the finished rows."""
  reached = lambda *how: next(
    row["accuracy"] for row in rows() if row["what"] == "pilot" and (row["policy"], row["epochs"]) == how
  )
  epochs = EPOCHS[0]
  for policy in ("none", "RandAugment", COLOURS):
    yield from PILOT.keys(rows, policy=policy, epochs=epochs)
  gain = reached("RandAugment", epochs) - reached("none", epochs)
  policy = "RandAugment" if round(100 * gain, 2) >= tables.LEAST_GAIN else COLOURS
  for epochs in EPOCHS:
    if epochs > EPOCHS[0]:
      yield from PILOT.keys(rows, policy=policy, epochs=epochs)
    if reached(policy, epochs) >= ACCURACY:
      break
  else:
    sys.exit(
      f"The pilot did not reach {ACCURACY:.0%}. Change the network or the schedule, and the plan in docs/results.md."
    )
  for part in PARTS:
    yield from part.keys(rows, policy=policy, epochs=epochs)


class Progress(tf.train.experimental.PythonState):
  """The progress of a training, for its checkpoint."""

  def __init__(self):
    super().__init__()
    self.now = {"epochs": 0, "seconds": 0.0, "cpu_seconds": 0.0, "train_accuracy": 0.0}

  def serialize(self):
    return json.dumps(self.now)

  def deserialize(self, string_value):
    self.now = json.loads(string_value)


class Samples:
  """The samples of a training.

  Attributes:
    saved: by name, the objects that a checkpoint must hold in addition to the number of the epoch.
    validation: batches of (image, label).
    images: some training images without augmentation, in the form that the network gets.
  """

  def __init__(self, row, data):
    train, test = data
    if row["validation"] == "train":
      test = tuple(array[row["images"] :] for array in train)
    self._train, self._row = tuple(array[: row["images"]] for array in train), row
    unchanged, partial, final = _layers(row)
    self._layers = [*partial, *final]
    self._classes, self._one_hot = (
      int(train[1].max()) + 1,
      lambda image, label: (image, tf.one_hot(label, self._classes)),
    )
    plain = lambda arrays: tf.data.Dataset.from_tensor_slices(arrays).map(
      lambda image, label: (augment.compose(unchanged)(image) if unchanged else image, label), 2
    )
    self.validation = plain(test).batch(500).map(self._one_hot)
    self.images = next(plain(self._train).batch(SOME).as_numpy_iterator())[0]
    self.saved = {}
    if row["setting"] != "echo augmented e=3":
      if row["setting"] == cifar10.ALL_PARTIAL or not partial:
        partial, final = self._layers, None
      r = 1 if row["setting"] == "standard" else int(row["setting"].split("r=")[1].split()[0])
      self._stage = self._batches(
        tf.data.Dataset.from_tensor_slices(self._train)
        .refurbish(partial, final, r, seed=row["seed"])
        .batch(row["batch_size"])
      )
      self.saved["position"] = rtf.EpochPosition(self._stage)

  def epoch(self, number):
    """The batches of an epoch. Epochs must be read one after the other."""
    if self.saved:
      return self._stage
    # Each epoch reads every third image, with its own random numbers, so there is no state to save.
    return self._batches(
      tf.data.Dataset.from_tensor_slices(tuple(array[number % 3 :: 3] for array in self._train)).echo(
        3,
        "after_augment",
        augment_fn=augment.compose(self._layers),
        batch_size=self._row["batch_size"],
        drop_remainder=True,
        shuffle_buffer_size=len(self._train[0]),
        seed=1000 * self._row["seed"] + number,
      )
    )

  def _batches(self, dataset):
    return dataset.map(self._one_hot).prefetch(2)


def _layers(row):
  """The layers for images that are not augmented, for the partial augmentation, and for the final one."""
  policy, final = (
    POLICIES[row["policy"]](),
    [augment.random_crop(padding=PADDING, padding_mode="reflect"), augment.random_flip()],
  )
  if row["dataset"] == "cifar10":
    return [], policy, final
  # The policy's first layer, a crop, is replaced by a crop to another size.
  return (
    [augment.decode(), augment.resize((CACHED_SIDE, CACHED_SIDE)), augment.center_crop(SIDE)],
    [augment.decode_random_resized_crop(CACHED_SIDE, scale=(0.35, 1.0)), *policy[1:]],
    [augment.random_crop(SIDE), augment.random_flip()],
  )


def train(row, data, folder):
  """Trains once, or continues from the checkpoint in `folder`. Returns the remaining columns of the row."""
  keras.backend.clear_session()
  keras.utils.set_random_seed(row["seed"])
  samples = Samples(row, data)
  model = getattr(networks, row["network"])(samples.images, samples.validation.element_spec[1].shape[-1])
  steps = row["epochs"] * (row["images"] // row["batch_size"])
  rate = training.cosine(row["learning_rate"], steps, training.WARM_UP)
  model.compile(
    keras.optimizers.SGD(rate, MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY),
    keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=LABEL_SMOOTHING),
    metrics=["accuracy"],
    jit_compile=training.jit_compile(),
  )
  model.optimizer.build(model.trainable_variables)
  progress = Progress()
  checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, progress=progress, **samples.saved)
  manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
  manager.restore_or_initialize()
  while (now := progress.now)["epochs"] < row["epochs"]:
    began, cpu = time.perf_counter(), time.process_time()
    found = model.fit(samples.epoch(now["epochs"]), verbose=0, shuffle=False).history
    progress.now = {
      "epochs": now["epochs"] + 1,
      "seconds": now["seconds"] + time.perf_counter() - began,
      "cpu_seconds": now["cpu_seconds"] + time.process_time() - cpu,
      "train_accuracy": found["accuracy"][-1],
    }
    manager.save()
    say(f"{name_of(row)}: {progress.serialize()}")
  reached = model.evaluate(samples.validation, verbose=0, return_dict=True)["accuracy"]
  return {
    "steps": int(model.optimizer.iterations),
    "accuracy": round(reached, 4),
    "train_accuracy": round(progress.now["train_accuracy"], 4),
    "validation_images": len(data[1][1]) if row["validation"] == "test" else len(data[0][1]) - row["images"],
    "parameters": model.count_params(),
    "seconds": round(progress.now["seconds"], 1),
    "cpu_seconds": round(progress.now["cpu_seconds"], 1),
  }


def run(state, load):
  """Runs the trainings that are not in the table, and adds the row of each when it is finished.

  Args:
    state: the folder of the table and the checkpoints.
    load: a function from the name of a data set to (images, labels) to train and to validate on.
  """
  table, provenance = (
    state / "all_images.csv",
    {**results.provenance(), "command": "python trainings/all_images.py STATE"},
  )
  finished = lambda: results.read(table) if table.exists() else []
  loaded = {}
  for row in planned(finished):
    folder = state / name_of(row)
    if not any(all(there[name] == row[name] for name in KEY) for there in finished()):
      if row["dataset"] not in loaded:
        loaded = {row["dataset"]: load(row["dataset"])}
      found = train(row, loaded[row["dataset"]], folder)
      _add(table, {**row, **found, **provenance})
      say(f"{name_of(row)}: accuracy {found['accuracy']:.4f} after {found['seconds']:.0f} s")
    shutil.rmtree(folder, ignore_errors=True)


def name_of(row):
  return f"{row['what']}-{row['policy']}-{row['epochs']}-{row['setting']}-{row['seed']}".replace(" ", "_")


def _add(table, row):
  """Replaces the table by one with an additional row, so that it stays intact whenever the program is killed."""
  text = io.StringIO()
  writer = csv.DictWriter(text, row, lineterminator="\n")
  if not table.exists():
    writer.writeheader()
  writer.writerow(row)
  new = table.with_suffix(".new")
  new.write_text((table.read_text(encoding="utf-8") if table.exists() else "") + text.getvalue(), encoding="utf-8")
  os.replace(new, table)


def load(dataset):
  """Images and labels to train and to validate on, from TFDS. They are decoded if all have the same size."""
  if dataset == "cifar10":
    return cifar10.load(None, cifar10.Plan())
  import tensorflow_datasets as tfds

  return [
    tuple(
      np.array(column)
      for column in zip(
        *(
          (element["image"], element["label"])
          for element in tfds.as_numpy(
            tfds.load(dataset, split=split, decoders={"image": tfds.decode.SkipDecoding()}, shuffle_files=False)
          )
        )
      )
    )
    for split in ("train", "test")
  ]


def become_last():
  """Gives all threads of this process, and all threads that they start, the lowest priority."""
  for thread in map(int, os.listdir("/proc/self/task")):
    os.setpriority(os.PRIO_PROCESS, thread, 19)
    with contextlib.suppress(OSError, AttributeError):
      os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
  # Linux compares priorities only within a session, unless the session's group also has the lowest one.
  with contextlib.suppress(OSError):
    pathlib.Path("/proc/self/autogroup").write_text("19", encoding="utf-8")


def say(text):
  print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("state", type=pathlib.Path, help="a folder for the rows and the checkpoints")
  args = parser.parse_args(argv)
  args.state.mkdir(parents=True, exist_ok=True)
  with (args.state / "pid").open("a+") as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      parser.error(
        f"{args.state} is in use by the process in {args.state / 'pid'}. Kill it first, or pass another folder."
      )
    lock.truncate(0)
    print(os.getpid(), file=lock, flush=True)
    become_last()
    run(args.state, load)
  say("The plan is complete.")


if __name__ == "__main__":
  sys.exit(main())

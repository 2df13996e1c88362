"""The ways to augment, measured alike: the input alone, then in training."""
import dataclasses
import statistics
import time
from typing import Callable, Optional

import absl.logging
import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment

BATCH_SIZE = 128
MAGNITUDE = 9
PADDING = 4
LEARNING_RATE = 4e-3
STEPS_PER_EXECUTION = 8
ECHOING_FACTOR = 2
# Standard deviation of the validation accuracy between seeds, as found with the default settings on CIFAR-10.
TRAINING_NOISE = 0.01
# Of the input alone.
STEADY_EPOCHS = 5
MODEL = "5x5 convolution (16, stride 2), max-pool, 3x3 convolution (48), max-pool, dense"


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the command line sets."""
  epochs: int
  reuse: tuple
  seed: int


@dataclasses.dataclass(frozen=True)
class Costs:
  """CPU seconds per image of the parts of the augmentation, each alone in a map of its own."""
  decode: float
  partial: float  # Including the decoding.
  final: float

  def refurbished(self, r):
    return self.partial / r + self.final

  def echoed(self, e, where):
    """As `Dataset.echo` has it: decoded once, and augmented once or, "before_augment", each time."""
    once = self.decode if where == "before_augment" else self.partial + self.final
    return once / e + self.partial + self.final - once


@dataclasses.dataclass
class Row:
  """One way to augment and what was measured of it.

  Attributes:
    name: for people.
    kind: "standard", "refurbish", "echo" or "frozen".
    factor: r or e, 1 for standard, None for frozen.
    make: returns a new pipeline of (image, label), batched and prefetched.
    cost: from `Costs` to what an image costs at least, None where that is nothing.
    input_rate: images/s of the input alone.
    input_cpu: CPU seconds per image of the input alone.
    train_rate: images/s of training.
    fresh: samples prepared afresh in each epoch of training.
    seconds: duration of each epoch of training, validation not included.
    train_accuracy: on the augmented images, for each epoch.
    accuracy: on the validation images, after each epoch.
  """
  name: str
  kind: str
  factor: Optional[float]
  make: Callable
  cost: Optional[Callable] = None
  input_rate: float = 0.0
  input_cpu: float = 0.0
  train_rate: float = 0.0
  fresh: list = dataclasses.field(default_factory=list)
  seconds: list = dataclasses.field(default_factory=list)
  train_accuracy: list = dataclasses.field(default_factory=list)
  accuracy: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Result:
  """All rows, standard first, and what the parts of the augmentation cost alone."""
  rows: list
  costs: Costs
  train_images: int
  validation_images: int

  def limit(self, row):
    """How many times less CPU time than standard a row can cost; None if that is without limit."""
    return self.costs.refurbished(1) / row.cost(self.costs) if row.cost else None


def start_tensorflow():
  """Has TensorFlow look for its devices now, and warn no more of what is not ours."""
  tf.config.list_logical_devices()
  # TFDS makes use of its own deprecated attributes.
  absl.logging.set_verbosity(absl.logging.ERROR)
  # Several models traced in turn look to TensorFlow like one function that is traced again and again.
  tf.get_logger().setLevel("ERROR")


def run(images, settings, progress):
  """Measures every row.

  Rows take turns, epoch by epoch, so that whatever else the machine does meanwhile falls upon all of them alike.
  """
  layers = [
      images.decode, augment.rand_augment_layer(MAGNITUDE), augment.rand_augment_layer(MAGNITUDE),
      augment.random_crop(PADDING), augment.random_flip()]
  partial_fn, final_fn = augment.split(layers, at=3)
  full_fn = augment.compose(layers)
  source, seed, buffer_size, e = images.train, settings.seed, len(images.train), ECHOING_FACTOR

  def batched(dataset):
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)

  def standard():
    return batched(_map(source.shuffle(buffer_size, seed=seed), full_fn, seed))

  def refurbished(r):
    # A buffer as large as that of standard, for a source that is read as a stream.
    return batched(source.refurbish(partial_fn, final_fn, r=r, seed=seed, shuffle_buffer_size=buffer_size))

  def echoed(where):
    # The others' number of samples and steps: each epoch reads a random one of e parts. Every e-th image, and not a
    # shuffled selection, so that the only shuffle is the echo's own.
    count = len(source) // e
    part = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1).flat_map(
        lambda number: source.shard(e, number % e).take(count))
    part = part.apply(tf.data.experimental.assert_cardinality(count))
    return _decoded(part, images).echo(
        e, where, augment_fn=augment.compose(layers[1:]), batch_size=BATCH_SIZE, shuffle_buffer_size=buffer_size,
        seed=seed).prefetch(tf.data.AUTOTUNE)

  def frozen():
    return batched(_map(source, full_fn, seed).cache().shuffle(buffer_size, seed=seed))

  rows = [Row("standard", "standard", 1, standard, lambda costs: costs.refurbished(1))]
  rows += [
      Row(f"refurbish r={r:g}", "refurbish", r, lambda r=r: refurbished(r), lambda costs, r=r: costs.refurbished(r))
      for r in settings.reuse]
  rows += [
      Row(name, "echo", e, lambda where=where: echoed(where), lambda costs, where=where: costs.echoed(e, where))
      for name, where in (
          ("echo decoded", "before_augment"), ("echo augmented", "after_augment"), ("echo batches", "after_batch"))]
  rows += [Row("frozen cache*", "frozen", None, frozen)]

  decode, partial, final = "decode", "partial_fn", "final_fn"
  pipelines = {row.name: row.make() for row in rows}
  pipelines[decode] = batched(_decoded(source.cache(), images))
  pipelines[partial] = batched(_map(source.cache(), partial_fn, seed))
  pipelines[final] = batched(_map(_map(source, partial_fn, seed).cache(), final_fn, seed))
  progress.begin((1 + STEADY_EPOCHS) * len(pipelines) + 2 * settings.epochs * len(rows))
  alone = _measure_input(pipelines, len(images.train), progress)
  del pipelines  # And what they have cached.
  for row in rows:
    wall, row.input_cpu = alone[row.name]
    row.input_rate = 1 / wall
  _train(rows, images, settings, progress)
  return Result(
      rows, Costs(*(alone[name][1] for name in (decode, partial, final))), train_images=len(images.train),
      validation_images=len(images.validation))


def _map(dataset, function, seed):
  """Maps a function that takes a stateless seed, another one for every element and epoch, as `refurbish` gives it."""
  seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).batch(2)
  return tf.data.Dataset.zip((dataset, seeds)).map(
      lambda element, seed: function(*element, seed=seed), num_parallel_calls=tf.data.AUTOTUNE)


def _decoded(dataset, images):
  return dataset.map(lambda record, label: (images.decode(record), label), num_parallel_calls=tf.data.AUTOTUNE)


def _measure_input(pipelines, count, progress):
  """Iterates over each pipeline without a model; returns wall and CPU seconds per image by name."""
  measured = {name: [] for name in pipelines}
  for epoch in range(1 + STEADY_EPOCHS):
    for name, pipeline in pipelines.items():
      progress.step(1, "input alone", f"epoch {epoch + 1} of {1 + STEADY_EPOCHS}, {name}")
      measured[name].append(_drain(pipeline, progress))
  # The first epoch fills caches and the store. Of the others the best, as in timeit: what else the machine does only
  # ever adds.
  return {name: np.min(times[1:], axis=0) / count for name, times in measured.items()}


def _drain(pipeline, progress):
  """Iterates over all batches; returns wall and CPU seconds, the latter those of os.times, with more digits."""
  wall, cpu = time.perf_counter(), time.process_time()
  batches = len(pipeline)
  for batch, _ in enumerate(pipeline):
    progress.within((batch + 1) / batches)
  return time.perf_counter() - wall, time.process_time() - cpu


def _train(rows, images, settings, progress):
  """Trains a model for every row and sets the rest of it."""
  count = len(images.train)
  # Decoded once and kept: what is compared is the training.
  validation = _decoded(images.validation, images).batch(500).cache()
  pipelines = [row.make() for row in rows]
  models = [_model(images, settings, len(pipelines[0])) for _ in rows]
  clocks = [_Clock(progress) for _ in rows]
  for epoch in range(settings.epochs):
    for row, pipeline, model, clock in zip(rows, pipelines, models, clocks):
      progress.step(2, "training", f"epoch {epoch + 1} of {settings.epochs}, {row.name}")
      # An epoch at a time for the rows to take turns; otherwise this is model.fit(pipeline, epochs=settings.epochs).
      history = model.fit(
          pipeline, initial_epoch=epoch, epochs=epoch + 1, shuffle=False, callbacks=[clock], verbose=0)
      row.train_accuracy += history.history["accuracy"]
      row.accuracy.append(model.evaluate(validation, verbose=0, return_dict=True)["accuracy"])
  for row, pipeline, clock in zip(rows, pipelines, clocks):
    row.seconds = clock.seconds
    # The first epoch traces the model and fills the store, so it counts only where there is no other.
    row.train_rate = count / statistics.median(clock.seconds[1:] or clock.seconds)
    row.fresh = _fresh(row, pipeline, count, settings.epochs)


def _fresh(row, pipeline, count, epochs):
  for stage in rtf.stats(pipeline):
    return [epoch.fresh for epoch in stage.epochs]
  # Without `refurbish` there is nothing to count: `map` prepares all samples, `cache` none after the first epoch.
  return [count] + [0] * (epochs - 1) if row.kind == "frozen" else [count // row.factor] * epochs


def _model(images, settings, steps):
  """A new model, the same for the same settings.

  Light, because a demo of the input must not be about the model, and because here both often share the same cores.
  """
  keras.utils.set_random_seed(settings.seed)
  model = keras.Sequential([
      keras.Input(images.shape, dtype="uint8"),
      keras.layers.Rescaling(1 / 127.5, offset=-1),
      keras.layers.Conv2D(16, 5, strides=2, padding="same", activation="relu"),
      keras.layers.MaxPooling2D(),
      keras.layers.Conv2D(48, 3, padding="same", activation="relu"),
      keras.layers.MaxPooling2D(),
      keras.layers.Flatten(),
      keras.layers.Dense(images.classes)])
  model.compile(
      keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(LEARNING_RATE, settings.epochs * steps)),
      keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"],
      # On a CPU, XLA takes longer to compile such a model than it saves.
      jit_compile=False,
      # Keras itself costs a millisecond a call, a good part of a step of such a model.
      steps_per_execution=STEPS_PER_EXECUTION)
  return model


class _Clock(keras.callbacks.Callback):
  """Seconds of each epoch, without what `fit` does before and after."""

  def __init__(self, progress):
    super().__init__()
    self.seconds = []
    self._progress = progress

  def on_epoch_begin(self, epoch, logs=None):
    self._begin = time.perf_counter()

  def on_train_batch_end(self, batch, logs=None):
    self._progress.within((batch + 1) / self.params["steps"])

  def on_epoch_end(self, epoch, logs=None):
    self.seconds.append(time.perf_counter() - self._begin)

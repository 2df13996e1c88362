"""The input pipelines that the experiments compare."""

import dataclasses
import random
import time

import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import checks, dataset_graph, tracing
from refurbish_tf.experiments.images import Images

BATCH_SIZE = 128


@dataclasses.dataclass(frozen=True)
class Pipelines:
  """Pipelines that feed the same images with the same augmentation to a training.

  Every method returns a pipeline of (image, label), batched and prefetched, with the same number of samples and batches
  per epoch (exactly if the number of images is divisible by the factors and by `batch_size`).

  >>> from refurbish_tf.experiments.images import shapes
  >>> pipelines = Pipelines(shapes(384), [rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], at=1, seed=1)
  >>> len(pipelines.standard()), len(pipelines.refurbished(3)), len(pipelines.echoed(3, "after_batch"))
  (3, 3, 3)

  Attributes:
    images: the images, which a first layer decodes that is not one of `layers`.
    layers: the layers of the augmentation, for `rtf.augment.split`.
    at: how many of `layers` are in the partial augmentation, after the decoding.
    seed: the seed of the order and of the augmentation.
    batch_size: the batch size of the training.
    drop_remainder: as in `tf.data.Dataset.batch`. If true, all have the same number of steps for any number of images.
  """

  images: Images
  layers: list
  at: int
  seed: int
  batch_size: int = BATCH_SIZE
  drop_remainder: bool = False

  def standard(self):
    """Shuffles, then augments every sample in every epoch."""
    return self._batched(self._mapped(self._shuffled(self.images.train), self._full_fn))

  def refurbished(self, r, **options):
    """`Dataset.refurbish` with reuse factor `r`; `options` are its other arguments."""
    partial_fn, final_fn = self._split
    # For a source that is read as a stream, the shuffle buffer is as large as in `standard`.
    return self._batched(
      self.images.train.refurbish(partial_fn, final_fn, r=r, seed=self.seed, shuffle_buffer_size=self._count, **options)
    )

  def echoed(self, e, where):
    """`Dataset.echo` with a whole echoing factor `e`; each epoch reads one of `e` parts of the images.

    The parts come in random order, all of them in `e` epochs, then in another order. The pipeline counts its epochs.
    """
    checks.check_whole_number("e", e, 1)
    # Every e-th image instead of a shuffled selection, so that the echo's own shuffle is the only one.
    train, count = self.images.train, self._count // e
    if self._count % e:
      train = train.take(e * count)
    epoch = tf.Variable(-1, dtype=tf.int64)

    def part(_):
      number = epoch.assign_add(1)
      return tf.random.experimental.index_shuffle(number % e, tf.stack([self.seed, number // e]), e - 1)

    part = tf.data.Dataset.from_tensors(0).map(part).flat_map(lambda number: train.shard(e, number))
    part = part.apply(tf.data.experimental.assert_cardinality(count))
    how = {"batch_size": self.batch_size, "drop_remainder": self.drop_remainder, "shuffle_buffer_size": self._count}
    augment_fn = rtf.augment.compose(self.layers)
    echoed = decoded(part, self.images).echo(e, where, augment_fn=augment_fn, seed=self.seed, **how)
    return echoed.prefetch(tf.data.AUTOTUNE)

  def cached(self):
    """`Dataset.cache` after the augmentation: fast, but each image is augmented only once in the whole training."""
    return self._batched(self._shuffled(self._mapped(self.images.train, self._full_fn).cache()))

  def decoded_once(self):
    """The same pipelines after a `Dataset.cache` of the decoded images, which are read and decoded once."""
    train = decoded(self.images.train, self.images).cache()
    return dataclasses.replace(self, images=dataclasses.replace(self.images, train=train, decode=tf.identity))

  def parts(self):
    """A dict from name to a pipeline with one part of the augmentation alone, in its own map."""
    partial_fn, final_fn = self._split
    source = self.images.train.cache()
    decode = decoded(source, self.images)
    if None in self.images.shape:
      # Images of several sizes cannot be batched, but one pixel of each can. A separate map selects it, so that
      # the first still decodes whole images.
      decode = decode.map(lambda image, label: (image[:1, :1], label))
    return {
      "decode": self._batched(decode),
      "partial_fn": self._batched(self._mapped(source, partial_fn)),
      "final_fn": self._batched(self._mapped(self._mapped(self.images.train, partial_fn).cache(), final_fn)),
    }

  @property
  def _split(self):
    return rtf.augment.split([self.images.decode, *self.layers], 1 + self.at)

  @property
  def _full_fn(self):
    return rtf.augment.compose([self.images.decode, *self.layers])

  @property
  def _count(self):
    return len(self.images.train)

  def _shuffled(self, dataset):
    return dataset.shuffle(self._count, seed=self.seed)

  def _mapped(self, dataset, function):
    # A function that takes a stateless seed gets a different one for every element and epoch, as from `refurbish`.
    takes_seed = tracing.takes("seed", function, dataset.element_spec)
    seeds = tf.data.Dataset.random(self.seed, rerandomize_each_iteration=True).batch(2)
    return tf.data.Dataset.zip((dataset, seeds)).map(
      lambda element, seed: function(*element, **({"seed": seed} if takes_seed else {})),
      num_parallel_calls=dataset_graph.PLAIN_MAP_CALLS,
    )

  def _batched(self, dataset):
    return dataset.batch(self.batch_size, self.drop_remainder).prefetch(tf.data.AUTOTUNE)


def decoded(dataset, images):
  """The decoded images of `dataset`, which is a part of `images`, with their labels."""
  return dataset.map(
    lambda record, label: (images.decode(record), label), num_parallel_calls=dataset_graph.PLAIN_MAP_CALLS
  )


def measure_input(pipelines, rounds, epochs=1, on_turn=None):
  """Iterates over each pipeline without a model, in turns.

  One iterator continues from turn to turn, because making an iterator takes the same time for any number of images.

  >>> import tensorflow as tf
  >>> measured = measure_input({"some": tf.data.Dataset.range(10).batch(2)}, rounds=3)
  >>> len(measured["some"]), all(wall > 0 for wall, _ in measured["some"])
  (3, True)

  Args:
    pipelines: a dict of datasets whose length is known.
    rounds: how many turns each pipeline gets. The first fills caches.
    epochs: epochs per turn. They should take much longer than what a pipeline reads ahead while it waits for its turn.
    on_turn: called with the number of the round and the name before each turn.

  Returns:
    By name, for each turn: wall-clock seconds, and CPU seconds of all threads.
  """
  options = tf.data.Options()
  # Otherwise tf.data prefetches more and more after repeat, during the turns of others.
  options.experimental_optimization.inject_prefetch = False
  iterators = {name: iter(pipeline.repeat().with_options(options)) for name, pipeline in pipelines.items()}
  measured = {name: [] for name in pipelines}
  for number in range(rounds):
    for name in random.sample(list(pipelines), len(pipelines)):
      if on_turn:
        on_turn(number, name)
      wall, cpu = time.perf_counter(), time.process_time()
      for _ in range(epochs * len(pipelines[name])):
        next(iterators[name])
      measured[name].append((time.perf_counter() - wall, time.process_time() - cpu))
  return measured

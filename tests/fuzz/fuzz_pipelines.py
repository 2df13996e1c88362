"""Random pipelines. What follows a stage yields what tf.data makes of the stage's own elements and errors; iterators
share the epochs; and a pipeline that is restored at any step, here or in a new process, goes on exactly or is
refused."""

import itertools
import json
import re

import numpy as np
import tensorflow as tf

from run import tell
from support import autograph, datasets
from support.checkpoints import with_checkpoints
from support.loaders import numpy_loader
from support.pipelines import RANDOM_ACCESS, STREAMS, make_source
from support.processes import run_forked

autograph.parse_each_file_once()
Dataset = tf.data.Dataset
# More than any pass has.
MOST = 2000
# Operations with a number. Those of the second list read ahead, so it is not known when the next epoch begins.
OPERATIONS = {
  "map": lambda dataset, k: dataset.map(lambda *x: (k, x), num_parallel_calls=k or None),
  "filter": lambda dataset, k: dataset.filter(lambda *x: tf.reduce_sum(tf.cast(tf.shape(first(x)), tf.int64)) >= k - 3),
  "batch": lambda dataset, k: dataset.batch(k + 1),
  "full batches": lambda dataset, k: dataset.batch(k + 1, drop_remainder=True),
  "batch in parallel": lambda dataset, k: dataset.batch(k + 1, num_parallel_calls=2),
  "padded_batch": lambda dataset, k: dataset.padded_batch(k + 1),
  "ragged_batch": lambda dataset, k: dataset.ragged_batch(k + 1),
  "rebatch": lambda dataset, k: dataset.rebatch(k + 1),
  "unbatch": lambda dataset, k: dataset.unbatch(),
  "take": lambda dataset, k: dataset.take(3 * k),
  "skip": lambda dataset, k: dataset.skip(k),
  "shard": lambda dataset, k: dataset.shard(k + 1, k // 2),
  "enumerate": lambda dataset, k: dataset.enumerate(k),
  "take_while": lambda dataset, k: dataset.take_while(lambda *x: tf.size(first(x)) != 5 * k),
  "window": lambda dataset, k: dataset.window(k + 1).flat_map(lambda *x: Dataset.zip(x)),
  "ignore_errors": lambda dataset, k: dataset.ignore_errors(),
}
AHEAD = {
  "prefetch": lambda dataset, k: dataset.prefetch(k or tf.data.AUTOTUNE),
  "repeat": lambda dataset, k: dataset.repeat(k % 2 + 1),
  "shuffle": lambda dataset, k: dataset.shuffle(k + 1, seed=k, reshuffle_each_iteration=False),
  "interleave": lambda dataset, k: Dataset.range(2).interleave(lambda _: dataset, cycle_length=k % 2 + 1),
  "flat_map": lambda dataset, k: Dataset.range(k % 2 + 1).flat_map(lambda _: dataset),
}


def first(x):
  return tf.nest.flatten(x, expand_composites=True)[0]


def fails(x, bad, why):
  """The index, or an error if it is one of `bad`."""
  is_bad = tf.reduce_any(tf.equal(x, tf.constant(bad, tf.int64)))
  with tf.control_dependencies([tf.debugging.Assert(~is_bad, [why, x])]):
    return tf.identity(x)


ELEMENTS = {
  "a vector": lambda x, seed: tf.concat([[x], tf.cast(seed, tf.int64)], 0),
  "vectors of several lengths": lambda x, seed: tf.concat([[x], tf.repeat(tf.cast(seed[:1], tf.int64), x % 4)], 0),
  "a pair": lambda x, seed: (tf.stack([x, x]), tf.strings.as_string(seed[0])),
  "a dict": lambda x, seed: {"at": x, "image": tf.fill([3, 2, 1], tf.cast(x, tf.uint8)), "seed": seed},
  "ragged": lambda x, seed: (x, tf.RaggedTensor.from_row_lengths([x, x, x], [1, 0, 2])),
  "sparse": lambda x, seed: (x, tf.sparse.from_dense([x, 0, tf.cast(seed[0], tf.int64)])),
}


class Case:
  """A drawn pipeline. Equal numbers make equal pipelines, in other processes as well."""

  def __init__(self, chance):
    self.kind = chance.choice([*RANDOM_ACCESS, *STREAMS])
    self.n = chance.randint(1, 13)
    self.form = chance.choice(list(ELEMENTS))
    self.bad = chance.sample(range(self.n), min(self.n, chance.choice([0, 0, 0, 1, 3])))
    self.bad_at = chance.choice(["partial", "final"])
    self.stage = chance.choice(["refurbish", "refurbish", "refurbish", "echo", "refurbish, echo"])
    self.options = {
      "r": chance.choice([1, 1.5, 2, 3, 2.7]),
      "seed": chance.randint(0, 99),
      "num_parallel_calls": chance.choice([None, 1, 3, tf.data.AUTOTUNE]),
      "shuffle_buffer_size": 1 if self.kind in STREAMS else chance.choice([None, 1, 4]),
      "eviction": chance.choice(["balanced", "reference_count"]),
      "shuffle": chance.choice(["cache_aware", "uniform"]),
      "order_seed": chance.choice([None, 5]),
    }
    self.e = chance.choice([1, 2, 3, 1.5])
    self.on_disk = chance.choice([False] * 4 + [True])
    names = [*OPERATIONS, "batch", "padded_batch", *AHEAD]
    self.chain = [(chance.choice(names), chance.randint(0, 4)) for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4]))]
    self.symbolic = chance.choice([False, True])

  def __repr__(self):
    return json.dumps(vars(self))

  @property
  def reads_ahead(self):
    return any(name in AHEAD for name, _ in self.chain)

  def make_stage(self, store=None):
    where = {"partial": [], "final": [], self.bad_at: self.bad}
    if "refurbish" in self.stage:
      form = ELEMENTS[self.form]
      partial = lambda x, seed: form(fails(x, where["partial"], "partial"), seed)

      def final(*sample, seed):
        fails(tf.reshape(first(sample), [-1])[0], where["final"], "final")
        return (*sample, tf.cast(seed[:1], tf.int64))

      dataset = make_source(self.kind, self.n).refurbish(partial, final, store=store, **self.options)
    else:
      dataset = make_source(self.kind, self.n).map(lambda x: ELEMENTS[self.form](fails(x, self.bad, "map"), [3, 4]))
    return dataset.echo(self.e, seed=3) if "echo" in self.stage else dataset

  def follow(self, dataset):
    for name, k in self.chain:
      dataset = (OPERATIONS | AHEAD)[name](dataset, k)
    return with_checkpoints(dataset, self.symbolic)

  def build(self, store=None):
    return self.follow(self.make_stage(store))


def plain(outcome):
  """An element as Python objects, or the kind of an error."""
  if isinstance(outcome, tf.errors.OpError):
    return "error"
  return json.loads(json.dumps([datasets.plain(value) for value in tf.nest.flatten(outcome)], default=str))


def outcomes(iterator, number=MOST):
  return [plain(each) for each in itertools.islice(stopping(iterator), number)]


def stopping(iterator):
  while True:
    try:
      yield next(iterator)
    except StopIteration:
      return
    except tf.errors.OpError as error:
      yield error


def recorded(case, number):
  """A dataset of tf.data alone that yields the elements and errors of a stage's epochs, one at each iteration."""
  stage = case.make_stage()
  epochs = [list(stopping(iter(stage))) for _ in range(number)]
  flat, spec = list(itertools.chain(*epochs)), stage.element_spec
  numbers = itertools.count()
  begins = np.cumsum([0, *map(len, epochs)])
  assert len(flat) < MOST, "a stage does not end"

  def bounds(_):
    epoch = next(numbers) % len(epochs)
    return begins[epoch], begins[epoch + 1]

  def look_up(k):
    if isinstance(flat[k], tf.errors.OpError):
      raise ValueError("an error of the stage")
    return [np.asarray(x) for x in tf.nest.flatten(flat[k], expand_composites=True)]

  parts = tf.nest.flatten(spec, expand_composites=True)

  def element(k):
    found = tf.numpy_function(look_up, [k], [part.dtype for part in parts])
    found = [tf.ensure_shape(x, part.shape) for x, part in zip(found, parts)]
    return tf.nest.pack_sequence_as(spec, found, expand_composites=True)

  dataset = Dataset.from_tensors(0).map(lambda x: tf.numpy_function(bounds, [x], [tf.int64] * 2))
  return dataset.flat_map(lambda begin, end: Dataset.range(begin, end).map(element))


def compare(case, store):
  """Returns the outcomes of two passes, which are those of tf.data, or None if tf.data refuses the operations."""
  reference = recorded(case, 2 ** (1 + sum(name in ("repeat", "interleave", "flat_map") for name, _ in case.chain)))
  try:
    theirs = case.follow(reference)
  except (ValueError, TypeError, tf.errors.OpError):
    return None
  dataset = case.build(store)
  assert dataset.element_spec == theirs.element_spec, (dataset.element_spec, theirs.element_spec)
  passes = []
  for number in range(1 if case.reads_ahead else 2):
    expected, found = (outcomes(iter(each)) for each in (theirs, dataset))
    assert found == expected, f"pass {number}: {found} instead of {expected}"
    passes.append(found)
  known = int(dataset.cardinality())
  assert known < 0 or known == len(passes[0]) or "error" in passes[0], f"cardinality {known}, {len(passes[0])} elements"
  return passes


def two_iterators(case, chance):
  """Two iterators get an epoch each, however their steps alternate."""
  reference, dataset = case.follow(recorded(case, 2)), case.build()
  expected = [outcomes(iter(reference)) for _ in range(2)]
  iterators = [stopping(iter(dataset)) for _ in range(2)]
  found = [[plain(x) for x in itertools.islice(iterator, 1)] for iterator in iterators]
  while any(iterators):
    which = chance.choice([k for k in range(2) if iterators[k]])
    came = [plain(x) for x in itertools.islice(iterators[which], 1)]
    found[which] += came
    if not came:
      iterators[which] = None
  assert found == expected, f"two iterators: {found} instead of {expected}"


def resumed(case, path):
  """The outcomes after a restore, or the text of the error that refuses it."""
  try:
    if path.name == "loader":
      loader = numpy_loader(case.build())
      loader.load_state_dict({"state": np.load(path.with_suffix(".npy"))})
      return outcomes(iter(loader))
    iterator = iter(case.build())
    tf.train.Checkpoint(iterator=iterator).read(str(path)).assert_consumed()
  except (tf.errors.OpError, ValueError) as error:
    return str(error)
  return outcomes(iterator)


def resume_in_a_new_process(case, path):
  (path.parent / "resumed.json").write_text(json.dumps(resumed(case, path)))


def restore(case, chance, expected, directory):
  path, step = directory / chance.choice(["checkpoint", "checkpoint", "loader"]), chance.randint(0, len(expected))
  try:
    source = numpy_loader(case.build()) if path.name == "loader" else case.build()
    iterator = iter(source)
    before = outcomes(iterator, step)
    if path.name == "loader":
      np.save(path, source.state_dict()["state"])
    else:
      tf.train.Checkpoint(iterator=iterator).write(str(path))
  except (tf.errors.OpError, ValueError, TypeError) as error:
    known = "needs dense tensors|cannot pass on|[sS]ymbolic checkpoint"
    assert re.search(known, str(error)), f"a checkpoint is refused: {error}"
    return
  if chance.randint(0, 39) == 39:
    assert run_forked(resume_in_a_new_process, case, path) == 0, "the new process failed"
    after = json.loads((directory / "resumed.json").read_text())
  else:
    after = resumed(case, path)
  if isinstance(after, str):
    assert "user-defined function" in after, f"a restore is refused: {after}"
    return
  # A symbolic checkpoint is one of the last element, so tf.data repeats errors that came after it.
  again = len(list(itertools.takewhile(lambda each: each == "error", reversed(before)))) if case.symbolic else 0
  while again and len(before) + len(after) > len(expected) and after[0] == "error":
    again, after = again - 1, after[1:]
  # A loader at the end of a pass goes on with the next one.
  found = before + (after[: len(expected) - len(before)] if path.name == "loader" else after)
  if case.kind in STREAMS:
    # The samples are the same, in another order, in which other operations see them.
    if not {name for name, _ in case.chain} <= {"map", "prefetch", "repeat", "ignore_errors"}:
      return
    found, expected = (sorted(map(str, each)) for each in (found, expected))
  assert found == expected, f"restored at {step}: {found} instead of {expected}"


def case(chance, directory):
  drawn = Case(chance)
  tell(drawn)
  passes = compare(drawn, directory / "store" if drawn.on_disk and "refurbish" in drawn.stage else None)
  if passes is None:
    return
  # A stream of unknown length has another order until one iterator has been at its end.
  if drawn.kind in RANDOM_ACCESS and not drawn.reads_ahead and chance.choice([False, False, True]):
    two_iterators(drawn, chance)
  restore(drawn, chance, passes[0], directory)

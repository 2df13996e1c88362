"""The `echo` stage: `tf.data.Dataset.echo`."""
from __future__ import annotations

import numbers
from typing import Any, Callable, Literal, get_args

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.framework import config

from refurbish_tf._internal import checks
from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal import native
from refurbish_tf._internal import tracing

AUTOTUNE: int = tf.data.AUTOTUNE
Where = Literal["before_augment", "after_augment", "after_batch"]


def echo(
    e: float, where: Where | None = None, *, augment_fn: Callable[..., Any] | None = None, batch_size: int | None = None,
    drop_remainder: bool = False, shuffle_buffer_size: int | None = None, max_e: int = 8, seed: int | None = None,
    name: str | None = None) -> Callable[[tf.data.Dataset[Any]], tf.data.Dataset[Any]]:
  """`tf.data.Dataset.echo` as a transformation for `tf.data.Dataset.apply`.

  >>> dataset = tf.data.Dataset.range(3).apply(rtf.echo(2))
  >>> [int(x) for x in dataset]
  [0, 0, 1, 1, 2, 2]

  Args:
    e: as in `tf.data.Dataset.echo`, and so are all others.
    where: likewise.
    augment_fn: likewise.
    batch_size: likewise.
    drop_remainder: likewise.
    shuffle_buffer_size: likewise.
    max_e: likewise.
    seed: likewise.
    name: likewise.

  Returns:
    A function from a `tf.data.Dataset` to a `tf.data.Dataset`.
  """
  given = locals()
  return lambda dataset: _echo(dataset, **given)


def _echo(
    self: tf.data.Dataset[Any], e: float, where: Where | None = None, *, augment_fn: Callable[..., Any] | None = None,
    batch_size: int | None = None, drop_remainder: bool = False, shuffle_buffer_size: int | None = None, max_e: int = 8,
    seed: int | None = None, name: str | None = None) -> tf.data.Dataset[Any]:
  """Yields each element `e` times, so that a slow upstream no longer idles the accelerator.

  >>> dataset = tf.data.Dataset.range(3).echo(2)
  >>> [int(x) for x in dataset]
  [0, 0, 1, 1, 2, 2]

  With R = t_upstream / t_downstream, the time for an element upstream of the stage and that downstream of it, a factor
  of up to R costs nothing: reading, decoding and training run at the same time, and one upstream step with its `e`
  downstream steps takes max(t_upstream, e * t_downstream). `rtf.recommend_echo_factor` measures R. For that the next
  element must be read while this one is repeated: have a parallel `map` or a `prefetch` before the stage. Elements are
  handed on as they are, not copied.

  By itself the stage repeats where it stands. With `where` it builds the rest of the pipeline, so that the three
  variants of the paper are one argument apart, with one shuffle buffer of the same size in each:

  | `where` | stages | how often `augment_fn` runs on N elements |
  | --- | --- | --- |
  | "before_augment" | echo, shuffle, augment, batch | N * e |
  | "after_augment" | augment, echo, shuffle, batch | N |
  | "after_batch" | shuffle, augment, batch, echo | N |

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([8, 32, 32, 3], tf.uint8))
  >>> train = images.echo(2, "before_augment", augment_fn=tf.image.random_flip_left_right, batch_size=4,
  ...                     shuffle_buffer_size=16).prefetch(tf.data.AUTOTUNE)
  >>> len(train)
  4

  In the paper, the earlier the echo the fewer fresh elements the training needed. The first two echo examples, which
  may then come twice in a batch; a larger `shuffle_buffer_size` makes that rarer. The last echoes batches, which come
  one right behind the other. Shuffling them, which the paper found to help (section 3.5), is an ordinary
  `.shuffle(num_batches)` behind this stage.

  With `rtf.AUTOTUNE` the stage reads its input in the background and yields the newest element again while no newer
  one is ready, at most `max_e` times in all; then it waits. It drops no element and holds none back. `rtf.stats` tells
  the factor that was reached. What comes out depends on the clock, so it is not deterministic.

  As `refurbish`, the stage turns tf.data's autotuner off, unless the options before or behind it turn it on.

  With "before_augment" and "after_augment" a shuffle buffer stands behind the stage, and at the beginning of each epoch
  it is filled as fast as it goes: there `rtf.AUTOTUNE` echoes even where no echo is needed. "after_batch" has not that
  effect.

  >>> dataset = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE, max_e=4)
  >>> sorted({int(x) for x in dataset})
  [0, 1, 2]

  Implements data echoing (Choi et al., "Faster Neural Network Training with Data Echoing", 2019, section 2).

  Args:
    e: the echoing factor, any real number of at least 1, or `rtf.AUTOTUNE`. Each element is yielded floor(e) times and
      once more with the probability of the fraction. Which ones are is fixed by `seed` and their position, and is the
      same in every epoch: where the fraction matters, shuffle before the stage.
    where: None to repeat in place and nothing else; or "before_augment", "after_augment" or "after_batch", which need
      `augment_fn` and `batch_size`.
    augment_fn: with `where`, a function called as in `tf.data.Dataset.map`, as many times at once as the pipeline's thread
      pool has threads: the processors, or `options.threading.private_threadpool_size`. If it draws random numbers of its
      own, as `tf.image.random_*` does, a run that is restored draws others. If it needs a keyword argument `seed`, as
      what `rtf.augment.compose` returns does, it is given an int32 tensor of shape `[2]` for `tf.random.stateless_*`,
      another one at each call.
    batch_size: with `where`, how many elements there are in a batch.
    drop_remainder: with `where`, as in `tf.data.Dataset.batch`.
    shuffle_buffer_size: with `where`, how many elements the shuffle buffer holds; of "after_batch", too, these are
      elements and not batches. None for no shuffling.
    max_e: with `rtf.AUTOTUNE`, how often an element is yielded at most. Without effect on a number.
    seed: an int that fixes the fraction of `e`, the order of the shuffle buffer and the seeds of `augment_fn`. None
      for one derived from `tf.random.set_seed`, or a random one where that was not called. Without effect on what
      `rtf.AUTOTUNE` repeats.
    name: a name for the stages, shown by `rtf.stats`.

  Returns:
    A `tf.data.Dataset`: of the same elements, or with `where` of batches of what `augment_fn` returns. For N elements
    in place there are N * e if `e` is whole, else their number is unknown. With a whole `e` it has random access where
    its input has; behind `take`, `repeat` and `assert_cardinality`, which count, only that of single elements.

  Raises:
    ValueError: `e` is below 1, infinite or not a number; `where` is not one of what is allowed, or is without what it
      needs; what needs `where` is given without; `batch_size`, `shuffle_buffer_size` or `max_e` is below 1;
      `rtf.AUTOTUNE` in a pipeline that is asked to be deterministic.
    TypeError: another argument is of the wrong type.
    tf.errors.InvalidArgumentError: when it runs, `rtf.AUTOTUNE` in a pipeline that is asked to be deterministic by an
      option behind it.
    Errors of the input: when it runs, once and not repeated. The iterator goes on with the next element.
  """
  e = _check_echoing_factor(e)
  checks.check_whole_number("max_e", max_e, 1)
  if e == AUTOTUNE:
    _check_not_deterministic(self)
  pipeline = {
      "augment_fn": augment_fn, "batch_size": batch_size, "drop_remainder": drop_remainder or None,
      "shuffle_buffer_size": shuffle_buffer_size}
  _check_where(where, pipeline)
  if seed is not None:
    checks.check_whole_number("seed", seed, -2**63)
  stage_seed = checks.stage_seed(seed)

  def repeat(dataset):
    if e == AUTOTUNE:
      return _AdaptiveEchoDataset(dataset, max_e, name)
    return _EchoDataset(dataset, e, stage_seed, name)

  if where is None:
    return repeat(dataset_graph.without_autotuner(self))
  checks.check_callable("augment_fn", augment_fn)
  checks.check_whole_number("batch_size", batch_size, 1)
  if shuffle_buffer_size is not None:
    checks.check_whole_number("shuffle_buffer_size", shuffle_buffer_size, 1)

  def augment(dataset):
    function, element_spec = tracing.traceable(augment_fn), dataset.element_spec
    with tracing.parameters_explained("augment_fn", augment_fn, element_spec, "what it is to augment"):
      if not tracing.takes_seed(augment_fn, element_spec):
        return AugmentDataset(dataset, function, name)
      seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True, name=name).batch(2, drop_remainder=True)
      return AugmentDataset(
          tf.data.Dataset.zip(dataset, seeds, name=name),
          lambda element, seed: tracing.call(function, element, seed=tf.cast(seed, tf.int32)), name)

  def shuffle(dataset):
    return dataset.shuffle(shuffle_buffer_size, seed=seed, name=name) if shuffle_buffer_size else dataset

  def batch(dataset):
    return dataset.batch(batch_size, drop_remainder=drop_remainder, name=name)

  stages = {
      "before_augment": (repeat, shuffle, augment, batch),
      "after_augment": (augment, repeat, shuffle, batch),
      "after_batch": (shuffle, augment, batch, repeat),
  }
  dataset = dataset_graph.without_autotuner(self)
  for stage in stages[where]:
    dataset = stage(dataset)
  return dataset


# As a method of `tf.data.Dataset` it is to be called by its public name, in `help` and in error messages.
_echo.__name__ = "echo"
_echo.__qualname__ = "Dataset.echo"


class _EchoDataset(dataset_ops.UnaryUnchangedStructureDataset):
  """Each element a given number of times."""

  def __init__(self, input_dataset, e, seed, name):
    self._input_dataset = input_dataset
    self._name = name
    self._e = e
    with checks.build_errors():
      variant = native.ops().refurbish_tf_echo_dataset(
          input_dataset._variant_tensor, echoing_factor=e, seed=seed, **self._common_args)  # pylint: disable=protected-access
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    return f"{dataset_graph.stage_title('echo', self._name)}, e = {self._e:g}"


class AugmentDataset(dataset_ops.UnaryDataset):
  """`function` of each element, run on workers of its own."""

  def __init__(self, input_dataset, function, name):
    self._name = name
    self._wrapper = tracing.trace(function, "echo(augment_fn)", "augment_fn", dataset=input_dataset)
    variant = native.ops().refurbish_tf_augment_dataset(
        input_dataset._variant_tensor, self._wrapper.function.captured_inputs,  # pylint: disable=protected-access
        f=self._wrapper.function, **self._common_args)
    super().__init__(input_dataset, variant)

  def _functions(self):
    return [self._wrapper]

  def draws(self):
    return tracing.draws(self._wrapper)

  @property
  def element_spec(self):
    return self._wrapper.output_structure


class _AdaptiveEchoDataset(dataset_ops.UnaryUnchangedStructureDataset):
  """Each element again while no newer one is ready."""

  def __init__(self, input_dataset, max_e, name):
    self._input_dataset = input_dataset
    self._name = name
    self._max_e = max_e
    # As in refurbish: names the counts in whatever graph the op ends up.
    self.echo_stage = native.ops().refurbish_tf_stage_name()
    with checks.build_errors():
      variant = native.ops().refurbish_tf_adaptive_echo_dataset(
          input_dataset._variant_tensor, stage=self.echo_stage, max_echoing_factor=max_e, **self._common_args)  # pylint: disable=protected-access
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    title = dataset_graph.stage_title("echo", self._name)
    return f"{title}, e = AUTOTUNE: while nothing fresh is ready, at most {self._max_e:,} times"


def _check_echoing_factor(e):
  number = isinstance(e, numbers.Real) and not isinstance(e, bool)
  if number and isinstance(e, numbers.Integral) and e == AUTOTUNE:
    return AUTOTUNE
  # The bound, far above any use, keeps the sums that the op makes of repetitions below 2**63.
  if not number or not 1 <= e < 2**31:
    raise ValueError(
        f"e, the echoing factor, must be a number of at least 1 and below 2**31 or rtf.AUTOTUNE, got {e!r}. Write e=2 "
        "to use each element twice, e=1 for no echo, or e=rtf.AUTOTUNE to repeat while the input is not ready.")
  return float(e)


def _check_not_deterministic(dataset):
  # While a function is traced the options are not known; the op looks again when it runs.
  if tf.executing_eagerly() and dataset.options().deterministic:
    asked = "the option deterministic=True of the dataset asks"
    way_out = "leave that option out"
  elif config.is_op_determinism_enabled():
    asked = "tf.config.experimental.enable_op_determinism() asks"
    way_out = "leave that call out"
  else:
    return
  raise ValueError(
      f"e=rtf.AUTOTUNE repeats elements by the clock, but {asked} for the same stream each time. Give e a number, such "
      f"as what rtf.recommend_echo_factor finds, or {way_out}.")


def _check_where(where, pipeline):
  if where is None:
    given = [name for name, value in pipeline.items() if value is not None]
    if given:
      raise ValueError(
          f"{', '.join(given)} given without where: echo by itself repeats in place and nothing else. Write where=one "
          f"of {', '.join(map(repr, get_args(Where)))} to have the rest of the pipeline built, or put map, shuffle and batch "
          "around echo yourself.")
    return
  checks.check_choice("where", where, (*get_args(Where), None))
  missing = [name for name in ("augment_fn", "batch_size") if pipeline[name] is None]
  if missing:
    raise ValueError(
        f"where={where!r} needs augment_fn and batch_size, as it builds the rest of the pipeline, but "
        f"{', '.join(missing)} is missing. Write dataset.echo(e, {where!r}, augment_fn=..., batch_size=..., "
        "shuffle_buffer_size=...), or leave where out to repeat in place.")

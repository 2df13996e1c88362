"""The `echo` stage: `tf.data.Dataset.echo`."""
from __future__ import annotations

import numbers
from typing import Any, Callable, Literal, get_args

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.framework import config

from refurbish_tf._internal import checks, dataset_graph, native, tracing

AUTOTUNE: int = tf.data.AUTOTUNE
Where = Literal["before_augment", "after_augment", "after_batch"]


def echo(
    e: float, where: Where | None = None, *, augment_fn: Callable[..., Any] | None = None, batch_size: int | None = None,
    drop_remainder: bool = False, shuffle_buffer_size: int | None = None, max_e: int = 8, seed: int | None = None,
    name: str | None = None) -> Callable[[tf.data.Dataset[Any]], tf.data.Dataset[Any]]:
  """Yields each element `e` times, so that a slow upstream no longer idles the accelerator.

  >>> dataset = tf.data.Dataset.range(3).echo(2)
  >>> [int(x) for x in dataset]
  [0, 0, 1, 1, 2, 2]

  `dataset.echo(...)` and `dataset.apply(rtf.echo(...))` are the same stage.

  With R = t_upstream / t_downstream, the time for an element upstream of the stage and that downstream of it, a factor
  of up to R costs nothing: reading, decoding and training run at the same time, and one upstream step with its `e`
  downstream steps takes max(t_upstream, e * t_downstream). `rtf.advise` measures both, see the
  guide *Echo*. This requires that the next element is read while this one is repeated: put a parallel `map` or a
  `prefetch` before the stage. The stage does not copy elements.

  Without `where` the stage repeats in place. With `where` it builds the rest of the pipeline, so that the three
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

  In the paper, the earlier the echo, the fewer fresh elements the training needed. The first two variants echo
  examples, so one may come twice in a batch; a larger `shuffle_buffer_size` makes that rarer. The last one echoes
  batches, which follow each other directly. To shuffle them, which helped in the paper (section 3.5), put an ordinary
  `.shuffle(num_batches)` behind this stage.

  With `rtf.AUTOTUNE` the stage reads its input in the background and yields the newest element again while no newer
  one is ready, at most `max_e` times in all; then it waits. It drops no element and delays none. `rtf.stats` shows
  the factor that was reached. What comes out depends on the clock, so it is not deterministic.

  Like `refurbish`, the stage turns tf.data's autotuner off, unless an option before or behind it turns it on.

  With "before_augment" and "after_augment" the shuffle buffer behind the stage is filled as fast as possible at the
  beginning of each epoch: there `rtf.AUTOTUNE` echoes even if no echo is needed. "after_batch" does not have this
  effect.

  >>> dataset = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE, max_e=4)
  >>> sorted({int(x) for x in dataset})
  [0, 1, 2]

  Implements data echoing (Choi et al., "Faster Neural Network Training with Data Echoing", 2019, section 2).

  Args:
    e: the echoing factor, any real number of at least 1, or `rtf.AUTOTUNE`. Each element is yielded floor(e) times and
      once more with the probability of the fraction. `seed` and the position decide which elements those are, the same
      in every epoch: if the fraction matters, shuffle before the stage.
    where: None to repeat in place and nothing else; or "before_augment", "after_augment" or "after_batch", which need
      `augment_fn` and `batch_size`.
    augment_fn: with `where`, a function called as in `tf.data.Dataset.map`, in as many calls at once as the pipeline's
      thread pool has threads: the processors, or `options.threading.private_threadpool_size`. If it draws random
      numbers of its own, as `tf.image.random_*` does, a restored run draws others. If it needs a keyword argument
      `seed`, as the functions of `rtf.augment.compose` do, it gets an int32 tensor of shape `[2]` for
      `tf.random.stateless_*`, a new one at each call.
    batch_size: with `where`, how many elements there are in a batch.
    drop_remainder: with `where`, as in `tf.data.Dataset.batch`.
    shuffle_buffer_size: with `where`, how many elements the shuffle buffer holds; with "after_batch", too, these are
      elements and not batches. None for no shuffling.
    max_e: with `rtf.AUTOTUNE`, how often an element is yielded at most. Without effect on a number.
    seed: an int that fixes the fraction of `e`, the order of the shuffle buffer and the seeds of `augment_fn`. None
      derives one from `tf.random.set_seed`, or takes a random one if that was not called. Without effect on what
      `rtf.AUTOTUNE` repeats.
    name: a name for the stages, shown by `rtf.stats`.

  Returns:
    A transformation for `tf.data.Dataset.apply`; the method `echo` applies it. It returns a `tf.data.Dataset` of the
    same elements, or with `where` of batches of what `augment_fn` returns. In place, N elements become N * e if `e` is
    whole, else an unknown number. With a whole `e` it has random access if its input has; if its input is behind
    `take`, `repeat` or `assert_cardinality`, which count, only random access to single elements.

  Raises:
    ValueError: `e` is below 1, infinite or not a number; `where` is not an allowed value, or lacks an argument that it
      needs; an argument that needs `where` is given without it; `batch_size`, `shuffle_buffer_size` or `max_e` is below
      1; `rtf.AUTOTUNE` in a pipeline that must be deterministic.
    TypeError: another argument is of the wrong type.
    tf.errors.InvalidArgumentError: when it runs, `rtf.AUTOTUNE` in a pipeline that an option behind it makes
      deterministic.
    Errors of the input: when it runs, once and not repeated. The iterator goes on with the next element.
  """
  e = _check_echoing_factor(e)
  checks.check_whole_number("max_e", max_e, 1)
  _check_where(where, {
      "augment_fn": augment_fn, "batch_size": batch_size, "drop_remainder": drop_remainder or None,
      "shuffle_buffer_size": shuffle_buffer_size})
  if seed is not None:
    checks.check_whole_number("seed", seed, -2**63)
  if where is not None:
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

  def transformation(dataset):
    if e == AUTOTUNE:
      _check_not_deterministic(dataset)
    # First, as other stages derive seeds from tf.random.set_seed, too, and each takes the next one.
    stage_seed = checks.stage_seed(seed)

    def repeat(dataset):
      if e == AUTOTUNE:
        return _AdaptiveEchoDataset(dataset, max_e, name)
      return _EchoDataset(dataset, e, stage_seed, name)

    stages = {
        None: (repeat,),
        "before_augment": (repeat, shuffle, augment, batch),
        "after_augment": (augment, repeat, shuffle, batch),
        "after_batch": (shuffle, augment, batch, repeat),
    }
    dataset = dataset_graph.without_autotuner(dataset)
    for stage in stages[where]:
      dataset = stage(dataset)
    return dataset

  return transformation


class _EchoDataset(dataset_ops.UnaryUnchangedStructureDataset):
  """Yields each element a given number of times."""

  def __init__(self, input_dataset, e, seed, name):
    self._input_dataset = input_dataset
    self._name = name
    self._e = e
    with checks.build_errors():
      variant = native.ops().refurbish_tf_echo_dataset(
          input_dataset._variant_tensor, echoing_factor=e, seed=seed, **self._common_args)
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    return f"{dataset_graph.stage_title('echo', self._name)}, e = {self._e:g}"


class AugmentDataset(dataset_ops.UnaryDataset):
  """Yields `function` of each element, run on workers of its own."""

  def __init__(self, input_dataset, function, name):
    self._name = name
    with tracing.in_stage():
      self._wrapper = tracing.trace(function, "echo(augment_fn)", "augment_fn", dataset=input_dataset)
    variant = native.ops().refurbish_tf_augment_dataset(
        input_dataset._variant_tensor, self._wrapper.function.captured_inputs,
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
  """Yields each element again while no newer one is ready."""

  def __init__(self, input_dataset, max_e, name):
    self._input_dataset = input_dataset
    self._name = name
    self._max_e = max_e
    # As in refurbish: names the counts in every graph that the op ends up in.
    self.echo_stage = native.ops().refurbish_tf_stage_name()
    with checks.build_errors():
      variant = native.ops().refurbish_tf_adaptive_echo_dataset(
          input_dataset._variant_tensor, stage=self.echo_stage, max_echoing_factor=max_e, **self._common_args)
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    title = dataset_graph.stage_title("echo", self._name)
    return f"{title}, e = AUTOTUNE: while nothing fresh is ready, at most {self._max_e:,} times"


def _check_echoing_factor(e):
  number = checks.is_real(e)
  if number and isinstance(e, numbers.Integral) and e == AUTOTUNE:
    return AUTOTUNE
  # The bound, far above any use, keeps the op's sums of repetitions below 2**63.
  if not number or not 1 <= e < 2**31:
    raise ValueError(
        f"e, the echoing factor, must be a number of at least 1 and below 2**31 or rtf.AUTOTUNE, got {e!r}. Write e=2 "
        "to use each element twice, e=1 for no echo, or e=rtf.AUTOTUNE to repeat while the input is not ready.")
  return float(e)


def _check_not_deterministic(dataset):
  # The options are unknown while a function is traced; the op checks again when it runs.
  if tf.executing_eagerly() and dataset.options().deterministic:
    asked = "the option deterministic=True of the dataset asks"
    way_out = "leave that option out"
  elif config.is_op_determinism_enabled():
    asked = "tf.config.experimental.enable_op_determinism() asks"
    way_out = "leave that call out"
  else:
    return
  raise ValueError(
      f"e=rtf.AUTOTUNE repeats elements depending on timing, but {asked} for the same stream each time. Give e a number, such "
      f"as the R that the guide Echo finds with rtf.advise, or {way_out}.")


def _check_where(where, pipeline):
  if where is None:
    given = [name for name, value in pipeline.items() if value is not None]
    if given:
      raise ValueError(
          f"{', '.join(given)} given without where: echo then only repeats in place. Give where, one of "
          f"{', '.join(map(repr, get_args(Where)))}, to have echo build the rest of the pipeline, or put map, shuffle "
          "and batch around echo yourself.")
    return
  checks.check_choice("where", where, (*get_args(Where), None))
  missing = [name for name in ("augment_fn", "batch_size") if pipeline[name] is None]
  if missing:
    raise ValueError(
        f"where={where!r} needs augment_fn and batch_size, as it builds the rest of the pipeline, but "
        f"{', '.join(missing)} is missing. Write dataset.echo(e, {where!r}, augment_fn=..., batch_size=..., "
        "shuffle_buffer_size=...), or leave where out to repeat in place.")

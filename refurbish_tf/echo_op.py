"""The `echo` stage: `tf.data.Dataset.echo`."""

import numbers
from typing import Any, Callable, Literal, get_args

import tensorflow as tf

from refurbish_tf._internal import batches, checks, dataset_graph, native, tracing
from refurbish_tf._internal.tensorflow_internals import config, dataset_ops
from refurbish_tf.augment import composition

AUTOTUNE: int = tf.data.AUTOTUNE
Where = Literal["before_augment", "after_augment", "after_batch"]


def echo(
  e: float,
  where: Where | None = None,
  *,
  augment_fn: Callable[..., Any] | None = None,
  batch_size: int | None = None,
  drop_remainder: bool = False,
  shuffle_buffer_size: int | None = None,
  max_e: int = 8,
  seed: int | None = None,
  name: str | None = None,
) -> Callable[[tf.data.Dataset[Any]], tf.data.Dataset[Any]]:
  """Repeats each element `e` times, to reclaim an accelerator's idle time (data echoing).

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([8, 32, 32, 3], tf.uint8))
  >>> train = images.echo(2, "before_augment", augment_fn=tf.image.random_flip_left_right, batch_size=4,
  ...                     shuffle_buffer_size=16).prefetch(tf.data.AUTOTUNE)
  >>> len(train)
  4
  >>> sorted({int(x) for x in tf.data.Dataset.range(3).echo(rtf.AUTOTUNE, max_e=4)})
  [0, 1, 2]

  `dataset.echo(...)` and `dataset.apply(rtf.echo(...))` are the same. Without `where` it repeats in place: put a
  parallel `map` or a `prefetch` before it, so that the next element is read at the same time. With `where` it also
  builds the rest of the pipeline, one of the paper's variants, each with one shuffle buffer of the same size:

  | `where` | stages | how often `augment_fn` runs on N elements |
  | --- | --- | --- |
  | "before_augment" | echo, shuffle, augment, batch | N * e |
  | "after_augment" | augment, echo, shuffle, batch | N |
  | "after_batch" | shuffle, augment, batch, echo | N |

  `rtf.AUTOTUNE` repeats the newest element while the next one is not ready. It never drops or delays an element, but
  the output depends on timing. The guide *Echo* says which variant and factor to choose.

  Args:
    e: the echoing factor, a real number of at least 1, or `rtf.AUTOTUNE`. Each element is yielded floor(e) times, and
      once more with probability e - floor(e); `seed` and the position decide, in the same way in every epoch.
    where: None, or "before_augment", "after_augment" or "after_batch", which need `augment_fn` and `batch_size`.
    augment_fn: with `where`, a function as for `tf.data.Dataset.map`, called in parallel. If it has a keyword argument
      `seed`, like the functions of `rtf.augment.compose`, it gets a new int32 `[2]` for `tf.random.stateless_*` at each
      call. If it draws random numbers in another way, a restored run draws different ones.
    batch_size: with `where`, elements per batch.
    drop_remainder: with `where`, as in `tf.data.Dataset.batch`.
    shuffle_buffer_size: with `where`, elements (never batches) in the shuffle buffer. None does not shuffle.
    max_e: with `rtf.AUTOTUNE`, the most times an element is yielded.
    seed: an int that fixes the fraction of `e`, the shuffle buffer and the seeds of `augment_fn`. None derives one from
      `tf.random.set_seed`, or uses a random one.
    name: a name for the stages, shown by `rtf.stats`.

  Returns:
    A transformation for `tf.data.Dataset.apply`; the method `echo` applies it. It yields the same elements, or with
    `where` batches of the results of `augment_fn`. In place, N elements become N * e if `e` is whole, otherwise an
    unknown number; with a whole `e` the result has random access if the input has it.

  Raises:
    TypeError, ValueError: an argument is not allowed; an argument that `where` needs is missing, or is given without
      `where`; or `e` is `rtf.AUTOTUNE` and the pipeline must be deterministic.
    tf.errors.InvalidArgumentError: during an epoch, an option after `rtf.AUTOTUNE` makes the pipeline deterministic.
    Errors of the input are raised once and not repeated; the iterator continues with the next element.

  Implements Choi et al., *Faster Neural Network Training with Data Echoing*, 2019, section 2.
  """
  e = _check_echoing_factor(e)
  checks.check_whole_number("max_e", max_e, 1)
  checks.check_name(name)
  drop_remainder = checks.checked_flag("drop_remainder", drop_remainder)
  pipeline = {"augment_fn": augment_fn, "batch_size": batch_size, "drop_remainder": drop_remainder or None}
  _check_where(where, {**pipeline, "shuffle_buffer_size": shuffle_buffer_size})
  if seed is not None:
    checks.check_whole_number("seed", seed, -(2**63))
  if where is not None:
    checks.check_callable("augment_fn", augment_fn)
    augment_fn = composition.function_of("augment_fn", augment_fn)
    checks.check_whole_number("batch_size", batch_size, 1, bits=31)
    if shuffle_buffer_size is not None:
      # TensorFlow ends the process if there is no memory for the slots of its buffer.
      checks.check_whole_number("shuffle_buffer_size", shuffle_buffer_size, 1, bits=27)

  def augment(dataset):
    function, element_spec = tracing.traceable(augment_fn), dataset.element_spec
    with tracing.parameters_explained("augment_fn", augment_fn, element_spec, "the element to augment"):
      if not tracing.takes("seed", augment_fn, element_spec):
        return AugmentDataset(dataset, function, name)
      numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True, name=name)
      with_seeds = tf.data.Dataset.zip(dataset, numbers.batch(2, drop_remainder=True), name=name)
      seeded = lambda element, seed: tracing.call(function, element, seed=tf.cast(seed, tf.int32))
      return AugmentDataset(with_seeds, seeded, name)

  def shuffle(dataset):
    return dataset.shuffle(shuffle_buffer_size, seed=seed, name=name) if shuffle_buffer_size else dataset

  def batch(dataset):
    return dataset.batch(batch_size, drop_remainder=drop_remainder, name=name)

  def transformation(dataset):
    if where is not None and (shuffle_buffer_size or tracing.takes("seed", augment_fn, dataset.element_spec)):
      instead = f"files.interleave(read_file).echo(e, {where!r}, ...)"
      checks.check_not_in_function("echo with a shuffle buffer or seeds", instead)
    if e == AUTOTUNE:
      _check_not_deterministic(dataset)
    # Drawn before the other stages are built, because each stage draws the next seed of tf.random.set_seed.
    stage_seed = checks.stage_seed(seed)

    def repeat(dataset):
      if e == AUTOTUNE:
        return _AdaptiveEchoDataset(dataset, max_e, name)
      op = native.ops().refurbish_tf_echo_dataset
      return _EchoDataset(dataset, f"{e:g}", name, op, echoing_factor=e, seed=stage_seed)

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


class _EchoDataset(batches.ReadsFewAhead, dataset_ops.UnaryUnchangedStructureDataset):
  """Yields each element several times. `e` says how often, as text for `describe`."""

  def __init__(self, input_dataset, e, name, op, **arguments):
    self._input_dataset, self._e, self._name = input_dataset, e, name
    with checks.build_errors():
      variant = op(input_dataset._variant_tensor, **arguments, **self._common_args)
    super().__init__(input_dataset, variant)

  def describe_stage(self):
    return f"{dataset_graph.stage_title('echo', self._name)}, e = {self._e}"


class AugmentDataset(batches.MakesBatches, dataset_ops.UnaryDataset):
  """Yields `function(element)` for each element, called by the workers of the stage."""

  def __init__(self, input_dataset, function, name):
    self._name = name
    with tracing.in_stage():
      self._wrapper = tracing.trace(function, "echo(augment_fn)", "augment_fn", dataset=input_dataset)
    self._input_dataset = input_dataset
    super().__init__(input_dataset, self._variant())

  def _variant(self, batch_size=None, drop_remainder=None, of_batches=None):
    """The variant of this stage, or of its batches if `of_batches`, a dataset of their structure, is given."""
    ops, sizes = native.ops(), {}
    op = ops.refurbish_tf_augment_dataset
    if of_batches is not None:
      op, sizes = ops.refurbish_tf_augment_batch_dataset, {"batch_size": batch_size, "drop_remainder": drop_remainder}
    function = self._wrapper.function
    inputs, common = (self._input_dataset._variant_tensor, function.captured_inputs), (of_batches or self)._common_args
    return op(*inputs, f=function, **sizes, **common)

  def _functions(self):
    return [self._wrapper]

  def draws(self):
    return tracing.draws(self._wrapper)

  @property
  def element_spec(self):
    return self._wrapper.output_structure


class _AdaptiveEchoDataset(_EchoDataset):
  """Yields each element again while no newer one is ready."""

  def __init__(self, input_dataset, max_e, name):
    # The op finds its counts by this name in every graph into which it is copied. An op makes the name, because a stage
    # built in a function, such as one passed to `interleave`, is a new stage at each call.
    self.echo_stage = native.ops().refurbish_tf_stage_name()
    e = f"AUTOTUNE: while no fresh element is ready, at most {max_e:,} times"
    op = native.ops().refurbish_tf_adaptive_echo_dataset
    super().__init__(input_dataset, e, name, op, stage=self.echo_stage, max_echoing_factor=max_e)


def _check_echoing_factor(e):
  number = checks.is_real(e)
  if number and isinstance(e, numbers.Integral) and e == AUTOTUNE:
    return AUTOTUNE
  # The bound is far above any use. It keeps the op's sums of repetitions below 2**63.
  if not number or not 1 <= e < 2**31:
    raise ValueError(
      f"e, the echoing factor, must be a number of at least 1 and below 2**31 or rtf.AUTOTUNE, got {e!r}. Write e=2 "
      "to use each element twice, e=1 not to echo, or e=rtf.AUTOTUNE to repeat while the input is not ready."
    )
  return float(e)


def _check_not_deterministic(dataset):
  # The options are unknown while a function is traced; the op checks again when it runs.
  if tf.executing_eagerly() and dataset.options().deterministic:
    asked = "the option deterministic=True of the dataset asks"
    way_out = "remove that option"
  elif config.is_op_determinism_enabled():
    asked = "tf.config.experimental.enable_op_determinism() asks"
    way_out = "remove that call"
  else:
    return
  raise ValueError(
    f"e=rtf.AUTOTUNE repeats elements depending on timing, but {asked} for the same stream each time. Set e to a "
    f"number, such as the R that the guide Echo finds with rtf.advise, or {way_out}."
  )


def _check_where(where, pipeline):
  if where is None:
    given = [name for name, value in pipeline.items() if value is not None]
    if given:
      raise ValueError(
        f"{', '.join(given)} given without where, but without it echo only repeats in place. Give where, one of "
        f"{', '.join(map(repr, get_args(Where)))}, to have echo build the rest of the pipeline, or put map, shuffle "
        "and batch around echo yourself."
      )
    return
  checks.check_choice("where", where, (*get_args(Where), None))
  missing = [name for name in ("augment_fn", "batch_size") if pipeline[name] is None]
  if missing:
    raise ValueError(
      f"where={where!r} builds the rest of the pipeline, so it needs augment_fn and batch_size, but "
      f"{', '.join(missing)} is missing. Write dataset.echo(e, {where!r}, augment_fn=..., batch_size=..., "
      "shuffle_buffer_size=...), or leave where out to repeat in place."
    )

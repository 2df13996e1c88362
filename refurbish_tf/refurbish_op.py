"""The `refurbish` stage: `tf.data.Dataset.refurbish`."""

from __future__ import annotations

import copy
import math
import numbers
import os
import re
from typing import Any, Callable, Literal, Sequence, get_args

import tensorflow as tf

from refurbish_tf import stats
from refurbish_tf._internal import batches, checks, dataset_graph, fingerprint, native, pipeline_warnings
from refurbish_tf._internal import positions, shared_levels, tracing
from refurbish_tf._internal.tensorflow_internals import dataset_ops, structure
from refurbish_tf.augment import composition, native_layers
from refurbish_tf.cache_store import DECODERS, DECODERS_VERSION, LAYERS, UNLIMITED, CacheStore
from refurbish_tf.cache_store import check_store, describe_bytes, describe_spec, describe_store
from refurbish_tf.cache_store import opened_store

Eviction = Literal["balanced", "reference_count"]
Shuffle = Literal["cache_aware", "uniform"]
OR_LAYERS = ", or a list of layers of rtf.augment"
# The parameters that a function may have in addition to its element.
_TAKES = {"partial_fn": ("seed", "generation"), "final_fn": ("seed", "epoch")}
_NOT_TAKEN = {
  "partial_fn": "partial_fn must not take `epoch`, because its result is used in several epochs and must be the same "
  "if it is prepared again. Take `generation` (how often the sample was prepared before), or use final_fn.",
  "final_fn": "final_fn must not take `generation`, which describes the cached sample. Return it from partial_fn as a "
  "component, or take `epoch` instead.",
}


def refurbish(
  partial_fn: Callable[..., Any] | Sequence[Any],
  final_fn: Callable[..., Any] | Sequence[Any] | None = None,
  r: float = 3,
  *,
  targets: dict[str | int, Any] | None = None,
  store: str | os.PathLike[str] | CacheStore | None = None,
  seed: int | None = None,
  order_seed: int | None = None,
  shuffle_buffer_size: int | None = None,
  eviction: Eviction = "balanced",
  shuffle: Shuffle = "cache_aware",
  num_parallel_calls: int | tf.Tensor | None = tf.data.AUTOTUNE,
  deterministic: bool | None = None,
  name: str | None = None,
) -> Callable[[tf.data.Dataset[Any]], tf.data.Dataset[Any]]:
  """Caches each sample after the expensive part of its augmentation and uses it `r` times.

  `partial_fn` runs once for every `r` uses of a sample, `final_fn` at every use. An epoch still yields every sample
  exactly once, in a new random order. The first epoch prepares all N samples; each later epoch prepares N / r of them
  again, spread evenly. Put the stage where `map` and `shuffle` would be: after reading, before `batch`, `repeat` and
  `prefetch`. The stage's threads make the batches of a `batch` that directly follows it.

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([8, 32, 32, 3], tf.uint8))
  >>> train = images.refurbish(
  ...     [rtf.augment.rand_augment()], [rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], r=3, seed=7)
  >>> next(iter(train.batch(4).prefetch(tf.data.AUTOTUNE))).shape
  TensorShape([4, 32, 32, 3])
  >>> partial_fn, final_fn = lambda image: tf.image.resize(image, [8, 8]), tf.image.random_flip_left_right
  >>> len(images.apply(rtf.refurbish(partial_fn, final_fn)))  # The same as images.refurbish(partial_fn, final_fn).
  8

  The source must have the same order in every epoch, because a sample is identified by its position; the stage itself
  shuffles. A function with a keyword argument `seed` gets an int32 `[2]` for `tf.random.stateless_*`, a new one each
  time it runs. `partial_fn` may also take `generation`, how often the sample was prepared before (in every epoch, if it
  does not fit into the store), and `final_fn` may take `epoch`. Both are int64 `[]` and start at 0. See *How it works*.

  Args:
    partial_fn: the expensive first part: a list of layers as for `rtf.augment.compose`, or a function as for
      `tf.data.Dataset.map`. Its result is cached, so keep it small: uint8 rather than float32. Layers treat an image
      `[frames, height, width, channels]` as one clip, whose frames share the same draws.
    final_fn: the cheap last part: a list of layers, or a function of the result of `partial_fn`. None or an empty list
      yields the cached samples unchanged, which is echoing across epochs.
    r: the reuse factor, a real number of at least 1. 1 is standard training; 2 and 3 kept the accuracy in the paper.
    targets: with layers, the components that follow the image, as for `rtf.augment.compose`: `{"boxes": "xyxy"}`,
      `{1: "mask"}`.
    store: None keeps samples in memory, as long as there is room; see `CacheStore`. The path of a local directory keeps
      them on disk, for the next run and for other jobs. A `CacheStore` can also limit the bytes. Jobs that share a
      store need the same source, `partial_fn`, `r` and `seed`, and different `order_seed`s.
    seed: an int that fixes the order, the eviction and the functions' seeds. None uses the seed of the `store` on disk,
      the common seed of jobs on a `shared` level, one derived from `tf.random.set_seed`, or a random one.
    order_seed: an int that fixes the order instead of `seed`. With a `shared` level it is random by default.
    shuffle_buffer_size: elements in the shuffle buffer of a source without random access. None means 1,000, or 256 MB
      if that is less. 1 keeps the order of the stream.
    eviction: "balanced", or "reference_count", the paper's baseline (section 5.2), which evicts all in the same epoch.
    shuffle: "cache_aware", or "uniform", the baseline that does not spread fresh samples evenly.
    num_parallel_calls: how many calls of both functions run at once, at most 1,024. `tf.data.AUTOTUNE` uses the size of
      the thread pool. None calls them one at a time, in the thread that reads the dataset.
    deterministic: as in `tf.data.Dataset.map`. False yields samples as they become ready.
    name: a name for the stage, shown by `rtf.stats`.

  Returns:
    A transformation for `tf.data.Dataset.apply`; the method `refurbish` applies it. The dataset yields what `final_fn`
    returns, and has as many elements as the source.

  Raises:
    TypeError, ValueError: an argument is not allowed; the source is empty, infinite, or changes its order; or `store`
      is in use, cannot be opened, or holds samples of another source, structure or version of the layers.
    tf.errors.DataLossError: during an epoch, the source yields a different number of elements than before.
    tf.errors.FailedPreconditionError: during an epoch, the order or an element of the source has changed, a restored
      checkpoint lost its position, or two shards of a `tf.data` service share a process or a store.
    tf.errors.InvalidArgumentError: during an epoch, a sample is larger than `store` allows, or its structure differs
      from the traced one. Errors of the functions name the index of their sample; the iterator continues with the next.

  Implements Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 4, with balanced eviction (5.2) and
  cache-aware shuffle (5.3).
  """
  num_partial_layers = len(composition.flattened(partial_fn)) if composition.is_list(partial_fn) else 0
  partial_fn, final_fn = composition.functions_of(partial_fn, final_fn, targets)
  checks.check_callable("partial_fn", partial_fn, OR_LAYERS)
  if final_fn is not None:
    checks.check_callable("final_fn", final_fn, OR_LAYERS)
  _check_reuse_factor(r)
  check_store(store)
  for seed_name, value in (("seed", seed), ("order_seed", order_seed)):
    if value is not None:
      checks.check_whole_number(seed_name, value, -(2**63))
  if shuffle_buffer_size is not None:
    checks.check_whole_number("shuffle_buffer_size", shuffle_buffer_size, 1)
  checks.check_choice("eviction", eviction, get_args(Eviction))
  checks.check_choice("shuffle", shuffle, get_args(Shuffle))
  if not (num_parallel_calls is None or num_parallel_calls is tf.data.AUTOTUNE or tf.is_tensor(num_parallel_calls)):
    if not (checks.is_real(num_parallel_calls) and num_parallel_calls == tf.data.AUTOTUNE):
      checks.check_whole_number("num_parallel_calls", num_parallel_calls, 1)
  if not isinstance(deterministic, (bool, type(None))):
    raise TypeError(
      f"deterministic must be True, False, or None to follow the pipeline's option, got {deterministic!r}."
    )
  checks.check_name(name)

  def transformation(source):
    checks.check_not_in_function("refurbish", "files.interleave(read_file).refurbish(...)")
    kept = opened_store(store)
    on_disk = kept is not None and kept.path is not None
    if on_disk:
      kept._check_holds(elements=False)
    if kept is not None and kept.shared is not None:
      # A checkpoint may replace a random `order_seed`, but never `seed`, which is part of the keys. If it is not given,
      # the stage derives it from the functions, so that jobs share.
      order = int.from_bytes(os.urandom(7), "little") if order_seed is None else int(order_seed)
      seeds = {"seed": seed, "order_seed": order, "any_seed": order_seed is None}
    else:
      stage_seed = checks.stage_seed(_seed_of(kept) if seed is None and on_disk else seed)
      order = stage_seed if order_seed is None else int(order_seed)
      seeds = {"seed": stage_seed, "order_seed": order, "any_seed": seed is None and not on_disk}
    dataset = _RefurbishDataset(
      dataset_graph.without_autotuner(source),
      partial_fn,
      final_fn,
      r,
      kept,
      seeds,
      {"eviction": eviction, "shuffle": shuffle},
      shuffle_buffer_size or 0,
      0 if num_parallel_calls is None else num_parallel_calls,
      {True: "true", False: "false", None: "default"}[deterministic],
      name,
      num_partial_layers,
    )
    if on_disk:
      fingerprint.check_store(kept, r, source, dataset.fingerprint_of_samples())
    pipeline_warnings.check_source(source)
    pipeline_warnings.check_distribution()
    return dataset

  return transformation


class _RefurbishDataset(positions.RefurbishStage, batches.MakesBatches, dataset_ops.UnaryDataset):
  """Yields every sample once: the result of `final_fn` on the cached result of `partial_fn`."""

  def __init__(
    self,
    input_dataset,
    partial_fn,
    final_fn,
    r,
    store,
    seeds,
    order,
    shuffle_buffer_size,
    num_parallel_calls,
    deterministic,
    name,
    num_partial_layers,
  ):
    self._name = name
    # The position of the first final layer: seeds depend on positions among all layers.
    self.num_partial_layers = num_partial_layers
    # `rtf.show` and `RefurbishLogger` examine the lists of layers in these functions.
    self.given_functions = [function for function in (partial_fn, final_fn) if function is not None]
    self._r = r
    self._order = order
    self._shuffle_buffer_size = shuffle_buffer_size
    of = "an element of the source"
    self._partial, partial_takes, python_layers = _trace(partial_fn, input_dataset.element_spec, "partial_fn", of)
    sample_spec = self._partial.output_structure
    self._described_clip = composition.described_clip(partial_fn, sample_spec)
    self._final, final_takes, more = (
      (None, (), []) if final_fn is None else _trace(final_fn, sample_spec, "final_fn", "what partial_fn returns")
    )
    self.python_layers = list(dict.fromkeys([*python_layers, *more]))
    if isinstance(num_parallel_calls, int) and num_parallel_calls == tf.data.AUTOTUNE:
      # Each call waits for a process. With two calls per process, the next one is ready when one ends.
      numbers = [2 * layer.processes for layer in self.python_layers if layer.processes]
      num_parallel_calls = max(numbers, default=num_parallel_calls)
    self._element_spec = sample_spec if final_fn is None else self._final.output_structure
    self._input_dataset = input_dataset
    # The ops find the state of the stage by this name in every graph into which they are copied.
    self.refurbish_stage = native.ops().refurbish_tf_stage_name()
    # The op holds the store itself. This reference keeps the store's name valid while a caller holds only the dataset.
    self._store = store
    on_disk = store is not None and store.path is not None
    self._is_shared = store is not None and store.shared is not None
    if on_disk or self._is_shared:
      versions = {LAYERS: f"rtf.augment version {native_layers.draws_version()}"}
      if dataset_graph.decodes(input_dataset, self._partial):
        versions[DECODERS] = DECODERS_VERSION
    if self._is_shared:
      digest = fingerprint.of_samples(input_dataset, self._partial.function, store._version, str(sample_spec), versions)
      if seeds["seed"] is None:  # A store on disk keeps the seed of the first stage on it.
        seeds["seed"] = (store._agree({}) if on_disk else {}).get("seed", int(digest[:15], 16))
      seeds["seed"] = int(seeds["seed"])
      self._prefix = f"refurbish/{fingerprint.of_strings(digest.encode(), str(seeds['seed']).encode())[:20]}"
    if on_disk:
      store._check_versions(versions, LAYERS)
      # Checked before the op records its settings, so that a store that is rejected here gets none of them.
      store._set_element_spec(sample_spec, exact=True)
    self._op_arguments = {
      "stage": self.refurbish_stage,
      "reuse_factor": float(r),
      "store": self.refurbish_stage if store is None else store._id,
      "max_bytes": UNLIMITED if store is None or store.max_bytes is None else store.max_bytes,
      "shared": f"{store._shared_address}\n{self._prefix}" if self._is_shared else "",
      "shared_max_bytes": self._is_shared and store._shared_max_bytes or UNLIMITED,
      "shuffle_buffer_size": shuffle_buffer_size,
      "num_parallel_calls": tf.cast(num_parallel_calls, tf.int64),
      "deterministic": deterministic,
      **{f"partial_{name}": name in partial_takes for name in _TAKES["partial_fn"]},
      "sample_types": structure.get_flat_tensor_types(sample_spec),
      "sample_shapes": structure.get_flat_tensor_shapes(sample_spec),
      **{f"final_{name}": name in final_takes for name in _TAKES["final_fn"]},
      **seeds,
      **order,
    }
    super().__init__(input_dataset, self._variant())
    if on_disk:
      # Recorded only after the op has accepted the store: it rejects one that the user filled, which has no versions.
      store._agree(versions)
    elif store is not None:
      store._set_element_spec(sample_spec, exact=True)
    if self._is_shared:
      about = {"version": store._version, "element_spec": describe_spec(sample_spec), "seed": seeds["seed"]}
      shared_levels.write_about(store._shared_address, self._prefix, about | {"limit": store._shared_max_bytes})

  def _variant(self, batch_size=0, drop_remainder=False, of_batches=None):
    """The variant of this stage, or of its batches if `of_batches`, a dataset of their structure, is given."""
    functions = self._functions()
    with checks.build_errors():
      return native.ops().refurbish_tf_refurbish_dataset(
        self._input_dataset._variant_tensor,
        self._partial.function.captured_inputs,
        [] if self._final is None else self._final.function.captured_inputs,
        partial_fn=functions[0].function,
        final_fn=[wrapper.function for wrapper in functions[1:]],
        batch_size=batch_size,
        drop_remainder=drop_remainder,
        **self._op_arguments,
        **(of_batches or self)._common_args,
      )

  def with_final_seeds(self, final_fn=None):
    """This stage, but yielding `(sample, seed)`, a final function's arguments, or the result of `final_fn` on them.

    None if the stage already has a final function.
    """
    if self._final is not None:
      return None
    made = copy.copy(self)
    if final_fn is None:
      made._element_spec = (self._element_spec, tf.TensorSpec([2], tf.int32))
    else:
      made._final, _, _ = _trace(final_fn, self._element_spec, "final_fn", "what partial_fn returns")
      made._element_spec = made._final.output_structure
    made._op_arguments = {**self._op_arguments, "final_seed": True}
    dataset_ops.UnaryDataset.__init__(made, self._input_dataset, made._variant())
    return made

  def _functions(self):
    return [self._partial] if self._final is None else [self._partial, self._final]

  def fingerprint_of_samples(self):
    return fingerprint.of_stage(self._input_dataset, self._partial.function)

  def draws(self):
    """The operations with which its functions draw random numbers without a seed from the stage."""
    return set().union(*map(tracing.draws, self._functions()))

  @property
  def stage_name(self):
    return self.refurbish_stage.numpy()

  def is_in_epoch(self):
    """Whether an iterator has begun an epoch and has neither ended it nor been deleted."""
    return self.described()["epochs_under_way"] > 0

  @property
  def element_spec(self):
    return self._element_spec

  def describe_stage(self):
    stage = self.described()
    num_samples, num_kept, random_access = stage["num_samples"], stage["num_kept"], stage["random_access"]
    if num_kept >= 0:
      cached = num_kept * (1 - 1 / self._r)
      fresh = num_samples - cached
      epoch = f"{num_samples:,} samples; after the first epoch about {fresh:,.0f} fresh, {cached:,.0f} cached"
    else:
      known = f"{num_samples:,} samples" if num_samples >= 0 else "number of samples not yet known"
      epoch = f"{known}; reuse begins after the first epoch that is read to its end"
    order = [f"{self._order[name].replace('_', '-')} {name}" for name in ("eviction", "shuffle")]
    order.append(f"seed {stage['seed']}")
    if stage["order_seed"] != stage["seed"]:
      order.append(f"order_seed {stage['order_seed']}")
    # With balanced eviction, in each epoch a fraction 1/r of the samples is used for the last time, and is not held.
    held = num_kept if self._order["eviction"] == "reference_count" else round(num_kept * (1 - 1 / self._r))
    of_samples = (self._op_arguments["store"], held, "samples", stage["sample_bytes"], "prepared")
    kept = describe_store(self._store) + describe_bytes(self._store, *of_samples)
    if stage["num_in_transit"]:
      # `num_in_transit` is below 0 if samples vary in size.
      room = f"room for {stage['num_in_transit']:,}" if stage["num_in_transit"] > 0 else "part of the room for those"
      kept += f"; {num_kept:,} of {num_samples:,} samples kept" if num_kept >= 0 else ""
      kept += f", {room} in transit"
    source = self._describe_source(random_access, num_samples, num_kept)
    source += "; not checked for changes, because it draws random numbers" if stage["source_draws"] else ""
    rows = [("epoch", epoch), ("order", ", ".join(order)), ("source", source)]
    rows += [("fresh", self._describe_fresh(random_access)), ("store", kept)]
    if self._is_shared:
      place = self._store.shared if isinstance(self._store.shared, str) else type(self._store.shared).__name__
      limit = f"at most {self._store._shared_max_bytes:,} bytes" if self._store._shared_max_bytes else "without a limit"
      rows.append(("shared", f"{place}, {self._prefix}, {limit}"))
    if stage["bytes_beside_store"] >= 2**19:
      rows.append(("memory", f"{stage['bytes_beside_store']:,} bytes outside the store"))
    if self._described_clip:
      rows.insert(1, ("sample", self._described_clip))
    rows += [("python", stats.ProcessStats(**layer.counts())) for layer in self.python_layers]
    usual = " and ".join(name for name in ("partial_fn", "final_fn") if not stage[name.replace("fn", "inline")])
    if usual:
      # The reason is the old control flow of tf.compat.v1: see inline_function.h.
      rows.append(("calls", f"TensorFlow's default executor runs {usual}, which costs more"))
    title = f"{dataset_graph.stage_title('refurbish', self._name)}, r = {self._r:g}"
    return "\n".join([title, *(f"  {name:<7} {text}" for name, text in rows)])

  def _describe_fresh(self, random_access):
    if random_access:
      return "in uniformly random order, by index"
    if self._shuffle_buffer_size == 1:
      return "in the order of the source, shuffle_buffer_size=1"
    limit = "" if self._shuffle_buffer_size else ", at most 256 MB of them"
    return f"shuffled by a buffer of {self._shuffle_buffer_size or 1000:,} samples{limit}"

  def _describe_source(self, random_access, num_samples, num_kept):
    if random_access:
      if num_kept < 0:
        return "by index: only fresh samples are read"
      fresh = num_samples - num_kept * (1 - 1 / self._r)
      return f"by index: about {fresh:,.0f} of {num_samples:,} elements are read in an epoch after the first"
    stream = native.ops().refurbish_tf_first_stream(self._input_dataset._variant_tensor).numpy().decode()
    if any(isinstance(each, tf.data.TFRecordDataset) for each in stats.datasets("rtf.describe", self._input_dataset)):
      # A TFRecordDataset is a flat_map over the file names.
      stream = re.sub("^FlatMap", "TFRecord", stream)
    elements = f"all {num_samples:,} elements" if num_samples >= 0 else "all elements"
    because = f", because of {dataset_graph.method_name(stream)}" if stream else ""
    hints = (f"; {hint}" for beginnings, hint in _WAYS_OUT.items() if stream.startswith(beginnings))
    return f"a stream{because}: {elements} are read in every epoch{next(hints, '')}"


# Hints for sources that are streams, by the beginning of the name of TensorFlow's operation.
_WAYS_OUT = {
  ("TFRecord", "Interleave", "ParallelInterleave"): "rtf.sources.tfrecord reads TFRecord files by index",
  ("Repeat",): "echo(n) with a whole n is read by index, repeat(n) is not",
  ("FlatMap",): "rtf.sources.data_source reads Python objects by index",
}


def _trace(function, element_spec, what, of):
  """Returns the function as `map` traces it, which of `_TAKES` it takes, and its layers that run in Python.

  `of` describes its argument in messages.
  """
  takes = [name for name in _TAKES[what] if tracing.takes(name, function, element_spec)]
  if any(tracing.takes(name, function, element_spec) for name in ("generation", "epoch") if name not in _TAKES[what]):
    bound = " To set your own value, bind it with functools.partial."
    raise TypeError(_NOT_TAKEN[what] + bound)
  traceable = tracing.traceable(function)
  traced, input_structure = traceable, element_spec
  if takes:
    traced = lambda element, *values: tracing.call(traceable, element, **dict(zip(takes, values)))
    spec_of = lambda name: tf.TensorSpec([2], tf.int32) if name == "seed" else tf.TensorSpec([], tf.int64)
    input_structure = (element_spec, *map(spec_of, takes))
  with tracing.parameters_explained(what, function, element_spec, of, _TAKES[what]), tracing.in_stage() as layers:
    return tracing.trace(traced, f"refurbish({what})", what, input_structure=input_structure), takes, layers


def _seed_of(store):
  """The common seed of all stages on a store on disk, which the first stage sets."""
  settings = store._agree({})
  if "seed" not in settings:
    try:
      settings = store._agree({"seed": str(checks.stage_seed(None))})
    except ValueError:
      settings = store._agree({})  # Another process has set it in the meantime.
  return settings["seed"]


def _check_reuse_factor(r):
  if isinstance(r, bool) or not isinstance(r, numbers.Real):
    raise TypeError(f"r, the reuse factor, must be a real number of at least 1, such as 3 or 1.5, got {r!r}.")
  try:
    factor = float(r)
  except OverflowError:
    factor = math.inf
  if not 1 <= factor < math.inf:
    raise ValueError(
      f"r, the reuse factor, must be a finite number of at least 1, got {r!r}. r=1 is standard training; r=2 or r=3 "
      "uses each partially augmented sample that many times."
    )

"""The lines of code of a strategy, which are also what is run."""
import os
import sys
import zlib

import tensorflow as tf

from refurbish_tf._internal import dataset_graph
from refurbish_tf.advice import samples
from refurbish_tf.augment.targets import layer_name


class Plan:
  """Writes and runs the lines for the user's `source` and `layers`."""

  def __init__(self, source, given, layers, forms, specs, traced, *, is_by_index, batch_size, targets, disk):
    """`given`: the layers as the user wrote them, maybe nested."""
    self._given, self._layers, self._forms = given, layers, {form.name: form for form in forms}
    self._specs, self._traced, self._is_by_index = specs, traced, is_by_index
    self._batch_size, self._targets, self._disk = batch_size, targets, disk
    self._is_tuple = type(source.element_spec) is tuple
    image = samples.image_spec(source.element_spec)
    rank = image.shape.rank if isinstance(image, tf.TensorSpec) else None
    # The frames of a clip: as images, or each as a file.
    self._clips = rank == (1 if isinstance(image, tf.TensorSpec) and image.dtype == tf.string else 4)

  def apply(self, strategy, source):
    # The package, which imports this module.
    names = {"tf": tf, "rtf": sys.modules[__name__.partition(".")[0]], "source": source, "layers": self._given, "targets": self._targets}
    exec(self.code(strategy), names)
    return names["train"]

  def code(self, strategy):
    lines = []
    is_cut = strategy.split is not None or strategy.batch_split is not None or self._front(strategy)
    if is_cut and list(self._given) != list(self._layers):
      lines.append("layers = tf.nest.flatten(layers)")
    lines += self._standard() if strategy.kind == "standard" else self._stage(strategy)
    batch = "batch" if samples.is_fixed(self._specs[strategy.batch_split if strategy.batch_split is not None else -1]) else "ragged_batch"
    tail = f".{batch}({self._batch_size})"
    if strategy.batch_split is None:
      return "\n".join([*lines, f"train = train{tail}.prefetch(tf.data.AUTOTUNE)"])
    return "\n".join([*lines, f"train = train{tail}", *self._on_batches(strategy), "train = train.prefetch(tf.data.AUTOTUNE)"])

  def _front(self, strategy):
    """The form of which the first layers stand before what is kept."""
    form = self._forms.get(strategy.elements)
    return form if form is not None and form.prefix else None

  def _more(self, strategy):
    """Of layers taken apart there is one more."""
    front = self._front(strategy)
    return int(bool(front and front.apart))

  def _standard(self):
    takes_seed = any(each.takes_seed for each in self._traced)
    return [f"augment = {self._composed('layers', clips=self._clips)}",
            *self._mapped("source.shuffle(1000)", "augment", "sample", self._is_tuple, takes_seed,
                          dataset_graph.PLAIN_MAP_CALLS)]

  def _stage(self, strategy):
    lines, front, before = [], self._front(strategy), "source"
    start = front.prefix if front else 0
    if front and front.apart:
      whole, crop = (f"rtf.augment.{layer!r}" for layer in front.layers[:2])
      lines.append(f"layers = [{whole},\n          {crop}, *layers[1:]]")
    if front:
      composed = self._composed(_cut(0, start), clips=self._clips)
      lines.append(f"decoded = source.map({composed}, num_parallel_calls=tf.data.AUTOTUNE)")
      before = "decoded"
    if strategy.elements:
      lines.append(f"kept = {self._kept(strategy, before)}")
      before = "kept"
    more = self._more(strategy)
    stop = None if strategy.batch_split is None else strategy.batch_split + more
    targets = ", targets=targets" if self._targets else ""
    if strategy.split is None:
      lines.append(f"train = {before}.refurbish({_cut(start, stop)}, r=1{targets})")
    else:
      at = strategy.split + more
      lists = _cut(start, at if at < len(self._layers) + more else None)
      if at < (stop if stop is not None else len(self._layers) + more):
        lists += f", {_cut(at, stop)}"
      made_by = (*(front.layers[:front.prefix] if front else ()), *self._layers[:strategy.split], strategy.r)
      store = self._store(strategy.samples_in, strategy.samples_limit, made_by, "samples")
      lines.append(f"train = {before}.refurbish(\n    {lists}, r={strategy.r:g}{store and f', store={store}'}{targets})")
    return lines

  def _kept(self, strategy, before):
    front = self._front(strategy)
    layers = front.layers[:front.prefix] if front else ()
    if not self._is_by_index:
      return f"{before}.cache()"
    store = self._store(strategy.elements_in, strategy.elements_limit, layers, "elements")
    return f"rtf.sources.cached({before}{store and f', {store}'})"

  def _store(self, place, limit, layers, what):
    path = repr(self._path(layers, what)) if place == "disk" else ""
    if limit is None:
      return path
    return f"rtf.CacheStore({path and f'{path}, '}max_bytes={limit:_})"

  def _path(self, layers, what):
    # By the layers that made it. The text of a function of the user's has an address, which differs from run to run.
    named = [layer_name(layer) if "0x" in repr(layer) else repr(layer) for layer in layers]
    return os.path.join(self._disk, f"{what}-{zlib.crc32(repr(named).encode()):08x}")

  def _on_batches(self, strategy):
    start = strategy.batch_split
    takes_seed = any(each.takes_seed for each in self._traced[start:])
    several = type(self._specs[start]) is tuple
    return [f"last = rtf.augment.compose({_cut(start + self._more(strategy), None)})",
            *self._mapped("train", "last", "batch", several, takes_seed, "tf.data.AUTOTUNE")]

  def _composed(self, layers, clips):
    targets = ", targets=targets" if self._targets else ""
    return f"rtf.augment.compose({layers}{targets}{', clips=True' if clips else ''})"

  def _mapped(self, dataset, function, of, several, takes_seed, calls):
    calls = f"num_parallel_calls={calls}"
    if not takes_seed:
      return [f"train = {dataset}.map({function}, {calls})"]
    return ["seeds = tf.data.Dataset.random(rerandomize_each_iteration=True).batch(2)",
            f"train = tf.data.Dataset.zip({dataset}, seeds).map(\n"
            f"    lambda {of}, seed: {function}({'*' if several else ''}{of}, seed=seed), {calls})"]


def _cut(start, stop):
  return "layers" if not start and stop is None else f"layers[{start or ''}:{'' if stop is None else stop}]"



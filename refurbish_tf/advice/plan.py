"""The lines of code of a strategy, which are also the lines that are run."""

import os
import sys
import zlib

import tensorflow as tf

from refurbish_tf._internal import dataset_graph
from refurbish_tf.advice import samples
from refurbish_tf.augment import composition
from refurbish_tf.augment.final_layers import random_resized_crop
from refurbish_tf.augment.layers import layer_name

# The text of a crop's default arguments. The written code leaves them out.
_DEFAULTS = repr(random_resized_crop(1)).removeprefix("random_resized_crop((1, 1)").removesuffix(", antialias=False)")


class Plan:
  """Writes and runs the lines for the user's `source` and `layers`."""

  def __init__(self, source, given, layers, forms, specs, traced, *, is_by_index, batch_size, targets, disk):
    """`given`: the layers as the user wrote them, maybe nested."""
    self._given, self._layers, self._forms = given, layers, {form.name: form for form in forms}
    self._made, self._is_by_index = specs[-1], is_by_index
    self._takes_seed = any(each.takes_seed for each in traced)
    self._batch_size, self._targets, self._disk = batch_size, targets, disk
    self._is_tuple = type(source.element_spec) is tuple
    image = samples.image_spec(source.element_spec)
    rank = image.shape.rank if isinstance(image, tf.TensorSpec) else None
    # Whether elements are clips, of images or of one file per frame.
    self._clips = rank == (1 if isinstance(image, tf.TensorSpec) and image.dtype == tf.string else 4)

  def apply(self, strategy, source):
    # Looked up, because this module cannot import the package, which imports this module.
    names = {"tf": tf, "rtf": sys.modules[__name__.partition(".")[0]]}
    names |= {"source": source, "layers": self._given, "targets": self._targets}
    exec(self.code(strategy), names)
    return names["train"]

  def code(self, strategy):
    lines = self._standard() if strategy.kind == "standard" else self._stage(strategy)
    batch, ahead = ("batch", "tf.data.AUTOTUNE") if samples.is_fixed(self._made) else ("ragged_batch", "2")
    return "\n".join(lines) + f".{batch}({self._batch_size}).prefetch({ahead})"

  def _standard(self):
    composed, calls = self._composed("layers"), f"num_parallel_calls={dataset_graph.PLAIN_MAP_CALLS}"
    if not self._takes_seed:
      return [f"train = source.shuffle(1000).map({composed}, {calls})"]
    sample = "*sample" if self._is_tuple else "sample"
    return [
      f"augment = {composed}",
      "seeds = tf.data.Dataset.random(rerandomize_each_iteration=True).batch(2)",
      "train = tf.data.Dataset.zip(source.shuffle(1000), seeds)",
      f"train = train.map(lambda sample, seed: augment({sample}, seed=seed), {calls})",
    ]

  def _stage(self, strategy):
    lines, crop = [], []
    form = self._forms.get(strategy.elements)
    before = form.prefix if form else 0
    if before:
      front = f"[rtf.augment.{form.layers[0]!r}]" if form.apart else self._part(0, before)
      lines.append(f"source = source.map({self._composed(front)}, tf.data.AUTOTUNE)")
    if form:
      lines.append(f"source = {self._kept(strategy, form.layers[:before])}")
    if form and form.apart:
      lines.append(f"crop = rtf.augment.{repr(form.layers[1]).replace(_DEFAULTS, '')}")
      crop = ["crop"]
    at = len(self._layers) if strategy.split is None else strategy.split
    arguments = [self._part(before, at, *crop)]
    if at < len(self._layers):
      arguments.append(self._part(at, len(self._layers)))
    arguments.append(f"r={strategy.r:g}")
    made_by = (*(form.layers[:before] if form else ()), *self._layers[:at], strategy.r)
    store = self._store(strategy.samples_in, strategy.samples_limit, made_by, "samples")
    if store:
      lines.append(f"store = {store}")
      arguments.append("store=store")
    if self._targets:
      arguments.append("targets=targets")
    return [*lines, f"train = source.refurbish({', '.join(arguments)})"]

  def _kept(self, strategy, layers):
    if not self._is_by_index:
      return "source.cache()"
    store = self._store(strategy.elements_in, strategy.elements_limit, layers, "elements")
    return f"rtf.sources.cached({', '.join(filter(None, ['source', store]))})"

  def _store(self, place, limit, layers, what):
    arguments = [repr(self._path(layers, what))] if place == "disk" else []
    arguments += [f"max_bytes={limit:_}"] if limit is not None else []
    return f"rtf.CacheStore({', '.join(arguments)})" if arguments else ""

  def _path(self, layers, what):
    # Named after the layers that made the contents. The repr of a user's function has an address, another in each run.
    named = [layer_name(layer) if "0x" in repr(layer) else repr(layer) for layer in layers]
    return os.path.join(self._disk, f"{what}-{zlib.crc32(repr(named).encode()):08x}")

  def _composed(self, layers):
    targets = ", targets=targets" if self._targets else ""
    return f"rtf.augment.compose({layers}{targets}{', clips=True' if self._clips else ''})"

  def _part(self, start, stop, *names):
    """The text of a list of the variables `names` and of the user's layers from `start` to `stop`."""
    slices = _slices("layers", self._given, start, stop)
    if len(slices) == 1 and not names:
      return _sliced(*slices[0])
    members = list(names)
    for name, first, last, count in slices:
      members.append(f"{name}[{first}]" if last - first == 1 else f"*{_sliced(name, first, last, count)}")
    return f"[{', '.join(members)}]"


def _slices(name, layers, start, stop):
  """Finds the layers from `start` to `stop` in nested lists: the name of each list, a slice of it, and its length."""
  slices, passed = [], 0
  for place, layer in enumerate(layers):
    size = len(composition.flattened([layer]))
    first, last = max(0, start - passed), min(size, stop - passed)
    passed += size
    if first >= last:
      continue
    if last - first < size:
      slices += _slices(f"{name}[{place}]", layer, first, last)
    elif slices and slices[-1][0] == name:
      slices[-1] = (*slices[-1][:2], place + 1, len(layers))
    else:
      slices.append((name, place, place + 1, len(layers)))
  return slices


def _sliced(name, first, last, count):
  return name if last - first == count else f"{name}[{first or ''}:{last if last < count else ''}]"

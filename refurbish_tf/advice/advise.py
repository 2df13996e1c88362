"""Measures an input pipeline and says what to do about it: `rtf.advise`."""

import math
import os
import shutil
import sys
import time
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf import diversity
from refurbish_tf._internal import checks, machine
from refurbish_tf.advice import measure, order, plan, report, samples
from refurbish_tf.advice import strategies
from refurbish_tf.augment import composition, device_layers
from refurbish_tf.augment.target_kinds import checked_targets
from refurbish_tf.augment.targets import layer_name

# A Python layer that takes more seconds than this in this process holds up the others, so `advise` names it.
LEAST_PYTHON = 5e-4
# The CPU seconds to find a sample in a shared level, and per byte (benchmarks/cluster.py, Redis); and for which
# fraction of the CPU cores a level is worth it.
GET, LEAST_CORES = (3e-5, 4e-10), 0.1


def advise(
  source: tf.data.Dataset[Any],
  layers: Sequence[Any],
  *,
  batch_size: int,
  step_seconds: float | None = None,
  epochs: int = 90,
  memory: float | None = None,
  disk: str | os.PathLike[str] | None = None,
  network: float | None = None,
  min_diversity: float = 0.95,
  num_outcomes: Sequence[float | None] | None = None,
  num_batched_outcomes: float = 1,
  targets: dict[str | int, Any] | None = None,
  max_seconds: float = 30,
) -> report.Advice:
  """Measures a source and layers, and says which strategy to prepare the samples is fastest, with its lines of code.

  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([256, 32, 32, 3], tf.uint8))
  >>> layers = [*rtf.augment.rand_augment(), rtf.augment.random_crop(padding=4), rtf.augment.random_flip()]
  >>> advice = rtf.advise(images, layers, batch_size=32, max_seconds=2)
  >>> print(advice)  # doctest: +SKIP
  >>> train = advice.apply(images)
  >>> train.element_spec.shape
  TensorShape([None, 32, 32, 3])

  It compares plain `tf.data` with three strategies, each in memory and, with `disk`, on a disk: elements kept as they
  are read or after leading deterministic layers, such as decoded images (`rtf.sources.cached`); `refurbish` after each
  layer; and both. If memory is short, a part is kept. For each strategy it predicts the CPU time of a sample, the bytes
  that are kept and read, the samples a second and the diversity (Lee et al., "Refurbish Your Training Data", USENIX
  ATC 2021, section 4): means over all epochs, the first included. Times add up; the samples a second are the least of
  what CPU cores, disk and accelerator allow. The proposal is the fastest strategy with enough diversity, or standard
  training if no strategy is a tenth faster.

  It reads some hundreds of elements, runs the pipelines in turns, and keeps nothing. Let the process do nothing else.

  Args:
    source: the `tf.data.Dataset` after which `refurbish` would stand: single samples, finite, with the same order in
      every epoch. If it is read by index, a part of it can be kept, and only what is needed is read.
    layers: all layers, as for `rtf.augment.compose`: a list of functions, or of lists of them, each one layer.
    batch_size: how many samples a step takes.
    step_seconds: the seconds of a step on such a batch if it need not wait: what Keras prints for one batch that is
      used again and again, as in `model.fit(batches.take(1).cache().repeat(100))`. With a GPU or TPU it says whether
      the input is the bottleneck; if it is not, nothing is proposed. When training on the CPU, its cores do both.
    epochs: the number of training epochs, a whole number of up to 10,000.
    memory: bytes that may be used to keep samples. None for half of what is free, by machine and control group.
    disk: a folder of a local disk to keep samples in. At most half of its free space is used. None for memory alone.
    network: bytes per second from and to a level that several machines would share, `CacheStore(shared=...)`, such as
      125e6 for 1 Gbit/s. The result then says whether such a level pays. None for one machine.
    min_diversity: the least normalised diversity, above 0 and up to 1, that of standard training.
    num_outcomes: how many different outputs each layer has for one input: a list with a number of at least 1, or None,
      for each layer; `math.inf` for a continuous layer, 1 for a deterministic one, which may then come before what is
      kept permanently. The layers of this package know their number. For others and None the outputs are counted, with
      many seeds on a few samples. The count is a lower bound if the result says so.
    num_batched_outcomes: the number of outcomes of the layers that you run on whole batches after all of these, such as
      162 for `random_crop(padding=4)` and `random_flip()`. It counts as a part of the final augmentation; its cost is
      not measured.
    targets: what follows the image, as for `rtf.augment.compose`.
    max_seconds: about how long it takes, in seconds. Tracing slow layers may take longer.

  Returns:
    An `Advice`: what to do, all strategies that were compared, and `apply(source)`.

  Raises:
    ValueError: `layers` is empty, a layer fails or returns another structure than it was given; `source` is empty,
      infinite, or yields batches, or has a stage such as `refurbish` already; a number is out of range, or there is no
      such folder.
    TypeError: an argument is of the wrong type.
  """
  given = layers
  layers = composition.checked_layers(layers, "advise")
  checked = checked_targets(targets, "advise")
  samples.check_source(source)
  memory, disk_bytes = _checked(
    batch_size, step_seconds, epochs, memory, disk, network, min_diversity, num_batched_outcomes, max_seconds
  )
  numbers = _checked_outcomes(num_outcomes, len(layers))
  disk = disk and os.fspath(disk)
  began = time.perf_counter()
  specs, traced = samples.trace_layers(layers, source, checked)
  # Building a stage checks the source, and says whether it is read by index.
  stage = source.refurbish(lambda *components: components if len(components) > 1 else components[0], r=1)
  described = stage.described()
  is_by_index, draws = described["random_access"], described["source_draws"]
  num_samples = None if described["num_samples"] < 0 else described["num_samples"]

  splits = tuple(at for at in range(1, len(layers) + 1) if not getattr(layers[at - 1], "hands_on", None))
  can_offload = not targets and any(_can_be_offloaded(layers[at:], specs[at]) for at in splits[:-1])
  forms = _forms(layers, traced, numbers, draws)
  shows = sys.stdout.isatty() or "ipykernel" in sys.modules
  bar = tf.keras.utils.Progbar(max_seconds, unit_name="second") if shows else None

  def progress():
    if bar is not None:
      bar.update(min(time.perf_counter() - began, 0.99 * max_seconds))

  # For each layer: the number of outcomes and the effective number; None if they must be counted.
  known = [
    (number, number)
    if number is not None
    else getattr(layer, "outcomes", None) or ((1, 1) if each.is_pure and not each.takes_seed else None)
    for number, layer, each in zip(numbers, layers, traced)
  ]
  # The seconds for counting outcomes. Measuring gets the rest, minus the time that tracing took.
  counting = measure.COUNTING * max_seconds * known.count(None)
  options = {"is_by_index": is_by_index, "batch_size": batch_size, "targets": targets, "disk": disk}
  seconds = max(0.3 * max_seconds, max_seconds - counting - (time.perf_counter() - began))
  measured = measure.Measurement(source, forms, splits, max_seconds=seconds, progress=progress, **options)
  counted = [(outcomes[0], False, outcomes[1]) if outcomes else None for outcomes in known]
  for position in (position for position, outcomes in enumerate(known) if outcomes is None):
    with samples.naming(layers, position):
      left = max(counting, max_seconds - (time.perf_counter() - began))
      counted[position] = measured.count_outcomes(position, traced[position].takes_seed, left / known.count(None))
    progress()
  if bar is not None:
    bar.update(max_seconds, finalize=True)

  rows = _layer_rows(layers, counted, measured.costs)
  setting = strategies.Settings(
    measured.costs,
    forms,
    splits,
    num_samples,
    is_by_index,
    epochs,
    batch_size,
    machine.processors(),
    step_seconds,
    step_seconds is not None and not machine.has_accelerator(),
    memory,
    disk_bytes,
    max(machine.free_memory(), memory),
    tuple(row.seconds if each.calls_python else 0.0 for row, each in zip(rows, traced)),
    # A lower bound counts as unbounded: with too few partial outcomes, standard training would seem to repeat samples.
    tuple(strategies.UNBOUNDED if row.is_lower_bound else row.num_outcomes for row in rows),
    (*(row.effective_outcomes for row in rows), num_batched_outcomes),
  )
  made = plan.Plan(source, given, layers, forms, specs, traced, **options)
  found = tuple(strategies.Model(setting, made).strategies())
  return _advice(found, rows, layers, specs, traced, setting, network, min_diversity, can_offload)


def _advice(found, rows, layers, specs, traced, setting, network, min_diversity, can_offload):
  standard = next(strategy for strategy in found if strategy.kind == "standard")
  input_waits = None
  if setting.step_seconds is not None and not setting.trains_on_cpu:
    input_waits = standard.input_per_second < strategies.LEAST_GAIN * setting.batch_size / setting.step_seconds
  # This is standard training if nothing waits for the input, because then no strategy is faster.
  best = strategies.picked(found, min_diversity)
  reasons, hints = [], []
  if input_waits is not None:
    reasons.append(
      f"A step takes {1e3 * setting.step_seconds:,.3g} ms for {setting.batch_size} samples, "
      f"{setting.batch_size / setting.step_seconds:,.0f} samples/s; standard training's input makes "
      f"{standard.input_per_second:,.0f} samples/s."
    )
  elif setting.trains_on_cpu:
    input_seconds = standard.later_cpu_seconds / setting.processors
    share = input_seconds / (input_seconds + setting.step_seconds / setting.batch_size)
    reasons.append(f"The CPU also trains: standard training's input takes {100 * share:.0f} % of their time.")
  else:
    reasons.append(
      "step_seconds is not given: if your accelerator does not wait for its input, nothing of this makes it faster."
    )
  if input_waits is not False:
    reasons += _reasons(found, rows, specs[-1], traced, setting, best, min_diversity)
    hints += _hints(setting, best, can_offload)
    reasons += [_about_level(best, setting, network)] if network else []
    if len(setting.splits) > 1 and setting.num_samples is not None:
      same = [each for each in found if each.kind == "refurbish" and each.diversity >= min_diversity]
      least = min(each.later_cpu_seconds for each in (standard, *same))
      beside = setting.costs.hit[len(layers)] + setting.costs.batch
      better = order.better_order(rows, specs, setting, least, min_diversity, beside)
      hints += [better] if better else []
  return report.Advice(best, found, rows, input_waits, tuple(reasons), tuple(hints), setting, min_diversity)


def _reasons(found, rows, made, traced, setting, best, min_diversity):
  reasons, is_image = [], samples.is_image(made)
  number = setting.num_samples
  if number is None:
    reasons.append(
      "The source does not know its number of elements, so strategies that keep something are left out. "
      "source.apply(tf.data.experimental.assert_cardinality(n)) tells it."
    )
  elif not setting.forms[0].kept:
    reasons.append(
      "The source draws random numbers, so its elements are not kept: they would be the same in each epoch. Make "
      "layers of the functions that draw."
    )
  if number is not None and number < strategies.FEW_SAMPLES:
    known = (
      "with r = 3 a small ResNet lost 0.5 points of accuracy on 4,608 images of CIFAR-10 in 80 epochs."
      if is_image
      else "r = 3 cost accuracy in a training on few samples. Whether it does on your data, only training tells."
    )
    reasons.append(f"Below {strategies.FEW_SAMPLES:,} samples r = 2 is the most: {known}")
  if best.elements and setting.form(best.elements).apart:
    reasons.append(
      "Decoded whole and then cropped: the bytes differ from those of decode_random_resized_crop, which decodes a "
      "large window of a JPEG file at a smaller size; and other windows are drawn."
    )
  for is_part, what in ((best.elements and best.elements_fraction < 1, "elements"), (not best.fits, "samples")):
    if is_part:
      where = best.elements_in if what == "elements" else best.samples_in
      reasons.append(
        f"Not all {what} fit into the {machine.size_of(setting.memory if where == 'memory' else setting.disk)} of "
        f"{where}: a part is kept, and the others are read or prepared again."
      )
  slow = [row.name for row, each in zip(rows, traced) if each.calls_python and row.seconds > LEAST_PYTHON]
  if slow:
    reasons.append(
      f"Python runs one at a time in this process: {', '.join(slow)}. rtf.augment.numpy_layer has processes do it."
    )
  if not samples.is_fixed(made):
    way = "resize at the end gives images one size" if is_image else "padded_batch is faster if the model ignores zeros"
    reasons.append(f"The samples differ in shape, so ragged_batch joins them without padding; {way}.")
  if best.kind == "standard":
    reasons += _why_nothing(found, rows, setting, best, min_diversity)
  return reasons


def _why_nothing(found, rows, setting, standard, min_diversity):
  fastest = max(strategy.input_per_second for strategy in found)
  if setting.trains_on_cpu and fastest >= strategies.LEAST_GAIN * standard.input_per_second:
    return ["Another input would be faster, but most of the time is training's."]
  reused = [strategy for strategy in found if strategy.r > 1]
  if not reused:
    return []
  allowed = [strategy for strategy in reused if strategy.diversity >= min_diversity]
  if not allowed:
    most = max(reused, key=lambda strategy: strategy.diversity)
    return [
      f"No split keeps a normalised diversity of {min_diversity:g}; the most is {most.diversity:.3f}, after layer "
      f"{most.split} with r = {most.r:g}. The last layers have too few outcomes: lower min_diversity, or put layers "
      "with more outcomes at the end."
    ]
  last = max(strategy.split for strategy in allowed)
  share = sum(row.seconds for row in rows[last:]) / max(1e-9, sum(row.seconds for row in rows))
  return [
    f"No strategy helps much, because keeping samples also takes time. The layers after layer {last}, the last place "
    f"for a split with enough diversity, take {100 * share:.0f} % of the time of all layers."
  ]


def _about_level(best, setting, network):
  """How many CPU cores prepare as fast as the network brings prepared samples."""
  costs, share = setting.costs, best.elements_fraction

  def saved(at):
    seconds = costs.first[at] - costs.hit[at] - GET[0] - GET[1] * costs.sample_bytes[at]
    if share:
      seconds -= share * (costs.fresh["encoded"] - costs.fresh[best.elements])
    return max(0.0, seconds + (1 - share) * costs.read * setting.is_by_index)

  cores = lambda at: saved(at) * network / costs.sample_bytes[at]
  at = best.split or max(setting.splits, key=cores)
  size = costs.sample_bytes[at]
  pays = (
    f"rtf.CacheStore(shared=...) can replace up to {min(cores(at), setting.processors):,.2g} of the "
    f"{setting.processors} CPU cores of each machine."
    if cores(at) > LEAST_CORES * setting.processors
    else f"It would replace {cores(at):,.2g} of the {setting.processors} CPU cores of each machine, so it does not pay."
  )
  return (
    f"With several machines: a sample after layer {at} has {machine.size_of(size)}, which takes "
    f"{1e3 * size / network:,.2g} ms to transfer, and a shared level saves {1e3 * saved(at):,.2g} ms of CPU time for "
    f"each sample that it has. {pays}"
  )


def _hints(setting, best, can_offload):
  hints, costs = [], setting.costs
  # The wall-clock seconds to read what the strategy reads for each sample.
  read = setting.read_seconds(False, best.kept_bytes) * min(1.0, best.read_bytes / costs.element_bytes["encoded"])
  if read > 1.2 * best.cpu_seconds / setting.processors and read > 1e-6:
    ratio = read / max(best.cpu_seconds / setting.processors, (setting.step_seconds or 0) / setting.batch_size)
    hints.append(
      f"Reading is the slowest: echo(e) after it costs no time up to e = {max(1, ratio):.1f}. Whether a repeated "
      "sample is worth as much as a fresh one, only training tells (Choi et al.)."
    )
  may_wait = can_offload and setting.step_seconds is not None and not setting.trains_on_cpu
  if may_wait and best.input_per_second < setting.batch_size / setting.step_seconds:
    hints.append(
      "The accelerator still waits: offload(layers) in place of the last layers lets it do a part of a batch. Whether "
      "its step then takes longer, only training tells (Kim et al.)."
    )
  return hints


def _forms(layers, traced, numbers, draws):
  """What may be kept: elements and the results of deterministic first layers; nothing if the source draws."""
  forms = [measure.Form("encoded", layers, 0, kept=not draws)]
  if draws:
    return tuple(forms)
  prefix = 0
  while prefix < len(layers) - 1 and not traced[prefix].takes_seed and (traced[prefix].is_pure or numbers[prefix] == 1):
    prefix += 1
  apart = getattr(layers[0], "apart", lambda: None)()
  if prefix:
    forms.append(measure.Form("decoded", layers, prefix))
  elif apart:
    forms.append(measure.Form("decoded", (*apart, *layers[1:]), 1, apart=True))
  return tuple(forms)


def _can_be_offloaded(layers, spec):
  """Whether `offload` takes these layers, and elements of this type."""
  image = samples.image_spec(spec)
  try:
    device_layers.checked_layers(layers, "offload")
  except (TypeError, ValueError):
    return False
  return samples.is_fixed(spec) and tf.TensorSpec([None, None, 3], tf.uint8).is_compatible_with(image)


def _layer_rows(layers, counted, costs):
  rows, before = [], costs.fresh["encoded"]
  for position, layer in enumerate(layers):
    behind = costs.hit.get(position + 1)
    seconds = 0.0
    if behind is not None:
      seconds, before = max(0.0, before - behind), min(before, behind)
    number, is_lower_bound, effective = counted[position]
    size = costs.sample_bytes.get(position + 1)
    rows.append(report.AdviceLayer(layer_name(layer), seconds, number, is_lower_bound, effective, size))
  return tuple(rows)


def _checked(batch_size, step_seconds, epochs, memory, disk, network, min_diversity, num_batched_outcomes, max_seconds):
  """Returns the bytes of memory and of the disk; raises unless all arguments are in range."""
  checks.check_whole_number("batch_size", batch_size, 1)
  checks.check_whole_number("epochs", epochs, 1)
  if epochs > diversity.MAX_EPOCHS:
    raise ValueError(
      f"epochs must be at most {diversity.MAX_EPOCHS:,}, got {epochs}. With more, diversity hardly changes."
    )
  positive = lambda value: 0 < value < math.inf
  if step_seconds is not None:
    checks.check_real("step_seconds", step_seconds, positive, "the seconds of a step, a positive number, or None")
  if network is not None:
    checks.check_real("network", network, positive, "a positive number of bytes per second, or None")
  allowed = "a fraction of the unique samples of standard training, above 0 and up to 1"
  checks.check_real("min_diversity", min_diversity, lambda value: 0 < value <= 1, allowed)
  allowed = "a number of at least 1, or math.inf"
  checks.check_real("num_batched_outcomes", num_batched_outcomes, lambda value: value >= 1, allowed)
  checks.check_real("max_seconds", max_seconds, positive, "a positive number of seconds")
  if memory is None:
    memory = machine.free_memory() / 2
  else:
    checks.check_real("memory", memory, positive, "a positive number of bytes, or None for half of what is free")
  if disk is None:
    return memory, 0.0
  if not isinstance(disk, (str, os.PathLike)):
    raise TypeError(f"disk must be a folder of a local disk, or None, got {disk!r}.")
  if not os.path.isdir(disk) or not os.access(disk, os.W_OK):
    raise ValueError(
      f"disk must be a folder that exists and that you may write to, got {os.fspath(disk)!r}. Make it first."
    )
  return memory, shutil.disk_usage(disk).free / 2


def _checked_outcomes(num_outcomes, count):
  if num_outcomes is None:
    return [None] * count
  allowed = "a number of at least 1, or None to have it counted, for each layer"
  if not isinstance(num_outcomes, (list, tuple, np.ndarray)) or np.ndim(num_outcomes) != 1:
    raise TypeError(f"num_outcomes must be a list of {allowed}, got {num_outcomes!r}.")
  if len(num_outcomes) != count:
    raise ValueError(
      f"num_outcomes must have {allowed}, got {len(num_outcomes)} for {count} layers. Write None for those that are "
      "not known."
    )
  for value in (value for value in num_outcomes if value is not None):
    checks.check_real("num_outcomes", value, lambda value: value >= 1, allowed)
  return list(num_outcomes)

"""What it brings that an accelerator finishes batches together with the CPU."""
import contextlib
import importlib.util
import random

import common
import fuse_accelerator
import fuse_device
import numpy as np
import samples
import tensorflow as tf

import refurbish_tf as rtf
from fuse_accelerator import Accelerator
from fuse_accelerator import REPEATED
from fuse_accelerator import SETTLING
from fuse_accelerator import SHARES
from refurbish_tf import augment

SIDE, BATCH, PADDING, MAGNITUDE = 224, 64, 4, 9
IMAGES = 16 * BATCH
# Enough policies that most of the CPU's time is in what can be shared.
MANY_POLICIES = 8
# Of the CPU's time for a batch: a training step, and what the accelerator takes for all policies of a batch.
TRAIN, DEVICE = (0.1, 0.5, 1.0, 2.0), (0.001, 0.1, 0.3, 1.0)
# Pairs of the above for what is measured for a few only.
FEW = ((0.5, 0.1), (0.5, 0.3))
# From this batch on, and so many after a change, the share is to be found.
FOUND, FOUND_AGAIN = 100, 60
MEASURED = 80
# What a pipeline that waits for its turn prepares ahead, at most: above all the calls of `map`.
PREPARED = 24
# How training takes its batches: a name, what it says, what the accelerator does, and the prefetch.
KINDS = {
    "idle": ("takes no processor", {}, fuse_accelerator.PREFETCH),
    "launches": ("takes 100 µs of a processor a step", {"processor": 100e-6}, fuse_accelerator.PREFETCH),
    "waiting": ("is waited for at each step, without a prefetch", {"steps_at_once": 1}, 0),
    "bursts": ("takes 8 batches at once", {"steps_at_once": 8}, fuse_accelerator.PREFETCH),
}
BEST, EXTREME = "of the best share, s a batch", "of all here or all there, s a batch"
LEAST_OF_BEST, LEAST_OF_EXTREME = 0.95, 0.97
REUSE_FACTORS = (1, 3, 5)
MOST_OF_CPU = {3: 0.80, 5: 0.70}
MOST_OF_POLICIES = 1.03
WITHOUT = "without fuse"


def measure(quick, device="cpu"):
  """Yields the sections."""
  if device == "gpu":
    yield fuse_device.section(quick, layers(2))
    return
  for kind in KINDS:
    yield _grid(quick, kind)
  yield _change(quick)
  files, whence = samples.photographs(2 * BATCH if quick else 1500)
  yield _reuse(quick, np.array(files, object), whence)
  yield _cpu_time(quick, np.array(files, object), whence)
  yield _compiled()


def layers(policies):
  return [*augment.rand_augment(policies, MAGNITUDE), *final_layers()]


def final_layers():
  return [augment.random_crop(PADDING), augment.random_flip(), augment.normalize()]


def on_batches():
  """The final layers for whole batches, which is the fastest way on the CPU."""
  return augment.random_crop_and_flip_batch(PADDING, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def _images():
  images = np.random.default_rng(7).integers(0, 256, [IMAGES, SIDE, SIDE, 3], np.uint8)
  return tf.data.Dataset.from_tensor_slices(images)


def _fused(images, share):
  return images.repeat(REPEATED).fuse(layers(MANY_POLICIES), BATCH, on_device=share, seed=7)


def _without(images):
  """The same augmentation without `fuse`: policies on each image, the others on whole batches."""
  policies = augment.rand_augment(MANY_POLICIES, MAGNITUDE)
  return _on_batches(images.refurbish(policies, None, r=1, seed=7)).repeat(REPEATED)


def _on_batches(dataset):
  return dataset.batch(BATCH, drop_remainder=True).map(on_batches(), common.PARALLEL_CALLS)


def _seconds(dataset, accelerator, skipped, counted, prefetch=fuse_accelerator.PREFETCH):
  return accelerator.seconds(fuse_accelerator.batches_of(dataset, prefetch), skipped, counted)


def _grid(quick, kind):
  """The share that is found, by what a step and the policies take."""
  does, options, prefetch = KINDS[kind]
  title = f"A simulated accelerator that {does}"
  common.say(title)
  is_whole = kind == "idle" and not quick
  cells = FEW[:1] if quick else [(train, device) for train in TRAIN for device in DEVICE] if is_whole else FEW
  images = _images()
  found, counted = (4, 4) if quick else (FOUND, MEASURED)
  took = {cell: {way: [] for way in (*SHARES, rtf.AUTOTUNE, WITHOUT)} for cell in cells}
  whole = []
  for number in range(common.rounds(quick, 5)):
    for train, device in random.sample(cells, len(cells)):
      common.say(f"{title}: round {number + 1}, t_train {train}, t_device {device}")
      # Anew for each cell, as the machine is not equally fast at all times.
      cpu = _seconds(_fused(images, 0), Accelerator(), SETTLING, counted)
      whole.append(1e3 * cpu)
      accelerator = Accelerator(train * cpu, device * cpu, **options)
      for way in random.sample(list(took[train, device]), len(took[train, device])):
        dataset = _without(images) if way == WITHOUT else _fused(images, way)
        skipped = found if way == rtf.AUTOTUNE else SETTLING
        took[train, device][way].append(_seconds(dataset, accelerator, skipped, counted, prefetch))
  rows = [common.Row(f"{kind}_batch", "the CPU's time for a batch, share 0", "ms", whole)]
  for (train, device), ways in took.items():
    rows += _compared(f"{kind}_{train}_{device}", f"t_train {train}, t_device {device}", ways)
  return common.Section(
      title,
      f"Random bytes of {SIDE}x{SIDE} in memory, rand_augment({MANY_POLICIES}), random_crop({PADDING}), random_flip() "
      f"and normalize(), batches of {BATCH}, a prefetch of {prefetch}. Training holds each batch for "
      "t_train and, if all of its images are unfinished, for t_device, else for that part of it; both are multiples of "
      f"the time that the CPU takes for a batch by itself. {counted} batches by the clock, for AUTOTUNE from batch "
      f"{found} on; all ways by turns in random order, each from its beginning. Without fuse: refurbish, r = 1, then "
      f"crop, flip and normalise on whole batches. A limit of {1 / LEAST_OF_BEST:.3f} is {LEAST_OF_BEST} of the "
      f"throughput, one of {1 / LEAST_OF_EXTREME:.3f} is {LEAST_OF_EXTREME}.", rows,
      {"shares": lambda figure: _draw_grid(figure, took)} if is_whole else {})


def _compared(key, name, ways):
  """Rows of AUTOTUNE beside the best share, the extremes, and the pipeline without `fuse`."""
  tuned = ways[rtf.AUTOTUNE]
  rows = [
      common.Row(f"{key}_best", name, BEST, common.quotients(tuned, _fastest(ways, SHARES)), round(1 / LEAST_OF_BEST, 3)),
      common.Row(f"{key}_extreme", name, EXTREME, common.quotients(tuned, _fastest(ways, (0, 1))),
                 round(1 / LEAST_OF_EXTREME, 3))]
  if WITHOUT in ways:
    rows.append(common.Row(f"{key}_without", f"{name}: images a second", f"times those {WITHOUT}",
                           common.quotients(ways[WITHOUT], tuned)))
  return rows


def _fastest(ways, shares):
  """The times of that share whose median is the least: the least of each round would be the luckiest."""
  return min((ways[share] for share in shares), key=np.median)


def _change(quick):
  """The CPU becomes half as fast, and again as fast as it was"""
  common.say(_change.__doc__)
  images = _images()
  found, again, counted = (4, 4, 4) if quick else (FOUND, FOUND_AGAIN, MEASURED)
  cells = FEW[:1] if quick else FEW
  took = {(cell, half): {way: [] for way in (*SHARES, rtf.AUTOTUNE)} for cell in cells for half in (True, False)}
  for _ in range(common.rounds(quick, 5)):
    for cell in cells:
      cpu = _seconds(_fused(images, 0), Accelerator(), SETTLING, counted)
      accelerator = Accelerator(*(part * cpu for part in cell))
      batches = fuse_accelerator.batches_of(_fused(images, rtf.AUTOTUNE))
      accelerator.seconds(batches, 0, found)
      for half in (True, False):
        with fuse_accelerator.half_as_fast() if half else contextlib.nullcontext():
          took[cell, half][rtf.AUTOTUNE].append(accelerator.seconds(batches, again, counted))
          if half:
            # Measured under the same load, while the stage that has found its share waits.
            _fixed_shares(images, accelerator, counted, took[cell, half])
      del batches
      _fixed_shares(images, accelerator, counted, took[cell, False])
  rows = []
  for ((train, device), half), ways in took.items():
    rows += _compared(f"change_{'half' if half else 'whole'}_{train}_{device}",
                      f"{'half as fast' if half else 'twice as fast'}, t_train {train}, t_device {device}", ways)
  return common.Section(
      _change.__doc__,
      f"As above. From batch {found} on every processor has another process that computes all the time; {again} batches "
      f"later {counted} are measured. Then these processes end, and the same is measured once more. The shares are "
      "measured under the same load.", rows)


def _fixed_shares(images, accelerator, counted, took):
  for share in random.sample(SHARES, len(SHARES)):
    took[share].append(_seconds(_fused(images, share), accelerator, SETTLING, counted))


def _reuse(quick, files, whence):
  """Behind refurbish"""
  decode, policies = augment.decode_and_crop(SIDE), augment.rand_augment(2, MAGNITUDE)
  source = tf.data.Dataset.from_tensor_slices(files)
  steps = len(files) // BATCH
  # The first batches were prepared in the turn of the other.
  turn = (2, steps) if quick else (PREPARED, 3 * steps)
  ways = {r: {
      WITHOUT: _on_batches(source.refurbish([decode], policies, r, seed=7)),
      "with": source.refurbish([decode], None, r, seed=7).fuse(layers(2), BATCH)} for r in REUSE_FACTORS}
  rows, rates = [], {}
  accelerator = None
  for r, datasets in ways.items():
    common.say(f"{_reuse.__doc__}, r = {r}")
    batches = {way: fuse_accelerator.batches_of(dataset.repeat(REPEATED)) for way, dataset in datasets.items()}
    took = {way: [] for way in batches}
    if accelerator is None:
      # Of an epoch without a model, which is long enough for it.
      cpu = Accelerator().seconds(batches[WITHOUT], 2, steps)
      accelerator = Accelerator(cpu / 4, cpu / 10)
    for way in batches:  # The first epoch prepares all.
      accelerator.seconds(batches[way], 0, steps)
    for _ in range(common.rounds(quick, 5)):
      for way in random.sample(list(batches), len(batches)):
        took[way].append(accelerator.seconds(batches[way], *turn))
    rates[r] = {way: [BATCH / seconds for seconds in values] for way, values in took.items()}
    rows += [*(common.Row(f"reuse_r{r}_{way.split()[0]}", f"r = {r}, {way if way == WITHOUT else 'with fuse'}",
                          "images / s", values) for way, values in rates[r].items()),
             common.Row(f"reuse_r{r}_gain", f"r = {r}: images a second", f"times those {WITHOUT}",
                        common.quotients(took[WITHOUT], took["with"]))]
  return common.Section(
      _reuse.__doc__,
      f"{whence}, in memory: decode_and_crop({SIDE}) in partial_fn, rand_augment(), random_crop({PADDING}), random_flip() "
      "and normalize() behind it. A simulated accelerator as above: t_train is a fourth of the time that the CPU takes for "
      f"a batch without fuse, r = 1, {1e3 * accelerator.train:.1f} ms, t_device a tenth. {turn[1]} batches of {BATCH} a turn. "
      "FusionFlow's figure 11 has 1.52 times, on another machine, with a cache of a part of the samples.", rows,
      {"reuse": lambda figure: _draw_reuse(figure, rates)})


def _cpu_time(quick, files, whence):
  """The input's CPU time"""
  decode, policies, final = augment.decode_and_crop(SIDE), augment.rand_augment(2, MAGNITUDE), final_layers()
  source = tf.data.Dataset.from_tensor_slices(files)
  rows = []
  for r in REUSE_FACTORS:
    common.say(f"{_cpu_time.__doc__}, r = {r}")
    kept = lambda partial, function, r=r: source.refurbish(partial, function, r, seed=7)
    # In pairs that are compared: with fuse, and without. Some are nearly equal, so they take many rounds.
    costs = common.per_element(len(files) // BATCH * BATCH, common.cpu_of_epochs({
        "in partial_fn": kept([decode, *policies], None).fuse(final, BATCH),
        "in partial_fn, without": _on_batches(kept([decode, *policies], None)),
        "share 0": kept([decode], None).fuse([*policies, *final], BATCH, on_device=0),
        "share 1": kept([decode], None).fuse([*policies, *final], BATCH, on_device=1),
        "fresh, without": _on_batches(kept([decode], policies)),
        "alone": kept([decode], None).fuse(policies, BATCH, on_device=0),
        "alone, without": kept([decode], policies).batch(BATCH, drop_remainder=True),
    }, common.rounds(quick, 15)))
    of_cpu = f"of that {WITHOUT}, CPU time"
    rows += [
        common.Row(f"cpu_r{r}_without", f"r = {r}: policies in partial_fn, {WITHOUT}", "µs an image",
                   costs["in partial_fn, without"]),
        common.Row(f"cpu_r{r}_fuse", f"r = {r}: policies in partial_fn, with fuse", "µs an image",
                   costs["in partial_fn"])]
    rows += [common.Row(f"cpu_r{r}_{key}", f"r = {r}: {name}", of_cpu, common.quotients(costs[mine], costs[other]),
                        limit)
             for key, name, mine, other, limit in (
                 ("final", "policies in partial_fn", "in partial_fn", "in partial_fn, without", MOST_OF_CPU.get(r)),
                 ("share_0", "policies fresh, share 0", "share 0", "fresh, without", None),
                 ("share_1", "policies fresh, share 1", "share 1", "fresh, without", MOST_OF_CPU.get(r)),
                 ("policies", "policies alone, share 0", "alone", "alone, without", MOST_OF_POLICIES))]
  return common.Section(
      _cpu_time.__doc__,
      f"{whence}, in memory, to a model that takes float32; no model runs. decode_and_crop({SIDE}) in partial_fn, "
      f"rand_augment() there or behind, then random_crop({PADDING}), random_flip() and normalize(): by the accelerator, or "
      f"on whole batches of {BATCH} where there is no fuse, its fastest form. Share: of the policies on the accelerator. "
      "Policies alone: without the final layers, beside refurbish(...).batch. CPU time of all threads of an epoch after the "
      "first.", rows)


def _compiled():
  """Compiled for a GPU that is not there"""
  common.say(_compiled.__doc__)
  rows, missing = [], ""
  if not importlib.util.find_spec("jax_cuda12_plugin"):
    missing = ": jax[cuda12] is not installed"
  for side, batch in ((32, 128), (SIDE, 64)):
    counts = {} if missing else fuse_device.compiled(side, batch)
    rows += [common.Row(f"compiled_{side}_{key}", f"{side}x{side}: {name}{missing}", unit,
                        [counts[key]] if counts else [])
             for key, name, unit in fuse_device.COUNTED]
  return common.Section(
      _compiled.__doc__,
      "rtf.keras.Finish of rand_augment(), random_crop(4), random_flip() and normalize(), compiled by JAX for an H100. "
      "Launches: instructions of the compiled program that are a kernel or a copy, those of a loop once; of the "
      "branches only that for all images. Moved: the operands and results of all of these, as if each were read and "
      "written once. At 3.35 TB/s that is the time by memory.", rows)


def _draw_grid(figure, took):
  figure.set_size_inches(13, 3.4 * len(TRAIN))
  for axes, train in zip(figure.subplots(len(TRAIN), 1, sharex=True), TRAIN):
    for place, device in enumerate(DEVICE):
      ways = took[train, device]
      cpu = min(np.median(ways[way]) for way in SHARES)
      for offset, way in enumerate((WITHOUT, *SHARES, rtf.AUTOTUNE)):
        axes.bar(place + 0.12 * (offset - 3), cpu / np.median(ways[way]), 0.11,
                 color="#D55E00" if way == rtf.AUTOTUNE else "#999999" if way == WITHOUT else "#0072B2",
                 alpha=1 if way in (rtf.AUTOTUNE, WITHOUT) else 0.4 + 0.15 * SHARES.index(way))
    axes.set_title(f"t_train {train} of the CPU's time for a batch")
    axes.set_ylabel("of the best share")
    axes.set_xticks(range(len(DEVICE)), [f"t_device {device}" for device in DEVICE])
  figure.suptitle("Throughput without fuse (grey), at shares 0 to 1 (blue), with AUTOTUNE (red)")


def _draw_reuse(figure, rates):
  figure.set_size_inches(11, 6)
  axes = figure.subplots()
  for offset, (way, color) in enumerate(((WITHOUT, "#0072B2"), ("with", "#D55E00"))):
    axes.bar([place + 0.4 * offset for place in range(len(rates))], [np.median(rates[r][way]) for r in rates], 0.38,
             color=color, label=way if way == WITHOUT else "with fuse")
  axes.set_xticks([place + 0.2 for place in range(len(rates))], [f"r = {r}" for r in rates])
  axes.set_ylabel("images / s")
  axes.legend()

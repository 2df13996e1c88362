"""Throughput over the number of processors for one accelerator (Figure 13 of Lee et al., 2021): measured, and modelled.

Measures one and two processors of this machine. Larger numbers are modelled, calibrated on the measurements and marked
as such: an image takes s + p / c seconds on c processors, but never less than the downstream takes for it.
"""
import os
import random
import statistics
import time

import common
import samples
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

BATCH = 128
REUSE_FACTORS = (1, 2, 3)
MODELLED = (3, 4, 6, 8)
# The rate of the downstream, as a multiple of standard input's with one processor.
DOWNSTREAM = 3.5
# By r. Okabe and Ito's colours, which colour-blind people can distinguish.
STYLES = {1: {"color": "black", "marker": "X"}, 2: {"color": "#009E73", "marker": "^"},
          3: {"color": "#0072B2", "marker": "o"}}
NAMES = {1: "standard", **{r: f"refurbish, r = {r}" for r in REUSE_FACTORS[1:]}}


def measure(quick):
  """Yields the section."""
  processors = sorted(os.sched_getaffinity(0))
  counts = [1, *([2] if len(processors) > 1 else [])]
  images, whence = samples.small(512 if quick else 12_800)
  epochs = 1 if quick else 3
  alone = {(count, r): [] for count in counts for r in REUSE_FACTORS}
  training, holds = {key: [] for key in alone}, []
  with common.fresh_processes() as call:
    for number in range(common.rounds(quick, 5)):
      common.say(f"round {number + 1}: {' and '.join(map(str, counts))} processors, each in a process of its own")
      for found, hold in ((alone, lambda: 0), (training, lambda: alone[1, 1][-1] / DOWNSTREAM)):
        for count in random.sample(counts, len(counts)):
          for r, measured in call(_seconds_per_image, processors[:count], images, epochs, hold()).items():
            found[count, r].append(measured)
      holds.append(alone[1, 1][-1] / DOWNSTREAM)
  yield _section(alone, training, holds, counts, whence, len(processors))


def _section(alone, training, holds, counts, whence, available):
  hold = statistics.median(holds)
  middle = {key: statistics.median(measured) for key, measured in alone.items()}
  rows = [common.Row("downstream", "the downstream by itself", "images/s", [1 / hold for hold in holds])]
  for count in counts:
    for key, name, found in (("input", "input alone", alone), ("training", "training", training)):
      rows += [common.Row(f"{key}_{count}_r{r}", f"{count}: {NAMES[r]}, {name}", "images/s",
                          [1 / s for s in found[count, r]]) for r in REUSE_FACTORS]
    rows += [common.Row(f"gain_{count}_r{r}", f"{count}: {NAMES[r]} over standard, training", "×",
                        common.quotients(training[count, 1], training[count, r])) for r in REUSE_FACTORS[1:]]
  if len(counts) > 1:
    rows += [common.Row(f"scaling_r{r}", f"2 over 1: {NAMES[r]}, input alone", "×",
                        common.quotients(alone[1, r], alone[2, r])) for r in REUSE_FACTORS]
    rows += [
        common.Row(f"modelled_{count}_r{r}", f"{count}, MODELLED: {NAMES[r]}, training", "images/s",
                   [1 / max(_modelled(middle[1, r], middle[2, r], count), hold)])
        for count in MODELLED for r in REUSE_FACTORS]
  else:
    rows.append(common.Row("modelled", "no model: it takes two processors to calibrate, and here is one", "", []))
  return common.Section(
      "Throughput over processors",
      f"{whence}; rand_augment() before the store, .batch({BATCH}).map(random_crop_and_flip_batch(4)) behind "
      f"it, after the first epochs. Measured with {' and '.join(map(str, counts))} of {available} processors: input alone, "
      f"and training, where a loop holds each batch, taking no processor, so long that by itself it takes {DOWNSTREAM} "
      "times the images that standard input yields with one processor. The model is s + p / c seconds an image on c "
      "processors, through the medians of input alone, and never less than the downstream takes; it knows nothing of "
      "memory bandwidth, other sockets or hyperthreads.", rows,
      {"processors": lambda figure: _draw(figure, middle, training, hold, counts)} if len(counts) > 1 else {})


def _modelled(one, two, count):
  """Seconds an image on `count` processors, of those on one and on two."""
  # Noisy measurements may show a gain above two, which would make the serial part negative.
  parallel = min(2 * (one - two), one)
  return one - parallel + parallel / count


def _seconds_per_image(processors, images, epochs, hold):
  """Seconds an image, by r, with a downstream that holds each image for `hold` seconds.

  Run it in a process of its own, so that TensorFlow makes as many threads as it may use processors.
  """
  os.sched_setaffinity(0, processors)
  steps = len(images) // BATCH
  iterators = {r: iter(_dataset(images, r)) for r in REUSE_FACTORS}
  seconds = dict.fromkeys(iterators, 0.0)
  # The first epochs, which fill the store, are not counted. In turns, so that a slow period of the machine affects all
  # alike; in whole epochs, so that little is read ahead in the turn of another.
  for counted in [0] * (max(REUSE_FACTORS) - 1) + [1] * epochs:
    for r in random.sample(list(iterators), len(iterators)):
      began = time.perf_counter()
      for _ in range(steps):
        next(iterators[r])
        if hold:
          time.sleep(hold * BATCH)
      seconds[r] += counted * (time.perf_counter() - began)
  return {r: total / (epochs * steps * BATCH) for r, total in seconds.items()}


def _dataset(images, r):
  """Endless batches."""
  partial_fn = rtf.augment.compose([rtf.augment.rand_augment()])
  if r == 1:
    seeds = np.random.default_rng(7).integers(2**31, size=[len(images), 2], dtype=np.int32)
    epoch = tf.data.Dataset.from_tensor_slices((images, seeds)).shuffle(len(images)).map(
        lambda image, seed: partial_fn(image, seed=seed), common.PARALLEL_CALLS)
  else:
    epoch = tf.data.Dataset.from_tensor_slices(images).refurbish(partial_fn, None, r=r)
  return (epoch.repeat()
          .batch(BATCH, drop_remainder=True)
          .map(rtf.augment.random_crop_and_flip_batch(4))
          # Not AUTOTUNE: a growing buffer would be filled in the turn of another one.
          .prefetch(1))


def _draw(figure, middle, training, hold, counts):
  figure.set_size_inches(11, 7.5)
  axes = figure.subplots()
  grid = [1 + k / 20 for k in range(20 * (MODELLED[-1] - 1) + 1)]
  for r, style in STYLES.items():
    rate = lambda count, r=r: 1 / max(_modelled(middle[1, r], middle[2, r], count), hold)
    axes.plot(grid, [rate(count) / 1000 for count in grid], ls="--", lw=2, color=style["color"])
    axes.plot(MODELLED, [rate(count) / 1000 for count in MODELLED], ls="none", ms=11, mfc="white", mew=2, **style)
    rates = [[0.001 / s for s in training[count, r]] for count in counts]
    medians = [statistics.median(of_one) for of_one in rates]
    around = [[m - min(of_one) for m, of_one in zip(medians, rates)], [max(of_one) - m for m, of_one in zip(medians, rates)]]
    axes.errorbar(counts, medians, yerr=around, ls="-", lw=3, ms=12, capsize=4, elinewidth=1.2, label=NAMES[r], **style)
  axes.axhline(1 / hold / 1000, color="0.6", lw=1.5, zorder=0)
  axes.text(MODELLED[-1], 1.015 / hold / 1000, "what the downstream takes", ha="right", color="0.35")
  axes.plot([], [], ls="--", lw=2, color="0.4", marker="o", mfc="white", mew=2, ms=11, label="MODELLED, not measured")
  axes.set(xlabel="processors for one accelerator", ylabel="thousand images per second", ylim=(0, 1.12 / hold / 1000),
           title="Training over the number of processors")
  axes.legend(loc="lower right", frameon=False)
  axes.spines[["top", "right"]].set_visible(False)

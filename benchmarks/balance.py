"""What balanced eviction and the cache-aware shuffle bring to training (Table 1, Figures 7 and 8 of Lee et al., 2021).

All policies prepare the same images with the same functions on the cores of this machine. The downstream is simulated:
a loop that holds each batch for a fixed time and takes no core meanwhile, as an accelerator. How long is set by the
rate of standard input, measured just before.
"""
import random
import statistics
import time

import common
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

R = 3
BATCH = 256
# The rate of standard input, as a share of the downstream's: from starving to idle.
RATIOS = (0.25, 0.5, 0.75, 1, 1.5)
# The ratio that the bars are for.
RATIO = 0.5
# As many as PyTorch's DataLoader, which the paper used, holds ready for each worker. tf.data.AUTOTUNE would grow the
# buffer while the downstream starves, to a different size for each policy and run.
PREFETCH = 2
POLICIES = {
    "naive": {"eviction": "reference_count", "shuffle": "uniform"},
    "balanced": {"eviction": "balanced", "shuffle": "uniform"},
    "cache_aware": {"eviction": "balanced", "shuffle": "cache_aware"},
}
NAMES = {"standard": "standard", "naive": "naive", "balanced": "balanced only", "cache_aware": "balanced + cache-aware"}
# Okabe and Ito's colours, which colour-blind people can distinguish; markers and dashes repeat what they say.
STYLES = {
    "standard": {"color": "black", "marker": "x", "ls": ":"},
    "naive": {"color": "#D55E00", "marker": "s", "ls": "--"},
    "balanced": {"color": "#009E73", "marker": "^", "ls": "-."},
    "cache_aware": {"color": "#0072B2", "marker": "o", "ls": "-"},
}


def measure(quick):
  """Yields the sections."""
  common.say("The policies, at all rates of the downstream")
  batches, ratios = (4, (RATIO, 1)) if quick else (64, RATIOS)
  runs = {(ratio, name): [] for ratio in ratios for name in NAMES}
  for _ in range(common.rounds(quick, 5)):
    trainings = {name: _Training(name, batches) for name in NAMES}
    for ratio in ratios:
      # Measured in each round, as other work on the machine may come and go.
      hold = ratio / trainings["standard"].run(1, 0).rate
      for name in random.sample(list(NAMES), len(NAMES)):
        runs[ratio, name].append(trainings[name].run(R, hold))
  training = (
      f"{batches * BATCH:,} random images of 32x32, r = {R}; rand_augment(4) before the cache store, and "
      f"behind it .repeat().batch({BATCH}).map(random_crop_and_flip_batch(4), AUTOTUNE).prefetch({PREFETCH}). Each run "
      f"is {R} epochs after the first, in which the naive policy prepares all samples once.")
  yield _speed(runs, ratios, training)
  yield _waits(runs, ratios)
  yield _fresh(trainings, runs, batches, ratios.index(RATIO))


def _speed(runs, ratios, training):
  rows = []
  for ratio in ratios:
    rates = {name: [run.rate for run in runs[ratio, name]] for name in NAMES}
    rows.append(common.Row(f"downstream_{ratio}", f"{ratio}: the downstream by itself", "steps/s",
                           [1 / run.hold for run in runs[ratio, "naive"]]))
    rows += [common.Row(f"rate_{ratio}_{name}", f"{ratio}: {NAMES[name]}", "steps/s", rates[name]) for name in NAMES]
    rows += [common.Row(f"{name}_{ratio}", f"{ratio}: steps/s, {NAMES[name]} to balanced + cache-aware", "×",
                        common.quotients(rates[name], rates["cache_aware"]),
                        limit=0.833 if (ratio, name) == (RATIO, "naive") else None) for name in ("naive", "balanced")]
  return common.Section(
      "Speed",
      "Steps a second, over the ratio: of what standard input yields to what the downstream takes when its input is "
      f"always ready. The limit is 1 / 1.2. {training}", rows,
      {"rates": lambda figure: _draw_rates(figure, runs, ratios)})


def _waits(runs, ratios):
  rows = []
  for ratio in ratios:
    for name in NAMES:
      waits = [1000 * np.array(run.waits) for run in runs[ratio, name]]
      rows += [common.Row(f"{key}_{ratio}_{name}", f"{ratio}: {NAMES[name]}, {key}", "ms",
                          [float(np.percentile(wait, percent)) for wait in waits])
               for key, percent in (("p50", 50), ("p95", 95), ("max", 100))]
    limit = 2 if ratio == RATIO else None
    steps = _by_step(runs[ratio, "cache_aware"])
    rows += [
        common.Row(f"max_to_p50_{ratio}", f"{ratio}: longest wait to the median one", "×",
                   [max(run.waits) / statistics.median(run.waits) for run in runs[ratio, "cache_aware"]], limit=limit),
        common.Row(f"steps_max_to_p50_{ratio}", f"{ratio}: longest to median, by step over the rounds", "×",
                   [float(steps.max() / np.median(steps))], limit=limit)]
  return common.Section(
      "Input wait",
      "How long a step waits for its batch. The last two rows of each ratio are of balanced + cache-aware. A step has "
      "the same fresh and cached samples in each round; the last row takes for each its median over the rounds, which "
      "is without what other work on the machine does to a single one.", rows)


def _fresh(trainings, runs, batches, index):
  rows = []
  for name in POLICIES:
    # Without the last one, which has only begun, with batches that are read ahead.
    epochs = [epoch.fresh for epoch in rtf.stats(trainings[name].dataset)[0].epochs[1:-1]]
    steps = trainings[name].fresh[batches:]
    rows += [common.Row(f"epoch_{name}", f"{NAMES[name]}, an epoch", "samples", epochs),
             common.Row(f"batch_{name}", f"{NAMES[name]}, a batch", "samples", steps)]
  # Two epochs of which the naive policy prepares all samples in the second, and their place in the run.
  two = slice((R - 2) * batches, R * batches)
  fresh = {name: trainings[name].fresh[(1 + R * index) * batches:][two] for name in POLICIES}
  waits = {name: 1000 * _by_step(runs[RATIO, name])[two] for name in POLICIES}
  return common.Section(
      "Fresh samples",
      "How many samples were prepared afresh, after the first epoch: in each epoch, counted by rtf.stats, and in each "
      "batch, counted by a mark that partial_fn gives to what it prepares.", rows,
      {"batches": lambda figure: _draw_batches(figure, fresh, waits)})


def _by_step(runs):
  """The median over the rounds of each step's wait, in seconds."""
  return np.median([run.waits for run in runs], axis=0)


class _Run:
  """Some epochs of a training: `waits` and `hold` in seconds, `rate` in steps a second."""

  def __init__(self, waits, hold, seconds):
    self.waits = waits
    self.hold = hold
    self.rate = len(waits) / seconds


class _Training:
  """One that has done its first epoch and goes on, without a pause between epochs.

  Attributes:
    dataset: its input.
    fresh: the number of fresh samples of each batch so far.
  """

  def __init__(self, name, batches):
    self.dataset = _dataset(name, batches * BATCH)
    self.fresh = []
    self._batches = batches
    self._seen = set()
    self._iterator = iter(self.dataset)
    self.run(1, 0)

  def run(self, epochs, hold):
    """Goes on for some epochs with a downstream that holds each batch for `hold` seconds."""
    waits, marks = [], []
    began = asked = time.perf_counter()
    for _ in range(epochs * self._batches):
      _, mark = next(self._iterator)
      waits.append(time.perf_counter() - asked)
      marks.append(mark)
      time.sleep(hold)
      asked = time.perf_counter()
    # Not while the clock runs.
    for mark in marks:
      prepared = set(mark.numpy().view(np.int64).ravel().tolist())
      self.fresh.append(len(prepared - self._seen))
      self._seen |= prepared
    return _Run(waits, hold, asked - began)


def _dataset(name, count):
  """Endless batches of (images, marks)."""
  partial_fn = rtf.augment.compose(rtf.augment.rand_augment(4))
  random_numbers = np.random.default_rng(7)
  images = random_numbers.integers(256, size=[count, 32, 32, 3], dtype=np.uint8)
  if name == "standard":
    seeds = random_numbers.integers(2**31, size=[count, 2], dtype=np.int32)
    epoch = (tf.data.Dataset.from_tensor_slices((images, seeds))
             .shuffle(count)
             .map(lambda image, seed: (partial_fn(image, seed=seed), seed), common.PARALLEL_CALLS))
  else:
    # partial_fn gets a new seed whenever it runs, so the seed is the mark. The stage's own seed, and so its schedule,
    # is the same in all rounds.
    epoch = tf.data.Dataset.from_tensor_slices(images).refurbish(
        lambda image, seed: (partial_fn(image, seed=seed), seed), r=R, seed=1, **POLICIES[name])
  # Endless, so that prefetch makes the next epoch's first batches in time.
  return (epoch.repeat()
          .batch(BATCH, drop_remainder=True)
          .map(rtf.augment.random_crop_and_flip_batch(4), tf.data.AUTOTUNE)
          .prefetch(PREFETCH))


def _draw_rates(figure, runs, ratios):
  figure.set_size_inches(11, 7.5)
  axes = figure.subplots()
  reach = 1.1 / min(ratios)
  axes.plot([0, reach], [0, reach], color="0.6", lw=2, zorder=1)
  # As multiples of what standard input yielded just before, which is hold / ratio: that differs from round to round.
  for shift, (name, style) in enumerate(STYLES.items()):
    rates = [[run.rate * run.hold / ratio for run in runs[ratio, name]] for ratio in ratios]
    middle = [statistics.median(rate) for rate in rates]
    around = [[m - min(rate) for m, rate in zip(middle, rates)], [max(rate) - m for m, rate in zip(middle, rates)]]
    axes.errorbar([1 / ratio + 0.03 * (shift - 1.5) for ratio in ratios], middle, yerr=around, lw=2.5, ms=10, mew=2.5,
                  capsize=4, elinewidth=1.2, label=NAMES[name], **style)
  top = 1.1 * max(run.rate * run.hold / ratio for (ratio, _), of_one in runs.items() for run in of_one)
  axes.text(0.9 * top, 0.93 * top, "input always ready", ha="right", va="center", color="0.35")
  alone = statistics.median(ratio / run.hold for (ratio, _), of_one in runs.items() for run in of_one)
  axes.set(xlabel=f"steps/s that the downstream takes by itself, × standard input's ({alone:.0f} steps/s)",
           ylabel="steps/s of the training, × the same", xlim=(0, reach), ylim=(0, top),
           title=f"Training with r = {R}: how far the input follows the downstream")
  axes.legend(loc="lower right", frameon=False)
  axes.spines[["top", "right"]].set_visible(False)


def _draw_batches(figure, fresh, waits):
  figure.set_size_inches(13, 9)
  for axes, values, what in zip(figure.subplots(2, sharex=True), (fresh, waits),
                                (f"fresh samples of {BATCH}", "input wait, ms")):
    for name, steps in values.items():
      axes.plot(range(1, 1 + len(steps)), steps, lw=2.2, ms=6, markevery=8, label=NAMES[name], **STYLES[name])
    axes.axvline(0.5 + len(steps) / 2, color="0.6", lw=1.5)
    axes.set(ylabel=what, ylim=(-0.03 * axes.get_ylim()[1], None), xlim=(0, len(steps) + 1))
    axes.spines[["top", "right"]].set_visible(False)
  axes.set_xlabel(f"batch, of two epochs; standard input yields {RATIO} of what the downstream takes")
  figure.axes[0].set_title("What each batch asks for, and how long training waits for it")
  figure.axes[0].legend(loc="upper left", frameon=False)

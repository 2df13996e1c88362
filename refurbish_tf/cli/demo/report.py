"""What the demo shows: progress, a table, sentences, a figure."""
import itertools
import math
import os
import shutil
import statistics
import sys
import textwrap
import time

import tensorflow as tf

from refurbish_tf.cli.demo import experiment


class Progress:
  """A bar on the terminal; where there is none, one line for each phase.

  >>> with Progress() as progress:
  ...   progress.begin(2)
  ...   progress.step(1, "phase", "first")
  ...   progress.within(0.5)
  ...   progress.step(1, "phase", "second")
  """

  def __init__(self):
    self._live = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    self._phase = None

  def begin(self, total):
    """Starts a bar of `total` units of work."""
    self._total, self._done, self._size = total, 0, 0
    self._start = time.monotonic()

  def step(self, size, phase, text):
    """Begins a step of `size` units, after all of the one before."""
    self._done += self._size
    self._size, self._text = size, f"{phase}, {text}"
    if not self._live and phase != self._phase:
      print(f"{phase} ...", file=sys.stderr, flush=True)
    self._phase = phase
    self._draw(0.0)

  def within(self, fraction):
    """Tells how much of the step is done, at any rate of calls."""
    if self._live and time.monotonic() - self._drawn > 0.1:
      self._draw(fraction)

  def _draw(self, fraction):
    self._drawn = time.monotonic()
    if not self._live:
      return
    done = min(1.0, (self._done + fraction * self._size) / self._total)
    minutes, seconds = divmod(round(self._drawn - self._start), 60)
    full = round(24 * done)
    line = f"{'█' * full}{'░' * (24 - full)} {done:4.0%}  {minutes}:{seconds:02}  {self._text}"
    columns = shutil.get_terminal_size().columns
    print(f"\r\x1b[K{line[:columns - 1]}", end="", file=sys.stderr, flush=True)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    if self._live:
      print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def introduction(images, settings):
  """What is about to run."""
  height, width, _ = images.shape
  steps = math.ceil(len(images.train) / experiment.BATCH_SIZE)
  gpus = len(tf.config.list_logical_devices("GPU"))
  facts = {
      "data": f"{images.title}; {height} x {width} pixels, {images.classes} classes",
      "partial": f"decode, RandAugment, RandAugment (magnitude {experiment.MAGNITUDE})",
      "final": f"random crop (padding {experiment.PADDING}), random flip",
      "model": experiment.MODEL,
      "training": (
          f"{_count(settings.epochs, 'epoch')} of {_count(steps, 'step')} of {experiment.BATCH_SIZE} images, Adam, "
          f"seed {settings.seed}"),
      "machine": f"{_count(len(os.sched_getaffinity(0)), 'CPU core')}, {_count(gpus, 'GPU')}"}
  lines = [_wrapped(f"{name:10}{fact}", " " * 10) for name, fact in facts.items()]
  return "\n".join(([_wrapped(images.note), ""] if images.note else []) + lines + [""])


def table(result):
  """A line for each row and, below, what the columns mean: 80 columns wide for up to 99,999 images."""
  standard, costs = result.rows[0], result.costs
  groups = [
      ("", 1), ("images/s", 2), ("CPU ms", 1), ("fresh samples", 1), ("val.", 1), ("gain over standard", 3)]
  cells = [["", "input", "train", "/image", "first/later", "acc.", "CPU", "input", "limit"]]
  for row in result.rows:
    limit, (first, *later) = result.limit(row), row.fresh
    cells.append([
        row.name, _rate(row.input_rate), _rate(row.train_rate), f"{1000 * row.input_cpu:.3f}",
        f"{first:,}/{statistics.mean(later):,.0f}" if later else f"{first:,}/-", f"{row.accuracy[-1]:.1%}",
        _gain(standard.input_cpu / row.input_cpu), _gain(row.input_rate / standard.input_rate),
        _gain(limit) if limit else "-"])
  widths = [max(map(len, column)) for column in zip(*cells)]
  top, column = [], 0
  for text, span in groups:
    widths[column] += max(0, len(text) - sum(widths[column:column + span]) - 2 * (span - 1))
    top.append(text.rjust(sum(widths[column:column + span]) + 2 * (span - 1)))
    column += span
  lines = ["  ".join(top)]
  for name, *numbers in cells:
    lines.append("  ".join([name.ljust(widths[0]), *(n.rjust(width) for n, width in zip(numbers, widths[1:]))]))
  lines.insert(2, "-" * len(lines[0]))
  notes = [
      f"input: the input alone, without a model; images/s and CPU ms of the best of {experiment.STEADY_EPOCHS} epochs "
      "after the first",
      "fresh samples: how many are read or prepared in the first epoch and in each later one",
      f"limit: (t_p + t_f) / (t_p/r + t_f), with t_p = {1000 * costs.partial:.3f} and t_f = "
      f"{1000 * costs.final:.3f} CPU ms for the partial and the final augmentation, each measured alone; for echo, "
      f"what comes before it is divided by e: all, or, before the augmentation, the decoding ({1000 * costs.decode:.3f})",
      f"echo: each epoch reads a random 1/{experiment.ECHOING_FACTOR} of the images and repeats each, "
      f"e = {experiment.ECHOING_FACTOR} times: decoded (before_augment), augmented (after_augment), or batched "
      "(after_batch)",
      "*: Dataset.cache() after the augmentation, a warning and no advice: all epochs get the same augmented images"]
  return "\n".join(lines + [""] + [_wrapped(note, "  ") for note in notes])


def _count(number, noun):
  return f"{number or 'no'} {noun}{'' if number < 2 else 's'}"


def _rate(rate):
  return f"{rate:,.0f}" if rate < 99_999.5 else f"{rate / 1000:,.0f}k"


def _gain(gain):
  return f"{gain:.2f}" if gain < 10 else f"{gain:.0f}"


def _wrapped(text, indent=""):
  columns = min(100, shutil.get_terminal_size().columns)
  return textwrap.fill(text, columns, subsequent_indent=indent, break_on_hyphens=False)


def findings(result):
  """What was found, in plain sentences."""
  standard, frozen = result.rows[0], result.rows[-1]
  best = max((row for row in result.rows if row.kind == "refurbish"), key=lambda row: row.factor)
  gain, frozen_gain = (row.train_rate / standard.train_rate for row in (best, frozen))
  # Twice the standard error of the difference of two accuracies: the validation images and the training are chance.
  noise = 2 * math.sqrt(sum(
      a * (1 - a) / result.validation_images + experiment.TRAINING_NOISE**2
      for a in (standard.accuracy[-1], best.accuracy[-1])))
  difference, frozen_difference = (row.accuracy[-1] - standard.accuracy[-1] for row in (best, frozen))
  verdict = "the same within" if abs(difference) <= noise else f"{'higher' if difference > 0 else 'lower'} by more than"

  speed = (
      f"With r={best.factor:g} the input takes {1000 * best.input_cpu:.3f} CPU ms per image in place of "
      f"{1000 * standard.input_cpu:.3f}")
  if len(standard.accuracy) == 1:
    speed += ". A training of one epoch gains nothing: reuse begins with the second."
  else:
    speed += (
        f", and training runs {gain:.2f} times as fast. With the frozen cache, an input that costs next to nothing, it "
        f"runs {frozen_gain:.2f} times as fast: ")
    if frozen_gain < 1.15:
      speed += "here the model, not the input, is the bottleneck, and reuse cannot help much."
    else:
      speed += "the rest of the time is the model's, which no reuse saves."
  accuracy = (
      f"Validation accuracy is {best.accuracy[-1]:.1%} against {standard.accuracy[-1]:.1%}, {verdict} the noise of a "
      f"single seed (± {100 * noise:.1f} points). {_echo_findings(result)}The frozen cache, with the same "
      f"{result.train_images:,} augmented images in every epoch, comes to {frozen.train_accuracy[-1]:.1%} on these and "
      f"to {frozen.accuracy[-1]:.1%} on the validation images: ")
  if frozen_difference < -noise:
    accuracy += "that is the price of a frozen augmentation."
  else:
    accuracy += "so short a training does not show the harm."
  return _wrapped(speed) + "\n" + _wrapped(accuracy)


def _echo_findings(result):
  accuracies = [f"{row.accuracy[-1]:.1%}" for row in result.rows if row.kind == "echo"]
  if not accuracies:
    return ""
  return (
      f"Echo, with as many steps on 1/{experiment.ECHOING_FACTOR} as many fresh images an epoch, comes to "
      f"{', '.join(accuracies[:-1])} and {accuracies[-1]}. ")


def draw(result, path):
  """Writes the figure to `path`, PNG."""
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt
  from matplotlib import ticker

  standard, *reusing, frozen = result.rows
  # Okabe and Ito's colours, which all kinds of colour vision tell apart; markers for print in grey.
  styles = {
      "standard": itertools.cycle([("#555555", "o", "-")]),
      "refurbish": itertools.cycle([("#0072B2", "s", "-"), ("#009E73", "D", "-"), ("#F0E442", "^", "-")]),
      "echo": itertools.cycle([("#56B4E9", "v", ":"), ("#CC79A7", "P", ":"), ("#E69F00", "<", ":")]),
      "frozen": itertools.cycle([("#D55E00", "X", "--")])}
  style = {row.name: next(styles[row.kind]) for row in result.rows}

  with plt.rc_context({"font.size": 14, "axes.spines.top": False, "axes.spines.right": False}):
    figure, (bars, curves) = plt.subplots(1, 2, figsize=(13, 6), dpi=130, layout="constrained", width_ratios=[1, 1.1])
    limits = {row.name: standard.input_rate * result.limit(row) for row in [standard, *reusing]}
    # The frozen cache is so much faster that its bar, drawn whole, would hide all the others.
    longest = 1.3 * max([*limits.values(), *(row.input_rate for row in [standard, *reusing])])
    for place, row in enumerate(result.rows):
      color = style[row.name][0]
      bars.barh(place, min(row.input_rate, longest), color=color, height=0.6, hatch="//" if row is frozen else None,
                edgecolor="white", linewidth=0)
      cut = row.input_rate > longest
      # At the foot of the bar, away from the limit; beside it where the bar is too short.
      inside = row.input_rate > 0.3 * longest
      bars.text(
          0.02 * longest if inside else row.input_rate + 0.02 * longest, place,
          f"{row.input_rate:,.0f}" + (" →" if cut else ""), va="center", color="white" if inside else "black",
          fontweight="bold", bbox={"facecolor": color, "edgecolor": "none", "pad": 2} if cut else None)
      if row in reusing:
        label = "limit: what is reused costs 1/r or 1/e" if row is reusing[0] else None
        bars.plot([limits[row.name]] * 2, [place - 0.38, place + 0.38], color="black", linewidth=3, label=label)
    names = [row.name for row in result.rows[:-1]] + ["frozen cache\n(the same images\nin every epoch)"]
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    bars.set_xlim(0, longest)
    bars.set_xlabel("images per second")
    bars.set_title("Input alone, without a model", loc="left")
    bars.xaxis.set_major_formatter("{x:,.0f}")
    bars.xaxis.set_major_locator(ticker.MaxNLocator(4))
    bars.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))

    for row in result.rows:
      color, marker, line = style[row.name]
      seconds = [sum(row.seconds[:epoch + 1]) for epoch in range(len(row.seconds))]
      curves.plot(
          seconds, [100 * accuracy for accuracy in row.accuracy], color=color, linestyle=line, marker=marker,
          markevery=max(1, len(seconds) // 8), markersize=8, linewidth=2.5, label=row.name.rstrip("*"))
    curves.set_xlim(left=0)
    curves.set_xlabel("training time in seconds")
    curves.set_ylabel("validation accuracy in %")
    curves.set_title(f"Training, {_count(len(standard.accuracy), 'epoch')} each", loc="left")
    curves.grid(color="#dddddd")
    # Outside: seven curves leave no room between them.
    curves.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, columnspacing=1.2)
    figure.savefig(path)
    plt.close(figure)

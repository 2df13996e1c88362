"""The output of the demo: progress, a table, sentences, a figure."""
import itertools
import math
import os
import shutil
import statistics
import sys
import textwrap
import time

import numpy as np
import tensorflow as tf

from refurbish_tf.cli.demo import experiment
from refurbish_tf.experiments import results
from refurbish_tf.experiments.pipelines import BATCH_SIZE


class Progress:
  """A bar on a terminal, otherwise one line for each phase."""

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
    """Shows which share of the step is done. It may be called at any rate."""
    if self._live and time.monotonic() - self._drawn > 0.1:
      self._draw(fraction)

  def _draw(self, fraction):
    self._drawn = time.monotonic()
    if not self._live:
      return
    done = min(1.0, (self._done + fraction * self._size) / self._total)
    minutes, seconds = divmod(round(self._drawn - self._start), 60)
    full = round(20 * done)
    line = f"{'█' * full}{'░' * (20 - full)} {done:4.0%}  {minutes}:{seconds:02}  {self._text}"
    columns = shutil.get_terminal_size().columns
    print(f"\r\x1b[K{line[:columns - 1]}", end="", file=sys.stderr, flush=True)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    if self._live:
      print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def introduction(images, settings):
  """The lines that say what is about to run."""
  steps = math.ceil(len(images.train) / BATCH_SIZE)
  return _facts(images.note, {
      "data": f"{images.title}; {images.shape[0]} x {images.shape[1]} pixels, {images.classes} classes",
      "partial": f"decode, RandAugment, RandAugment (magnitude {experiment.MAGNITUDE})",
      "final": f"random crop (padding {experiment.PADDING}), random flip",
      "model": experiment.MODEL,
      "training": (
          f"{_count(settings.epochs, 'epoch')} of {_count(steps, 'step')} of {BATCH_SIZE} images, Adam, with "
          f"{_count(settings.seeds, 'seed')}")}, experiment.expected_seconds(images, settings))


def introduction_to_photographs(images, reuse):
  """As `introduction`, with --photos."""
  size = experiment.PHOTOGRAPH_SIZE
  return _facts(images.note, {
      "data": images.title,
      "partial": (f"decode a random part, resize to {size} x {size}, RandAugment, RandAugment (magnitude "
                  f"{experiment.MAGNITUDE})"),
      "final": f"random crop (padding {experiment.PHOTOGRAPH_PADDING}), random flip, normalise",
      "measured": "the input alone: no model is trained"}, experiment.expected_photograph_seconds(images, reuse))


def _facts(note, facts, seconds):
  gpus = len(tf.config.list_logical_devices("GPU"))
  facts["machine"] = f"{_count(len(os.sched_getaffinity(0)), 'CPU core')}, {_count(gpus, 'GPU')}"
  duration = "less than a minute" if seconds < 55 else f"about {_count(round(seconds / 60), 'minute')}"
  facts["takes"] = f"{duration} on two CPU cores that do nothing else"
  lines = [_wrapped(f"{name:10}{fact}", " " * 10) for name, fact in facts.items()]
  return "\n".join(([_wrapped(note), ""] if note else []) + lines + [""])


def table(result):
  """The table, and below it the meaning of rows and columns. 80 columns wide for up to 99,999 images."""
  standard = result.rows[0]
  groups = [("", 1), ("images/s", 2), ("CPU ms", 1), ("fresh images", 1), ("validation", 1), ("CPU gain", 2)]
  cells = [["", "input", "train", "/image", "first/later", "accuracy %", "found", "theory"]]
  for row in result.rows:
    first, *later = row.trainings[0].fresh
    cells.append([
        row.name, _rate(row.input_rate), _rate(row.train_rate(result.train_images)), f"{1000 * row.input_cpu:.3f}",
        f"{first:,}/{statistics.mean(later):,.0f}" if later else f"{first:,}/-", _accuracy(row.final()),
        _gain(standard.input_cpu / row.input_cpu), _theory(result, row)])
  notes = [
      *_meanings(result),
      f"input, CPU ms: the input alone, without a model; the best of {experiment.STEADY_EPOCHS} epochs after the first",
      "fresh images: how many are read or prepared in the first epoch and in each later one",
      f"accuracy: mean ± standard deviation of {_count(len(standard.trainings), 'seed')}" if len(standard.trainings) > 1
      else "accuracy: of a single seed",
      *_meaning_of_gain(
          result, "; for echo, the cost of what comes before it is divided by e: of everything or, before the augmentation, "
          f"of the decoding ({1000 * result.costs.decode:.3f})")]
  return "\n".join([*_aligned(groups, cells), "", *(_wrapped(note, "  ") for note in notes)])


def table_of_photographs(result):
  """As `table`, for the input alone."""
  standard = result.rows[0]
  heads = ("", "images/s", "CPU ms/image", "MB kept", "gain: images/s", "CPU", "theory")
  cells = [[""] * len(heads)]
  for row in result.rows:
    cells.append([
        row.name, _rate(row.input_rate), f"{1000 * row.input_cpu:.2f}", f"{row.kept_bytes / 1e6:,.0f}",
        _gain(row.input_rate / standard.input_rate), _gain(standard.input_cpu / row.input_cpu), _theory(result, row)])
  notes = [
      *_meanings(result),
      f"images/s, CPU ms: of the best of {experiment.STEADY_EPOCHS} epochs after the first",
      "MB kept: the most memory taken by decoded and partially augmented images",
      *_meaning_of_gain(
          result, f"; with a cache of decoded images t_p is without the decoding ({1000 * result.costs.decode:.2f})")]
  return "\n".join([*_aligned([(head, 1) for head in heads], cells), "", *(_wrapped(note, "  ") for note in notes)])


def _aligned(groups, cells):
  """The lines of a table: `groups` of columns (heading, how many columns), a second row of headings, rows."""
  widths = [max(map(len, column)) for column in zip(*cells)]
  top, column = [], 0
  for text, span in groups:
    widths[column] += max(0, len(text) - sum(widths[column:column + span]) - 2 * (span - 1))
    top.append(text.rjust(sum(widths[column:column + span]) + 2 * (span - 1)))
    column += span
  lines = ["  ".join(top)]
  for name, *numbers in cells if any(cells[0]) else cells[1:]:
    lines.append("  ".join([name.ljust(widths[0]), *(n.rjust(width) for n, width in zip(numbers, widths[1:]))]))
  lines.insert(2 if any(cells[0]) else 1, "-" * len(lines[0]))
  return lines


def _meanings(result):
  """The meaning of each row, once for all reuse factors."""
  told = {}
  for row in result.rows:
    told.setdefault(row.meaning, row.name.partition(" r=")[0] if _is_plain_refurbish(row) else row.name)
  return [f"{name}: {meaning}" for meaning, name in told.items()]


def _is_plain_refurbish(row):
  """Whether it differs from other rows of refurbish in r alone."""
  return row.kind == "refurbish" and not row.keeps_decoded


def _meaning_of_gain(result, others):
  """Two notes; `others` ends the second."""
  costs = result.costs
  return [
      "CPU gain: the CPU time of standard divided by the row's; refurbish may exceed the theory, as a map costs more "
      "than its function, and refurbish has no map",
      f"theory: (t_p + t_f) / (t_p/r + t_f), with t_p = {1000 * costs.partial:.3f} and t_f = {1000 * costs.final:.3f} CPU ms "
      f"for the maps of the partial and the final augmentation, each measured alone{others}"]


def _count(number, noun):
  return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _rate(rate):
  return f"{rate:,.0f}" if rate < 99_999.5 else f"{rate / 1000:,.0f}k"


def _gain(gain):
  return f"{gain:.2f}" if gain < 10 else f"{gain:.0f}"


def _theory(result, row):
  gain = result.theory(row)
  return _gain(gain) if gain else "-"


def _accuracy(found):
  mean, spread, number = found
  return f"{100 * mean:.1f} ± {100 * spread:.1f}" if number > 1 else f"{100 * mean:.1f}"


def _wrapped(text, indent=""):
  columns = min(100, shutil.get_terminal_size().columns)
  return textwrap.fill(text, columns, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def findings(result):
  """The findings, in sentences."""
  return "\n".join(map(_wrapped, (_speed(result), _accuracies(result))))


def _largest_reuse(result):
  return max((row for row in result.rows if _is_plain_refurbish(row)), key=lambda row: row.factor)


def _cpu(standard, row):
  return (f"With r={row.factor:g} the input takes {1000 * row.input_cpu:.3f} CPU ms per image instead of "
          f"{1000 * standard.input_cpu:.3f}")


def _speed(result):
  standard, frozen, best = result.rows[0], result.rows[-1], _largest_reuse(result)
  if len(standard.trainings[0].accuracy) == 1:
    return f"{_cpu(standard, best)}. A training of one epoch gains nothing, as reuse begins with the second."
  gains = result.training_gains(best)
  frozen_gain = statistics.median(result.training_gains(frozen))
  between = f" ({min(gains):.2f} to {max(gains):.2f} with each seed)" if len(gains) > 1 else ""
  said = (
      f"{_cpu(standard, best)}. Training runs {statistics.median(gains):.2f} times as fast{between}. With the frozen "
      f"cache, an input that costs next to nothing, it runs {frozen_gain:.2f} times as fast: ")
  if frozen_gain < 1.15:
    return said + "here the model, not the input, is the bottleneck, and reuse cannot help much."
  if min(gains) < 1 < max(gains):
    return said + "the seeds disagree. Other work keeps this machine busy; go by the CPU ms."
  return said + "the rest of the time is the model's, which reuse cannot save."


def _accuracies(result):
  """Which accuracies differ from that of standard, by the spread of the seeds."""
  standard, *others = result.rows
  if len(standard.trainings) < 2:
    return "One seed shows no spread, so accuracies cannot be compared: --seeds 3 trains with three."
  same, apart = [], []
  for row in others:
    if results.differ(row.final(), standard.final()):
      apart.append(f"{row.name} by {100 * (row.final()[0] - standard.final()[0]):+.1f} points")
    else:
      same.append(row.name)
  said = ["Two accuracies differ clearly if their difference exceeds the sum of their spreads."]
  if same:
    said.append(f"Not clearly different from standard, {_accuracy(standard.final())} %: {_listed(same)}.")
  if apart:
    said.append(f"Clearly different{'' if same else f' from standard, {_accuracy(standard.final())} %'}: {_listed(apart)}.")
  frozen = others[-1]
  said.append(
      f"The frozen cache reaches {_accuracy(frozen.final('train_accuracy'))} % on the {result.train_images:,} "
      f"augmented images that it trains on again and again, standard {_accuracy(standard.final('train_accuracy'))} % "
      "on images that are augmented anew in every epoch.")
  return " ".join(said)


def findings_of_photographs(result):
  """As `findings`, with --photos."""
  standard, best = result.rows[0], _largest_reuse(result)
  cached = next(row for row in result.rows if row.kind == "cache")
  gain = lambda row: _gain(standard.input_cpu / row.input_cpu)
  return _wrapped(
      f"{_cpu(standard, best)}: {gain(best)} times less, for {best.kept_bytes / 1e6:,.0f} MB. A cache of the decoded "
      f"images saves the decoding alone, in every epoch: {gain(cached)} times less, for {cached.kept_bytes / 1e6:,.0f} MB. Both together: "
      f"{gain(result.rows[-1])} times less, for {result.rows[-1].kept_bytes / 1e6:,.0f} MB.")


def _listed(names):
  return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def draw(result, path):
  """Writes the figure to `path`, PNG."""
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot as plt
  from matplotlib import ticker

  standard, *reusing, frozen = result.rows
  # Okabe and Ito's colours, which are distinct for all kinds of colour vision; markers for print in grey.
  styles = {
      "standard": itertools.cycle([("#555555", "o", "-")]),
      "refurbish": itertools.cycle([("#0072B2", "s", "-"), ("#009E73", "D", "-"), ("#F0E442", "^", "-")]),
      "echo": itertools.cycle([("#56B4E9", "v", ":"), ("#CC79A7", "P", ":"), ("#E69F00", "<", ":")]),
      "cache": itertools.cycle([("#D55E00", "X", "--")])}
  style = {row.name: next(styles[row.kind]) for row in result.rows}

  with plt.rc_context({"font.size": 14, "axes.spines.top": False, "axes.spines.right": False}):
    figure, (bars, curves) = plt.subplots(1, 2, figsize=(13, 6), dpi=130, layout="constrained", width_ratios=[1, 1.1])
    theory = {row.name: standard.input_rate * result.theory(row) for row in [standard, *reusing]}
    # The frozen cache is so much faster that its full bar would dwarf all others.
    longest = 1.3 * max([*theory.values(), *(row.input_rate for row in [standard, *reusing])])
    for place, row in enumerate(result.rows):
      color = style[row.name][0]
      bars.barh(place, min(row.input_rate, longest), color=color, height=0.6, hatch="//" if row is frozen else None,
                edgecolor="white", linewidth=0)
      cut = row.input_rate > longest
      # At the foot of the bar, away from the theory; beside the bar if it is too short.
      inside = row.input_rate > 0.3 * longest
      bars.text(
          0.02 * longest if inside else max(row.input_rate, theory.get(row.name, 0)) + 0.02 * longest, place,
          f"{row.input_rate:,.0f}" + (" →" if cut else ""), va="center", color="white" if inside else "black",
          fontweight="bold", bbox={"facecolor": color, "edgecolor": "none", "pad": 2} if cut else None)
      if row in reusing:
        label = "theory: reused work costs 1/r or 1/e" if row is reusing[0] else None
        bars.plot([theory[row.name]] * 2, [place - 0.38, place + 0.38], color="black", linewidth=3, label=label)
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
      accuracy = 100 * np.array([training.accuracy for training in row.trainings])
      seconds = np.cumsum(np.mean([training.seconds for training in row.trainings], axis=0))
      curves.plot(
          seconds, accuracy.mean(axis=0), color=color, linestyle=line, marker=marker,
          markevery=max(1, len(seconds) // 8), markersize=8, linewidth=2.5, label=row.name)
      curves.fill_between(seconds, accuracy.min(axis=0), accuracy.max(axis=0), color=color, alpha=0.12, linewidth=0)
    curves.set_xlim(left=0)
    curves.set_xlabel("training time in seconds")
    curves.set_ylabel("validation accuracy in %")
    seeds = f": mean and range of {len(standard.trainings)} seeds" if len(standard.trainings) > 1 else ""
    curves.set_title(f"Training{seeds}", loc="left")
    curves.grid(color="#dddddd")
    # Outside: seven curves leave no room between them.
    curves.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, columnspacing=1.2)
    figure.savefig(path)
    plt.close(figure)

"""The command `refurbish-tf demo`: how fast photographs are prepared with and without reuse.

refurbish-tf demo                       # generated photographs
refurbish-tf demo --photos DIRECTORY    # your photographs
"""

import collections
import dataclasses
import os
import shutil
import sys
import textwrap

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.cli.startup import FAILED, stderr_held_back
from refurbish_tf.experiments import images as image_sets
from refurbish_tf.experiments.pipelines import Pipelines, measure_input

SIZE, PADDING, MAGNITUDE, BATCH_SIZE = 224, 28, 9, 32
# Epochs of each pipeline. The first one, which fills the caches and the store, is not counted.
EPOCHS = 6


# CPU seconds per image, each measured alone in its own map: the decoding that a cache of the decoded images saves
# (decoding whole images would take longer), the partial augmentation with decoding, and the final augmentation.
Costs = collections.namedtuple("Costs", ["decode", "partial", "final"])


@dataclasses.dataclass
class Row:
  """A way to prepare the photographs, with its measurements.

  Attributes:
    name: the name to print.
    meaning: what it does, to be printed after the name and a colon.
    r: the reuse factor, or None without `refurbish`.
    keeps_decoded: whether it caches the decoded images.
    rate: images/s.
    cpu: CPU seconds per image.
    kept_bytes: the most bytes of decoded and of partially augmented images that it keeps in memory.
  """

  name: str
  meaning: str
  r: float | None
  keeps_decoded: bool = False
  rate: float = 0.0
  cpu: float = 0.0
  kept_bytes: int = 0

  def make(self, ways):
    """Its pipeline, one of `ways`."""
    ways = ways.decoded_once() if self.keeps_decoded else ways
    return ways.standard() if self.r is None else ways.refurbished(self.r)

  def least(self, costs):
    """The CPU time per image if reuse itself had no cost."""
    partial = max(0.0, costs.partial - costs.decode) if self.keeps_decoded else costs.partial
    return partial / (self.r or 1) + costs.final


class _Ways(Pipelines):
  """The first layer crops a file or, with a cache of the decoded images, a decoded image."""

  def decoded_once(self):
    return Pipelines(
      dataclasses.replace(self.images, decode=augment.decode(), shape=(None, None, 3)),
      [augment.random_resized_crop(SIZE, antialias=True), *self.layers[1:]],
      self.at,
      self.seed,
      self.batch_size,
    ).decoded_once()

  def parts(self):
    return super().parts() | {"decode": self.decoded_once().parts()["partial_fn"]}


def run(args):
  """Runs the subcommand. Returns its exit status."""
  with stderr_held_back():
    tf.config.list_logical_devices()
  try:
    photographs = image_sets.photographs(getattr(args, "photos", None), args.images)
    facts = {
      "data": photographs.title,
      "partial": f"decode a random part, resize to {SIZE} x {SIZE}, RandAugment, RandAugment (magnitude {MAGNITUDE})",
      "final": f"random crop (padding {PADDING}), random flip, normalize",
      "measured": f"the input alone, on {len(os.sched_getaffinity(0))} CPU cores: no model is trained",
    }
    told = "\n".join(_wrapped(f"{name:10}{fact}", " " * 10) for name, fact in facts.items())
    print(f"{told}\n", flush=True)
    rows, costs = measure(photographs, tuple(dict.fromkeys(args.reuse)))
  except image_sets.DatasetError as error:
    args.parser.error(f"argument --photos: {error}")
  except tf.errors.OpError as error:
    # For example, a file is damaged or has been deleted.
    print(f"refurbish-tf demo: {error.message.partition(chr(10))[0]}", file=sys.stderr)
    return FAILED
  print(f"{_table(rows, costs)}\n\n{_findings(rows)}")
  return 0


def measure(photographs, reuse):
  """Measures each pipeline. They take turns, so that other work on the machine affects all of them equally.

  Returns:
    The rows, standard first, and the `Costs` of the parts.
  """
  encoded = dataclasses.replace(photographs, decode=tf.identity, shape=())
  partial = [augment.decode_random_resized_crop(SIZE), augment.rand_augment(2, MAGNITUDE)]
  final = [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize()]
  ways = _Ways(encoded, partial + final, at=3, seed=0, batch_size=min(BATCH_SIZE, len(photographs.train)))
  rows = _rows(reuse)
  pipelines = {row.name: row.make(ways) for row in rows}
  measured = measure_input(pipelines | ways.parts(), EPOCHS, on_turn=_say)
  _say()
  # The best epoch counts, as in timeit: other work on the machine only adds time.
  best = {name: np.min(seconds[1:], axis=0) / len(photographs.train) for name, seconds in measured.items()}
  for row in rows:
    wall, row.cpu = best[row.name]
    row.rate = 1 / wall
    row.kept_bytes = sum(max(epoch.bytes for epoch in stage.epochs) for stage in rtf.stats(pipelines[row.name]))
    if row.keeps_decoded:
      add = lambda total, sample: total + tf.size(sample[0], tf.int64)
      row.kept_bytes += int(ways.decoded_once().images.train.reduce(tf.constant(0, tf.int64), add))
  decode, partial, final = (best[name][1] for name in ("decode", "partial_fn", "final_fn"))
  return rows, Costs(partial - decode, partial, final)


def _rows(reuse):
  most, meaning = max(reuse), "each partially augmented image is used r times, with a new final augmentation each time"
  return [
    Row("standard", "every image is read, decoded and augmented again in every epoch", None),
    *(Row(f"refurbish r={r:g}", meaning, r) for r in reuse),
    Row("cache decoded", "Dataset.cache() of the decoded images saves the decoding, in every epoch", None, True),
    Row(f"both, r={most:g}", f"refurbish r={most:g} after a cache of the decoded images", most, True),
  ]


def _say(number=None, name=""):
  """Prints to a terminal, on one line, which epoch of which pipeline is running. Without arguments, clears the line."""
  if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
    line = "" if number is None else f"epoch {number + 1} of {EPOCHS}: {name}"
    print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def _table(rows, costs):
  """The table, 80 columns wide, followed by the meaning of its rows and columns."""
  heads = ["", "images/s", "CPU ms/image", "MB kept", "gain: images/s", "CPU", "theory"]
  standard = rows[0]
  cells = []
  for row in rows:
    gains = row.rate / standard.rate, standard.cpu / row.cpu, standard.least(costs) / row.least(costs)
    measured = f"{row.rate:,.0f}", f"{1000 * row.cpu:.2f}", f"{row.kept_bytes / 1e6:,.0f}"
    cells.append([row.name, *measured, *map(_gain, gains)])
  names, *widths = (max(map(len, column)) for column in zip(heads, *cells))
  lines = [
    "  ".join([name.ljust(names), *(cell.rjust(width) for cell, width in zip(others, widths))])
    for name, *others in (heads, *cells)
  ]
  # Rows that differ only in r have one meaning, which is listed once.
  meanings = {row.meaning: row.name if row.keeps_decoded else row.name.partition(" r=")[0] for row in rows}
  notes = [
    *(f"{name}: {meaning}" for meaning, name in meanings.items()),
    f"images/s, CPU ms: the best of {EPOCHS - 1} epochs after the first",
    "MB kept: the most memory used by decoded and partially augmented images",
    "CPU gain: the CPU time of standard divided by the row's; refurbish may exceed the theory, because a map costs "
    "more than its function, and refurbish has no map",
    f"theory: (t_p + t_f) / (t_p/r + t_f), with t_p = {1000 * costs.partial:.3f} and t_f = {1000 * costs.final:.3f} "
    "CPU ms for the maps of the partial and the final augmentation, each measured alone; with a cache of decoded "
    f"images t_p does not include the decoding ({1000 * costs.decode:.2f})",
  ]
  return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *(_wrapped(note, "  ") for note in notes)])


def _findings(rows):
  """The findings, in sentences."""
  standard, *refurbished, cached, both = rows
  best = max(refurbished, key=lambda row: row.r)
  gain = lambda row: f"{_gain(standard.cpu / row.cpu)} times less, for {row.kept_bytes / 1e6:,.0f} MB"
  return _wrapped(
    f"With r={best.r:g} the input takes {1000 * best.cpu:.3f} CPU ms per image instead of {1000 * standard.cpu:.3f}: "
    f"{gain(best)}. A cache of the decoded images saves only the decoding, in every epoch: {gain(cached)}. Both "
    f"together: {gain(both)}."
  )


def _gain(gain):
  return f"{gain:.2f}" if gain < 10 else f"{gain:.0f}"


def _wrapped(text, indent=""):
  columns = min(100, shutil.get_terminal_size().columns)
  return textwrap.fill(text, columns, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)

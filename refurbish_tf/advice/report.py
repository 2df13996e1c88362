"""What `rtf.advise` returns, and how it prints."""

import dataclasses
import math
from typing import Any

import tensorflow as tf

from refurbish_tf._internal import html, machine
from refurbish_tf.advice.strategies import Settings, Strategy


@dataclasses.dataclass(frozen=True)
class AdviceLayer:
  """A layer and what was measured of it.

  Attributes:
    name: of the function.
    seconds: CPU seconds per sample, in this process and in those of `rtf.augment.numpy_layer`.
    num_outcomes: how many different outputs it has for one input; `math.inf` if all that were drawn differ.
    is_lower_bound: whether there may be more outcomes, as counting ended before each had come several times.
    effective_outcomes: the number of equally likely outcomes with which two draws would be the same as often as they
      are. Diversity is predicted with it.
    sample_bytes: of a sample after this layer with all its components; None where it cannot be kept.
  """

  name: str
  seconds: float
  num_outcomes: float
  is_lower_bound: bool
  effective_outcomes: float
  sample_bytes: float | None


@dataclasses.dataclass(frozen=True)
class Advice:
  """What `rtf.advise` found. Prints as tables, reasons and lines of code; `apply(source)` runs these lines.

  Attributes:
    best: the strategy to take, a `Strategy`; standard if nothing is gained.
    strategies: a tuple of all strategies, the fastest first.
    layers: a tuple of `AdviceLayer`.
    input_waits: whether an accelerator waits for standard training's input; None if `step_seconds` is not given, or if
      the processors train.
    reasons: a tuple of sentences: why, and what was left out.
    hints: a tuple of sentences: what only training tells.
    settings: what it reckoned with: `num_samples`, `epochs`, `batch_size`, `processors`, `step_seconds`, `memory` and
      `disk` in bytes, and what was measured, `costs`.
    min_diversity: as given.
  """

  best: Strategy
  strategies: tuple[Strategy, ...]
  layers: tuple[AdviceLayer, ...]
  input_waits: bool | None
  reasons: tuple[str, ...]
  hints: tuple[str, ...]
  settings: Settings
  min_diversity: float

  @property
  def standard(self) -> Strategy:
    """Standard training by plain `tf.data`."""
    return next(strategy for strategy in self.strategies if strategy.kind == "standard")

  @property
  def best_per_kind(self) -> tuple[Strategy, ...]:
    """The strategies that are printed: the best of each kind, the one to take first."""
    found = {self._kind(self.best): self.best}
    allowed = [strategy for strategy in self.strategies if strategy.diversity >= self.min_diversity]
    for strategy in [*allowed, *self.strategies]:
      found.setdefault(self._kind(strategy), strategy)
    ranked = sorted(found.values(), key=self.strategies.index)
    return (self.best, *(strategy for strategy in ranked if strategy != self.best))

  @staticmethod
  def _kind(strategy):
    if strategy.kind == "both":
      return strategy.kind, strategy.elements
    of_memory = strategy.samples_in == "memory" and strategy.r
    return strategy.kind, strategy.elements, strategy.elements_in, strategy.samples_in, of_memory

  @property
  def code(self) -> str:
    """The lines of the best strategy, for variables `source` and `layers`."""
    return self.best.code

  def apply(self, source: tf.data.Dataset[Any]) -> tf.data.Dataset[Any]:
    """Runs the lines of the best strategy: batches of `source`, for `model.fit`."""
    return self.best.apply(source)

  def __str__(self) -> str:
    parts = [[self._headline()], table(self._layer_rows()), [self._reading()], table(self._strategy_rows())]
    parts.append([*self.reasons, *(f"Hint: {hint}" for hint in self.hints)])
    parts.append(["Nothing to change. Standard training is:" if self.best.kind == "standard" else "Take:"])
    return "\n\n".join(["\n".join(lines) for lines in parts] + [self.code])

  def _repr_html_(self) -> str:
    sentences = (self._reading(), *self.reasons, *(f"Hint: {hint}" for hint in self.hints))
    made = html.table(self._headline(), _filled(self._strategy_rows())) + html.table("", _filled(self._layer_rows()))
    made += "".join(f"<p>{html.escape(each)}</p>" for each in sentences)
    return f"{made}<pre>{html.escape(self.code)}</pre>"

  def _headline(self):
    best, standard = self.best, self.standard
    if self.input_waits is False:
      return "The input is not the bottleneck: the accelerator does not wait for it."
    if best.kind == "standard":
      return f"Standard training: {_microseconds(standard.cpu_seconds)} µs of CPU time per sample. Nothing gains much."
    gain = best.samples_per_second / standard.samples_per_second
    return (
      f"{best.name[0].upper()}{best.name[1:]}: {best.samples_per_second:,.0f} samples/s, standard "
      f"{standard.samples_per_second:,.0f}: {gain:.2f}x; {_microseconds(best.cpu_seconds)} µs of CPU time per sample, "
      f"standard {_microseconds(standard.cpu_seconds)}; normalised diversity {best.diversity:.3f}"
    )

  def _layer_rows(self):
    unequal = any(layer.effective_outcomes != layer.num_outcomes for layer in self.layers)
    total = "" if self.settings.num_samples is None else f"of {self.settings.num_samples:,}"
    effective = "as if equally likely" if unequal else ""
    rows = [["", "layer", "µs", "outcomes", effective, "bytes of a sample after it", total]]
    for position, layer in enumerate(self.layers, 1):
      size, number = layer.sample_bytes, self.settings.num_samples
      effective = "" if layer.effective_outcomes == layer.num_outcomes else f"{layer.effective_outcomes:,.3g}"
      rows.append([str(position), layer.name, _microseconds(layer.seconds), _outcomes(layer), effective])
      rows[-1].append("" if size is None else f"{size:,.0f}")
      rows[-1].append("" if size is None or number is None else machine.size_of(number * size))
    return rows

  def _reading(self):
    costs = self.settings.costs
    cold, warm = _rate(costs.read_cold), _rate(costs.read_warm)
    text = f"Reading: {_microseconds(costs.read)} µs of CPU time per element"
    if costs.disk_is_known:
      return f"{text}; {cold} from the disk, {warm} from the page cache."
    if costs.disk_is_known is None:
      return f"{text}; {warm}."
    return f"{text}; {warm}, maybe from the page cache: the disk's speed is unknown."

  def _strategy_rows(self):
    rows = [["strategy", "CPU µs", "samples/s", "in memory", "on disk", "bytes read", "diversity", ""]]
    for strategy in self.best_per_kind:
      notes = []
      if strategy == self.best:
        notes.append("<- this")
      if strategy.diversity < self.min_diversity:
        notes.append(f"below {self.min_diversity:g}")
      sizes = [machine.size_of(size) if size else "" for size in (strategy.kept_bytes, strategy.disk_bytes)]
      rows.append([strategy.name, _microseconds(strategy.cpu_seconds), f"{strategy.samples_per_second:,.0f}", *sizes])
      rows[-1] += [machine.size_of(strategy.read_bytes), f"{strategy.diversity:.3f}", ", ".join(notes)]
    return rows


def _microseconds(seconds):
  microseconds = 1e6 * seconds
  return f"{microseconds:,.0f}" if microseconds >= 9.95 else f"{microseconds:.1f}"


def _rate(seconds):
  return f"{1 / seconds:,.0f} a second" if seconds > 1e-6 else "over a million a second"


def _outcomes(layer):
  if layer.num_outcomes == math.inf:
    return "unbounded"
  return f"{'at least ' if layer.is_lower_bound else ''}{layer.num_outcomes:,.4g}"


def _filled(rows):
  """The rows without empty columns."""
  return list(zip(*(column for column in zip(*rows) if any(column))))


def table(rows):
  """The rows as lines, with numbers right-aligned and text left-aligned."""
  columns = list(zip(*_filled(rows)))
  text = [column[0] in ("layer", "strategy", "") and not column[1].isdigit() for column in columns]
  widths = [max(map(len, column)) for column in columns]
  lines = []
  for row in zip(*columns):
    cells = (cell.ljust(width) if left else cell.rjust(width) for cell, width, left in zip(row, widths, text))
    lines.append("  ".join(cells).rstrip())
  return lines

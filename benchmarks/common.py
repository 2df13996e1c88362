"""What the benchmarks share: interleaved measurements, and bars as a table, JSON and a figure."""
import dataclasses
import json
import os
import platform
import resource
import statistics
import time

import tensorflow as tf

import refurbish_tf


def cpu_seconds():
  """User and system time of this process, of all its threads."""
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_utime + usage.ru_stime


def whole_epoch(dataset):
  for _ in dataset:
    pass


def interleaved(works, rounds, clock):
  """Runs each of `works` in turn, `rounds` times over. Returns seconds by name, a list of one figure a round.

  In turn, because what else the machine does changes from one minute to the next.
  """
  seconds = {name: [] for name in works}
  for _ in range(rounds):
    for name, work in works.items():
      begin = clock()
      work()
      seconds[name].append(clock() - begin)
  return seconds


def sliced_epochs(datasets, rounds, batches):
  """CPU seconds of whole epochs of each dataset by name, taken `batches` batches at a time in turn.

  Finer than `interleaved`: within one round all have seen the same machine.
  """
  seconds = {name: [] for name in datasets}
  for _ in range(rounds):
    total = dict.fromkeys(datasets, 0.0)
    iterators = dict.fromkeys(datasets)
    while iterators:
      for name in list(iterators):
        begin = cpu_seconds()
        if iterators[name] is None:
          iterators[name] = iter(datasets[name])
        for _ in range(batches):
          if next(iterators[name], None) is None:
            del iterators[name]
            break
        # For what still runs in its background to come to rest, on its own account.
        time.sleep(0.01)
        total[name] += cpu_seconds() - begin
    for name, value in total.items():
      seconds[name].append(value)
  return seconds


@dataclasses.dataclass
class Bar:
  """A figure, measured several times, and the limit it must not exceed (None for information)."""
  name: str
  values: list
  unit: str
  limit: float = None

  @property
  def median(self):
    return statistics.median(self.values)

  @property
  def met(self):
    return None if self.limit is None else self.median <= self.limit


@dataclasses.dataclass
class Report:
  """Bars, and in `notes` what they mean."""
  title: str
  bars: list
  notes: list

  def table(self):
    rows = [["", "median", "least", "most", "limit", ""]]
    for bar in self.bars:
      values = [f"{value:.3g} {bar.unit}".strip() for value in (bar.median, min(bar.values), max(bar.values))]
      limit = "" if bar.limit is None else f"{bar.limit:.3g} {bar.unit}".strip()
      rows.append([bar.name, *values, limit, {None: "", True: "met", False: "MISSED"}[bar.met]])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows]
    missed = [bar.name for bar in self.bars if bar.met is False]
    verdict = "Missed: " + "; ".join(missed) + "." if missed else "All bars are met."
    return "\n".join([self.title, "", *lines, "", *self.notes, verdict])

  def write_json(self, path):
    path.write_text(json.dumps({
        "title": self.title,
        "bars": [{**dataclasses.asdict(bar), "median": bar.median, "met": bar.met} for bar in self.bars],
        "notes": self.notes,
        "tensorflow": tf.__version__,
        "refurbish_tf": refurbish_tf.__version__,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }, indent=2) + "\n")

  def draw(self, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    bars = [bar for bar in self.bars if bar.limit is not None][::-1]
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.55 * len(bars)), layout="constrained")
    medians = [bar.median / bar.limit for bar in bars]
    spread = [[(bar.median - min(bar.values)) / bar.limit for bar in bars],
              [(max(bar.values) - bar.median) / bar.limit for bar in bars]]
    # Of Okabe and Ito's palette, which the colour-blind tell apart too.
    colors = ["#0072b2" if bar.met else "#d55e00" for bar in bars]
    axes.barh(range(len(bars)), medians, xerr=spread, color=colors, capsize=4)
    axes.axvline(1, color="black", linestyle="--")
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars], fontsize=11)
    axes.set_xlim(0, 1.15 * max([1.2, *(bar_median + more for bar_median, more in zip(medians, spread[1]))]))
    for position, bar in enumerate(bars):
      axes.text(
          0.02, position, f"{bar.median:.3g} of {bar.limit:.3g} {bar.unit}".strip(), va="center", color="white",
          fontsize=10, fontweight="bold")
    axes.set_xlabel("measured / limit (median; the whisker spans all rounds; left of the dashed line is met)")
    axes.set_title(self.title, fontsize=12)
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""What the benchmarks share: measuring side by side, and results as a table, as JSON and as a picture."""
import contextlib
import ctypes
import dataclasses
import gc
import itertools
import json
import multiprocessing
import os
import pathlib
import platform
import random
import re
import statistics
import sys
import textwrap
import time

import matplotlib
import tensorflow as tf

from refurbish_tf._internal import dataset_graph

matplotlib.use("Agg")
from matplotlib import pyplot  # pylint: disable=wrong-import-position

WIDTH = 120
# The number of calls with which tf.data's own map is fastest.
PARALLEL_CALLS = dataset_graph.PLAIN_MAP_CALLS
# The longest bar that is drawn, in percent of its limit.
MOST_DRAWN = 300


@dataclasses.dataclass(frozen=True)
class Row:
  """One thing measured.

  Attributes:
    key: its name in the JSON.
    name: its name everywhere else.
    unit: of the values; with a bar, what they are a multiple of.
    values: the measurements; empty if it cannot be measured here, and then the name says why.
    limit: the bar: the median should not exceed it. None: for information.
  """
  key: str
  name: str
  unit: str
  values: list
  limit: float = None

  @property
  def median(self):
    return statistics.median(self.values) if self.values else None

  @property
  def met(self):
    return None if self.limit is None or not self.values else self.median <= self.limit

  def cells(self):
    number = "{:,.3f}".format if self.limit is not None else "{:,.2f}".format
    figures = ["-"] * 3
    if self.values:
      figures = [number(figure) for figure in (self.median, min(self.values), max(self.values))]
    verdict = {None: ["", ""], True: [f"{self.limit}", "met"], False: [f"{self.limit}", "MISSED"]}[self.met]
    return [self.name, *figures, self.unit, *verdict]


@dataclasses.dataclass(frozen=True)
class Section:
  """Rows that belong together, and their exact meaning.

  Attributes:
    title: what was measured.
    definition: how, in sentences.
    rows: a list of `Row`s.
    pictures: by name, functions that draw into an empty figure of matplotlib and set its size, in addition to the
      picture of the bars.
  """
  title: str
  definition: str
  rows: list
  pictures: dict = dataclasses.field(default_factory=dict)

  def __str__(self):
    table = [["", "median", "min", "max", "", "limit", ""]] + [row.cells() for row in self.rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [self.title, *textwrap.wrap(self.definition, WIDTH)]
    for cells in table:
      padded = [cell.rjust(width) if 1 <= i <= 3 or i == 5 else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(cells, widths))]
      lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


class Report:
  """All sections of a benchmark, and where they were measured."""

  def __init__(self, name, quick):
    self._name = name
    self._quick = quick
    self._sections = []
    self._machine = _machine()

  def add(self, section):
    self._sections.append(section)

  def bars(self):
    return [row for section in self._sections for row in section.rows if row.met is not None]

  def heading(self):
    machine = self._machine
    lines = [
        f"{self._name}: TensorFlow {machine['tensorflow']}, Python {machine['python']}, "
        f"{machine['processors']} processors ({machine['processor']})"]
    # One process that computes is a load of 1.
    if machine["load"] > 0.5:
      lines.append(
          f"Other work is running here (load average {machine['load']:.1f}): expect the figures to vary.")
    if self._quick:
      lines.append("--quick: too small to mean anything.")
    return "\n".join(lines)

  def verdict(self):
    bars = self.bars()
    missed = [row for row in bars if not row.met]
    lines = [f"{len(bars) - len(missed)} of {len(bars)} bars met."]
    lines += [f"Missed: {row.name}: {row.median:.3f} {row.unit}, limit {row.limit}" for row in missed]
    return "\n".join(lines)

  def write_json(self, path):
    sections = [
        {"title": section.title, "definition": section.definition,
         "rows": [{**dataclasses.asdict(row), "median": row.median, "min": min(row.values, default=None),
                   "max": max(row.values, default=None), "met": row.met} for row in section.rows]}
        for section in self._sections]
    content = {"benchmark": self._name, "quick": self._quick, "machine": self._machine, "sections": sections}
    path.write_text(json.dumps(content, indent=2) + "\n")

  def write_pngs(self, path):
    """Draws every bar as a share of its limit, and the sections' pictures beside it. Returns the paths."""
    paths = []
    if self.bars():
      self._draw_bars(path)
      paths.append(path)
    for section in self._sections:
      for name, draw in section.pictures.items():
        with pyplot.rc_context({"font.size": 15}):
          figure = pyplot.figure(layout="constrained")
          draw(figure)
          paths.append(path.with_name(f"{path.stem}_{name}{path.suffix}"))
          figure.savefig(paths[-1], dpi=110)
          pyplot.close(figure)
    return paths

  def _draw_bars(self, path):
    bars = self.bars()[::-1]
    # Okabe and Ito's blue and vermilion, which colour-blind people can distinguish; the hatching repeats what they say.
    styles = {True: {"color": "#0072B2"}, False: {"color": "#D55E00", "hatch": "//", "edgecolor": "white"}}
    share = [100 * row.median / row.limit for row in bars]
    reach = [[100 * (row.median - min(row.values)) / row.limit for row in bars],
             [100 * (max(row.values) - row.median) / row.limit for row in bars]]
    with pyplot.rc_context({"font.size": 15}):
      figure, axes = pyplot.subplots(figsize=(13, 2 + 0.75 * len(bars)), layout="constrained")
      for i, row in enumerate(bars):
        axes.barh(i, share[i], height=0.62, **styles[row.met])
        axes.text(3, i, f"{row.median:.3g} {row.unit}", va="center", color="white",
                  bbox={"facecolor": styles[row.met]["color"], "edgecolor": "none", "pad": 2})
      axes.errorbar(share, range(len(bars)), xerr=reach, fmt="none", ecolor="black", capsize=5, lw=1.8)
      axes.axvline(100, color="black", lw=2.5, ls="--")
      axes.set_yticks(range(len(bars)), [f"{row.name}\nlimit {row.limit:g}" for row in bars])
      # A bar far beyond its limit would shrink all others.
      end = min(MOST_DRAWN, max(115, *(1.05 * (s + r) for s, r in zip(share, reach[1]))))
      beyond = [i for i, s in enumerate(share) if s + reach[1][i] > end]
      axes.plot([0.99 * end] * len(beyond), beyond, ">", color="black", ms=12)
      axes.set_xlim(0, end)
      axes.set_xlabel("share of the limit used, % (bar: median; whisker: least and greatest)" +
                      ("\n(arrow: goes on to the right)" if beyond else ""))
      axes.set_title(f"{self._name}: what it may cost and what it costs" + (" (--quick)" if self._quick else ""))
      axes.spines[["top", "right"]].set_visible(False)
      figure.savefig(path, dpi=110)
      pyplot.close(figure)


def tensorflow_layers():
  """The policies as TensorFlow operations, which the tests compare ours with."""
  sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
  from support import tensorflow_layers as layers  # pylint: disable=import-outside-toplevel
  return layers


def quotients(measured, baseline):
  """The quotient of every round, as a slow round affects both."""
  return [m / b for m, b in zip(measured, baseline)]


def rounds(quick, number):
  """How many rounds to measure."""
  return 1 if quick else number


def per_element(count, costs):
  """Microseconds an element, of the seconds of epochs of `count` elements."""
  return {name: [1e6 * seconds / count for seconds in epochs] for name, epochs in costs.items()}


def cpu_of_epochs(datasets, rounds, turn=None):
  """CPU time of whole epochs, all datasets side by side.

  Every round takes one epoch of every dataset, in random order. With a `turn` the epochs of a round are interleaved:
  `turn` batches of one dataset, as many of the next and so on, so that a slow period of the machine affects all alike.
  The first round is not counted, and tf.data's autotuner is off for all.

  Args:
    datasets: a dict of batched datasets.
    rounds: how many epochs of each.
    turn: an int, or None for a whole epoch at a time.

  Returns:
    A dict of lists: seconds of CPU time, user and system, of all threads, for every epoch.
  """
  datasets = {name: dataset_graph.without_autotuner(dataset) for name, dataset in datasets.items()}
  costs = {name: [] for name in datasets}
  for counted in [False] + [True] * rounds:
    cost = dict.fromkeys(datasets, 0.0)
    iterators = dict.fromkeys(datasets)
    while iterators:
      for name in random.sample(list(iterators), len(iterators)):
        began = time.process_time()
        # Making the iterator is part of an epoch.
        iterator = iterators[name] or iter(datasets[name])
        taken = sum(1 for _ in itertools.islice(iterator, turn))
        iterators[name] = iterator
        if turn is None or taken < turn:
          del iterators[name]
        del iterator
        # Work ahead in the background must not count for another one.
        wait_until_idle()
        cost[name] += time.process_time() - began
    if counted:
      for name, seconds in cost.items():
        costs[name].append(seconds)
  return costs


def cpu_of_calls(calls, rounds, turns):
  """CPU time of functions, side by side: each round calls every one several times, by turns in random order.

  Each must have been called before, so that no round includes one-off work.

  Args:
    calls: a dict of functions without arguments.
    rounds: how many rounds.
    turns: a dict of how many calls of each make a round.

  Returns:
    A dict of lists: seconds of CPU time, user and system, of all threads, a call, for every round.
  """
  costs = {name: [0.0] * rounds for name in calls}
  for number in range(rounds):
    for turn in range(max(turns.values())):
      calling = [name for name in calls if turn < turns[name]]
      for name in random.sample(calling, len(calling)):
        began = time.process_time()
        calls[name]()
        # Work ahead in the background must not count for another one.
        wait_until_idle()
        costs[name][number] += (time.process_time() - began) / turns[name]
  return costs


def wait_until_idle():
  """Waits until no thread of this process works any more."""
  while True:
    began = time.process_time()
    time.sleep(0.01)
    if time.process_time() - began < 0.0005:
      return


@contextlib.contextmanager
def fresh_processes():
  """Yields `call(function, *arguments)`, which runs each function in a new process."""
  # Processes are forked from a server that has only imported the package, which saves the seconds of importing it each
  # time. A failed import there would only cost that time.
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["refurbish_tf"])
  with context.Pool(1, maxtasksperchild=1) as pool:
    yield lambda function, *arguments: pool.apply(function, arguments)


def resident_bytes():
  """Anonymous resident memory, without malloc's reserve."""
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  status = pathlib.Path("/proc/self/status").read_text()
  return 1024 * int(re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)[1])


def say(what):
  """Prints what is being measured."""
  print(f"... {what}", file=sys.stderr, flush=True)


def _machine():
  cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
  model = re.search(r"^model name\s*:\s*(.*)", cpuinfo, re.MULTILINE)
  return {
      "processors": len(os.sched_getaffinity(0)),
      "processor": model[1] if model else platform.machine(),
      "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
      "load": os.getloadavg()[0],
      "python": platform.python_version(),
      "tensorflow": tf.__version__,
      "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
  }

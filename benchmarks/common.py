"""Code that the benchmarks share: measuring in turns, and writing results as a table and as JSON."""

from collections.abc import Callable
import contextlib
import ctypes
import dataclasses
import functools
import gc
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

import tensorflow as tf

from refurbish_tf._internal import dataset_graph

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 120
# The `num_parallel_calls` with which tf.data's own map is fastest.
PARALLEL_CALLS = dataset_graph.PLAIN_MAP_CALLS


@dataclasses.dataclass(frozen=True)
class Row:
  """One thing that was measured.

  Attributes:
    key: its name in the JSON.
    name: its name everywhere else.
    unit: the unit of the values; with a bar, what they are relative to.
    values: the measurements; empty if this cannot be measured here, and the name then says why.
    limit: the bar, which the median should not exceed. None if the row is for information only.
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

  def __str__(self):
    number = "{:,.3f}" if self.limit is not None else "{:,.0f}" if self.median and self.median >= 1000 else "{:,.3g}"
    verdict = "" if self.met is None else f"; bar {self.limit:g}: {'met' if self.met else 'missed'}"
    return self._figures(number) + verdict

  @property
  def brief(self):
    """The text for README.md: quotients with their range, other figures without it, and only bars that are missed."""
    number = "{:,.0f}" if self.median and abs(self.median) >= 100 else "{:,.3g}"
    is_quotient = self.limit is not None or re.match("of |over |gain|its limit|$", self.unit)
    return self._figures(number, with_range=is_quotient) + (
      f"; bar {self.limit:g}: missed" if self.met is False else ""
    )

  def _figures(self, number, with_range=True):
    told = (
      [number.format(figure) for figure in (self.median, min(self.values), max(self.values))] if self.values else ["-"]
    )
    return told[0] + (f" ({told[1]} to {told[2]})" if with_range and len(self.values) > 1 else "")


@dataclasses.dataclass(frozen=True)
class Section:
  """Rows that belong together, and their exact meaning.

  Attributes:
    title: what was measured.
    definition: how it was measured, in sentences.
    rows: a list of `Row`s. Rows with the same name form a line of the table, rows with the same unit a column.
    in_readme: a function that says whether a row is in README.md; None for no row.
  """

  title: str
  definition: str
  rows: list
  in_readme: Callable | None = None

  def table(self, rows, cell=str):
    """Rows as a Markdown table."""
    from refurbish_tf.experiments import results

    names, units = (list(dict.fromkeys(getattr(row, what) for row in rows)) for what in ("name", "unit"))
    cells = {(row.name, row.unit): cell(row) for row in rows}
    return results.markdown(
      [self.title, *units], [[name, *(cells.get((name, unit), "") for unit in units)] for name in names]
    )

  @property
  def readme_table(self):
    return self.table(list(filter(self.in_readme, self.rows)), lambda row: row.brief)

  def __str__(self):
    return "\n".join([*textwrap.wrap(f"{self.definition} ({commit()}.)", WIDTH), "", self.table(self.rows)])


class Report:
  """All sections of a benchmark, and the machine that measured them."""

  def __init__(self, name, quick):
    self._name = name
    self._quick = quick
    self._sections = []
    self._machine = _machine()

  def add(self, section):
    self._sections.append(section)

  def heading(self):
    machine = self._machine
    lines = [
      f"{self._name}, {machine['commit']}: TensorFlow {machine['tensorflow']}, Python {machine['python']}, "
      f"{machine['processors']} CPU cores ({machine['processor']})"
    ]
    # One busy process is a load of 1.
    if machine["load"] > 0.5:
      lines[0] += f", load average {machine['load']:.1f} before"
    if self._quick:
      lines.append("--quick: too little data for meaningful figures.")
    return "\n".join(lines)

  def verdict(self):
    bars = [(section, row) for section in self._sections for row in section.rows if row.met is not None]
    missed = [(section, row) for section, row in bars if not row.met]
    return "\n".join(
      [
        f"{len(bars) - len(missed)} of {len(bars)} bars met.",
        *(
          f"Missed: {section.title}: {row.name}: {row.median:.3f} {row.unit}, bar {row.limit}"
          for section, row in missed
        ),
      ]
    )

  def write_readme(self):
    """Writes the heading and tables into README.md, without definitions and with only the most important rows."""
    from refurbish_tf.experiments import results

    path = ROOT / "benchmarks" / "README.md"
    content = "\n\n".join([self.heading(), *(section.readme_table for section in self._sections if section.in_readme)])
    path.write_text(results.filled(path.read_text(), self._name, content))

  def write_json(self, path):
    sections = [
      {
        "title": section.title,
        "commit": commit(),
        "definition": section.definition,
        "rows": [
          {
            **dataclasses.asdict(row),
            "median": row.median,
            "min": min(row.values, default=None),
            "max": max(row.values, default=None),
            "met": row.met,
          }
          for row in section.rows
        ],
      }
      for section in self._sections
    ]
    content = {"benchmark": self._name, "quick": self._quick, "machine": self._machine, "sections": sections}
    path.write_text(json.dumps(content, indent=2) + "\n")


def quotients(measured, baseline):
  """The quotient of every round, because a slow round affects both."""
  return [m / b for m, b in zip(measured, baseline)]


def key(name):
  """A name as a part of a row's key."""
  return "_".join(re.findall(r"\w+", name)).lower()


def rounds(quick, number):
  """How many rounds to measure."""
  return 1 if quick else number


def per_element(count, costs):
  """Microseconds per element, from the seconds of epochs of `count` elements."""
  return {name: [1e6 * seconds / count for seconds in epochs] for name, epochs in costs.items()}


def cpu_of_epochs(datasets, rounds):
  """CPU time of whole epochs, of all datasets in turns.

  Every round reads one epoch of every dataset, in random order, including the creation of its iterator. The first round
  does not count, and tf.data's autotuner is off for all.

  Returns:
    A dict of lists: seconds of CPU time, user and system, of all threads, for every epoch.
  """
  datasets = {name: dataset_graph.without_autotuner(dataset) for name, dataset in datasets.items()}

  def epoch(dataset):
    for _ in dataset:
      pass

  calls = {name: functools.partial(epoch, dataset) for name, dataset in datasets.items()}
  cpu_of_calls(calls, 1)
  return cpu_of_calls(calls, rounds)


def cpu_of_calls(calls, rounds):
  """CPU time of functions, in turns: each round calls every function once, in random order.

  Each function must have been called before, so that no round includes one-off work.

  Returns:
    A dict of lists: seconds of CPU time, user and system, of all threads, for every round.
  """
  costs = {name: [] for name in calls}
  for _ in range(rounds):
    for name in random.sample(list(calls), len(calls)):
      began = time.process_time()
      calls[name]()
      # Background work that runs ahead must not count for the next function.
      wait_until_idle()
      costs[name].append(time.process_time() - began)
  return costs


def wait_until_idle():
  """Waits until all threads of this process are idle."""
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


def environment():
  """Environment variables with which a program finds refurbish_tf, even if it is not installed, and this directory's
  modules."""
  path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT), os.environ.get("PYTHONPATH", "")])
  return {**os.environ, "PYTHONPATH": path}


def last_line(text):
  """The beginning of the last non-empty line in the output of a program that failed."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1][:60] if lines else "without a word"


def resident_bytes():
  """Anonymous resident memory, without malloc's reserve."""
  gc.collect()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  status = pathlib.Path("/proc/self/status").read_text()
  return 1024 * int(re.search(r"^RssAnon:\s*(\d+) kB", status, re.MULTILINE)[1])


def say(what):
  """Prints what is being measured."""
  print(f"... {what}", file=sys.stderr, flush=True)


@functools.cache
def commit():
  """The commit of this checkout in words, with a plus if files have changed."""
  from refurbish_tf.experiments import results

  return f"commit {results.commit(ROOT) or 'unknown'}"


def _machine():
  cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
  model = re.search(r"^model name\s*:\s*(.*)", cpuinfo, re.MULTILINE)
  return {
    "commit": commit(),
    "processors": len(os.sched_getaffinity(0)),
    "processor": model[1] if model else platform.machine(),
    "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    "load": os.getloadavg()[0],
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
  }

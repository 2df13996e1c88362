"""What training jobs save by sharing a cache store on disk (OneAccess: Kakaraparthi et al., HotCloud 2019).

Each job is a process of its own, with the same functions, `r` and `seed`, and another `order_seed`. They run side by side
on the cores of this machine, without a model. All sections together take more than an hour: `--only` chooses some.
"""
import dataclasses
import itertools

import common
import sharing_frameworks
import sharing_jobs
import sharing_photographs
import sharing_simulation as simulation

REUSE_FACTORS = (1, 2, 3)
SHARES = (0, 1 / 4, 1 / 2, 1)
ALL_STORES = tuple(itertools.product(REUSE_FACTORS, SHARES))
SOME_STORES = ((1, 0), (2, 1 / 4), (3, 1 / 2))
STEP, WORK = 0.02, 100_000
RANDOM_PHASES = (0, 0.13, 0.47, 0.8)
NEVER = float("inf")
PHASES = {
    2: (0, 0.5),
    4: RANDOM_PHASES,
    8: (0, 0.09, 0.3, 0.36, 0.53, 0.64, 0.81, 0.92)}


@dataclasses.dataclass(frozen=True)
class Topic:
  """Cells of one section.

  Attributes:
    key, title: of the section.
    cells: pairs of a case and its stores: `r` and the kept share.
    limit: of the calls and reads.
    paced: whether each step takes the time of an accelerator.
  """
  key: str
  title: str
  cells: tuple
  limit: float
  paced: bool = True


def _together(number):
  return simulation.Case(f"{number} together", (1,) * number)


def _phases(number):
  return simulation.Case(f"{number} at random phases", (1,) * number, PHASES[number])


TOPICS = (
    Topic("together", "Started together, paced",
          ((_together(1), SOME_STORES), (_together(2), SOME_STORES), (_together(4), ALL_STORES), (_together(8), SOME_STORES)),
          1.05),
    Topic("phases", "At random phases, paced",
          ((_phases(2), SOME_STORES), (_phases(4), ALL_STORES), (_phases(8), SOME_STORES)), 1.1),
    Topic("speeds", "Unequal speeds, paced", (
        (simulation.Case("speeds 1, 1, 0.9, 0.7", (1, 1, 0.9, 0.7)), ALL_STORES),
        (simulation.Case("the same, a quarter apart", (1, 1, 0.9, 0.7), (0, 0.25, 0.5, 0.75)), SOME_STORES),
        (simulation.Case("4 that vary from 0.5 to 1", ((0.5, 1),) * 4), ALL_STORES)), 1.2),
    Topic("courses", "One at half speed, joins and kills, paced", (
        (simulation.Case("4, one at half speed", (1, 1, 1, 0.5)), SOME_STORES),
        (simulation.Case("4, one joins late", (1,) * 4, (0, 0.13, 0.47, 2.3)), SOME_STORES),
        (simulation.Case("4, two are killed", (1,) * 4, RANDOM_PHASES, (NEVER, 1.6, NEVER, 2.2)), SOME_STORES)), 1.15),
    Topic("short", "Short of CPU", (
        (_together(4), SOME_STORES), (_phases(2), SOME_STORES), (_phases(4), SOME_STORES), (_phases(8), SOME_STORES)),
          1.15, paced=False),
)


@dataclasses.dataclass(frozen=True)
class Cells(common.Section):
  """A section that prints a line for each cell.

  Attributes:
    lines: a list of lines, each a list of cells; the first has the headings.
  """
  lines: list = dataclasses.field(default_factory=list)

  def __str__(self):
    head = str(common.Section(self.title, self.definition, [])).rsplit("\n", 1)[0]
    widths = [max(map(len, column)) for column in zip(*self.lines)]
    return "\n".join([head, *("  ".join(
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip()
                              for line in self.lines)])


def measure(quick, only=""):
  """Yields the sections whose title contains `only`."""
  sections = {topic.title: lambda topic=topic: cells(quick, topic) for topic in TOPICS}
  sections[sharing_frameworks.TITLE] = lambda: sharing_frameworks.section(quick, SOME_STORES, STEP)
  sections[sharing_photographs.TITLE] = lambda: sharing_photographs.section(quick)
  for title, section in sections.items():
    if only.lower() in title.lower():
      common.say(title)
      yield section()


def cells(quick, topic):
  """The section of a topic."""
  n, laps = (512, 2) if quick else (10_000, 5)
  rows, lines = [], [["", "calls", "simulated", "limit", "reads", "images/s", "wait, ms", "pairs", "simulated",
                      "4 epochs later", "simulated", "beyond", "simulated"]]
  for case, stores in topic.cells:
    for r, share in stores[-1:] if quick else stores:
      cell = sharing_jobs.Cell(case, r, share, n, laps, STEP * topic.paced, WORK * (not topic.paced))
      name = f"{case.name}, r = {r}, {share:g} kept" + ("" if topic.paced else ", short of CPU")
      key = f"{topic.key}_{''.join(c if c.isalnum() else '_' for c in case.name)}_r{r}_{share:g}"
      measured, expected = sharing_jobs.measure(cell), sharing_jobs.simulated(cell)
      rows += _rows(key, name, topic.limit, measured, expected)
      lines.append([name, *(f"{x:.3f}" for x in (measured.calls, expected.calls)), f"{topic.limit}",
                    f"{measured.reads:.3f}", f"{measured.images_per_second:,.0f}", f"{1000 * measured.longest_wait:.0f}",
                    *map(_pairs, (measured.pairs, expected.pairs, measured.pairs_later, expected.pairs_later)),
                    str(measured.beyond), str(expected.beyond)])
      common.say("  ".join(lines[-1]))
  pace = (f"A step takes {1000 * STEP:.0f} ms at speed 1, as on an accelerator." if topic.paced else
          f"Nothing paces them but partial_fn, which draws {WORK:,} random numbers; in the simulation a preparation takes as "
          "long as four steps.")
  return Cells(
      topic.title,
      f"Jobs on one store, {n:,} samples, steps of {sharing_jobs.BATCH}, {laps} epochs of the first job while all run. The "
      "store has room for the kept share and the ring; with r = 1 all of it is the ring. Calls of partial_fn by all jobs, and "
      "elements read from a source by index, over what the fastest would make alone in that time; images a second of all; the "
      "longest wait of a step but an epoch's first; pairs that meet in a batch again in the next epoch, and four epochs later, "
      "over those of a uniform shuffle; the most preparations of a job beyond those that it would make alone in 256 steps, of "
      f"which 2 are allowed. {pace} Beside them the simulation's figures.", rows, lines=lines)


def _rows(key, name, limit, measured, expected):
  over = "by all, of the fastest alone"
  rows = [
      common.Row(f"{key}_calls", name, f"calls {over}", [measured.calls], limit),
      common.Row(f"{key}_reads", name, f"reads {over}", [measured.reads], limit),
      common.Row(f"{key}_beyond", name, "beyond alone in 256 steps", [measured.beyond], 2),
      common.Row(f"{key}_images", name, "images/s of all", [measured.images_per_second]),
      common.Row(f"{key}_wait", name, "s, longest wait of a step", [measured.longest_wait]),
      common.Row(f"{key}_simulated_calls", name, f"calls {over}, simulated", [expected.calls]),
      common.Row(f"{key}_simulated_beyond", name, "beyond alone in 256 steps, simulated", [expected.beyond])]
  for figures, prefix, said in ((measured, "", ""), (expected, "simulated_", ", simulated")):
    for when, pairs in (("pairs", figures.pairs), ("pairs_later", figures.pairs_later)):
      if pairs is not None:
        later = "" if when == "pairs" else ", four epochs later"
        rows.append(common.Row(f"{key}_{prefix}{when}", name, f"of uniform, pairs again{later}{said}", [pairs]))
  return rows


def _pairs(figure):
  return "-" if figure is None else f"{figure:.2f}"

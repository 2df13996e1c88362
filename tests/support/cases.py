"""How many of the cases a run has: `pytest` a sample of them, `pytest --exhaustive` all."""
import collections

import pytest

# Set by conftest.py before any test is imported.
exhaustive = False

# For a test, or a `pytest.param` of one, that only the exhaustive run has.
only_exhaustive = pytest.mark.only_exhaustive

# For a test with several parametrize marks: the default run has each value of each parameter, not each combination.
each_value = pytest.mark.each_value


def some(cases, number):
  """All cases, or in the default run so many of them, spread evenly, with the first and the last."""
  cases = list(cases)
  if exhaustive or number >= len(cases):
    return cases
  # One is the last: of lists that begin with what is simple.
  return [cases[round(i * (len(cases) - 1) / (number - 1))] for i in range(number)] if number > 1 else cases[-1:]


def examples(number):
  """`max_examples` for hypothesis: ten times as many in the exhaustive run."""
  return 10 * number if exhaustive else number


def with_each_value(combinations):
  """Few of the combinations (a dict each: name of the parameter -> value), so that each value is in one of them.

  Returns their positions. The first one is taken that has most of what is still missing, and of what is not missing what
  was taken least often, again and again.
  """
  missing = {pair for combination in combinations for pair in combination.items()}
  taken, times = [], collections.Counter()
  while missing:
    best = max(range(len(combinations)), key=lambda i: (
        len(missing & combinations[i].items()), -sum(times[pair] for pair in combinations[i].items())))
    missing -= combinations[best].items()
    times.update(combinations[best].items())
    taken.append(best)
  return sorted(taken)


def left_out(items):
  """The collected tests that the default run leaves out."""
  leaves, by_function = [], {}
  for item in items:
    if item.get_closest_marker("only_exhaustive"):
      leaves.append(item)
    elif item.get_closest_marker("each_value"):
      by_function.setdefault((item.parent, item.originalname), []).append(item)
  for cases in by_function.values():
    # The same value is the same object in all of them.
    kept = with_each_value([{name: id(value) for name, value in item.callspec.params.items()} for item in cases])
    leaves += [item for i, item in enumerate(cases) if i not in kept]
  return leaves

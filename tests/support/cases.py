"""The runs that a test is part of, and the number of its cases in each.

`pytest -n auto` is the quick run, and `pytest -n auto -m slow` runs the tests marked `slow`; `.ci/run` runs one after
the other. Both have a sample of the cases. `pytest --exhaustive` has all tests with all cases.
"""

import builtins
import collections

import pytest

# Set by conftest.py before any test is imported.
exhaustive = False

# Marks a test, or a `pytest.param`, that is too slow for the quick run.
slow = pytest.mark.slow

# Marks a test, or a `pytest.param`, that only the exhaustive run has.
EXHAUSTIVE = "exhaustive"
only_exhaustive = pytest.mark.slow(EXHAUSTIVE)

# Marks a test with several parametrize marks: a sample has each value of each parameter, not each combination.
each_value = pytest.mark.each_value


def some(cases, number):
  """Returns all cases in the exhaustive run; otherwise `number` of them, spread evenly, with the first and the last."""
  cases = list(cases)
  if exhaustive or number >= len(cases):
    return cases
  # A single case is the last one, because lists begin with the simple cases.
  return [cases[round(i * (len(cases) - 1) / (number - 1))] for i in range(number)] if number > 1 else cases[-1:]


def refused(**by_error):
  """Returns cases for `parametrize`, grouped by the error that they raise, which comes last in each."""
  return [(*case, getattr(builtins, error)) for error, group in by_error.items() for case in group]


def examples(number):
  """`max_examples` for hypothesis: ten times as many in the exhaustive run."""
  return 10 * number if exhaustive else number


def with_each_value(combinations):
  """Chooses a few combinations (dicts: parameter name -> value) such that each value is in one of them.

  Returns their positions. Greedy: each step takes the combination with the most missing values. Ties go to the one
  whose values have been taken least often."""
  missing = {pair for combination in combinations for pair in combination.items()}
  taken, times = [], collections.Counter()
  while missing:
    best = max(
      range(len(combinations)),
      key=lambda i: (len(missing & combinations[i].items()), -sum(times[pair] for pair in combinations[i].items())),
    )
    missing -= combinations[best].items()
    times.update(combinations[best].items())
    taken.append(best)
  return sorted(taken)


def left_out(items):
  """Returns the collected tests that only the exhaustive run executes."""
  leaves, by_function = [], {}
  for item in items:
    if any(EXHAUSTIVE in marker.args for marker in item.iter_markers("slow")):
      leaves.append(item)
    elif item.get_closest_marker("each_value"):
      by_function.setdefault((item.parent, item.originalname), []).append(item)
  for cases in by_function.values():
    # Equal values are the same object in all tests of a function.
    kept = with_each_value([{name: id(value) for name, value in item.callspec.params.items()} for item in cases])
    leaves += [item for i, item in enumerate(cases) if i not in kept]
  return leaves

"""`rtf.diversity` compared with exact fractions, with a simulation, and with the outputs of the stage."""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import diversity
from support import cases

EVICTION = ("balanced", "reference_count")
# (|A|, |A_F|), including a single outcome and no partial or no final augmentation.
OUTCOMES = [(1, 1), (6, 1), (12, 3), (12, 12), (40, 8), (300, 2)]
# (k, r): as in the theorem; k not a multiple of r; r not whole; r = k.
SCHEDULES = [(1, 1), (5, 1), (6, 2), (9, 3), (8, 3), (5, 5), (9, 1.5), (7, 2.5), (6, 1.25)]
GRID = [(*outcomes, *schedule, eviction) for outcomes in OUTCOMES for schedule in SCHEDULES for eviction in EVICTION]


def simulate(num_outcomes, num_final_outcomes, epochs, r, eviction, *, num_samples, num_runs, seed):
  """Returns the number of unique samples, [run, sample], with an eviction hand that cycles through the samples."""
  random = np.random.default_rng(seed)
  num_partial_outcomes = num_outcomes // num_final_outcomes
  shape = [num_runs, num_samples]
  pairs = np.empty([*shape, epochs], np.int64)
  hand = 0
  for epoch in range(epochs):
    before, hand = hand, math.floor(epoch * num_samples / fractions.Fraction(r))
    if epoch == 0:
      partial = random.integers(num_partial_outcomes, size=shape)
    elif eviction == "balanced":
      evicted = np.arange(before, hand) % num_samples
      partial[:, evicted] = random.integers(num_partial_outcomes, size=[num_runs, len(evicted)])
    elif math.floor(epoch / fractions.Fraction(r)) > math.floor((epoch - 1) / fractions.Fraction(r)):
      partial = random.integers(num_partial_outcomes, size=shape)
    pairs[:, :, epoch] = partial * num_final_outcomes + random.integers(num_final_outcomes, size=shape)
  return count_unique(pairs)


def count_unique(pairs):
  pairs = np.sort(pairs, axis=-1)
  return 1 + np.count_nonzero(np.diff(pairs, axis=-1), axis=-1)


def assert_moments(unique, expectation, variance):
  """Checks mean and variance of the sum over the samples, [run, sample], within 3 standard errors."""
  num_runs, num_samples = unique.shape
  diversity_of_run = unique.sum(axis=1)
  deviation = diversity_of_run - diversity_of_run.mean()
  observed = np.mean(deviation**2) * num_runs / (num_runs - 1)
  standard_error = math.sqrt(observed / num_runs)
  assert abs(diversity_of_run.mean() - expectation) <= 3 * standard_error + 1e-9 * num_samples
  standard_error = math.sqrt((np.mean(deviation**4) - observed**2 * (num_runs - 3) / (num_runs - 1)) / num_runs)
  assert abs(observed - variance) <= 3 * standard_error + 1e-9 * num_samples


def exact_moments(num_outcomes, num_final_outcomes, epochs, r, eviction):
  """Returns expectation and variance for one sample and a whole r, as fractions, by inclusion and exclusion."""
  share = fractions.Fraction(num_final_outcomes, num_outcomes)

  def missed(uses, count):
    """Returns the probability that `uses` uses of a partial outcome draw none of `count` given final outcomes."""
    return (1 - fractions.Fraction(min(count, num_final_outcomes), num_final_outcomes)) ** uses

  expectation = variance = 0
  first_uses = range(1, r + 1) if eviction == "balanced" else [r]
  for first in first_uses:
    uses = [min(first, epochs)]
    while sum(uses) < epochs:
      uses.append(min(r, epochs - sum(uses)))
    one = math.prod(1 - share + share * missed(n, 1) for n in uses)
    same_partial = math.prod(1 - share + share * missed(n, 2) for n in uses)
    other_partial = math.prod(1 - 2 * share + 2 * share * missed(n, 1) for n in uses)
    expectation += num_outcomes * (1 - one) / len(first_uses)
    variance += (
      num_outcomes
      * (
        one
        + (num_final_outcomes - 1) * same_partial
        + (num_outcomes - num_final_outcomes) * other_partial
        - num_outcomes * one**2
      )
      / len(first_uses)
    )
  return expectation, variance


# A whole r is compared with exact fractions, below.
@pytest.mark.parametrize(
  "number",
  cases.some(
    [
      pytest.param(number, id="-".join(map(str, numbers)))
      for number, numbers in sorted(enumerate(GRID), key=lambda each: each[1][3] != int(each[1][3]))
      if cases.exhaustive or numbers[3] != int(numbers[3])
    ],
    9,
  ),
)
def test_simulation(number):
  """A grid of (|A|, |A_F|, k, r) and both policies of eviction.

  With this many comparisons at 3 standard errors, about every second seed has one that fails by chance. None fails with
  this seed.
  """
  # N/r is whole for every r of the grid, so no number of samples is rounded.
  num_samples = 60
  unique = simulate(*GRID[number], num_samples=num_samples, num_runs=3000, seed=[1, number])
  *numbers, eviction = GRID[number]
  assert_moments(
    unique,
    diversity.expected_sample_diversity(num_samples, *numbers, eviction=eviction),
    diversity.sample_diversity_variance(num_samples, *numbers, eviction=eviction),
  )


@cases.each_value
@pytest.mark.parametrize(
  "numbers", [(40, 8, 9, 1), (40, 8, 9, 3), (40, 8, 8, 3), (12, 1, 6, 2), (24, 4, 7, 2.5), (24, 4, 5, 5)]
)
@pytest.mark.parametrize("eviction", EVICTION)
def test_outputs_of_refurbish(numbers, eviction):
  """Counts distinct outputs of a discrete augmentation. Each component of a sample, a vector, is a separate run."""
  num_outcomes, num_final_outcomes, epochs, r = numbers
  num_samples, num_runs = 60, 2000

  def partial_fn(index, seed):
    return index, tf.random.stateless_uniform([num_runs], seed, 0, num_outcomes // num_final_outcomes, tf.int64)

  def final_fn(index, partial, seed):
    final = tf.random.stateless_uniform([num_runs], seed, 0, num_final_outcomes, tf.int64)
    return index, partial * num_final_outcomes + final

  train = tf.data.Dataset.range(num_samples).refurbish(partial_fn, final_fn, r, seed=11, eviction=eviction)
  pairs = np.empty([num_runs, num_samples, epochs], np.int64)
  for epoch in range(epochs):
    for index, pair in train.as_numpy_iterator():
      pairs[:, index, epoch] = pair
  assert_moments(
    count_unique(pairs),
    diversity.expected_sample_diversity(num_samples, *numbers, eviction=eviction),
    diversity.sample_diversity_variance(num_samples, *numbers, eviction=eviction),
  )


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize(
  "numbers",
  [
    (*outcomes, *schedule)
    for outcomes in OUTCOMES + [(98 * 14, 98)]
    for schedule in SCHEDULES + [(90, 3), (91, 4)]
    if schedule[1] == int(schedule[1])
  ],
)
def test_exact_fractions(numbers, eviction):
  expectation, variance = exact_moments(*numbers, eviction)
  assert diversity.expected_unique_samples(*numbers, eviction=eviction) == pytest.approx(float(expectation), rel=1e-12)
  assert diversity.sample_diversity_variance(1, *numbers, eviction=eviction) == pytest.approx(
    float(variance), rel=1e-11, abs=1e-13
  )


@pytest.mark.parametrize(
  "outcomes", [(10**12, 10**12), (10**12, 10**6), (10**12, 10), (10**12, 1), (10**18, 10**9), (14**20, 14)]
)
@pytest.mark.parametrize("eviction", EVICTION)
def test_accurate_where_nearly_all_samples_are_unique(outcomes, eviction):
  for epochs, r in ((30, 1), (30, 3), (29, 4)):
    expectation, variance = exact_moments(*outcomes, epochs, r, eviction)
    assert diversity.expected_unique_samples(*outcomes, epochs, r, eviction=eviction) == pytest.approx(
      float(expectation), rel=1e-14
    )
    assert diversity.sample_diversity_variance(1, *outcomes, epochs, r, eviction=eviction) == pytest.approx(
      float(variance), rel=1e-11
    )


def test_standard_training():
  # Kim et al., 4.3.1.
  assert diversity.expected_sample_diversity(1000, 7, 1, 20, 1) == pytest.approx(7000 * (1 - (6 / 7) ** 20))
  assert diversity.normalized_unique_samples(7, 1, 20, 1) == 1
  # A rounding error could make it larger.
  assert diversity.normalized_unique_samples(100_000, 100_000, 43, 3) <= 1


def test_arrays_broadcast():
  numbers = ([[100], [1000]], 10, [20, 30, 40], np.float32(2.5))
  for function in (diversity.expected_unique_samples, diversity.normalized_unique_samples):
    table = function(*numbers)
    assert table.shape == (2, 3)
    for row, num_outcomes in enumerate((100, 1000)):
      for column, epochs in enumerate((20, 30, 40)):
        alone = function(num_outcomes, 10, epochs, 2.5)
        assert type(alone) is float
        assert table[row, column] == pytest.approx(alone, rel=1e-14)
  for function in (diversity.expected_sample_diversity, diversity.sample_diversity_variance):
    table = function([[[50]]], *numbers)
    assert table.shape == (1, 2, 3)
    assert table[0, 1, 2] == pytest.approx(function(50, 1000, 10, 40, 2.5), rel=1e-14)
  assert diversity.expected_unique_samples([], 1, 1, 1).shape == (0,)
  assert diversity.expected_unique_samples(10**20, fractions.Fraction(7, 2), 3, 2) == pytest.approx(3 - 2 / 7)


def test_diversity_in_between_is_smooth():
  """If |A_F| does not divide |A|, as when curves are drawn, the expectation is between those of neighbouring |A|."""
  curve = diversity.expected_unique_samples(60, np.linspace(1, 60, 200), 10, 3)
  assert np.all(np.diff(curve) > 0)


@pytest.mark.parametrize(
  "changed, error, message",
  [
    (
      dict(num_final_outcomes=11),
      ValueError,
      r"num_final_outcomes \(\|A_F\|\) must be at most num_outcomes \(\|A\|\).*"
      r"got num_outcomes=10, num_final_outcomes=11\. Give num_outcomes as \|A_P\| \* \|A_F\|",
    ),
    (dict(epochs=2), ValueError, r"epochs \(k\) must be at least r.*got epochs=2, r=3\. Train for more epochs, or"),
    (dict(r=0.5), ValueError, "r, the reuse factor, must be .* at least 1, got r=0.5. r=1 is standard training"),
    (dict(r=math.nan), ValueError, "finite number of at least 1, got r=nan"),
    (dict(num_outcomes=10**400), ValueError, "num_outcomes must be below 1e308"),
    (dict(num_final_outcomes=0), ValueError, "at least 1, got num_final_outcomes=0. With no final augmentation it"),
    (dict(epochs=12.5), ValueError, r"epochs \(k\) must be a whole number, got epochs=12.5"),
    (dict(epochs=20_000), ValueError, r"epochs \(k\) must be at most 10,000, got epochs=20000"),
    (dict(epochs=[1, 2], r=[1, 1, 1]), ValueError, r"broadcast as in NumPy, got the shapes .*\(2,\) of epochs, \(3,\)"),
    (dict(r="3"), TypeError, "r must be a real number or an array of real numbers, got '3'"),
    (dict(eviction="lru"), ValueError, "eviction must be one of 'balanced', 'reference_count', got 'lru'"),
  ],
)
def test_bad_arguments(changed, error, message):
  arguments = dict(num_outcomes=10, num_final_outcomes=5, epochs=12, r=3) | changed
  for function in (diversity.expected_unique_samples, diversity.normalized_unique_samples):
    with pytest.raises(error, match=message):
      function(**arguments)
  for function in (diversity.expected_sample_diversity, diversity.sample_diversity_variance):
    with pytest.raises(error, match=message):
      function(7, **arguments)


@pytest.mark.parametrize(
  "num_samples, error, message",
  [
    (0, ValueError, "num_samples, the number of samples in the data set, must be .* at least 1, got num_samples=0"),
    (1.5, ValueError, "must be a whole number, got num_samples=1.5"),
    ("1", TypeError, "num_samples must be a real number"),
  ],
)
def test_bad_number_of_samples(num_samples, error, message):
  for function in (diversity.expected_sample_diversity, diversity.sample_diversity_variance):
    with pytest.raises(error, match=message):
      function(num_samples, 10, 5, 12, 3)


@pytest.mark.parametrize("num_outcomes, num_final_outcomes", [(10, 4), (10, 2.5), (10.5, 5), (1e20, 2.5)])
def test_variance_is_of_whole_numbers_of_outcomes(num_outcomes, num_final_outcomes):
  with pytest.raises(ValueError, match=r"multiple of the whole number num_final_.*Give num_outcomes as \|A_P\| \*"):
    diversity.sample_diversity_variance(7, num_outcomes, num_final_outcomes, 12, 3)

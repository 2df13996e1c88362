"""Sample diversity: how many different augmented samples a training run sees (`rtf.diversity`).

>>> rtf.diversity.normalized_unique_samples(14 * 14 * 162, 162, epochs=90, r=[1, 2, 3, 5]).round(4)
array([1.    , 0.997 , 0.994 , 0.9881])

In this example, two RandAugment layers are cached and followed by a random crop with a padding of 4 and a random flip:
r = 3 keeps 99.4 % of the unique samples of standard training.

The augmentation A of Lee et al., "Refurbish Your Training Data", USENIX ATC 2021, section 4, is a set of |A| functions.
Partial and final augmentation draw one of |A_P| and one of |A_F| equally likely outcomes (assumption 1), and all
|A| = |A_P| * |A_F| pairs make different samples (assumption 3). If outcomes coincide or are not equally likely, there
are fewer unique samples than these functions return.

**Theorem 1 and the schedule.** The theorem assumes that in k epochs a sample is partially augmented k/r times, and that
each result is used exactly r times (assumption 2, called balanced eviction). In a run this holds only with
`eviction="reference_count"`, a whole r, and k a multiple of r. Balanced eviction, the default of `refurbish`, evicts
N/r samples in every epoch from the second on, so most samples use their first partially augmented version fewer than r
times (section 5.2 of the paper also excepts the first r epochs). From N samples it makes N + (k - 1) * N/r partially
augmented ones instead of k * N/r. With k = r = 3, a huge |A| and |A_F| = 1, the theorem gives 1 unique sample where
1 + 2/3 is right; in long training the two differ little.

The functions here follow the actual schedule: a sample is first evicted after w epochs, then every r epochs. With
reference counts w = r; with balanced eviction w is spread evenly over (0, r] among the samples. This is exact for any
real r and any k. Theorem 1 with a fractional k/r describes no real run; for a whole r it is a lower bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refurbish_tf._internal import checks
from refurbish_tf.refurbish_op import Eviction

# The time grows with the epochs times the number of different schedules of samples, at most one per epoch.
MAX_EPOCHS = 10_000
# From this number on, floats cannot represent every whole number.
LARGEST_EXACT = 2**53
# For each argument: how errors describe it, and advice if it is below 1 or not finite.
_NUMBERS = {
  "num_samples": ("num_samples, the number of samples in the data set,", ""),
  "num_outcomes": (
    "num_outcomes (|A|)",
    "For an augmentation with a continuous parameter, give a huge number, such as 1e12.",
  ),
  "num_final_outcomes": ("num_final_outcomes (|A_F|)", "With no final augmentation it is 1."),
  "epochs": ("epochs (k)", ""),
  "r": ("r, the reuse factor,", "r=1 is standard training."),
}


def expected_unique_samples(
  num_outcomes: ArrayLike,
  num_final_outcomes: ArrayLike,
  epochs: ArrayLike,
  r: ArrayLike,
  *,
  eviction: Eviction = "balanced",
) -> Any:
  """The expected number of unique samples made from one sample of the data set.

  >>> rtf.diversity.expected_unique_samples(14 * 14 * 98, 98, epochs=90, r=3)  # doctest: +ELLIPSIS
  88.89...
  >>> rtf.diversity.expected_unique_samples(8, 2, epochs=12, r=3, eviction="reference_count")  # Theorem 1
  5.019767761230469

  Lee et al., "Refurbish Your Training Data", USENIX ATC 2021, Theorem 1 (section 4):

      E(U) = |A| * (1 - (1 - |A_F|/|A| + |A_F|/|A| * (1 - 1/|A_F|)**r) ** (k/r))

  This is the result with `eviction="reference_count"` if r is whole and k is a multiple of r. In all other cases a run
  does not use every partially augmented sample exactly r times, as the theorem assumes. The result is then the
  expectation for the actual numbers of uses n_1, n_2, ..., with a factor for each of them,

      |A| * (1 - product of (1 - |A_F|/|A| + |A_F|/|A| * (1 - 1/|A_F|)**n_j))

  averaged over the samples for balanced eviction. It applies to samples that are kept in the cache store; a sample for
  which `max_bytes` leaves no room has r = 1. A run first evicts a whole number of samples in each epoch. Apart from
  that rounding the average is exact, and nothing is rounded if r is whole and divides N.

  Args:
    num_outcomes: |A|, how many different samples the whole augmentation can make from one, a real number of at least 1.
      Huge numbers such as 1e12, for an augmentation with a continuous parameter, do not reduce the accuracy.
    num_final_outcomes: |A_F|, how many the final augmentation can make from one, from 1 (which is echoing) to |A|
      (standard training). It need not divide |A|: other numbers interpolate, so that plots over it are smooth curves.
    epochs: k, the number of training epochs, a whole number of up to 10,000.
    r: the reuse factor, a real number from 1 to `epochs`.
    eviction: as in `tf.data.Dataset.refurbish`, "balanced" or "reference_count".

  The numbers may be arrays, which broadcast as in NumPy.

  Returns:
    A number of samples, a float from 1 to min(|A|, k), or an array of floats.

  Raises:
    TypeError: an argument is not a real number or an array of real numbers.
    ValueError: a number is out of range, the arrays do not broadcast, or `eviction` is not one of the two.
  """
  return _by_schedule(_expectation, *_checked(num_outcomes, num_final_outcomes, epochs, r), eviction)


def normalized_unique_samples(
  num_outcomes: ArrayLike,
  num_final_outcomes: ArrayLike,
  epochs: ArrayLike,
  r: ArrayLike,
  *,
  eviction: Eviction = "balanced",
) -> Any:
  """The expected number of unique samples as a fraction of the number in standard training, between 0 and 1.

  >>> rtf.diversity.normalized_unique_samples(14 * 14 * 98, 98, epochs=90, r=3)  # doctest: +ELLIPSIS
  0.990...
  >>> split = np.array([0.2, 0.4, 0.6])                     # log|A_F| / log|A|, an axis of the figure
  >>> rtf.diversity.normalized_unique_samples(1e5, 1e5**split, epochs=90, r=5).round(3)
  array([0.823, 0.981, 0.998])

  Lee et al., "Refurbish Your Training Data", USENIX ATC 2021, Figure 4 (section 4): E(U) / E(U*) over r and log|A_F| /
  log|A|, where U* is U with r = 1. The figure shows Theorem 1; see `expected_unique_samples` for how a run differs.

  Args:
    num_outcomes, num_final_outcomes, epochs, r, eviction: as in `expected_unique_samples`, with the same errors.

  Returns:
    A fraction, a float or an array; 1 for r = 1 and for |A_F| = |A|.
  """
  outcomes, final_outcomes, epochs, r = _checked(num_outcomes, num_final_outcomes, epochs, r)
  unique = _by_schedule(_expectation, outcomes, final_outcomes, epochs, r, eviction)
  # Both are rounded, so their quotient might be slightly above 1.
  standard = _by_schedule(_expectation, outcomes, final_outcomes, epochs, np.ones_like(r), eviction)
  return _plain(np.minimum(unique, standard) / standard)


def expected_sample_diversity(
  num_samples: ArrayLike,
  num_outcomes: ArrayLike,
  num_final_outcomes: ArrayLike,
  epochs: ArrayLike,
  r: ArrayLike,
  *,
  eviction: Eviction = "balanced",
) -> Any:
  """The expected sample diversity: the number of unique samples that a whole training run sees.

  >>> round(rtf.diversity.expected_sample_diversity(50_000, 16, 16, epochs=2, r=1), 6)
  96875.0

  Kim et al., "FusionFlow", VLDB 2023, section 4.3.1: N samples, K epochs and an augmentation set A; X_i is the number
  of unique samples made from the i-th sample, and the diversity X is their sum. Their N is `num_samples`, their K is
  `epochs` (k in Lee et al.), |A| is `num_outcomes` (16 for RandAugment, 25 for AutoAugment there), and X_i is the U of
  Lee et al. Their standard approach is r = 1, where E(X) = N * |A| * (1 - ((|A| - 1) / |A|)**K). For any r, the result
  is N times `expected_unique_samples`.

  Args:
    num_samples: N, the number of samples in the data set, a whole number of at least 1.
    num_outcomes, num_final_outcomes, epochs, r, eviction: as in `expected_unique_samples`, with the same errors.

  Returns:
    A number of samples, a float or an array.
  """
  num_samples, *rest = _checked(num_outcomes, num_final_outcomes, epochs, r, num_samples=num_samples)
  return _plain(num_samples * _by_schedule(_expectation, *rest, eviction))


def sample_diversity_variance(
  num_samples: ArrayLike,
  num_outcomes: ArrayLike,
  num_final_outcomes: ArrayLike,
  epochs: ArrayLike,
  r: ArrayLike,
  *,
  eviction: Eviction = "balanced",
) -> Any:
  """The variance of sample diversity, the number of unique samples that a whole training run sees.

  >>> rtf.diversity.sample_diversity_variance(50_000, 16, 16, epochs=2, r=1)
  2929.6875
  >>> rtf.diversity.sample_diversity_variance(50_000, 16, 4, epochs=2, r=2)
  6152.34375

  Kim et al., "FusionFlow", VLDB 2023, section 4.3.2, with the symbols of `expected_sample_diversity`. Because
  `refurbish` draws independently for every sample, E(X_i * X_j) = E(X_i) * E(X_j) as in their standard approach, and
  Var(X) is the sum of the Var(X_i). With balanced eviction, samples are first evicted in different epochs, but the
  number evicted in each epoch is fixed, so this adds no variance. The paper gives no closed form of Var(X_i); it is
  computed epoch by epoch from terms that do not cancel, so it is accurate even if nearly all samples are unique.

  Their tiny-batches, samples that share the same draws and are regrouped in every epoch, have no counterpart in
  `refurbish`. If the elements of its source are batches of b samples that share the same draws, give the number of
  batches as `num_samples`, and multiply the variance by b**2.

  Args:
    num_samples: N, the number of samples in the data set, a whole number of at least 1.
    num_outcomes, num_final_outcomes, epochs, r, eviction: as in `expected_unique_samples`, with the same errors, and
      a ValueError if `num_outcomes` is not a multiple of `num_final_outcomes`: the variance is not defined in between.

  Returns:
    The variance in samples squared, a float or an array. Its square root is the standard deviation of the diversity.
  """
  num_samples, *rest = _checked(num_outcomes, num_final_outcomes, epochs, r, num_samples=num_samples)
  outcomes, final_outcomes, _, _ = rest
  # The remainder of numbers that had to be rounded is meaningless.
  exact = outcomes < LARGEST_EXACT
  _check(
    (np.fmod(final_outcomes, 1) != 0) | exact & (np.fmod(outcomes, final_outcomes) != 0),
    {"num_outcomes": outcomes, "num_final_outcomes": final_outcomes},
    "num_outcomes (|A|) must be a multiple of the whole number num_final_outcomes (|A_F|), because each pair of a "
    "partial and a final outcome makes one sample",
    "Give num_outcomes as |A_P| * |A_F|, the product of both parts' numbers of outcomes.",
  )
  return _plain(num_samples * _by_schedule(_variance, *rest, eviction))


def _by_schedule(function, outcomes, final_outcomes, epochs, r, eviction):
  """The average of `function` over the samples. `function` is called once for all numbers with one schedule."""
  checks.check_choice("eviction", eviction, ("balanced", "reference_count"))
  result = np.empty(outcomes.shape)
  for schedule in sorted(set(zip(epochs.flat, r.flat))):
    here = (epochs == schedule[0]) & (r == schedule[1])
    first_evictions, weights = _first_evictions(*schedule, eviction)
    result[here] = (
      function(outcomes[here][:, np.newaxis], final_outcomes[here][:, np.newaxis], *schedule, first_evictions) @ weights
    )
  return _plain(result)


def _first_evictions(epochs, r, eviction):
  """After how many epochs samples are first evicted: the values that differ in effect, and the fraction with each."""
  if eviction == "reference_count":
    return np.array([r]), np.ones(1)
  # A sample's generation in epoch t depends on whether t modulo r is at least w, the number of epochs before its first
  # eviction. So all w between two of these remainders are equivalent. The remainder of two floats is exact.
  remainders = np.unique(np.fmod(np.arange(epochs), r))
  edges = np.append(remainders, r)
  return edges[1:], np.diff(edges) / r


def _fresh(epochs, r, first_evictions):
  """Yields, for every epoch, the samples that are prepared, as indices into `first_evictions`."""
  generation = np.full(first_evictions.shape, -1.0)
  for epoch in range(int(epochs)):
    before, generation = generation, epoch // r + (math.fmod(epoch, r) >= first_evictions)
    yield np.flatnonzero(generation != before)


def _expectation(outcomes, final_outcomes, epochs, r, first_evictions):
  """Theorem 1 with the actual numbers of uses. Shapes [numbers, 1], [numbers, 1], (), (), [samples]."""
  uses = np.zeros(first_evictions.shape)
  # The logarithm of the probability that a given outcome has never been drawn.
  log_missed = np.zeros(np.broadcast_shapes(outcomes.shape, first_evictions.shape))

  def add(evicted):
    # The probability that a given final outcome is drawn at least once in these uses.
    drawn = -np.expm1(uses[evicted] * np.log1p(-1 / final_outcomes))
    log_missed[:, evicted] += np.log1p(-final_outcomes / outcomes * drawn)

  with np.errstate(divide="ignore"):  # If there is only one outcome, it is never missed: the logarithm of 0.
    for epoch, fresh in enumerate(_fresh(epochs, r, first_evictions)):
      if epoch:
        add(fresh)
      uses[fresh] = 0
      uses += 1
    add(slice(None))
  return -outcomes * np.expm1(log_missed)


def _variance(outcomes, final_outcomes, epochs, r, first_evictions):
  """The variance of the number of unique samples, epoch by epoch. Shapes as in `_expectation`.

  c is how many final outcomes have been drawn with the partial outcome in use, u how many pairs have been drawn in all.
  A use draws a new pair with probability 1 - c/|A_F|, which adds 1 to both. Every line follows from this and the laws
  of total variance and covariance.
  """
  shape = np.broadcast_shapes(outcomes.shape, first_evictions.shape)
  partial_outcomes = outcomes / final_outcomes
  # How many final outcomes had been drawn with a given partial outcome when the one in use was drawn.
  mean, variance = np.zeros(shape), np.zeros(shape)
  mean_c, variance_c, covariance, variance_u = (np.zeros(shape) for _ in range(4))
  for epoch, fresh in enumerate(_fresh(epochs, r, first_evictions)):
    if epoch:
      # The partial outcome that was in use is the given one with probability 1/|A_P|. The next one is drawn
      # independently of the past: its count has the same distribution as any other, and all |A_P| counts add up to u.
      share = 1 / partial_outcomes
      step = mean_c[:, fresh] - mean[:, fresh]
      variance[:, fresh] += share * (variance_c[:, fresh] - variance[:, fresh]) + share * (1 - share) * step**2
      mean[:, fresh] += share * step
      mean_c[:, fresh], variance_c[:, fresh] = mean[:, fresh], variance[:, fresh]
      covariance[:, fresh] = share * variance_u[:, fresh]
    drawn_before = mean_c / final_outcomes
    spread = drawn_before * (1 - drawn_before)
    variance_u += spread - 2 * covariance / final_outcomes
    covariance = (1 - 1 / final_outcomes) * covariance - variance_c / final_outcomes + spread
    variance_c = (1 - 2 / final_outcomes) * variance_c + spread
    mean_c = (1 - 1 / final_outcomes) * mean_c + 1
  # If nothing varies, rounding may leave a small number on either side of 0.
  return np.maximum(variance_u, 0)


def _checked(num_outcomes, num_final_outcomes, epochs, r, **num_samples):
  """The numbers as float arrays of one shape, `num_samples` first if it is given."""
  named = {
    **num_samples,
    "num_outcomes": num_outcomes,
    "num_final_outcomes": num_final_outcomes,
    "epochs": epochs,
    "r": r,
  }
  named = {name: _real(name, value) for name, value in named.items()}
  try:
    named = dict(zip(named, np.broadcast_arrays(*named.values())))
  except ValueError:
    raise ValueError(
      "The arrays must broadcast as in NumPy, got the shapes "
      f"{', '.join(f'{value.shape} of {name}' for name, value in named.items())}. To combine all values, put them on "
      "separate axes: r[:, np.newaxis]."
    ) from None
  *_, outcomes, final_outcomes, epochs, r = named.values()
  for name, value in named.items():
    what, advice = _NUMBERS[name]
    _check(~((value >= 1) & np.isfinite(value)), {name: value}, f"{what} must be a finite number of at least 1", advice)
    if name in ("num_samples", "epochs"):
      _check(np.fmod(value, 1) != 0, {name: value}, f"{what} must be a whole number", "Round it.")
  _check(
    epochs > MAX_EPOCHS,
    {"epochs": epochs},
    f"epochs (k) must be at most {MAX_EPOCHS:,}",
    "Give fewer, because the computation takes longer with each.",
  )
  _check(
    final_outcomes > outcomes,
    {"num_outcomes": outcomes, "num_final_outcomes": final_outcomes},
    "num_final_outcomes (|A_F|) must be at most num_outcomes (|A|), the number for the whole augmentation",
    "Give num_outcomes as |A_P| * |A_F|, the product of both parts' numbers of outcomes.",
  )
  _check(
    r > epochs,
    {"epochs": epochs, "r": r},
    "epochs (k) must be at least r, because a sample is used once per epoch, so at most k times",
    "Train for more epochs, or use a smaller reuse factor.",
  )
  return tuple(named.values())


def _real(name, value):
  """`value` as an array of floats."""
  allowed = f"{name} must be a real number or an array of real numbers"
  try:
    array = np.asarray(value)
  except ValueError:  # Nested lists of different lengths.
    raise TypeError(f"{allowed}, got {value!r}.") from None
  # An array of objects holds numbers for which NumPy has no type, such as whole numbers from 2**64 on.
  if array.dtype.kind not in "iuf" and not (array.dtype.kind == "O" and all(map(checks.is_real, array.flat))):
    raise TypeError(f"{allowed}, got {value!r}.")
  try:
    return array.astype(np.float64)
  except OverflowError:
    raise ValueError(f"{name} must be below 1e308, got {value!r}.") from None


def _check(is_wrong, named, allowed, advice):
  """Raises ValueError with the first number that is wrong."""
  if np.any(is_wrong):
    got = ", ".join(f"{name}={np.asarray(array)[is_wrong].flat[0]:.17g}" for name, array in named.items())
    raise ValueError(f"{allowed}, got {got}. {advice}".rstrip())


def _plain(array):
  """The array, or a float if it has no axes."""
  return array if np.ndim(array) else float(array)

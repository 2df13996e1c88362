"""Recommends an echoing factor for a pipeline: `rtf.recommend_echo_factor`."""
from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import Any, Callable, Iterable

import tensorflow as tf

from refurbish_tf._internal import checks, tracing

# The upstream is measured in this many stretches; the median counts.
WINDOWS = 5
# Steps that trace, compile and fill caches. The first few of a network take longer than all that follow.
WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True)
class EchoPrediction:
  """The times that are predicted for an echoing factor.

  Attributes:
    factor: the echoing factor e.
    upstream_step: seconds for one upstream step and its e downstream steps, max(t_upstream, e * t_downstream).
    downstream_step: seconds for one downstream step, the same divided by e.
  """
  factor: float
  upstream_step: float
  downstream_step: float


@dataclasses.dataclass(frozen=True)
class EchoRecommendation:
  """What `rtf.recommend_echo_factor` found. Prints as a table.

  Attributes:
    t_upstream: seconds in which the input of the echo stage yields an element if nothing holds it up.
    t_downstream: seconds for a step on such an element.
    ratio: R = t_upstream / t_downstream.
    factor: the echoing factor recommended, the largest that costs no time: R in whole tenths, at least 1 and at most
      the `max_e` that was asked for. With a fraction, the number of elements of the echoed dataset is unknown.
    predictions: a tuple of `EchoPrediction`, by factor.
    whole_factor: the largest whole factor that costs no time, for use if the number of elements must be known.
    step_without_echo: seconds for a step without echo.
  """
  t_upstream: float
  t_downstream: float
  ratio: float
  factor: float
  predictions: tuple[EchoPrediction, ...]

  def __str__(self) -> str:
    rows = [["e", "ms per upstream step", "ms per downstream step", "steps per second", "faster by", ""]]
    for row in self.predictions:
      rows.append([
          f"{row.factor:g}", f"{1e3 * row.upstream_step:.3g}", f"{1e3 * row.downstream_step:.3g}",
          f"{1 / row.downstream_step:.3g}", f"{self.step_without_echo / row.downstream_step:.2f}x",
          "<- recommended" if row.factor == self.factor else
          "<- number of elements known" if row.factor == self.whole_factor else ""])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        f"t_upstream = {1e3 * self.t_upstream:.3g} ms, t_downstream = {1e3 * self.t_downstream:.3g} ms, "
        f"R = {self.ratio:.2f}: echo({self.factor:g})"]
    if self.factor != self.whole_factor:
      lines.append(
          f"With a fraction the number of elements is unknown, so Keras shows no total in the first epoch; with "
          f"echo({self.whole_factor}) it is known.")
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)

  @property
  def whole_factor(self) -> int:
    return math.floor(self.factor)

  @property
  def step_without_echo(self) -> float:
    return max(self.t_upstream, self.t_downstream)


def recommend_echo_factor(
    upstream: tf.data.Dataset[Any], step_fn: Callable[..., Any] | None = None, *, step_time: float | None = None,
    factors: Iterable[float] | None = None, max_e: int = 8, num_elements: int = 100, num_steps: int = 20,
    clock: Callable[[], float] = time.perf_counter) -> EchoRecommendation:
  """Measures how many times each element can be used without costing time, R = t_upstream / t_downstream.

  >>> upstream = tf.data.Dataset.range(200).batch(2)
  >>> recommendation = rtf.recommend_echo_factor(upstream, step_time=10.0)
  >>> recommendation.factor
  1.0
  >>> print(recommendation)  # doctest: +SKIP
  t_upstream = 24.1 ms, t_downstream = 8.02 ms, R = 3.00: echo(3)
    e  ms per upstream step  ms per downstream step  steps per second  faster by
    1                  24.1                    24.1              41.5      1.00x
    2                  24.1                      12                83      2.00x
    3                  24.1                    8.03               125      3.00x  <- recommended
    4                  32.1                    8.02               125      3.00x
  ...

  Where reading and training run at the same time, one upstream step and its e downstream steps take
  max(t_upstream, e * t_downstream), so a factor of up to R is free (Choi et al., "Faster Neural Network Training with
  Data Echoing", 2019, section 2, equation 1). Whether a repeated element is worth as much as a fresh one is not
  measured. In the paper it nearly always was, with factors of up to about 4.

  The upstream and the step are measured one after the other. If both need the same cores, a step is slower in training
  than here. Measure on the machine that trains, with nothing else running.

  Args:
    upstream: the `tf.data.Dataset` behind which `echo` would stand, in batches: to echo elements, add
      `.batch(batch_size)` here, as R is the same for an element and for a batch. It is read from its beginning, again
      if it is short.
    step_fn: a function of a batch, called as in `tf.data.Dataset.map`, that does what comes behind the echo:
      `model.train_on_batch`, or for "before_augment" a function that augments the batch and trains on it. It must
      return when the step is done, or return the step's results. The steps are real: the model learns.
    step_time: in place of `step_fn`, the seconds of a step, if they are known.
    factors: the echoing factors to predict for, real numbers of at least 1. None for the whole numbers up to `max_e`.
    max_e: the largest factor to recommend, as more repetitions of a sample help less and less.
    num_elements: how many elements to measure, after half as many that are not counted.
    num_steps: how many steps to measure, after a few that are not counted.
    clock: a function that returns seconds, for tests.

  Returns:
    An `EchoRecommendation`. t_upstream is the median over stretches of elements, as a parallel stage yields them in
    bursts; t_downstream is the median of the steps.

  Raises:
    ValueError: both or neither of `step_fn` and `step_time` are given; `step_time` or one of `factors`, `max_e`,
      `num_elements` and `num_steps` is out of range; `upstream` is empty.
    TypeError: an argument is of the wrong type.
  """
  if not isinstance(upstream, tf.data.Dataset):
    raise TypeError(f"upstream must be a tf.data.Dataset, the one behind which echo would stand, got {upstream!r}.")
  if (step_fn is None) == (step_time is None):
    raise ValueError(
        f"Either step_fn or step_time must be given, got {'neither' if step_fn is None else 'both'}. Write "
        "step_fn=model.train_on_batch to measure a step, or step_time=0.01 if it is known to take 10 ms.")
  if step_fn is not None:
    checks.check_callable("step_fn", step_fn)
  else:
    checks.check_real("step_time", step_time, lambda value: 0 < value < math.inf, "the seconds of a step, a positive number")
  checks.check_whole_number("max_e", max_e, 1)
  checks.check_whole_number("num_elements", num_elements, 1)
  checks.check_whole_number("num_steps", num_steps, 1)
  try:
    factors = tuple(range(1, max_e + 1) if factors is None else factors)
  except TypeError:
    raise TypeError(
        f"factors must be a list of real numbers of at least 1, such as [1, 2, 4], got {factors!r}.") from None
  for factor in factors:
    checks.check_real("factors", factor, lambda value: 1 <= value < math.inf, "real numbers of at least 1")

  t_upstream, element = _measure_upstream(upstream, num_elements, clock)
  t_downstream = float(step_time) if step_fn is None else _measure_step(step_fn, element, num_steps, clock)
  # Not zero, even if the clock is too coarse.
  ratio = t_upstream / max(t_downstream, 1e-12)
  # Tenths and not whole numbers: for R = 1.9 a whole number would give away nearly half of the gain. The small constant
  # makes up for rounding, so that 3 times 0.1 over 0.1 is 3.
  factor = min(max(1.0, math.floor(10 * ratio + 1e-6) / 10), float(max_e))
  predictions = []
  for e in sorted({*map(float, factors), factor, float(math.floor(factor))}):
    upstream_step = max(t_upstream, e * t_downstream)
    predictions.append(EchoPrediction(e, upstream_step, upstream_step / e))
  return EchoRecommendation(t_upstream, t_downstream, ratio, factor, tuple(predictions))


def _measure_upstream(upstream, num_elements, clock):
  """Returns the seconds for an element, and an element."""
  window = max(1, num_elements // WINDOWS)
  elements = _endless(upstream)
  for _ in range(1 + num_elements // 2):
    element = next(elements)
  seconds = []
  for _ in range(min(WINDOWS, num_elements)):
    began = clock()
    for _ in range(window):
      element = next(elements)
    seconds.append((clock() - began) / window)
  return statistics.median(seconds), element


def _endless(dataset):
  while True:
    empty = True
    for element in dataset:
      empty = False
      yield element
    if empty:
      raise ValueError("upstream must have at least one element, got an empty dataset.")


def _measure_step(step_fn, element, num_steps, clock):
  seconds = []
  for step in range(WARM_UP_STEPS + num_steps):
    began = clock()
    _wait(tracing.call(step_fn, element))
    if step >= WARM_UP_STEPS:
      seconds.append(clock() - began)
  return statistics.median(seconds)


def _wait(result):
  """Waits until the devices have finished the step, which it may only have queued."""
  for value in tf.nest.flatten(result):
    if hasattr(value, "block_until_ready"):  # JAX.
      value.block_until_ready()
  tf.test.experimental.sync_devices()

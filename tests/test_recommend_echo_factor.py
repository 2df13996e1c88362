"""`rtf.recommend_echo_factor`, with a clock that the pipeline moves: nothing depends on the machine's speed."""
import math

import pytest
import tensorflow as tf

import refurbish_tf as rtf


class Clock:
  """Seconds that pass only when a stage says so."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now

  def pass_by(self, seconds):
    self.now += seconds


class Upstream:
  """`n` elements; reading the k-th takes `seconds(k)`."""

  def __init__(self, n, seconds):
    self.clock = Clock()
    self.read = 0

    def generate():
      for k in range(n):
        self.clock.pass_by(seconds(self.read))
        self.read += 1
        yield k, -k

    self.dataset = tf.data.Dataset.from_generator(
        generate, output_signature=(tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64)))
    options = tf.data.Options()
    # Otherwise elements are read ahead, and the clock moves before they are requested.
    options.experimental_optimization.inject_prefetch = False
    self.dataset = self.dataset.with_options(options)

  def recommend(self, *arguments, **options):
    return rtf.recommend_echo_factor(self.dataset, *arguments, clock=self.clock, **options)


@pytest.mark.parametrize("ratio, most, factor", [
    (0.2, None, 1), (1, None, 1), (2, None, 2), (3.47, None, 3.4), (6, None, 6), (30, None, 8), (30, 20, 20)])
def test_ratio_and_factor(ratio, most, factor):
  """The factor is in tenths, rounded so that it costs nothing."""
  found = Upstream(1000, lambda k: ratio * 0.1).recommend(step_time=0.1, **({} if most is None else {"max_e": most}))
  assert (found.t_upstream, found.t_downstream, found.ratio) == pytest.approx((ratio * 0.1, 0.1, ratio))
  assert found.factor == factor and found.step_without_echo == pytest.approx(max(ratio * 0.1, 0.1))
  assert [row.factor for row in found.predictions] == sorted({*range(1, (most or 8) + 1), factor})
  for row in found.predictions:
    assert row.upstream_step == pytest.approx(max(ratio * 0.1, row.factor * 0.1))
    assert row.downstream_step == pytest.approx(row.upstream_step / row.factor)


def test_shows_the_whole_factor_too():
  """A fraction leaves the number of elements unknown, so users who need it must see the whole factor."""
  for factors in (None, [1.5, 6]):
    found = Upstream(1000, lambda k: 0.226).recommend(step_time=0.1, factors=factors)
    assert (found.factor, found.whole_factor) == (2.2, 2)
    lines = str(found).splitlines()
    assert "number of elements is unknown" in lines[1] and "with echo(2) it is known" in lines[1]
    marked = [line.split() for line in lines if "<-" in line]
    assert [(line[0], " ".join(line[6:])) for line in marked] == [
        ("2", "number of elements known"), ("2.2", "recommended")]


def test_warm_up_and_outliers_do_not_count():
  # A slow start of 50 elements, then a hiccup now and then.
  found = Upstream(1000, lambda k: 50.0 if k < 50 else 9.0 if k == 77 else 0.4).recommend(step_time=0.1)
  assert found.t_upstream == pytest.approx(0.4)


def test_bursts_of_a_parallel_stage():
  # Four at a time: each takes longer than 0.1 s, but they come at that rate.
  assert Upstream(1000, lambda k: 0.4 if k % 4 == 0 else 0.0).recommend(step_time=0.1).t_upstream == pytest.approx(0.1)


def test_short_upstream_is_read_again():
  upstream = Upstream(7, lambda k: 0.2)
  assert upstream.recommend(step_time=0.1).ratio == pytest.approx(2)
  assert upstream.read >= 150


def test_step_fn():
  upstream = Upstream(1000, lambda k: 0.3)
  seconds = iter([9.0, 5.0, 3.0] + [0.1, 0.1, 7.0, 0.1, 0.1])
  elements = []

  def step(x, y):
    elements.append((int(x), int(y)))
    upstream.clock.pass_by(next(seconds))
    return {"loss": tf.constant(1.0)}

  found = upstream.recommend(step, num_steps=5)
  assert found.t_downstream == pytest.approx(0.1)
  assert found.factor == 3
  assert len(elements) == 8 and all(x == -y for x, y in elements)


def test_prints_as_a_table():
  text = str(Upstream(1000, lambda k: 0.3).recommend(step_time=0.1, factors=[1, 2, 5, 2.5]))
  assert text.splitlines() == [
      "t_upstream = 300 ms, t_downstream = 100 ms, R = 3.00: echo(3)",
      "  e  ms per upstream step  ms per downstream step  steps per second  faster by",
      "  1                   300                     300              3.33      1.00x",
      "  2                   300                     150              6.67      2.00x",
      "2.5                   300                     120              8.33      2.50x",
      "  3                   300                     100                10      3.00x  <- recommended",
      "  5                   500                     100                10      3.00x",
  ]


@pytest.mark.parametrize("arguments, error, message", [
    (dict(), ValueError, "step_fn or step_time .*got neither"),
    (dict(step_fn=print, step_time=1.0), ValueError, "step_fn or step_time .*got both"),
    (dict(step_fn=3), TypeError, "^step_fn "),
    (dict(step_time=0), ValueError, "^step_time .*got 0"),
    (dict(step_time=math.nan), ValueError, "^step_time .*got nan"),
    (dict(step_time="1"), TypeError, "^step_time .*got '1'"),
    (dict(step_time=1, factors=[0.5]), ValueError, "^factors .*got 0.5"),
    (dict(step_time=1, factors=5), TypeError, "^factors .*got 5"),
    (dict(step_time=1, max_e=0), ValueError, "max_e"),
    (dict(step_time=1, num_elements=0), ValueError, "num_elements"),
    (dict(step_fn=print, num_steps=1.5), TypeError, "num_steps"),
    (dict(upstream=[1, 2], step_time=1), TypeError, "^upstream "),
    (dict(upstream=tf.data.Dataset.range(0), step_time=1), ValueError, "^upstream .*empty"),
])
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    rtf.recommend_echo_factor(**{"upstream": tf.data.Dataset.range(3), **arguments})

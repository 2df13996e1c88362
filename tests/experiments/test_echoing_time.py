"""Echoing by the clock: the trainings, the speed of the disk, and the contents of tables and figures."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf.experiments import echoing_time, images, plots, results, slow_disk, tables, training
from support import cases
from test_full_length import cells

pytestmark = cases.slow


@pytest.fixture
def clock(monkeypatch):
  """A fake clock, which advances when something sleeps. If `together` is set it stops, as if all sleeps began at the
  same time."""
  clock = types.SimpleNamespace(now=100.0, slept=[], together=False)

  def sleep(seconds):
    clock.slept.append(seconds)
    clock.now += 0 if clock.together else seconds

  monkeypatch.setattr(slow_disk, "time", types.SimpleNamespace(perf_counter=lambda: clock.now, sleep=sleep))
  return clock


def test_the_disk_keeps_its_rate(clock):
  """The disk reads one file at a time, even if a sleep ends late, and does not make up for idle time."""
  disk = slow_disk.SlowDisk([bytes(100), bytes(300)], bytes_per_second=100, latency=2)
  read = lambda index: len(disk.read(tf.constant(index, tf.int64)).numpy())
  clock.together = True
  assert [read(index) for index in (0, 1, 1, 0)] == [100, 300, 300, 100]
  assert clock.slept == [3, 8, 13, 16] and disk.reads == 4
  clock.now += 14  # The third sleep ended one second late.
  read(0)
  assert clock.slept[-1] == 16 + 3 - 14
  clock.now = 200
  read(0)
  assert clock.slept[-1] == 3
  # One second of the last read's three has passed when the disk is paused.
  clock.now += 1
  with disk.paused():
    clock.now += 10
  read(0)
  assert clock.slept[-1] == 2 + 3


def test_a_batch_takes_r_steps():
  """On average, reading a batch takes as long as r steps, and half of that is latency."""
  slow, disk = echoing_time.by_index(images.shapes(64), 4)
  files = [record for record, _ in slow.train.as_numpy_iterator()]
  batch = echoing_time.BATCH_SIZE * np.mean([disk._latency + len(file) / disk._rate for file in files])
  assert batch == pytest.approx(4 * echoing_time.STEP_SECONDS)
  assert disk._latency * echoing_time.BATCH_SIZE == pytest.approx(2 * echoing_time.STEP_SECONDS)
  assert files == [record for record, _ in images.shapes(64).train.as_numpy_iterator()] and disk.reads == 64


def test_seconds_are_those_of_reading_and_of_steps(clock, monkeypatch):
  """A step takes its planned time, or longer. The validation does not count."""
  monkeypatch.setattr(echoing_time, "time", slow_disk.time)

  def spend(seconds, what=None):
    clock.now += seconds
    return what

  took, right = iter([0.01, 0.02, 0.03, 0.024]), iter([16, 30])
  monkeypatch.setattr(echoing_time, "pipeline", lambda *how: iter(lambda: spend(0.1, (0, 0)), None))
  monkeypatch.setattr(
    echoing_time, "_training_step", lambda *how: (lambda *batch: spend(next(took)), lambda *some: spend(5, next(right)))
  )
  found = echoing_time.train(images.shapes(128), "after_batch", 2, 4, 0.02, 0.9, 99, 2, 0)
  assert found == {
    "fresh": 4 * 64 // 2,
    "steps": 4,
    "accuracy": 0.9375,
    "accuracies": "0.5000 0.9375",
    "seconds": round(4 * 0.1 + 3 * 0.024 + 0.03, 2),
    "read": 0,
    "late_steps": 1,
  }


@pytest.fixture
def small(monkeypatch):
  """A small network, and batches of 16."""
  made = []

  def network(images):
    made.append(
      keras.Sequential(
        [
          keras.Input(images.shape, dtype="uint8"),
          keras.layers.Rescaling(1 / 255),
          keras.layers.Flatten(),
          keras.layers.Dense(images.classes),
        ]
      )
    )
    return made[-1]

  monkeypatch.setattr(training, "small_cnn", network)
  for name, value in (("BATCH_SIZE", 16), ("SHUFFLE_BUFFER_SIZE", 24), ("STEP_SECONDS", 0.001)):
    monkeypatch.setattr(echoing_time, name, value)
  return made


def test_a_training_counts_its_reads_and_stops_without_the_target(small):
  """A training reads the images that it trains on and those that fill its buffers."""
  found = echoing_time.train(images.shapes(64), "before_augment", 2, 4, 0.02, 1, 8, 4, 0)
  assert (found["steps"], found["fresh"], len(found["accuracies"].split())) == (8, -1, 2)
  assert 64 <= found["read"] <= 64 + 24 + 64


def test_nothing_is_trained_before_the_clock_starts(small):
  keras.utils.set_random_seed(5)
  echoing_time._training_step(images.shapes(64), 0.5)
  keras.utils.set_random_seed(5)
  training.small_cnn(images.shapes(64))
  for ours, untrained in zip(small[0].get_weights(), small[1].get_weights()):
    np.testing.assert_array_equal(ours, untrained)
  step, _ = echoing_time._training_step(images.shapes(64), 0.5)
  before = small[2].get_weights()[0]
  step(tf.ones([16, 32, 32, 3], tf.uint8), tf.zeros([16], tf.int64))
  assert (small[2].get_weights()[0] != before).any()


@pytest.fixture
def timed():
  """Made-up rows of all parts: one strategy was faster, one was late, and one did not reach the target."""
  rows = [
    {
      "what": "time",
      "where": where,
      "e": e,
      "ratio": ratio,
      "learning_rate": 0.02,
      "seed": seed,
      "seconds": seconds * spread,
      "fresh": int(fresh * spread),
      "read": (fresh + 200) * spread,
      "steps": 100,
      "accuracy": 0.5,
      "late_steps": late,
    }
    for where, e, ratio, seconds, fresh, late in (
      ("baseline", 1, 4, 40, 1000, 0),
      ("before_augment", 4, 4, 16, 360, 0),
      ("before_augment", 8, 4, 25, 300, 3),
      ("before_augment", "AUTOTUNE", 4, 20, 500, 0),
      ("refurbish", 2, 4, 30, 700, 0),
      ("after_batch", 8, 4, 90, 900, 0),
      ("baseline", 1, 2, 20, 1000, 0),
      ("before_augment", 2, 2, 10, 500, 0),
    )
    for seed, spread in enumerate((0.9, 1, 1.1))
  ]
  rows[17]["fresh"] = -1
  rows += [
    {"what": "budget", "where": where, "e": e, "learning_rate": 0.01, "seed": seed, "accuracy": accuracy}
    for where, e, accuracies in (("baseline", 1, (0.5, 0.51, 0.52)), ("before_augment", 4, (0.55, 0.56, 0.57)))
    for seed, accuracy in enumerate(accuracies)
  ]
  return rows


def test_the_tables_of_the_clock(timed):
  # The steps of the training with e = 8 take twice as long as its reading.
  assert (
    ["| ".join(line) for line in cells(tables.times(timed))]
    == """
baseline| 4| 0.02| 40.0 ± 4.0| 3 of 3| | | 1| 0.0 %
example echoing before augmentation, e = 4| 4| 0.02| 16.0 ± 1.6| 3 of 3| 2.50 (1.99 to 3.14)| 2.78| 4| 0.0 %
example echoing before augmentation, e = 8| 4| 0.02| 25.0 ± 2.5| 3 of 3| 1.60 (1.27 to 2.01)| 1.67| 4| 3.0 %
example echoing before augmentation, e = AUTOTUNE| 4| 0.02| 20.0 ± 2.0| 3 of 3| 2.00 (1.59 to 2.51)| 1.71| 4| 0.0 %
refurbish, r = 2| 4| 0.02| 30.0 ± 3.0| 3 of 3| 1.33 (1.06 to 1.67)| 1.33| 2| 0.0 %
batch echoing, e = 8| 4| 0.02| 85.5 ± 6.4| 2 of 3| | | 4| 0.0 %
baseline| 2| 0.02| 20.0 ± 2.0| 3 of 3| | | 1| 0.0 %
example echoing before augmentation, e = 2| 2| 0.02| 10.0 ± 1.0| 3 of 3| 2.00 (1.59 to 2.51)| 2.00| 2| 0.0 %
""".strip().split("\n")
  )
  assert tables.headline(timed).startswith(
    "With R = 4, echoing 4 times before augmentation reached the target 2.50 (1.99 to 3.14) times as fast as the "
    "baseline, and 2.78"
  )
  assert cells(tables.budget(timed)) == [
    ["baseline", "0.01", "51.0 ± 1.0 %", "3", "", ""],
    ["example echoing before augmentation, e = 4", "0.01", "56.0 ± 1.0 %", "3", "+5.00 ± 2.27", "**higher**"],
  ]
  before = "example echoing before augmentation"
  assert cells(tables.gains(timed)) == [
    [before, "2.50 (1.99 to 3.14)", "1.60 (1.27 to 2.01)"],
    ["batch echoing", "", "2 of 3 reached it"],
  ]
  assert cells(tables.gains(timed, factors=(8,))) == [
    [before, "1.60 (1.27 to 2.01)"],
    ["batch echoing", "2 of 3 reached it"],
  ]
  assert cells(tables.gains(timed, ratio=2)) == [[before, "2.00 (1.59 to 2.51)"]]


def test_tables_of_incomplete_trainings_omit_comparisons(timed):
  """Without the rows of the baseline, nothing is compared with it."""
  without = [row for row in timed if row["where"] != "baseline"]
  assert {(line[5], line[6]) for line in cells(tables.times(without))} == {("", "")} and tables.headline(without) == ""
  assert cells(tables.budget(without))[0][4:] == ["", ""]
  one = [row for row in timed if row["what"] == "time" and row["seed"] == 0]
  assert cells(tables.times(one))[1][5:7] == ["2.50", "2.78"]
  for some in (without, one, timed[:4], timed[15:18]):
    plots.pyplot.close(plots.echoing_time(some))


def test_the_figure_of_the_clock(timed):
  """The figure shows means with their intervals, the least possible seconds, and the number of trainings that reached
  the target."""
  figure = plots.echoing_time(timed)
  seconds, best = figure.axes
  assert [tick.get_text() for tick in seconds.get_xticklabels()] == ["1", "4", "8", "e =\nAUTOTUNE", "r = 2"]
  marked = {line.get_marker(): line.get_ydata().tolist() for line in seconds.get_lines() if line.get_marker() in "Xos"}
  assert marked == {"X": pytest.approx([40]), "o": pytest.approx([20, 16, 25]), "s": pytest.approx([30])}
  (dashed,) = (line for line in seconds.get_lines() if line.get_linestyle() == "--")
  assert dashed.get_ydata().tolist() == pytest.approx([40, 10, 10])
  assert [text.get_text() for text in seconds.texts] == ["2 of 3 reached it"]
  assert [line.get_ydata()[0] for line in best.get_lines() if line.get_marker() in "Xo"] == pytest.approx([51, 56])
  plots.pyplot.close(figure)


def test_the_quotient_of_means():
  middle, low, high = results.quotient([2.0, 8.0], [1.0, 1.0])
  assert middle == pytest.approx(4)
  # Computed by scipy.stats.t.interval(0.95, 1, loc=log(4), scale=log(2)): only the first list has a spread.
  assert (low, high) == pytest.approx((4 / 2**12.7062, 4 * 2**12.7062), rel=1e-4)
  assert results.quotient([3.0], [2.0]) == (pytest.approx(1.5), None, None)

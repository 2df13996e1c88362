"""What data echoing costs, and what it gains if reading is slow (Choi et al., 2019).

The first is measured for real. The second is shown with a simulated upstream, a `map` that sleeps, and a simulated
downstream, a loop that holds each batch for a fixed time: so R = t_upstream / t_downstream is known, and only the
overlap of the stages is measured.
"""
import math
import statistics
import time

import common
import tensorflow as tf

import refurbish_tf as rtf

FACTOR = 4
T_DOWNSTREAM = 0.05
RATIOS = (1, 2, 4, 6)
NUM_STEPS = 48


def measure(quick):
  """Yields the sections."""
  for section in (cost, speed):
    common.say(section.__doc__)
    yield section(quick)


def cost(quick):
  """Cost of the stage"""
  count, batch, rounds = (4096 if quick else 200_000), 1024, (1 if quick else 9)
  source = tf.data.Dataset.range(count // FACTOR)
  costs = common.cpu_of_epochs({
      "echo": source.echo(FACTOR).batch(batch),
      "repeat": source.repeat(FACTOR).batch(batch),
      "flat_map": source.flat_map(lambda t: tf.data.Dataset.from_tensors(t).repeat(FACTOR)).batch(batch),
  }, rounds=rounds)
  costs = common.per_element(count, costs)
  return common.Section(
      cost.__doc__,
      f"CPU time per element that comes out, {count:,} int64 scalars with .batch({batch:,}), whose own cost is in all of "
      f"them, at e = {FACTOR}. flat_map is what the paper writes: flat_map(lambda t: Dataset.from_tensors(t).repeat(e)).",
      [common.Row("echo_cost", f"echo({FACTOR})", "µs", costs["echo"]),
       common.Row("repeat_cost", f"range.repeat({FACTOR})", "µs", costs["repeat"]),
       common.Row("flat_map_cost", "flat_map", "µs", costs["flat_map"]),
       common.Row("of_repeat", f"echo({FACTOR})", "of repeat",
                  common.quotients(costs["echo"], costs["repeat"]), limit=1.2),
       common.Row("of_flat_map", f"echo({FACTOR})", "of flat_map",
                  common.quotients(costs["echo"], costs["flat_map"]), limit=0.05)])


def speed(quick):
  """Time per step, simulated"""
  rows = []
  for ratio in RATIOS[:1] if quick else RATIOS:
    shares = {"none": [], "R": [], "AUTOTUNE": []}
    adaptive = upstream(ratio * T_DOWNSTREAM).echo(rtf.AUTOTUNE)
    for _ in range(1 if quick else 3):
      alone = train(tf.data.Dataset.range(10**6))
      shares["none"].append(train(upstream(ratio * T_DOWNSTREAM), num_steps=12) / alone)
      shares["R"].append(train(upstream(ratio * T_DOWNSTREAM).echo(ratio), ratio) / alone)
      shares["AUTOTUNE"].append(train(adaptive, ratio) / alone)
    reached = rtf.stats(adaptive)[0].total.factor
    rows += [
        common.Row(f"r{ratio}_none", f"R = {ratio}: no echo", "of t_downstream", shares["none"]),
        common.Row(f"r{ratio}_echo", f"R = {ratio}: echo({ratio})", "of t_downstream", shares["R"], limit=1.053),
        common.Row(f"r{ratio}_autotune", f"R = {ratio}: echo(AUTOTUNE), which reached {reached:.2f}", "of t_downstream",
                   shares["AUTOTUNE"], limit=1.111)]
  return common.Section(
      speed.__doc__,
      "Time per step as a multiple of what a step takes when its input is always ready: a simulated downstream holds "
      f"each batch for {1000 * T_DOWNSTREAM:.0f} ms, and a simulated upstream, a map that sleeps, takes R times as "
      "long. The limits are 1 / 0.95 and 1 / 0.9: the shares of the downstream's own steps per second. AUTOTUNE is not "
      "told R.", rows)


def upstream(t_upstream):
  """A simulated upstream: a map that sleeps."""
  def read(x):
    time.sleep(t_upstream)
    return x

  # The prefetch reads the next element while this one is repeated.
  return tf.data.Dataset.range(10**6).map(
      lambda x: tf.ensure_shape(tf.numpy_function(read, [x], tf.int64), [])).prefetch(1)


def train(dataset, e=1, num_steps=NUM_STEPS, warm_up=8):
  """Seconds a step of a training that takes T_DOWNSTREAM for each, the median over stretches of whole upstream steps."""
  iterator = iter(dataset)
  ends = []
  for _ in range(warm_up + num_steps):
    next(iterator)
    time.sleep(T_DOWNSTREAM)
    ends.append(time.perf_counter())
  stretch = e * math.ceil(6 / e)
  ends = ends[warm_up - 1:]
  return statistics.median(
      (ends[k + stretch] - ends[k]) / stretch for k in range(0, len(ends) - stretch, stretch))

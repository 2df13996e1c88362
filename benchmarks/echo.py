"""What data echoing costs, and what it gains if reading is slow (Choi et al., 2019).

The first is measured for real. The second is shown with a simulated upstream, a `map` that sleeps, and a simulated
downstream, a loop that holds each batch for a fixed time: so R = t_upstream / t_downstream is known, and only the
overlap of the stages is measured. The picture "time" corresponds to Figures 2 and 4 of the paper.
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
CURVE_RATIO = 4
CURVE_FACTORS = (1, 1.5, 2, 3, 4, 5, 6, 8)
NUM_STEPS = 48
# With this seed the elements of these steps are echoed exactly as often as expected, so few steps suffice for e = 1.5.
SEED = 6


def measure(quick):
  """Yields the sections."""
  for section in (cost, speed, curve):
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
       common.Row("of_repeat", "echo against repeat", "of the baseline",
                  common.quotients(costs["echo"], costs["repeat"]), limit=1.2),
       common.Row("of_flat_map", "echo against flat_map", "of the baseline",
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


def curve(quick):
  """Time over the echoing factor, simulated"""
  t_upstream = rtf.recommend_echo_factor(
      upstream(CURVE_RATIO * T_DOWNSTREAM), step_time=T_DOWNSTREAM, num_elements=5 if quick else 20).t_upstream
  t_downstream = train(tf.data.Dataset.range(10**6))
  rows, measured = [], {}
  for e in CURVE_FACTORS[:1] if quick else CURVE_FACTORS:
    predicted = max(t_upstream, e * t_downstream)
    found = [e * train(upstream(CURVE_RATIO * T_DOWNSTREAM).echo(e, seed=SEED), e) for _ in range(1 if quick else 3)]
    measured[e] = statistics.median(found)
    rows += [common.Row(f"time_{e}", f"e = {e}: predicted {1000 * predicted:.1f}", "ms", [1000 * t for t in found]),
             common.Row(f"off_{e}", f"e = {e}: off the prediction by", "of it", [abs(measured[e] / predicted - 1)],
                        limit=0.05)]
  timelines = {e: _timeline(e) for e in (1, 2)}
  return common.Section(
      curve.__doc__,
      f"One upstream step and its e downstream steps, R = {CURVE_RATIO}, simulated as above, against the paper's equation "
      f"1: max(t_upstream, e * t_downstream), with t_upstream = {1000 * t_upstream:.1f} ms and t_downstream = "
      f"{1000 * t_downstream:.1f} ms, each measured alone.", rows,
      {"time": lambda figure: _draw(figure, t_upstream, t_downstream, measured, timelines)})


def upstream(t_upstream, record=None):
  """A simulated upstream: a map that sleeps. The times of its reads go to `record`."""
  def read(x):
    began = time.perf_counter()
    time.sleep(t_upstream)
    if record is not None:
      record.append((began, time.perf_counter()))
    return x

  # The prefetch reads the next element while this one is repeated.
  return tf.data.Dataset.range(10**6).map(
      lambda x: tf.ensure_shape(tf.numpy_function(read, [x], tf.int64), [])).prefetch(1)


def train(dataset, e=1, num_steps=NUM_STEPS, warm_up=8, record=None):
  """Seconds a step of a training that takes T_DOWNSTREAM for each, the median over stretches of whole upstream steps."""
  iterator = iter(dataset)
  ends = []
  for _ in range(warm_up + num_steps):
    next(iterator)
    holding = time.perf_counter()
    time.sleep(T_DOWNSTREAM)
    ends.append(time.perf_counter())
    if record is not None:
      record.append((holding, ends[-1]))
  # With a fractional e no stretch has whole upstream steps; all steps together nearly do.
  stretch = int(e) * math.ceil(6 / e) if e == int(e) else num_steps
  ends = ends[warm_up - 1:]
  return statistics.median(
      (ends[k + stretch] - ends[k]) / stretch for k in range(0, len(ends) - stretch, stretch))


def _timeline(e, ratio=2, num_steps=8):
  """When the upstream and the downstream were at work: two lists of (begin, end) in seconds."""
  up, down = [], []
  train(upstream(ratio * T_DOWNSTREAM, up).echo(e), e, num_steps, warm_up=4, record=down)
  began = down[4][0]
  return [[(begin - began, end - began) for begin, end in spans if begin >= began - ratio * T_DOWNSTREAM]
          for spans in (up, down)]


def _draw(figure, t_upstream, t_downstream, measured, timelines):
  figure.set_size_inches(16, 6)
  left, right = figure.subplots(1, 2)
  for row, (e, (up, down)) in enumerate(timelines.items()):
    for spans, y, colour, label in ((up, 1.0, "#D55E00", "upstream"), (down, 0.6, "#0072B2", "downstream")):
      left.broken_barh(
          [(1000 * begin, 1000 * (end - begin)) for begin, end in spans], (y - 1.2 * row, 0.34), facecolors=colour,
          edgecolor="white", label=label if row == 0 else None)
    left.text(0, 1.38 - 1.2 * row, f"e = {e}")
  left.set(xlabel="milliseconds", yticks=[], xlim=(0, 8000 * T_DOWNSTREAM), ylim=(-0.75, 1.95),
           title="R = 2: the second use of each batch is free")
  left.legend(ncols=2, loc="upper right", frameon=False)
  right.plot(list(measured), [1000 * seconds / e for e, seconds in measured.items()], "o", color="#0072B2",
             label="measured")
  grid = [1 + k / 20 for k in range(20 * (max(CURVE_FACTORS) - 1) + 1)]
  right.plot(grid, [1000 * max(t_upstream, e * t_downstream) / e for e in grid], "--", color="black",
             label=r"max$(t_{upstream},\ e \cdot t_{downstream})\,/\,e$")
  right.set(xlabel="echoing factor e", ylabel="milliseconds per step", ylim=(0, None),
            title=f"R = {CURVE_RATIO}: up to R an echo costs nothing")
  right.legend(frameon=False)
  milliseconds = f"{1000 * T_DOWNSTREAM:.0f} ms"
  figure.suptitle(
      f"Simulated: reading sleeps for R x {milliseconds}, a step holds its batch for {milliseconds}", fontsize=15)

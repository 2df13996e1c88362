"""What a bound on the memory of the cache store costs: resident bytes and throughput over max_bytes.

As Figure 11 of Kim et al. (FusionFlow, VLDB 2023), which has throughput over the size of Revamper's cache in memory.
What is not kept is prepared in every epoch, so that a sample costs t_f + t_p * (share not kept + share kept / r).
"""
import itertools
import statistics
import time

import common
import tensorflow as tf

import refurbish_tf as rtf

R = 3
BATCH = 128
SHARES = (0, 0.25, 0.5, 0.75, 1)
SAMPLE_BYTES = 32 * 32 * 3
# Okabe and Ito's colours, which colour-blind people can distinguish; markers and dashes repeat what they say.
BLUE, VERMILION, GREEN = "#0072B2", "#D55E00", "#009E73"


def measure(quick):
  """Yields the sections."""
  common.say("Each share in a process of its own")
  count, epochs = (1024, 1) if quick else (32_768, 3)
  kinds = ["standard", "cache", *SHARES]
  found = {kind: [] for kind in kinds}
  with common.fresh_processes() as call:
    for _ in range(common.rounds(quick, 3)):
      for kind in kinds:
        found[kind].append(call(_train, kind, count, epochs))
  names = {"standard": "standard", "cache": "cache()", **{share: f"max_bytes = {share:.0%} of all" for share in SHARES}}
  yield _throughput(found, names, count, epochs)
  yield _resident(found, names, count)


def _throughput(found, names, count, epochs):
  rows = []
  for kind, name in names.items():
    rows += [common.Row(f"cpu_{kind}", name, "images/CPU s", [1 / run["cpu"] for run in found[kind]]),
             common.Row(f"wall_{kind}", name, "images/s", [1 / run["wall"] for run in found[kind]])]
  rows += [
      common.Row(f"expected_{share}", f"CPU time, {names[share]}", "of what is expected",
                 [run["cpu"] / _expected(share, standard["cpu"], cached["cpu"])
                  for run, standard, cached in zip(found[share], found["standard"], found["cache"])], limit=1.053)
      for share in SHARES]
  return common.Section(
      "Throughput",
      f"{count:,} images of 32x32, r = {R}, over {epochs} epochs after the first: rand_augment(), "
      f"what is kept, and .batch({BATCH}).map(random_crop_and_flip_batch(4), AUTOTUNE). With cache() in that place no "
      "sample is ever prepared again, so its CPU time is t_f, and t_p is what standard takes more. Expected is t_f + "
      "t_p * (share not kept + share kept / r); the limit is 1 / 0.95. 0% is one sample, as less than that is refused.",
      rows,
      {"shares": lambda figure: _draw(figure, found, count)})


def _resident(found, names, count):
  data = count * SAMPLE_BYTES
  rows = [common.Row(f"bytes_{kind}", name, "MB", [run["bytes"] / 1e6 for run in found[kind]])
          for kind, name in names.items()]
  rows += [
      common.Row(f"kept_{share}", f"Memory, {names[share]}", "of max_bytes",
                 [(run["bytes"] - nothing["bytes"]) / (share * data) for run, nothing in zip(found[share], found[0])],
                 limit=1.1)
      for share in SHARES[1:]]
  return common.Section(
      "Memory",
      "Growth of the resident memory from before the first epoch to after the last. The samples' data are "
      f"{data / 1e6:.1f} MB. With a limit: how much more than with 0%, where only the pipeline's own buffers grow.",
      rows)


def _expected(share, standard, cached):
  """Seconds a sample of the cost model."""
  return cached + (standard - cached) * (1 - share + share / R)


def _train(kind, count, epochs):
  """A dict of "cpu" and "wall" (seconds an image) and "bytes" (growth of the process). Run it in a new process."""
  batches = count // BATCH
  dataset = _dataset(kind, count)
  # Loads libraries and starts threads first.
  for _ in _dataset(kind, 4 * BATCH).take(12):
    pass
  before = common.resident_bytes()
  iterator = iter(dataset)
  for _ in itertools.islice(iterator, batches):
    pass
  cpu, wall = time.process_time(), time.perf_counter()
  for _ in itertools.islice(iterator, epochs * batches):
    pass
  cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
  return {"cpu": cpu / (epochs * batches * BATCH), "wall": wall / (epochs * batches * BATCH),
          "bytes": common.resident_bytes() - before}


def _dataset(kind, count):
  """Endless batches. The kind is "standard", "cache" or the share of the samples that is kept."""
  partial_fn = rtf.augment.compose([rtf.augment.rand_augment()])

  def prepare(index, seed):
    return partial_fn(tf.fill([32, 32, 3], tf.cast(index % 256, tf.uint8)), seed=seed)

  def prepare_unseeded(index):
    return prepare(index, tf.stack([tf.cast(index, tf.int32), 7]))

  # Made from indices, as images in memory would be counted, too.
  source = tf.data.Dataset.range(count)
  if kind == "standard":
    epoch = source.shuffle(count).map(prepare_unseeded, common.PARALLEL_CALLS)
  elif kind == "cache":
    epoch = source.map(prepare_unseeded, common.PARALLEL_CALLS).cache().shuffle(count)
  else:
    store = rtf.CacheStore(max_bytes=max(SAMPLE_BYTES, round(kind * count * SAMPLE_BYTES)))
    epoch = source.refurbish(prepare, None, r=R, store=store)
  return (epoch.repeat()
          .batch(BATCH)
          .map(rtf.augment.random_crop_and_flip_batch(4), tf.data.AUTOTUNE)
          .prefetch(tf.data.AUTOTUNE))


def _draw(figure, found, count):
  figure.set_size_inches(14, 6.5)
  speed, memory = figure.subplots(1, 2)
  cpu = {kind: statistics.median(run["cpu"] for run in runs) for kind, runs in found.items()}
  grid = [k / 100 for k in range(101)]
  speed.plot([100 * share for share in grid],
             [1 / _expected(share, cpu["standard"], cpu["cache"]) for share in grid],
             color="black", lw=2, label="expected of refurbish")
  _draw_points(speed, found, lambda run: 1 / run["cpu"])
  # Its line would be so far above that all others would coincide.
  speed.text(0.97, 0.04, f"cache(), never prepared again: {1 / cpu['cache']:,.0f}", transform=speed.transAxes,
             ha="right")
  speed.set(ylabel="images per CPU second", title="Throughput")
  speed.yaxis.set_major_formatter("{x:,.0f}")
  memory.plot([0, 100], [0, count * SAMPLE_BYTES / 1e6], color="black", lw=2, label="max_bytes")
  _draw_points(memory, found, lambda run: run["bytes"] / 1e6)
  memory.axhline(statistics.median(run["bytes"] / 1e6 for run in found["cache"]), color=GREEN, ls="-.", lw=2.5,
                 label="cache()")
  memory.set(ylabel="growth of resident memory, MB", title="Memory")
  for axes in (speed, memory):
    axes.set_xlabel("max_bytes, % of all samples")
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    axes.legend(loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_points(axes, found, value):
  values = [[value(run) for run in found[share]] for share in SHARES]
  middle = [statistics.median(of_one) for of_one in values]
  around = [[m - min(of_one) for m, of_one in zip(middle, values)],
            [max(of_one) - m for m, of_one in zip(middle, values)]]
  axes.errorbar([100 * share for share in SHARES], middle, yerr=around, fmt="o", color=BLUE, ms=11, capsize=5,
                label=f"refurbish, r = {R}", zorder=3)
  axes.axhline(statistics.median(map(value, found["standard"])), color=VERMILION, ls="--", lw=2.5,
               label="standard")

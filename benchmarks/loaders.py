"""The cost of `torch_loader` and `jax_loader`, compared with iterating the pipeline itself.

All of it runs on the CPU. If a loader's framework is not installed, its rows say so.
"""

import importlib.util
import random
import statistics
import time

import common
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

# The module that each loader needs.
LOADERS = {"torch_loader": "torch", "jax_loader": "jax"}
BARE = "bare"
SHAPE = (128, 224, 224, 3)
MOST_MICROSECONDS, MOST_OF_MEMCPY = 100, 1.2
SAMPLES = 1_000_000
MOST_MEGABYTES, MOST_MILLISECONDS = 1, 20
# Makes a pipeline endless in practice, because loaders reject pipelines that are declared endless.
REPEATED = 10**6


def measure(quick):
  """Yields the sections."""
  for section in (_beyond_next, _state):
    common.say(section.__doc__)
    yield section(quick)


def _installed():
  return {name: getattr(rtf, name) for name, module in LOADERS.items() if importlib.util.find_spec(module)}


def _row(key, name, loader, unit, values, limit=None):
  """A row of a loader. `values` are None if its framework is not installed."""
  missing = "" if values else f": {LOADERS[loader]} is not installed"
  return common.Row(f"{key}_{loader}", f"{loader}, {name}{missing}", unit, values or [], limit)


def _beyond_next(quick):
  """A large batch, beyond next"""
  own = tf.data.Dataset.range(REPEATED).map(lambda _: tf.raw_ops.Empty(shape=SHAPE, dtype=tf.uint8, init=False))
  cached = tf.data.Dataset.from_tensors(np.ones(SHAPE, np.uint8)).map(tf.identity).cache().repeat(REPEATED)
  took = {}
  options = tf.data.Options()
  options.experimental_optimization.inject_prefetch = False
  for kind, dataset in (("own", own.with_options(options)), ("cached", cached.with_options(options))):
    iterators = {BARE: iter(dataset), **{name: iter(loader(dataset)) for name, loader in _installed().items()}}
    functions = {name: iterator.__next__ for name, iterator in iterators.items()}
    functions["memcpy"] = np.ones(SHAPE, np.uint8).copy
    for name, values in _medians(functions, common.rounds(quick, 9), 5 if quick else 60).items():
      took[kind, name] = values

  def beyond(kind, loader):
    if (kind, loader) not in took:
      return None
    return [1e6 * (mine - bare) for mine, bare in zip(took[kind, loader], took[kind, BARE])]

  copied = beyond("cached", "torch_loader")
  memcpy = [1e6 * seconds for seconds in took["cached", "memcpy"]]
  return common.Section(
    _beyond_next.__doc__,
    f"Batches of {'x'.join(map(str, SHAPE))}, uint8, on the CPU, without a prefetch, so that nothing runs "
    "elsewhere: the loader's `next` minus the pipeline's, in turns in random order, each with the release of the "
    "previous batch. Own: a new batch that nothing else holds, in memory that was not written before. Cache: "
    "`cache()` after `batch`; torch_loader must copy it, because its user may write to it, but jax_loader need not. A "
    "memcpy copies a NumPy array and frees the previous one.",
    [
      common.Row("next_own", "next of the pipeline, its own", "µs", [1e6 * value for value in took["own", BARE]]),
      common.Row(
        "next_cached", "next of the pipeline, of a cache", "µs", [1e6 * value for value in took["cached", BARE]]
      ),
      common.Row("memcpy", "memcpy", "µs", memcpy),
      _row("beyond_own", "its own", "torch_loader", "µs beyond next", beyond("own", "torch_loader"), MOST_MICROSECONDS),
      _row("beyond_own", "its own", "jax_loader", "µs beyond next", beyond("own", "jax_loader"), MOST_MICROSECONDS),
      _row(
        "beyond_cached", "of a cache", "jax_loader", "µs beyond next", beyond("cached", "jax_loader"), MOST_MICROSECONDS
      ),
      _row(
        "copied",
        "of a cache",
        "torch_loader",
        "of a memcpy, beyond next",
        copied and common.quotients(copied, memcpy),
        MOST_OF_MEMCPY,
      ),
    ],
  )


def _medians(functions, rounds, calls):
  """Wall-clock seconds of calls that take turns: for each function, the median of every round."""
  results = dict.fromkeys(functions)
  medians = {name: [] for name in functions}
  for counted in [False] + [True] * rounds:
    took = {name: [] for name in functions}
    for _ in range(calls):
      for name in random.sample(list(functions), len(functions)):
        began = time.perf_counter()
        results[name] = functions[name]()  # The assignment frees the previous result.
        took[name].append(time.perf_counter() - began)
    if counted:
      for name, values in took.items():
        medians[name].append(statistics.median(values))
  return medians


def _state(quick):
  """The state itself"""
  count = 10_000 if quick else SAMPLES
  rows = []
  for name in LOADERS:
    megabytes, saved, loaded = [], [], []
    if name in _installed():

      def make(loader=_installed()[name]):
        return loader(tf.data.Dataset.range(count).refurbish(lambda index: index, r=3, seed=1).batch(128).prefetch(2))

      loader = make()
      iterator = iter(loader)
      for _ in range(count // 128 // 2):
        next(iterator)
      for _ in range(common.rounds(quick, 25)):
        next(iterator)
        began = time.perf_counter()
        state = loader.state_dict()
        saved.append(1e3 * (time.perf_counter() - began))
        megabytes.append(state["state"].nbytes / 1e6)
      for _ in range(common.rounds(quick, 5)):
        anew = make()
        began = time.perf_counter()
        anew.load_state_dict(state)
        next(iter(anew))
        loaded.append(1e3 * (time.perf_counter() - began))
    rows += [
      _row("state_bytes", "bytes", name, "MB", megabytes, MOST_MEGABYTES),
      _row("state_save", "state_dict()", name, "ms", saved, MOST_MILLISECONDS),
      _row("state_load", "load_state_dict(), first batch", name, "ms", loaded),
    ]
  return common.Section(
    _state.__doc__,
    f"In the middle of an epoch of {count:,} samples, r = 3, batches of 128 and a prefetch of 2, each time after "
    "another batch. The state is loaded into a new pipeline, as in a new process.",
    rows,
  )

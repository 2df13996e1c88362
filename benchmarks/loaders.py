"""What `torch_loader` and `jax_loader` cost beside iterating the pipeline itself.

On the CPU. A loader whose framework is not installed is marked so.
"""
import ctypes
import importlib.util
import random
import statistics
import time

import common
import numpy as np
import samples
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import dataset_graph
from refurbish_tf.loaders import hand_over

# With what each needs.
LOADERS = {"torch_loader": "torch", "jax_loader": "jax"}
BARE = "bare"
SHAPE = (128, 224, 224, 3)
MOST_MICROSECONDS, MOST_OF_MEMCPY = 100, 1.2
LEAST_OF_BARE, MOST_OF_A_BATCH = 0.97, 0.01
BATCHES = {"32x32": 128, "224x224": 32}
ROUNDS = {"32x32": 41, "224x224": 15}
SAMPLES = 1_000_000
MOST_MEGABYTES, MOST_MILLISECONDS = 1, 20
# Makes a pipeline endless in practice: loaders take none that says so.
REPEATED = 10**6


def measure(quick):
  """Yields the sections."""
  for section in (_beyond_next, _images, _snapshots, _state):
    common.say(section.__doc__)
    yield section(quick)


def _installed():
  return {name: getattr(rtf, name) for name, module in LOADERS.items() if importlib.util.find_spec(module)}


def _row(key, name, loader, unit, values, limit=None):
  """Of a loader, whose `values` are None if it is not installed."""
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
    functions["memcpy"] = _memcpy(np.ones(SHAPE, np.uint8))
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
      f"Batches of {'x'.join(map(str, SHAPE))}, uint8, on the CPU, without a prefetch, so that nothing is done elsewhere: `next` "
      "of the loader beyond `next` of the pipeline, by turns in random order, each with what it takes to let go of the batch "
      "before. Its own: a new batch, that nothing else has, in memory that nobody has written to. Of a cache: `cache()` behind "
      "`batch`, which torch_loader must copy, as its user may write, and jax_loader must not. A memcpy is into new memory of "
      "posix_memalign, with free of that before.",
      [common.Row("next_own", "next of the pipeline, its own", "µs", [1e6 * value for value in took["own", BARE]]),
       common.Row("next_cached", "next of the pipeline, of a cache", "µs", [1e6 * value for value in took["cached", BARE]]),
       common.Row("memcpy", "memcpy", "µs", memcpy),
       _row("beyond_own", "its own", "torch_loader", "µs beyond next", beyond("own", "torch_loader"), MOST_MICROSECONDS),
       _row("beyond_own", "its own", "jax_loader", "µs beyond next", beyond("own", "jax_loader"), MOST_MICROSECONDS),
       _row("beyond_cached", "of a cache", "jax_loader", "µs beyond next", beyond("cached", "jax_loader"), MOST_MICROSECONDS),
       _row("copied", "of a cache", "torch_loader", "of a memcpy, beyond next", copied and common.quotients(copied, memcpy),
            MOST_OF_MEMCPY)])


def _memcpy(source):
  """A function that copies to new memory, and frees that of the call before."""
  libc = ctypes.CDLL(None)
  pointer, size = ctypes.c_void_p, ctypes.c_size_t
  libc.posix_memalign.argtypes, libc.free.argtypes = [pointer, size, size], [pointer]
  libc.memcpy.argtypes, libc.memcpy.restype = [pointer, pointer, size], pointer
  last = pointer()

  def copy():
    nonlocal last
    new = pointer()
    libc.posix_memalign(ctypes.byref(new), 64, source.nbytes)
    libc.memcpy(new, source.ctypes.data, source.nbytes)
    libc.free(last)
    last = new

  return copy


def _medians(functions, rounds, calls):
  """Seconds that a call takes by the clock, by turns: for each function the median of every round."""
  results = dict.fromkeys(functions)
  medians = {name: [] for name in functions}
  for counted in [False] + [True] * rounds:
    took = {name: [] for name in functions}
    for _ in range(calls):
      for name in random.sample(list(functions), len(functions)):
        began = time.perf_counter()
        results[name] = functions[name]()  # What it was before is let go of.
        took[name].append(time.perf_counter() - began)
    if counted:
      for name, values in took.items():
        medians[name].append(statistics.median(values))
  return medians


def _images(quick):
  """Images per second, beside the pipeline itself"""
  small, whence_small = samples.small((4 if quick else 100) * BATCHES["32x32"])
  large, whence_large = samples.photographs((4 if quick else 40) * BATCHES["224x224"])
  rows = []
  for size, images in (("32x32", small), ("224x224", large)):
    for r in (1, 3):
      wall, cpu = _epochs(size, images, r, common.rounds(quick, ROUNDS[size]))
      count = len(images) // BATCHES[size] * BATCHES[size]
      key = f"{size.partition('x')[0]}_r{r}"
      rows.append(common.Row(f"{key}_bare", f"{size}, r = {r}, the pipeline itself", "images / s",
                             [count / seconds for seconds in wall[BARE]]))
      for loader in LOADERS:
        # More CPU time for the same images is as many times fewer images a second.
        quotients = [common.quotients(of[loader], of[BARE]) if loader in of else None for of in (wall, cpu)]
        rows += [_row(f"{key}_wall", f"{size}, r = {r}", loader, "of bare, s an image", quotients[0], round(1 / LEAST_OF_BARE, 3)),
                 _row(f"{key}_cpu", f"{size}, r = {r}", loader, "of bare, CPU s an image", quotients[1])]
  return common.Section(
      _images.__doc__,
      f"{whence_small}, {whence_large}: rand_augment(), for photographs behind decode_and_crop({SHAPE[1]}), in partial_fn, crop "
      "and flip, for photographs also normalize(), in final_fn, then batch and prefetch(2). In one process, epoch by epoch by "
      "turns in random order, each through one iterator, from the time when all that is read ahead is ready. A limit of 1.031 "
      f"is {LEAST_OF_BARE} of the pipeline's own images/s.", rows)


def _pipeline(size, images, r):
  first = [rtf.augment.decode_and_crop(SHAPE[1])] if size == "224x224" else []
  first += rtf.augment.rand_augment()
  last = [rtf.augment.random_crop(4), rtf.augment.random_flip(), *([rtf.augment.normalize()] if size == "224x224" else [])]
  return dataset_graph.without_autotuner(
      tf.data.Dataset.from_tensor_slices(images).refurbish(first, last, r, seed=7).batch(BATCHES[size], drop_remainder=True)
      .repeat(REPEATED).prefetch(2))


def _epochs(size, images, r, rounds):
  """Two dicts of lists: seconds by the clock, and of CPU time, of the epochs of each."""
  # A stage for each, as a stage has one course of epochs.
  iterators = {BARE: iter(_pipeline(size, images, r))}
  iterators.update((name, iter(loader(_pipeline(size, images, r)))) for name, loader in _installed().items())
  wall, cpu = ({name: [] for name in iterators} for _ in range(2))
  # The first epoch prepares all, and the second starts what is done once.
  for number in range(2 + rounds):
    for name in random.sample(list(iterators), len(iterators)):
      began, cpu_began = time.perf_counter(), time.process_time()
      for _ in range(len(images) // BATCHES[size]):
        # Held until the next one is there, as in a loop. Else malloc may give all of its memory back to the system each time.
        batch = next(iterators[name])
      del batch
      ended = time.perf_counter()
      common.wait_until_idle()
      if number >= 2:
        wall[name].append(ended - began)
        cpu[name].append(time.process_time() - cpu_began)
  return wall, cpu


def _snapshots(quick):
  """Where nobody asks for the state"""
  images, _ = samples.small((4 if quick else 100) * BATCHES["32x32"])
  batches = len(images) // BATCHES["32x32"]
  of_a_batch = statistics.median(_epochs("32x32", images, 3, common.rounds(quick, 5))[1][BARE]) / batches
  rows = []
  # Small batches, as the time of large ones, and of making an iterator, would hide it.
  number = 400 if quick else 10_000
  for count in (1000, 2000) if quick else (12_800, SAMPLES):
    upstream = {way: tf.data.Dataset.range(count).refurbish(lambda index: index, r=3, seed=1).batch(4).repeat(4).take(number)
                for way in ("without", "with")}
    # Both have it handed over, and read two batches ahead.
    costs = common.cpu_of_epochs({
        "without": hand_over.HandOverDataset(upstream["without"].prefetch(2), 0, 0, True),
        "with": hand_over.HandOverDataset(upstream["with"], 2, 0, True)}, common.rounds(quick, 9))
    beyond = [(mine - other) / number for mine, other in zip(costs["with"], costs["without"])]
    rows += [
        common.Row(f"snapshots_{count}", f"N = {count:,}: the state after each batch", "µs of CPU a batch",
                   [1e6 * seconds for seconds in beyond]),
        common.Row(f"snapshots_{count}_share", f"N = {count:,}: the same", "of a batch's CPU time, 32x32, r = 3",
                   [seconds / of_a_batch for seconds in beyond], MOST_OF_A_BATCH)]
  return common.Section(
      _snapshots.__doc__,
      "What a loader does for the state while nobody asks for it: it reads ahead in place of prefetch, and keeps the position "
      f"after each batch. CPU time with numbers, an identity, r = 3, in {number:,} batches of 4, beyond that with a "
      f"prefetch; a share is of the CPU time of a batch of 32x32 images as above, {1e3 * of_a_batch:.2f} ms.", rows)


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
    rows += [_row("state_bytes", "bytes", name, "MB", megabytes, MOST_MEGABYTES),
             _row("state_save", "state_dict()", name, "ms", saved, MOST_MILLISECONDS),
             _row("state_load", "load_state_dict(), first batch", name, "ms", loaded)]
  return common.Section(
      _state.__doc__,
      f"In the middle of an epoch of {count:,} samples, r = 3, batches of 128 and a prefetch of 2, each time behind another "
      "batch. Loading is in a pipeline made anew, as in a new process.", rows)

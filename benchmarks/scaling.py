"""The gain from many cores, without a model: images per second by number of cores, calls at work, and slow reads.

Work and reads that only sleep show on any machine how the package would scale to many cores.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import tempfile
import time
import unittest.mock

import common
import samples
import sources
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf

SIDE = 224
PLAIN, CACHED = "tf.data", "refurbish, r = 3, after cached"
# By the name of each pipeline: the reuse factor; None without refurbish.
WAYS = {PLAIN: None, "refurbish, r = 1": 1, "refurbish, r = 3": 3, CACHED: 3}
# A measurement runs whole epochs until they have taken this many seconds.
SECONDS = 0.25
CALLS = (8, 16, 32, 64, 128)
# The sides of the resulting float32 images, by their size in bytes.
RESULTS = {"12 KB": 32, "602 KB": SIDE}
WORK_SECONDS, AT_WORK = 0.05, 0.95

READERS, OF_READERS = 64, 0.9
READ_SECONDS, SLOW_READS = 0.03, pathlib.Path(__file__).with_name("slow_reads.cc")
ELEMENT = 20_000  # Bytes of an element.


@dataclasses.dataclass(frozen=True)
class Data:
  """A pipeline that is measured with different numbers of cores.

  Attributes:
    key, title: its name in the JSON, and elsewhere.
    images: the name of the images.
    layers: a function that makes the layers of the partial and of the final augmentation.
    told: the layers in words.
    batch, epoch: the images of a batch, and of an epoch for each core, so that epochs take equally long.
  """

  key: str
  title: str
  images: str
  layers: object
  told: str
  batch: int
  epoch: int


def _wait(image, rng):
  time.sleep(0.01)
  return image


def _of_photographs(*end):
  return [rtf.augment.decode_random_resized_crop(SIDE)], [rtf.augment.random_flip(), *end]


DATA = {
  data.key: data
  for data in (
    Data(
      "small",
      "32x32 images",
      "small",
      lambda: (rtf.augment.rand_augment(2, 9), [rtf.augment.random_crop(padding=4), rtf.augment.random_flip()]),
      "rand_augment(2, 9); random_crop(padding=4) and random_flip()",
      batch=512,
      epoch=6_400,
    ),
    Data(
      "uint8",
      "Photographs, uint8",
      "photographs",
      _of_photographs,
      f"decode_random_resized_crop({SIDE}); random_flip()",
      batch=128,
      epoch=256,
    ),
    Data(
      "float32",
      "Photographs, float32",
      "photographs",
      lambda: _of_photographs(rtf.augment.normalize()),
      f"decode_random_resized_crop({SIDE}); random_flip() and normalize()",
      batch=128,
      epoch=256,
    ),
    Data(
      "python",
      "A Python layer of 10 ms",
      "small",
      lambda: ([rtf.augment.numpy_layer(_wait)], [rtf.augment.random_flip()]),
      "a numpy_layer that sleeps for 10 ms, in one process per CPU core, whose CPU time does not count; random_flip()",
      batch=16,
      epoch=64,
    ),
  )
}


def measure(quick):
  """Yields the sections."""
  with tempfile.TemporaryDirectory(prefix="refurbish-scaling-") as directory:
    directory = pathlib.Path(directory).resolve()
    yield from by_processors(quick, directory)
    for section in (calls_at_work, slow_reads):
      common.say(section.__doc__)
      yield section(quick, directory)


def by_processors(quick, directory):
  """Yields a section for each kind of data."""
  processors = sorted(os.sched_getaffinity(0))
  numbers = sorted({*(2**i for i in range(len(processors).bit_length())), len(processors)})[: 2 if quick else None]
  whence = {}
  for name, (images, whence[name]) in (
    ("small", samples.small(512 if quick else 12_800)),
    ("photographs", samples.photographs(32 if quick else 1000)),
  ):
    (directory / name).write_bytes(pickle.dumps(images))
  with contextlib.ExitStack() as stack:
    # The processes import TensorFlow at the same time, and then work in turn.
    processes = {number: stack.enter_context(_process(processors[:number])) for number in numbers}
    for data in DATA.values():
      counts = {number: number * (data.batch if quick else data.epoch) for number in numbers}
      rows = []
      # The last way caches decoded images, and small images need no decoding.
      for way in [*WAYS][: None if data.images == "photographs" else -1]:
        common.say(f"{data.title}: {way}")
        for number, process in processes.items():
          process.submit(_prepare, data.key, way, directory / data.images, counts[number]).result()
        speeds = {number: [] for number in numbers}
        for _ in range(common.rounds(quick, 2)):
          for number, process in processes.items():
            speeds[number].append(process.submit(_speed, counts[number], 0 if quick else SECONDS).result())
        for number, measured in speeds.items():
          wall, cpu = map(list, zip(*measured))
          efficiency = [speed / one / number for speed, (one, _) in zip(wall, speeds[1])]
          rows += [
            common.Row(f"{data.key}_{common.key(f'{way} {number} {unit}')}", f"{way}, on {number}", unit, values)
            for unit, values in (("images/s", wall), ("images/CPU s", cpu), ("efficiency", efficiency))
          ]
      yield common.Section(
        f"{data.title}, by CPU cores",
        f"{whence[data.images]}, repeated to {data.epoch:,} per epoch and CPU core; partial and final augmentation: "
        f"{data.told}; batches of {data.batch}, and a prefetch. After the first r epochs, as many whole epochs as take "
        f"{SECONDS:g} s, from iter() to the last batch. A process gets its CPU cores, as its affinity, before it "
        "imports TensorFlow. tf.data shuffles all images, and has the same layers in a map with AUTOTUNE. Caches hold "
        "decoded images in memory. The efficiency is the images/s divided by the number of cores and by the images/s "
        "of one core in the same round.",
        rows,
      )


@contextlib.contextmanager
def _process(processors=None, **variables):
  """Yields an executor with one new process, which starts with these cores and variables and without a GPU."""
  affinity = os.sched_getaffinity(0)
  executor = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
  # The process inherits the cores of the thread that starts it.
  os.sched_setaffinity(0, processors or affinity)
  with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="-1", **variables):
    executor.submit(os.getpid)
  os.sched_setaffinity(0, affinity)
  with executor:
    yield executor


_dataset = None  # The dataset that a process of `by_processors` measures.


def _prepare(key, way, path, count):
  """Makes a dataset and runs its first r epochs."""
  global _dataset
  _dataset = None  # Frees the memory of the previous dataset.
  images = np.array(pickle.loads(path.read_bytes()))
  source = tf.data.Dataset.from_tensor_slices(images[np.arange(count) % len(images)])
  partial, final = DATA[key].layers()
  if way == CACHED:
    source = rtf.sources.cached(source.map(lambda file: tf.io.decode_jpeg(file, channels=3), tf.data.AUTOTUNE))
    partial = [rtf.augment.random_resized_crop(SIDE)]
  if way == PLAIN:
    fn = rtf.augment.compose([*partial, *final])
    seeds = tf.data.Dataset.from_tensor_slices(
      np.random.default_rng(7).integers(2**31, size=[count, 2], dtype=np.int32)
    )
    made = (
      tf.data.Dataset.zip(source, seeds).shuffle(count).map(lambda image, seed: fn(image, seed=seed), tf.data.AUTOTUNE)
    )
  else:
    made = source.refurbish(partial, final, r=WAYS[way])
  _dataset = made.batch(DATA[key].batch).prefetch(tf.data.AUTOTUNE)
  for _ in range(WAYS[way] or 1):
    _epoch()


def _speed(count, seconds):
  """Images per second and per CPU second, of as many epochs as take `seconds`."""
  costs = [_epoch()]
  while sum(wall for wall, _ in costs) < seconds:
    costs.append(_epoch())
  return [len(costs) * count / sum(each) for each in zip(*costs)]


def _epoch():
  """Wall and CPU seconds of an epoch, without the end of its iterator, which waits for tf.data's autotuner."""
  wall, cpu = time.perf_counter(), time.process_time()
  iterator = iter(_dataset)
  for _ in iterator:
    pass
  return time.perf_counter() - wall, time.process_time() - cpu


def calls_at_work(quick, directory):
  """Calls at work"""
  del directory
  rows, each = [], 2 if quick else 40
  for calls, (size, side) in itertools.product(CALLS, RESULTS.items()):
    seconds = WORK_SECONDS * np.maximum(0.2, np.random.default_rng(0).normal(1, 0.3, each * calls))
    source, work = tf.data.Dataset.from_tensor_slices(seconds), functools.partial(_work, side)
    options = tf.data.Options()
    options.threading.private_threadpool_size = calls
    options.autotune.enabled = False
    shares = {}
    for way, dataset in (
      ("refurbish", source.refurbish(work, r=1, num_parallel_calls=calls)),
      ("map", source.map(work, num_parallel_calls=calls).with_options(options)),
    ):
      began = time.perf_counter()
      for _ in dataset:
        pass
      shares[way] = float(seconds.sum()) / (time.perf_counter() - began) / calls
    key, name = f"calls_{calls}_{side}", f"{calls} calls, results of {size}"
    rows += [
      *(common.Row(f"{key}_{way}", name, f"{way}, at work", [share]) for way, share in shares.items()),
      common.Row(key, name, "refurbish, time over the work's", [1 / shares["refurbish"]], limit=1 / AT_WORK),
    ]
  return common.Section(
    calls_at_work.__doc__,
    f"Seconds of work, divided by the calls and by the seconds of an epoch of {each} samples for each call. A call "
    f"sleeps for {1000 * WORK_SECONDS:g} ms in a numpy_function (standard deviation 30 %, at least 10 ms) and makes a "
    f"float32 image. map has a private pool of as many threads. The bar is {AT_WORK:g} at work, written here as its "
    "reciprocal, a time.",
    rows,
  )


def _work(side, seconds):
  with tf.control_dependencies([tf.numpy_function(time.sleep, [seconds], [])]):
    return tf.fill([side, side, 3], tf.cast(seconds, tf.float32))


def slow_reads(quick, directory):
  """Reads of 30 ms"""
  count = READERS * (2 if quick else 60)
  files, rows = _Files(directory, count), []
  with contextlib.ExitStack() as stack:
    process, library = None, directory / "slow_reads.so"
    for name in files.datasets():
      try:
        if process is None:
          subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, SLOW_READS], check=True)
          process = stack.enter_context(_process(LD_PRELOAD=str(library), SLOW_READS_BELOW=str(files.slow)))
        seconds, why = [process.submit(files.seconds, name, num_parallel_reads=READERS).result()], ""
      except Exception as error:  # The other sources are still measured.
        seconds, why = [], f" (failed: {common.last_line(str(error))})"
      rows += [
        common.Row(f"reads_{common.key(name)}_speed", name + why, "reads/s", [count / each for each in seconds]),
        common.Row(
          f"reads_{common.key(name)}",
          name + why,
          "time over the readers'",
          [each * READERS / READ_SECONDS / count for each in seconds],
          limit=1 / OF_READERS,
        ),
      ]
  return common.Section(
    slow_reads.__doc__,
    f"An epoch of {count:,} elements of {ELEMENT / 1000:g} kB, from iter() on, with num_parallel_reads={READERS}, "
    f"which make at most {READERS / READ_SECONDS:,.0f} reads per second. The bar is {OF_READERS:g} of that, written "
    "here as its reciprocal, a time. A preloaded library delays each read of the files, but not of the index of "
    "records, by 30 ms, and disables RWF_NOWAIT, which network file systems lack. The elements of data_source sleep "
    "in Python.",
    rows,
  )


class _Files:
  """The same elements in files of several formats, which are read slowly."""

  def __init__(self, directory, count):
    self.slow, self._index, self._count = directory / "slow", directory / "index", count
    (self.slow / "folder" / "class").mkdir(parents=True)
    self._index.mkdir()
    rng = np.random.default_rng(1)
    with tf.io.TFRecordWriter(str(self.slow / "records")) as writer:
      for i in range(self._count):
        record = rng.bytes(ELEMENT)
        writer.write(record)
        (self.slow / "folder" / "class" / f"{i:06}.jpg").write_bytes(record)
    for name in ("tfrecord", "cached, from its store"):  # These write the index and the store.
      self.seconds(name)

  def datasets(self, **reads):
    """By name: a function that makes the dataset."""
    folder = functools.partial(rtf.sources.image_folder, self.slow / "folder")
    return {
      "image_folder": lambda: folder(**reads),
      "tfrecord": lambda: rtf.sources.tfrecord(str(self.slow / "records"), index_dir=self._index, **reads),
      "data_source": lambda: rtf.sources.data_source(_SlowList([bytes(ELEMENT)] * self._count), **reads),
      "cached, from its source": lambda: rtf.sources.cached(folder(**reads), **reads),
      "cached, from its store": lambda: rtf.sources.cached(folder(), self.slow / "store", **reads),
    }

  def seconds(self, name, **reads):
    dataset = self.datasets(**reads)[name]()
    sources.drain(tf.data.Dataset.range(64))  # Starts TensorFlow before the time is measured.
    return sources.drain(dataset)


class _SlowList(list):
  def __getitem__(self, index):
    time.sleep(READ_SECONDS)
    return super().__getitem__(index)

"""Forged stores on disk whose checksums are right."""

import gc
import pathlib
import resource
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.processes import run_forked
from support.stores import forge_record, forge_settings, new_path

pytestmark = cases.slow


def read_forged(stores):
  resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
  for length, path, message in stores:
    source = tf.data.Dataset.range(16)
    if length == "unknown":
      source = source.filter(lambda index: True)
    with pytest.raises(ValueError, match=rf"(?s){message}.*overwrite=True|overwrite=True.*{message}"):
      list(source.refurbish(lambda index: index, r=2, seed=7, store=path))


def test_settings_are_validated_before_memory_is_allocated(root):
  """Memory for the forged numbers would exceed the limit of the reading process."""
  stores = []
  for length, settings, message in (
    ("known", {"num_samples": 2**32 - 1}, "num_samples is 16, but it was 4294967295"),
    ("known", {"num_kept_samples": 17}, "num_kept_samples is 16, but it was 17"),
    ("unknown", {"num_samples": 2**32 - 1}, "num_samples=4294967295"),
    ("unknown", {"num_samples": 2**32 + 16}, "num_samples=4294967312"),
    ("unknown", {"num_kept_samples": 17}, "num_kept_samples=17"),
    ("unknown", {"first_epoch": 2**32}, "first_epoch=4294967296"),
    ("unknown", {"num_samples": "many"}, "num_samples=many"),
  ):
    path = new_path(root)
    list(tf.data.Dataset.range(16).refurbish(lambda index: index, r=2, seed=7, store=path))
    gc.collect()
    forge_settings(path, **settings)
    stores.append((length, path, message))
  assert run_forked(read_forged, stores) == 0


N = 16


def images(kind):
  """Returns a function that makes images. `kind` says how they differ from the right ones; some have another size."""
  return {
    "right": lambda index: tf.fill([8, 8, 3], tf.cast(index, tf.uint8)),
    "type": lambda index: tf.fill([8, 8, 3], tf.cast(index, tf.int8)),
    "large type": lambda index: tf.fill([8, 8, 3], index),
    "shape": lambda index: tf.fill([8, 3, 8], tf.cast(index, tf.uint8)),
    "rank": lambda index: tf.fill([192], tf.cast(index, tf.uint8)),
    "number": lambda index: (tf.fill([8, 8, 3], tf.cast(index, tf.uint8)), index),
  }[kind]


def stage_on(path, kind, r=2, **options):
  return tf.data.Dataset.range(N).refurbish(images(kind), r=r, seed=7, store=path, **options)


def train(path, kind):
  list(stage_on(path, kind))


def train_side_by_side(path, kind):
  """With r = 1 nothing is kept, and the samples prepared last are in transit."""
  store = rtf.CacheStore(path, max_bytes=2 * N * 384)
  stages = [stage_on(path, kind, r=1, order_seed=seed, num_parallel_calls=None) for seed in range(2)]
  iterators = [iter(stage) for stage in stages]
  images = [], []
  for _ in range(N):
    for iterator, found in zip(iterators, images):
      found.append(next(iterator).numpy())
    store.verify()  # Writes the samples that were put.
  return images, rtf.stats(stages[0])[0].total


def forged(root, kind, run=train):
  """Makes a store with the right settings and samples of another kind."""
  paths = {}
  for each in ("right", kind):
    paths[each] = new_path(root)
    run(paths[each], each)
    gc.collect()
  right, other = (
    dict(line.split(" ", 1) for line in (pathlib.Path(path) / "store").read_text().splitlines())
    for path in paths.values()
  )
  shutil.copy(pathlib.Path(paths["right"]) / "store", pathlib.Path(paths[kind]) / "store")
  forge_settings(paths[kind], id=other["id"])
  assert right["id"] != other["id"]
  return paths[kind]


@pytest.mark.parametrize("kind", ["type", "large type", "shape", "rank", "number"])
def test_a_sample_of_another_kind_is_absent(root, kind):
  """G9: the sample is prepared again, and the next epoch finds it."""
  path = forged(root, kind)
  dataset = stage_on(path, "right")
  for epoch in range(3):
    found = sorted(dataset.as_numpy_iterator(), key=lambda image: image[0, 0, 0])
    assert {image.dtype.name for image in found} == {"uint8"}
    np.testing.assert_array_equal(found, [np.full([8, 8, 3], index, np.uint8) for index in range(N)])
    counts = rtf.stats(dataset)[0].epochs[epoch]
    assert (counts.cached, counts.missing) == ((0, N // 2) if epoch == 0 else (N // 2, 0))
  stats = rtf.CacheStore(path).stats()
  assert (stats.corrupt, stats.hits) == (N // 2, 2 * N // 2)


def test_a_sample_of_another_kind_in_transit_is_prepared_again(root):
  path = forged(root, "type", train_side_by_side)
  assert rtf.CacheStore(path).stats().ring_bytes > 0
  found, counts = train_side_by_side(path, "right")
  for images_of in found:
    images_of.sort(key=lambda image: image[0, 0, 0])
    np.testing.assert_array_equal(images_of, [np.full([8, 8, 3], index, np.uint8) for index in range(N)])
    assert {image.dtype.name for image in images_of} == {"uint8"}
  assert counts.fresh + counts.from_other_jobs == N


def read_what_follows(path, then):
  dataset = stage_on(path, "right")
  if then == "batch":
    dataset = dataset.batch(4)
  else:
    dataset = dataset.offload([rtf.augment.random_flip(), rtf.augment.normalize()], 4, num_replicas=1)
  assert len(list(dataset)) == 4


@pytest.mark.parametrize("then", ["batch", "offload"])
def test_later_operations_get_no_sample_of_another_kind(root, then):
  """Runs in a separate process, because a failure would crash it."""
  assert run_forked(read_what_follows, forged(root, "large type"), then) == 0


# Claims ---------------------------------------------------------------------------------------------------------------

LARGE, CLAIMED = 64 << 20, 1 << 24


def claiming(kind):
  """Returns the payload, in the format of sample_codec.cc, of a sample that claims more than its bytes can hold."""
  if kind == "components":
    return struct.pack("<Q", LARGE) + bytes(LARGE - 8)
  tensor = tf.make_tensor_proto(["a"] * 600)
  tensor.tensor_shape.dim[0].size = CLAIMED
  del tensor.string_val[1:]
  if kind == "elements":
    header = struct.pack("<IIQQq", tf.string.as_datatype_enum, 1, 40, tensor.ByteSize(), CLAIMED)
  else:
    variant = type(tensor)(dtype=tf.variant.as_datatype_enum, tensor_shape=tf.TensorShape([]).as_proto())
    variant.variant_val.add(type_name="tensorflow::Tensor", tensors=[tensor])
    tensor = variant
    header = struct.pack("<IIQQ", tensor.dtype, 0, 32, tensor.ByteSize())
  return struct.pack("<Q", 1) + header + tensor.SerializeToString()


def read_claims(path):
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
  limit = pages * resource.getpagesize() + (1 << 30)
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
  store, before = rtf.CacheStore(path), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  with pytest.raises(tf.errors.NotFoundError, match="index 0"):
    store.get(0)
  # The record is read as a whole. The claimed strings, of 24 bytes each, would take more than this.
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (LARGE + 12 * CLAIMED) >> 10


@pytest.mark.parametrize("kind", ["components", "elements", "elements of a variant"])
def test_a_sample_that_claims_more_than_it_has_bytes_for_is_absent(root, kind):
  path = new_path(root)
  rtf.CacheStore(path).put(0, tf.zeros([LARGE], tf.uint8))
  gc.collect()
  forge_record(path, claiming(kind))
  assert run_forked(read_claims, path) == 0

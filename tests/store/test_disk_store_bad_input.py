"""A directory that is not the requested cache store is refused, and left untouched."""

import gc
import os
import pathlib

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import refurbish_op
from refurbish_tf.augment import native_layers
from support import checkpoints
from support.stores import forge_settings, new_path


def test_other_settings(root):
  path = new_path(root)

  def build(n=10, r=2, seed=1, fn=lambda x: tf.fill([3], x), **options):
    store = rtf.CacheStore(path, version="one", **options)
    return tf.data.Dataset.range(n).refurbish(fn, r=r, seed=seed, store=store)

  for _ in range(2):
    list(build())
  for options, difference in [
    ({"r": 3}, "r is 3, but it was 2"),
    ({"seed": 2}, "seed is 2, but it was 1"),
    ({"n": 11}, "num_samples is 11, but it was 10"),
    ({"fn": lambda x: tf.fill([4], x)}, r"element_spec is .*4.*, but it was .*3"),
    ({"max_bytes": 128 * 5}, "num_kept_samples is 5, but it was 10"),
  ]:
    with pytest.raises(ValueError, match=difference) as error:
      build(**options)
    assert "overwrite=True" in str(error.value) and "version=" in str(error.value)
    assert "structure" not in str(error.value)  # This is an internal name.
  del error  # Its traceback holds a stage.
  gc.collect()
  with pytest.raises(ValueError, match="version is two, but it was one"):
    rtf.CacheStore(path, version="two")
  assert rtf.CacheStore(path, version="one").verify() == (10, 0)  # Nothing is lost.
  assert len(rtf.CacheStore(path, version="two", overwrite=True)) == 0


def test_samples_of_other_layers(root, monkeypatch):
  """Samples of layers that drew other random numbers, as in version 1, are refused, and none is lost."""
  path = new_path(root)

  def build(**options):
    return tf.data.Dataset.range(10).refurbish(tf.identity, r=100, seed=1, store=rtf.CacheStore(path, **options))

  with monkeypatch.context() as before:
    before.setattr(native_layers, "draws_version", lambda: 1)
    list(build())
  gc.collect()
  now = f"rtf.augment version {native_layers.draws_version()}"
  assert now != "rtf.augment version 1"
  with pytest.raises(ValueError, match=f"^store .*rtf.augment version 1, .*{now}, .*overwrite=True") as error:
    build()
  del error  # Its traceback holds a stage.
  gc.collect()
  assert rtf.CacheStore(path)._agree({})["layers"] == "rtf.augment version 1"
  assert rtf.CacheStore(path).verify() == (10, 0)
  list(build(overwrite=True))
  assert rtf.CacheStore(path)._agree({})["layers"] == now


FILE = tf.io.encode_jpeg(tf.zeros([40, 50, 3], tf.uint8))


def decoding_stage(place, path, **options):
  """A pipeline with a store; `place` says where it decodes."""
  store, files = rtf.CacheStore(path, **options), tf.data.Dataset.from_tensor_slices([FILE] * 4)
  if place == "cached":
    return rtf.sources.cached(files.map(rtf.augment.decode((8, 8))), store)
  layer = rtf.augment.decode_random_resized_crop(8)
  if place != "layers":
    files, layer = (
      files.map(rtf.augment.decode((8, 8)) if place == "source" else tf.io.decode_jpeg),
      rtf.augment.random_flip(),
    )
  return files.refurbish([layer], r=100, seed=1, store=store)


@pytest.mark.parametrize("place", ["layers", "source", "cached"])
@pytest.mark.parametrize("before", [None, "version 1 of rtf.augment.decode"])
def test_samples_of_other_decoders(root, place, before):
  """A store of decoded samples that names other decoders, or none, is refused with a remedy, and no sample is lost."""
  path = new_path(root)
  for _ in range(2):
    assert len(list(decoding_stage(place, path))) == 4
    gc.collect()
  forge_settings(path, decoders=before)
  with pytest.raises(
    ValueError, match="^store .* version 1 of rtf.augment.decode, .*version 3 of .*overwrite=True"
  ) as error:
    decoding_stage(place, path)
  del error  # Its traceback holds a stage.
  gc.collect()
  assert rtf.CacheStore(path).verify() == (4, 0)
  gc.collect()
  assert len(list(decoding_stage(place, path, overwrite=True))) == 4


def test_a_checkpoint_of_other_decoders_is_read(tmp_path, monkeypatch):
  """A checkpoint has no samples. With another store the epoch goes on."""
  with monkeypatch.context() as before:
    before.setattr(refurbish_op, "DECODERS_VERSION", "version 1 of rtf.augment.decode")
    iterator = iter(decoding_stage("layers", tmp_path / "before"))
    next(iterator)
    saved = checkpoints.save(iterator, tmp_path)
  assert len(list(checkpoints.restore(decoding_stage("layers", tmp_path / "now"), saved))) == 3


def test_samples_of_no_decoder(root):
  """Samples that a stage decodes by other means are the user's responsibility."""
  path = new_path(root)
  for _ in range(2):
    assert len(list(decoding_stage("nowhere", path))) == 4
    gc.collect()
  assert "decoders" not in rtf.CacheStore(path)._agree({})


def test_store_by_hand_has_no_layers(root, monkeypatch):
  """Samples put by hand are the user's responsibility, whatever the layers draw; also after a stage was refused."""
  path = new_path(root)
  store = rtf.CacheStore(path)
  store.put(0, tf.constant(1, tf.int64))
  with pytest.raises(ValueError, match="by hand"):
    tf.data.Dataset.range(3).refurbish(tf.identity, store=store)
  monkeypatch.setattr(native_layers, "draws_version", lambda: 3)
  assert int(rtf.CacheStore(path).get(0)) == 1
  assert "layers" not in store._agree({})


def test_directory_of_others_is_left_untouched(root):
  path = root / "photographs"
  path.mkdir()
  (path / "cat.jpeg").write_text("cat")
  for overwrite in (False, True):
    with pytest.raises(ValueError, match="cat.jpeg"):
      rtf.CacheStore(path, overwrite=overwrite)
  assert os.listdir(path) == ["cat.jpeg"]
  os.rename(path / "cat.jpeg", os.fsencode(path) + b"/caf\xe9")
  with pytest.raises(ValueError, match=r"caf\\xe9"):
    rtf.CacheStore(path)
  os.rename(os.fsencode(path) + b"/caf\xe9", path / "cat.jpeg")
  with pytest.raises(ValueError, match="cat.jpeg.*directory"):
    rtf.CacheStore(path / "cat.jpeg")


def test_in_use(root):
  path = new_path(root)
  store = rtf.CacheStore(path)
  with pytest.raises(ValueError, match="in use in this process.*overwrite=True"):
    rtf.CacheStore(path, overwrite=True)
  with pytest.raises(ValueError, match="max_bytes=9223372036854775807, got 4096"):
    rtf.CacheStore(path, max_bytes=4096)
  store.put(0, 1)
  with pytest.raises(ValueError, match="by hand"):
    tf.data.Dataset.range(3).refurbish(lambda x: tf.cast(x, tf.int32), store=store)


@pytest.mark.parametrize(
  "arguments, error, message",
  [
    ({"path": ""}, TypeError, "^path .*directory"),
    ({"path": "redis://me:secret@cache:6379/0"}, ValueError, "^path .*got 'redis://...'. .*shared="),
    ({"path": "gs://bucket/cache"}, ValueError, "^path .*local disk.*'gs://bucket/cache'"),
    ({"path": os.fsdecode(b"/tmp/\xff")}, ValueError, r"^path .*UTF-8.*'/tmp/\\udcff'"),
    ({"path": "/tmp/\0x"}, ValueError, r"^path .*'/tmp/\\x00x'.*null"),
    ({"path": "/proc/nowhere"}, ValueError, "Cannot make the directory /proc/nowhere"),
    ({"version": "a"}, ValueError, "^version and overwrite .*path"),
  ],
)
def test_bad_arguments(arguments, error, message):
  with pytest.raises(error, match=message):
    rtf.CacheStore(**arguments)


@pytest.mark.parametrize(
  "store, error",
  [
    ("", TypeError),
    (os.fsdecode(b"/tmp/\xff"), ValueError),
    (pathlib.Path(os.fsdecode(b"/tmp/\xff/cache")), ValueError),
  ],
)
def test_bad_store_of_a_stage(store, error):
  """The error names the argument, and is raised before the stage has a source."""
  with pytest.raises(error, match="^store "):
    rtf.refurbish(tf.identity, store=store)
  with pytest.raises(error, match="^store "):
    tf.data.Dataset.range(3).refurbish(tf.identity, store=store)


def test_directory_that_leads_to_a_name_that_is_not_in_utf_8(root):
  """The name is refused in any part of the path, even if only following links reveals it."""
  strange = os.fsdecode(os.fsencode(root) + b"/\xff")
  os.mkdir(strange)
  link = root / "link"
  link.symlink_to(strange)
  with pytest.raises(ValueError, match=r"^path .*UTF-8.*'.*/\\udcff/cache'"):
    rtf.CacheStore(link / "cache")
  assert os.listdir(strange) == []


def test_samples_that_cannot_be_stored(root):
  source = tf.data.Dataset.range(3)
  with pytest.raises(ValueError, match="^store .*cannot keep"):
    source.refurbish(lambda x: tf.data.Dataset.range(x), store=new_path(root))
  with pytest.raises(TypeError, match="^order_seed "):
    source.refurbish(tf.identity, order_seed=0.5)

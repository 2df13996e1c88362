"""Paths such as gs:// and s3://: everything that opens files refuses those for which TensorFlow has no file system, and
says what to do instead."""

import re

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import checks

DATA = tf.data.Dataset.range(3)
ENTRIES = {
  "files": rtf.sources.tfrecord,
  "files in a list": lambda path: rtf.sources.tfrecord(["here.tfrecord", path]),
  "index_dir": lambda path: rtf.sources.tfrecord("here.tfrecord", index_dir=path),
  "directory": rtf.sources.image_folder,
  "log_dir": lambda path: rtf.keras.RefurbishLogger(DATA.refurbish(lambda x: x), path),
}
# These require features that only local disks have, whatever file systems TensorFlow knows.
LOCAL = {
  "path": rtf.CacheStore,
  "store": lambda path: DATA.refurbish(lambda x: x, store=path),
  "store of a source": lambda path: rtf.sources.cached(DATA, path),
  "backup_dir": rtf.keras.BackupAndRestore,
}


@pytest.mark.parametrize("entry", [*ENTRIES, *LOCAL])
def test_paths_without_a_file_system_are_refused_everywhere(entry, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  refused = {**ENTRIES, **LOCAL}[entry]
  name = entry.split()[0]
  for scheme in ("s3", "hdfs") if entry in ENTRIES else ("s3", "gs"):
    with pytest.raises(ValueError, match=f"^{name} must be .*{scheme}://bucket/here") as error:
      refused(f"{scheme}://bucket/here")
    told = str(error.value)
    # The error says what to do, because there is no package to install.
    assert "mount" in told and "tensorflow-io" in told if entry in ENTRIES else "local" in told
  # Nothing is made in its place on this machine.
  assert list(tmp_path.iterdir()) == []


def test_file_systems_of_tensorflow_are_taken(tmp_path):
  # A plain install of TensorFlow has these.
  assert {"gs", "file", "ram"} <= set(tf.io.gfile.get_registered_schemes())
  for path in (
    tmp_path,
    str(tmp_path),
    bytes(tmp_path),
    f"file://{tmp_path}",
    "ram://here",
    "gs://bucket/here",
    b"gs://\xff",
    # To TensorFlow these have no scheme.
    "a/s3://b",
    "3s://b",
    "s_3://b",
    "://b",
    "s3:/b",
  ):
    checks.check_file_system("path", path)


def test_error_for_web_addresses_suggests_get_file():
  for scheme in ("http", "https"):
    with pytest.raises(ValueError, match=re.escape(f"{scheme}://a/b") + ".*get_file"):
      checks.check_file_system("files", f"{scheme}://a/b")


def test_file_systems_of_tensorflow():
  for name in ("a/1.png", "b/2.png"):
    tf.io.write_file(f"ram://image_folder/{name}", name)
  elements = rtf.sources.image_folder("ram://image_folder").as_numpy_iterator()
  assert list(elements) == [(b"a/1.png", 0), (b"b/2.png", 1)]


@pytest.mark.parametrize("error", [tf.errors.FailedPreconditionError, tf.errors.PermissionDeniedError])
@pytest.mark.parametrize("function", ["isdir", "listdir", "walk"])
def test_a_remote_file_system_that_does_not_answer(tmp_path, monkeypatch, function, error):
  """An example is gs:// without a network or credentials."""
  (tmp_path / "a").mkdir()
  (tmp_path / "a/1.png").touch()

  def failing(*arguments, **_):
    raise error(None, None, "Could not resolve host")

  monkeypatch.setattr(tf.io.gfile, function, failing)
  with pytest.raises(ValueError, match="^directory .*file://.* cannot be listed: Could not resolve host"):
    rtf.sources.image_folder(f"file://{tmp_path}")

"""Directories of cache stores and addresses of their samples, for tests of stores on disk and in memory."""

import contextlib
import gc
import itertools
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import numpy as np
import pytest
import tensorflow as tf

directories = itertools.count()


def new_path(root):
  return str(root / f"store-{next(directories)}")


def drop(pipeline):
  """Ends a run, leaving nothing of its stage in the process."""
  del pipeline.dataset


def delete(path):
  """Deletes a directory into which a thread may be writing."""
  while os.path.exists(path):
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def small_disk(path, size):
  """Mounts a file system of `size` bytes at a new directory, or skips the test if that is not permitted."""
  path.mkdir(mode=0o700)
  command = ["mount", "-t", "tmpfs", "-o", f"size={size >> 10}k,mode=700", "none", path]
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode != 0:
    pytest.skip(f"may not mount a file system: {done.stderr.strip()}")
  try:
    yield path
  finally:
    gc.collect()  # Closes files that are still open.
    subprocess.run(["umount", "-l", path], check=True)


def address(tensor):
  """The address of an eager tensor's data."""
  return np.asarray(memoryview(tensor)).ctypes.data


def forge_settings(path, **settings):
  """Changes, or for None removes, lines of the settings file of a store that nobody has open, with a right checksum."""
  file = pathlib.Path(path) / "store"
  lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
  lines = [(name, settings.get(name, value)) for name, value in lines if name != "crc32c"]
  body = "".join(f"{name} {value}\n" for name, value in lines if value is not None)
  file.write_text(f"{body}crc32c {_crc32c(body.encode()):08x}\n")


def forge_record(path, payload):
  """Replaces the payload of the one, large record of a store that nobody has open, with right checksums."""
  [segment] = pathlib.Path(path).glob("large-*")
  with open(segment, "r+b") as file:
    header = bytearray(file.read(28))
    struct.pack_into("<I", header, 12, len(payload))
    struct.pack_into("<I", header, 24, _crc32c(payload))
    file.seek(0)
    file.write(bytes(header) + struct.pack("<I", _crc32c(header)) + payload)


def _crc32c(data):
  """The CRC-32C of the data, computed by TensorFlow, which writes it, masked, after each record of a file."""
  with tempfile.NamedTemporaryFile() as file:
    with tf.io.TFRecordWriter(file.name) as writer:
      writer.write(bytes(data))
    masked = (int.from_bytes(file.read()[-4:], "little") - 0xA282EAD8) % 2**32
  return (masked >> 17 | masked << 15) % 2**32

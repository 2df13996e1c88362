"""Directories of cache stores and addresses of their samples, for tests of stores on disk and in memory."""
import itertools
import os
import pathlib
import shutil

import numpy as np

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


def address(tensor):
  """The address of an eager tensor's data."""
  return np.asarray(memoryview(tensor)).ctypes.data


def forge_settings(path, **settings):
  """Changes lines of the settings file of a store that nobody has open, with a right checksum. None removes a line."""
  file = pathlib.Path(path) / "store"
  lines = [line.split(" ", 1) for line in file.read_text().splitlines()]
  changed = {**dict(lines), **settings, "crc32c": None}
  body = "".join(f"{name} {value}\n" for name, value in changed.items() if value is not None)
  file.write_text(f"{body}crc32c {_crc32c(body.encode()):08x}\n")


def _crc32c(data):
  crc = 0xffffffff
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
  return crc ^ 0xffffffff

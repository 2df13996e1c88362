"""Directories of cache stores and addresses of their samples, for tests of stores on disk and in memory."""
import itertools
import os
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

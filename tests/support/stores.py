"""Directories of cache stores, and where their samples lie, for tests of stores on disk and in memory."""
import itertools
import os
import shutil

import numpy as np

directories = itertools.count()


def new_path(root):
  return str(root / f"store-{next(directories)}")


def drop(pipeline):
  """Ends a run: nothing of its stage is left in the process."""
  del pipeline.dataset


def delete(path):
  """Deletes a directory into which a thread may be writing."""
  while os.path.exists(path):
    shutil.rmtree(path, ignore_errors=True)


def address(tensor):
  """Where the data of an eager tensor lie."""
  return np.asarray(memoryview(tensor)).ctypes.data

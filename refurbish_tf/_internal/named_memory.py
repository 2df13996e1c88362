"""Stores in memory that processes of a machine share by name: directories that are removed when the last one ends."""

import atexit
import contextlib
import fcntl
import glob
import os
import re
import shutil
import subprocess
import sys

from refurbish_tf._internal import machine, pipeline_warnings

# A file system in memory. Tests set another folder.
FOLDER = "/dev/shm"
# The files of an empty store need this many bytes.
_LEAST_FREE = 2**21
# Each process that has a store open holds a shared lock on its directory until it ends. For each, this program waits
# until nobody holds the lock, because processes that are killed cannot remove anything.
_REMOVE_UNUSED = """
import fcntl, os, shutil, sys
directory, path = int(sys.argv[1]), sys.argv[2]
fcntl.flock(directory, fcntl.LOCK_EX)
if os.path.samestat(os.stat(path), os.fstat(directory)):
  shutil.rmtree(path, ignore_errors=True)
"""
# By directory: the process that has made the entry, and its descriptor with the lock.
_held = {}


def open_directory(name: str) -> str:
  """A directory for the store of this name, empty unless another process has it open. This process keeps it open.

  Raises TypeError or ValueError if the name is not allowed, or if there is no usable file system in memory.
  """
  if not isinstance(name, str):
    raise TypeError(f"name must be a string such as 'train', got {name!r}.")
  if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
    raise ValueError(f"name must be 1 to 100 letters, digits, '.', '_' or '-', such as 'train', got {name!r}.")
  start = os.path.join(FOLDER, f"refurbish_tf-{os.geteuid()}-")
  path = start + name
  if path not in _held or not _is_at(_held[path][1], path):
    for each in glob.glob(glob.escape(start) + "*"):
      _remove_unused(each)  # Left over if even the waiting programs were killed.
    try:
      _held[path] = os.getpid(), _locked(path)
      _start_removing(path)
    except OSError as error:
      raise ValueError(
        f"name needs {FOLDER}, a file system in memory, but {path} cannot be used ({error.strerror}). Give another "
        "name, or a path, a directory on a local disk."
      ) from None
  return os.path.join(path, "store")


def _opened(path):
  return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _is_at(directory, path):
  try:
    return os.path.samestat(os.stat(path), os.fstat(directory))
  except FileNotFoundError:
    return False


def _locked(path):
  """A descriptor, with a shared lock, of the directory. If missing, it is made; only its owner may open it."""
  while True:
    with contextlib.suppress(FileExistsError):
      os.mkdir(path, 0o700)
    try:
      directory = _opened(path)
    except FileNotFoundError:
      continue  # It was removed in between.
    fcntl.flock(directory, fcntl.LOCK_SH)
    if _is_at(directory, path):
      return directory
    os.close(directory)  # It was removed before this process had the lock.


def _remove_unused(path):
  """Removes the directory if no process holds its lock."""
  with contextlib.suppress(OSError):
    directory = _opened(path)
    try:
      fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_at(directory, path):
        shutil.rmtree(path, ignore_errors=True)
    finally:
      os.close(directory)


def _start_removing(path):
  directory = _opened(path)
  command = [sys.executable or "python3", "-I", "-S", "-c", _REMOVE_UNUSED, str(directory), path]
  nothing = subprocess.DEVNULL
  # In a session of its own, so that signals to the process group, such as Ctrl-C, do not reach it.
  waiting = subprocess.Popen(
    command, stdin=nothing, stdout=nothing, stderr=nothing, pass_fds=[directory], start_new_session=True, cwd="/"
  )
  waiting.returncode = 0  # It outlives this process, so nobody waits for it.
  os.close(directory)


@atexit.register
def _end():
  """Removes unused directories now, because in a container all processes are killed when the first one ends."""
  for path, (process, directory) in _held.items():
    if process == os.getpid():  # A forked process has the lock of its parent.
      os.close(directory)
      _remove_unused(path)


def limit(name: str, max_bytes: int | None) -> int:
  """The most bytes of samples: `max_bytes`, or a quarter of the memory, but at most half of the file system, because
  files may take twice as much. It is the same in all processes. Warns if the file system lowers it.

  Raises ValueError if the file system is full.
  """
  system = os.statvfs(FOLDER)
  if system.f_bavail * system.f_frsize < _LEAST_FREE:
    raise ValueError(
      f"name needs room in {FOLDER}, which has {machine.size_of(system.f_bavail * system.f_frsize)} left. Remove files "
      "that other programs have left there, or give a path, a directory on a local disk."
    )
  size = system.f_blocks * system.f_frsize
  memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  wanted = max_bytes or min(memory, machine.memory_limit() or memory) // 4
  if size // 2 < 0.9 * wanted:
    pipeline_warnings.warn(
      f"{FOLDER} has {machine.size_of(size)}, so the store named {name!r} holds at most {machine.size_of(size // 2)}. "
      "Other samples are prepared again at each use. To enlarge it, use docker run --shm-size=16g, or in Kubernetes "
      "mount an emptyDir volume with medium: Memory there."
    )
  return min(wanted, max(1, size // 2))

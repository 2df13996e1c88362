"""Stores in memory that processes of a machine share by name: directories that are removed after the last process."""

import fcntl
import os
import re
import shutil
import subprocess
import sys

from refurbish_tf._internal import machine, pipeline_warnings

# A file system in memory. Tests set another folder.
FOLDER = "/dev/shm"
# Each process that has the store open holds a shared lock on its directory until it ends. This program waits for that
# in a process of its own, because processes that are killed cannot remove anything.
_REMOVE_UNUSED = """
import fcntl, os, shutil, sys
directory, path = int(sys.argv[1]), sys.argv[2]
fcntl.flock(directory, fcntl.LOCK_EX)
if os.path.samestat(os.stat(path), os.fstat(directory)):
  shutil.rmtree(path, ignore_errors=True)
"""
# The descriptors with the locks, by directory.
_held = {}


def open_directory(name: str) -> str:
  """A directory for the store of this name, empty unless another process has it open. This process keeps it open.

  Raises TypeError or ValueError for an unusable name, or without a usable file system in memory.
  """
  if not isinstance(name, str):
    raise TypeError(f"name must be a string such as 'train', got {name!r}.")
  if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
    raise ValueError(f"name must be 1 to 100 letters, digits, '.', '_' or '-', such as 'train', got {name!r}.")
  path = os.path.join(FOLDER, f"refurbish_tf-{os.geteuid()}-{name}")
  store = os.path.join(path, "store")
  if path in _held and _is_at(_held[path], path):
    return store
  while True:
    directory = _opened(path)
    if directory is None:
      continue
    try:
      fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(store, ignore_errors=True)  # Nobody uses it, but the process that removes it was killed.
    except BlockingIOError:
      pass
    fcntl.flock(directory, fcntl.LOCK_SH)
    if _is_at(directory, path):
      break
    os.close(directory)  # It was removed before this process had the lock.
  _held[path] = directory
  _start_removing(path)
  return store


def _opened(path):
  """A descriptor of the directory, which is made if it is missing; None if it was removed at the same time."""
  try:
    os.mkdir(path, 0o700)
  except FileExistsError:
    pass
  except OSError as error:
    raise ValueError(
      f"name needs {FOLDER}, a file system in memory, in which no directory can be made here ({error.strerror}). Give "
      "a path, a directory of a local disk, instead."
    ) from None
  try:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
  except FileNotFoundError:
    return None
  if os.fstat(directory).st_uid != os.geteuid():
    os.close(directory)
    raise ValueError(f"{path} belongs to another user, so it is not used. Give another name.")
  return directory


def _is_at(directory, path):
  try:
    return os.path.samestat(os.stat(path), os.fstat(directory))
  except FileNotFoundError:
    return False


def _start_removing(path):
  """Starts the process that removes the directory, unless there is one. It holds the lock on a file there."""
  lock = os.open(os.path.join(path, "removed_by"), os.O_RDWR | os.O_CREAT, 0o600)
  directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    command = [sys.executable, "-I", "-S", "-c", _REMOVE_UNUSED, str(directory), path]
    nothing = subprocess.DEVNULL
    # A session of its own, so that signals to the process group, such as Ctrl-C, do not reach it.
    remover = subprocess.Popen(
      command,
      stdin=nothing,
      stdout=nothing,
      stderr=nothing,
      pass_fds=(lock, directory),
      start_new_session=True,
      cwd="/",
    )
    remover.returncode = 0  # It outlives this process, so nobody waits for it.
  except BlockingIOError:
    pass
  finally:
    os.close(lock)
    os.close(directory)


def limit(name: str, max_bytes: int | None) -> int:
  """The most bytes of samples: `max_bytes`, or a quarter of the memory, but at most half of the file system, because
  files may take twice as much. It is the same in all processes. Warns if the file system lowers it."""
  system = os.statvfs(FOLDER)
  size = system.f_blocks * system.f_frsize
  memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  wanted = max_bytes or min(memory, machine.memory_limit() or memory) // 4
  if size // 2 < 0.9 * wanted:
    pipeline_warnings.warn(
      f"{FOLDER} has {machine.size_of(size)}, so the store named {name!r} holds at most {machine.size_of(size // 2)}. "
      "Other samples are prepared again at each use. Make it larger: docker run --shm-size=16g, or in Kubernetes an "
      "emptyDir volume with medium: Memory, mounted there."
    )
  return min(wanted, max(1, size // 2))

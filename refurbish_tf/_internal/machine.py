"""The cores, memory, disk and accelerators that this process can use."""

import contextlib
import math
import os
import pathlib
import platform
import re
import shutil
import sys
import time

import tensorflow as tf

from refurbish_tf._internal import native
from refurbish_tf._internal.tensorflow_internals import context

_CPU = pathlib.Path("/proc/cpuinfo")
_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
# The folder that contains /proc and /sys. Tests set another one.
_ROOT = ""
# The size of the file that is written and read to measure a disk.
_DISK_FILE_BYTES = 2**26


def processors() -> int:
  """The CPU cores that the process' affinity and its control group, such as a container's, allow; rounded up."""
  number = len(os.sched_getaffinity(0))
  # Control groups of version 2, then of version 1, whose quota is -1 without a limit.
  for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
      texts = [(_CONTROL_GROUPS / name).read_text() for name in names]
      quota, period = map(int, " ".join(texts).split())
      if quota > 0:
        number = min(number, max(1, math.ceil(quota / period)))
  return number


def processor() -> str:
  """The model of the CPU, or its architecture if the model is unknown."""
  return _of_cpu(r"^model name\s*:\s*(.*)") or platform.machine()


def has_bfloat16() -> bool:
  """Whether Linux reports that the CPU, x86 or Arm, computes with bfloat16. False if that is unknown."""
  return _of_cpu(r"\b(avx512_bf16|bf16)\b") is not None


def _of_cpu(pattern):
  """The text that the group of `pattern` matches in /proc/cpuinfo, or None."""
  found = re.search(pattern, _CPU.read_text(encoding="utf-8"), re.MULTILINE) if _CPU.is_file() else None
  return found and found[1]


def free_memory() -> int:
  """How many bytes of available memory this process can still use, within the limits of its control groups."""
  return _free_and_reserve()[0]


def memory_limit() -> int | None:
  """The memory limit in bytes of the process' control group, such as a container's; None without a limit."""
  for name in ("memory.max", "memory/memory.limit_in_bytes"):
    with contextlib.suppress(OSError, ValueError):
      limit = int((_CONTROL_GROUPS / name).read_text())
      # Version 1 of control groups has a number near 2**63 if there is no limit.
      return limit if limit < 2**60 else None
  return None


def room_for_samples() -> int:
  """How many more bytes of samples the stores in memory can keep before memory is short."""
  free, reserve = _free_and_reserve()
  return max(0, free - reserve)


def room_for_reading_ahead() -> int:
  """The bytes that a pipeline's `prefetch(AUTOTUNE)` may hold: a quarter of what stores leave free, up to 512 MiB."""
  return min(_free_and_reserve()[1] // 4, 2**29)


def _free_and_reserve():
  with context.eager_mode():  # A stage may be built in a graph.
    return native.ops().refurbish_tf_memory(root=_ROOT).numpy().tolist()


def has_accelerator() -> bool:
  """Whether TensorFlow, or JAX or PyTorch if they are imported, sees a GPU or TPU, or the system has one."""
  if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
    return True
  if any(found for name in ("nvidia[0-9]*", "accel[0-9]*") for found in pathlib.Path("/dev").glob(name)):
    return True
  with contextlib.suppress(Exception):
    jax = sys.modules.get("jax")
    if jax is not None and jax.default_backend() != "cpu":
      return True
  with contextlib.suppress(Exception):
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()
  return False


def drop_from_page_cache(paths):
  """Drops files from the page cache; returns whether this is known to have worked."""
  for path in paths:
    try:
      with open(path, "rb", buffering=0) as file:
        os.fdatasync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
      return False
  return True


def disk_rate(folder):
  """Bytes read per second from a large file outside the page cache; infinite if it cannot be dropped from the cache."""
  size = min(_DISK_FILE_BYTES, shutil.disk_usage(folder).free // 8)
  path = os.path.join(folder, "rate")
  with open(path, "wb") as file:
    block = os.urandom(2**20)
    for _ in range(max(1, size // len(block))):
      file.write(block)
  if not drop_from_page_cache([os.fsencode(path)]):
    return math.inf
  began = time.perf_counter()
  with open(path, "rb", buffering=0) as file:
    read = sum(map(len, iter(lambda: file.read(2**20), b"")))
  return read / (time.perf_counter() - began)


def size_of(number):
  """A number of bytes as text, with three digits and a unit."""
  for unit in ("bytes", "kB", "MB", "GB"):
    if number < 999.5:
      return f"{number:.3g} {unit}"
    number /= 1000
  return f"{number:,.3g} TB"

"""What this process may use of the machine."""
import contextlib
import math
import os
import pathlib
import sys

import tensorflow as tf

_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")
_MEMORY = pathlib.Path("/proc/meminfo")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")


def processors() -> int:
  """How many processors, by the process' affinity and by its control group, as of a container; rounded up."""
  number = len(os.sched_getaffinity(0))
  with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
    quota, period = (_CONTROL_GROUPS / "cpu.max").read_text().split()
    number = min(number, max(1, math.ceil(int(quota) / int(period))))
  with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
    quota, period = (int((_CONTROL_GROUPS / "cpu" / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    if quota > 0:
      number = min(number, max(1, math.ceil(quota / period)))
  return number


def free_memory() -> int:
  """How many bytes this process can still use: what is available, within the limits of its control groups."""
  available = {}
  with contextlib.suppress(OSError, ValueError):
    for line in _MEMORY.read_text().splitlines():
      name, _, value = line.partition(":")
      available[name] = 1024 * int(value.split()[0])
  free = [available.get("MemAvailable", 2**30)]
  for folder in _groups():
    # Of the second version of control groups, and of the first.
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
      with contextlib.suppress(OSError, ValueError):
        left = int((folder / limit).read_text()) - int((folder / usage).read_text())
        with contextlib.suppress(OSError, ValueError):
          # Pages of files that the system would give back.
          counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
          left += int(counts["inactive_file"])
        free.append(max(0, left))
  return min(free)


def _groups():
  """The folders of this process' control groups and of all around them."""
  own = []
  with contextlib.suppress(OSError, ValueError):
    for line in _OWN_GROUPS.read_text().splitlines():
      _, controllers, path = line.split(":", 2)
      if not controllers or "memory" in controllers.split(","):
        own.append(_CONTROL_GROUPS / ("memory" if controllers else "") / path.lstrip("/"))
  found = {_CONTROL_GROUPS, _CONTROL_GROUPS / "memory"}
  for folder in own:
    # In a container its own path may be seen as "/".
    found |= {each for each in (folder, *folder.parents) if _CONTROL_GROUPS in (each, *each.parents)}
  return sorted(found)


def has_accelerator() -> bool:
  """Whether TensorFlow, or JAX or PyTorch if they are imported, sees a GPU or TPU."""
  if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
    return True
  with contextlib.suppress(Exception):
    jax = sys.modules.get("jax")
    if jax is not None and jax.default_backend() != "cpu":
      return True
  with contextlib.suppress(Exception):
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()
  return False

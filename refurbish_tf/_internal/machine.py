"""What this process may use of the machine."""
import contextlib
import math
import os
import pathlib

_CONTROL_GROUPS = pathlib.Path("/sys/fs/cgroup")


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

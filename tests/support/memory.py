"""A machine of 40 GiB, and so with a reserve of 4, whose free memory a test sets, in the eyes of this process' stores."""
import contextlib
import os
import time

from refurbish_tf._internal import machine

GIB = 2**30
PLENTY, SHORT, NONE = 30 * GIB, 3 * GIB, 0


class FreeMemory:

  def __init__(self, root, free=PLENTY):
    self._file = root / "proc" / "meminfo"
    self._file.parent.mkdir()
    self.set(free)

  def set(self, free):
    """From now on so much is free, and every store looks once it has had 32 uses more."""
    new = self._file.with_suffix(".new")
    new.write_text(f"MemTotal: {40 * GIB // 1024} kB\nMemAvailable: {free // 1024} kB\n")
    os.rename(new, self._file)
    # A store looks at most ten times a second, and pauses for ten times as long as that took: 80 ms on a machine at work.
    time.sleep(0.8)


@contextlib.contextmanager
def free_memory(monkeypatch, root, free=PLENTY):
  with monkeypatch.context() as patch:
    patch.setattr(machine, "_ROOT", str(root))
    memory = FreeMemory(root, free)
    machine.free_memory()
    yield memory
  machine.free_memory()

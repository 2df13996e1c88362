"""Waits until another thread waits, to test that it does not go on too early."""

import pathlib
import re
import threading
import time


def ends(function, limit):
  """Returns whether a call ends within `limit` seconds. A thread runs it, so a test fails instead of hanging."""
  thread = threading.Thread(target=function, daemon=True)
  thread.start()
  thread.join(limit)
  return not thread.is_alive()


def until(condition, limit):
  """Returns whether the condition holds within `limit` seconds."""
  deadline = time.monotonic() + limit
  while not (holds := condition()) and time.monotonic() < deadline:
    time.sleep(0.001)
  return holds


def until_asleep(thread, limit=3):
  """Waits until the thread has slept (not: been ready to run) for a tenth of a second, or has ended.

  A short pause would be enough only on a machine with a free core for the thread. For a thread that is woken repeatedly
  this waits `limit` seconds.
  """
  status = pathlib.Path(f"/proc/self/task/{thread.native_id}/status")
  before, asleep = None, 0
  deadline = time.monotonic() + limit
  while asleep < 5 and time.monotonic() < deadline:
    try:
      text = status.read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
      return
    now = re.findall(r"ctxt_switches:\s*(\d+)", text)
    asleep = asleep + 1 if now == before and re.search(r"^State:\s*S", text, re.MULTILINE) else 0
    before = now
    time.sleep(0.02)

"""Waiting until another thread waits, for tests of what it does not do before something happens."""
import pathlib
import re
import time


def until_asleep(thread, limit=3):
  """Until the thread has waited for something, and not for a processor, for a tenth of a second; or has ended.

  A short pause would do on a machine that has a processor left for the thread, and on no other. A thread that something
  wakes again and again is given `limit` seconds.
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

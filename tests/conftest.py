"""How the tests are run: all or a sample of the cases, on all processors, and those marked `alone` by themselves at the end."""
import collections
import fcntl
import gc
import os

import hypothesis
import pytest

from support import cases

# The time of one example says nothing on a machine whose cores are shared.
hypothesis.settings.register_profile("refurbish_tf", deadline=None)
hypothesis.settings.load_profile("refurbish_tf")

# Of all processes: what the tests of each file took. Those above this many seconds are told at the end.
SECONDS = collections.Counter()
TOLD = 10


def pytest_addoption(parser):
  parser.addoption("--exhaustive", action="store_true", help="run all cases of all tests and not a sample of them")


def pytest_configure(config):
  config.addinivalue_line("markers", "only_exhaustive: left out unless --exhaustive is given")
  config.addinivalue_line("markers", "each_value: each value of each parameter; each combination with --exhaustive")
  config.addinivalue_line("markers", "alone: measures time or needs the machine for itself; runs at the end, beside no other")
  cases.exhaustive = config.getoption("--exhaustive")


def pytest_collection_modifyitems(config, items):
  if not cases.exhaustive:
    leaves = set(cases.left_out(items))
    config.hook.pytest_deselected(items=[item for item in items if item in leaves])
    items[:] = [item for item in items if item not in leaves]
  items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def pytest_collection_finish():
  """What the imports have made stays. Else each `gc.collect()` of a test would look at all of it, for a quarter of a second."""
  gc.collect()
  gc.freeze()


def pytest_runtest_logreport(report):
  SECONDS[report.location[0]] += report.duration


def pytest_terminal_summary(terminalreporter):
  terminalreporter.section("seconds by file")
  for name, seconds in SECONDS.most_common():
    if seconds >= TOLD:
      terminalreporter.write_line(f"{seconds:6.0f} {name}")
  terminalreporter.write_line(f"{sum(SECONDS.values()):6.0f} all")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
  """One more than the processors that this process may use, as many a test waits: for another process, or for a thread."""
  return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  """Each test shares a lock with those of other processes; one that is marked `alone` has it for itself."""
  with open(__file__, encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
    return (yield)

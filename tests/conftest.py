"""How the tests are run.

The folders mirror the package, and cc/ mirrors refurbish_tf/cc. refurbish/, echo/ and offload/ test the stages, store/
the cache store, internal/ refurbish_tf/_internal, trainings/ the folder of that name, and project/ the rest of the
repository. test_reference.py and test_golden.py fix the bytes of the elements. fuzz/ has fuzzers, which
`python tests/fuzz/run.py` runs for as long as you like, and a sample of their cases. support/ has code that files
share. No two files have the same name. `pytest -n auto` is the quick run. It leaves out the tests marked `slow`, which
`pytest -n auto -m slow` runs. Both run a sample of the cases (support/cases.py); `--exhaustive` runs all tests with all
cases. With pytest-xdist, tests marked `alone` run one at a time, after the others. mutants.py breaks the package in
many ways and checks that a test fails each time."""

import collections
import fcntl
import gc
import os
import sys

import hypothesis
import pytest

from support import cases, wheels

# Examples have no time limit, because it would mean nothing on a machine with shared cores.
hypothesis.settings.register_profile("refurbish_tf", deadline=None)
hypothesis.settings.load_profile("refurbish_tf")

# Seconds by test file, over all processes. Files with more than `TOLD` seconds are printed at the end.
SECONDS = collections.Counter()
TOLD = 10


def pytest_addoption(parser):
  parser.addoption("--exhaustive", action="store_true", help="run all tests with all of their cases")


def pytest_configure(config):
  config.addinivalue_line("markers", "slow: not in the quick run; with 'exhaustive' not in -m slow either")
  config.addinivalue_line("markers", "each_value: each value of each parameter; each combination with --exhaustive")
  config.addinivalue_line(
    "markers", "alone: measures time or needs the machine for itself; runs at the end, beside no other"
  )
  cases.exhaustive = config.getoption("--exhaustive")
  if cases.exhaustive and config.option.markexpr == "not slow":  # The default in pyproject.toml, so no -m was given.
    config.option.markexpr = ""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
  """Builds the wheel with build_wheel.py, which takes minutes. pip must be able to fetch TensorFlow."""
  try:
    wheels.build_wheel.find_compiler()
  except SystemExit as error:
    pytest.skip(str(error))
  return wheels.build_wheel.main(["--output", str(tmp_path_factory.mktemp("dist"))])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  """A directory for the stores of a file of tests."""
  return tmp_path_factory.mktemp("stores")


def pytest_collection_modifyitems(config, items):
  if not cases.exhaustive:
    leaves = set(cases.left_out(items))
    config.hook.pytest_deselected(items=[item for item in items if item in leaves])
    items[:] = [item for item in items if item not in leaves]
  items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def pytest_collection_finish():
  """Freezes the objects that imports have created; otherwise they add a quarter of a second to each `gc.collect()`."""
  # Imported late, because the process that distributes the tests need not import TensorFlow.
  from support import autograph

  autograph.parse_each_file_once()
  gc.collect()
  gc.freeze()


def pytest_runtest_teardown():
  if levels := sys.modules.get("support.shared_levels"):
    levels.end_jobs()


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
  """Returns one more than the number of available cores, because many tests wait for another process or a thread."""
  return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """Each process begins with other files, so that they neither make the same fixtures nor wait at the same time."""
  from xdist.scheduler import WorkStealingScheduling

  return WorkStealingScheduling(config, log) if config.option.dist == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
  """Holds a lock during each test: shared with the other processes, or exclusive for a test marked `alone`."""
  with open(__file__, encoding="utf-8") as file:
    fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
    return (yield)

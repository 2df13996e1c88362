"""Builds the C++ unit tests in tests/cc and runs them under the address, undefined and thread sanitizers.

A test is linked with the sources it needs and no others: those beside the headers it includes, directly or through
them. That these need no TensorFlow is part of the design, and checked here; of Abseil, which comes with TensorFlow's
library, they may use `absl::Status` and strings.

Most of the time goes into compiling the same headers. So the files of a program are compiled as two: its tests, and the
sources they need. Each file's tests are a process of their own, as some fork, die of signals or lower limits.
"""
import fcntl
import functools
import os
import pathlib
import re
import subprocess
import zlib

import pytest
import tensorflow as tf

from refurbish_tf import native
from support import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
CC = ROOT / "tests" / "cc"
# Test files that are compiled together. Each other one is a program by itself.
PROGRAMS = {
    "schedule": ["echo_test", "registry_test", "memory_store_test", "schedule_test", "system_error_test"],
    "workers": [
        "ordered_workers_cancel_test", "ordered_workers_room_test", "ordered_workers_test", "ordered_workers_waiting_test"],
    "store": [
        "disk_clock_test", "disk_damage_test", "disk_descriptors_test", "disk_directory_test", "disk_fuzz_test",
        "disk_store_races_test", "disk_store_test", "full_disk_test", "held_up_test", "mapped_file_test", "power_loss_test",
        "read_queue_test", "record_test", "settings_file_test", "shared_state_test", "writer_test"],
}
PROGRAMS |= {
    path.stem: [path.stem] for path in sorted(CC.glob("*_test.cc")) if path.stem not in sum(PROGRAMS.values(), [])}
GOOGLETEST = pathlib.Path(os.environ.get("GOOGLETEST", "/usr/src/googletest"))
FRAMEWORK = [GOOGLETEST / name for name in (
    "googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc", "googlemock/src/gmock_main.cc")]
# Warnings are errors, but not beside the checks of addresses, which mislead the compiler into false ones.
VARIANTS = {
    "plain": ["-Werror"],
    "address_undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread", "-Werror"],
}
# Of tests that go on at random, in the exhaustive run.
ROUNDS = {"plain": "200", "address_undefined": "20"}


def includes(path):
  return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def own_sources(tests):
  """The .cc files that `tests` must be linked with."""
  seen, waiting = [], list(tests)
  while waiting:
    path = waiting.pop()
    seen.append(path)
    for name in includes(path):
      if name.startswith("absl/") or path.parent == CC and name.startswith(("gtest/", "gmock/")):
        continue
      header = ROOT / name
      if not header.is_file():
        pytest.fail(
            f'{path.relative_to(ROOT)} includes "{name}": what a C++ unit test reaches may include only our own headers, '
            "by their path from the root, Abseil's and the standard library's", pytrace=False)
      waiting.extend(
          found for found in (header, header.with_suffix(".cc")) if found.is_file() and found not in seen + waiting)
  return sorted(path for path in seen if path.suffix == ".cc" and path not in tests)


def starts_threads(test):
  return "std::thread" in test.read_text()


@functools.lru_cache(maxsize=None)
def compiler():
  try:
    return tuple(native.compiler())
  except native.NoCompilerError as error:
    pytest.skip(f"{error} and run again")


class Builder:
  """Makes each program once for each variant, for all processes that share the directory."""

  def __init__(self, directory):
    self._directory = directory
    directory.mkdir(exist_ok=True)

  def program(self, variant, name):
    tests = [CC / f"{test}.cc" for test in PROGRAMS[name]]
    if variant == "thread":
      tests = [test for test in tests if starts_threads(test)]
    # GoogleTest is not what is examined, and takes part in all variants as it is.
    units = [("framework", FRAMEWORK), (variant, own_sources(tests)), (variant, tests)]
    units = [(each, sources, self._directory / f"{each}_{zlib.crc32(repr(sources).encode())}.o")
             for each, sources in units if sources]
    # What another process is compiling is waited for last.
    for wait in (False, True):
      for each, sources, target in units:
        self._make(target, functools.partial(self._compile, each, sources), wait)
    target = self._directory / f"{variant}_{name}"
    # GoogleTest last: of a function of the standard library that several have, the linker takes the first, and a sanitizer
    # sees nothing of those that are compiled without it.
    self._make(target, functools.partial(self._link, variant, [unit[-1] for unit in reversed(units)]), wait=True)
    return target

  def _make(self, target, make, wait):
    with open(f"{target}.lock", "w", encoding="utf-8") as lock:
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
      except BlockingIOError:
        return
      if not target.exists():
        part = target.with_suffix(".part")
        make(part)
        part.rename(target)

  def _compile(self, variant, sources, target):
    # Neither tests nor GoogleTest are what takes the time when they run, but they would be when they are compiled.
    flags = ["-std=c++17", "-g1", "-O1" if variant == "thread" or sources[0].is_relative_to(ROOT / "refurbish_tf") else "-O0"]
    for part in ("googletest", "googlemock"):
      flags += ["-isystem", GOOGLETEST / part / "include"]
    if variant in VARIANTS:
      flags += [*VARIANTS[variant], "-Wall", "-Wextra", "-iquote", ".", "-isystem", tf.sysconfig.get_include()]
    else:
      # GoogleTest's sources include each other; their warnings are not ours to mend.
      flags += ["-w", "-I", GOOGLETEST / "googletest", "-I", GOOGLETEST / "googlemock"]
    # Our own by their path from the root, so that a cache of the compiler finds them in another checkout.
    *others, last = [source.relative_to(ROOT) if source.is_relative_to(ROOT) else source for source in sources]
    for source in others:
      flags += ["-include", source]
    self._run([*flags, "-c", last, "-o", target])

  def _link(self, variant, objects, target):
    library = next(flag[2:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-L"))
    self._run([
        *objects, *VARIANTS[variant], "-pthread", "-o", target, "-Wl,--as-needed", *tf.sysconfig.get_link_flags(),
        f"-Wl,-rpath,{library}"])

  def _run(self, arguments):
    done = subprocess.run([*compiler(), *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
      pytest.fail(f"does not compile:\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
  if not FRAMEWORK[0].is_file():
    pytest.skip("GoogleTest's sources are not there: `apt-get install libgtest-dev`, or set GOOGLETEST to a copy of them")
  compiler()
  directory = tmp_path_factory.getbasetemp()
  # With pytest-xdist each process has a directory of its own within that of all.
  return Builder((directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "cc")


def names_of_tests(path):
  """As GoogleTest's filter wants them: of suites with parameters, too."""
  names = re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
  return ":".join(f"{suite}.{name}:*/{suite}.{name}/*" for suite, name in names)


@pytest.mark.parametrize("variant, name, test", [
    pytest.param(variant, name, test, id=f"{variant}-{test}", marks=cases.only_exhaustive if variant == "plain" else ())
    for variant in VARIANTS for name, tests in PROGRAMS.items() for test in tests
    if variant != "thread" or starts_threads(CC / f"{test}.cc")])
def test_cc(builder, variant, name, test):
  program = builder.program(variant, name)
  command = [str(program), "--gtest_brief=1", f"--gtest_filter={names_of_tests(CC / f'{test}.cc')}"]
  rounds = {"REFURBISH_TF_ROUNDS": ROUNDS[variant]} if cases.exhaustive and variant in ROUNDS else {}
  options = {"TSAN_OPTIONS": f"suppressions='{ROOT}/tests/cc/thread_sanitizer.supp'"}
  run = functools.partial(
      subprocess.run, capture_output=True, text=True, timeout=300, env={**os.environ, **rounds, **options}, check=False)
  done = run(command)
  if "ThreadSanitizer: unexpected memory mapping" in done.stderr:
    # Some kernels scatter addresses wider than the sanitizer's shadow reaches.
    done = run(["setarch", "-R", *command])
  if done.returncode != 0 or "[  PASSED  ] 0 tests" in done.stdout:
    pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)


# Which parts each part may include besides its own headers.
MAY_INCLUDE = {
    "schedule": (), "workers": (), "store": (), "image": (), "sources": ("store",), "stage": ("schedule", "store"),
    "kernels": ("schedule", "workers", "store", "stage", "image", "sources"), "ops": ("image",)}


def test_no_random_device():
  """Some builds of the standard library open a file for it, and throw where the process has no descriptor left."""
  for path in (ROOT / "refurbish_tf" / "cc").rglob("*.*"):
    assert "#include <random>" not in path.read_text(), path


def test_includes_run_downward_only():
  parts = ROOT / "refurbish_tf" / "cc"
  assert {path.name for path in parts.iterdir()} == set(MAY_INCLUDE)
  for part, others in MAY_INCLUDE.items():
    for path in (parts / part).rglob("*.*"):
      used = {name.split("/")[2] for name in includes(path) if name.startswith("refurbish_tf/")}
      assert used <= {part, *others}, path

"""Builds the C++ unit tests in tests/cc and runs them under the address, undefined and thread sanitizers.

A test is linked with the sources it needs and no others: those beside the headers it includes, directly or through
them. That these need no TensorFlow is part of the design, and checked here; of Abseil, which comes with TensorFlow's
library, they may use `absl::Status` and strings.
"""
import fcntl
import functools
import os
import pathlib
import re
import subprocess
from concurrent import futures

import pytest
import tensorflow as tf

from refurbish_tf import native
from support import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests" / "cc").glob("*_test.cc"))
GOOGLETEST = pathlib.Path(os.environ.get("GOOGLETEST", "/usr/src/googletest"))
FRAMEWORK = ("googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc", "googlemock/src/gmock_main.cc")
# Warnings are errors, but not beside the checks of addresses, which mislead the compiler into false ones.
VARIANTS = {
    "plain": ["-Werror"],
    "address_undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread", "-Werror"],
}


def includes(path):
  return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def own_sources(test):
  """The .cc files that `test` must be linked with, itself first."""
  seen, waiting = [], [test]
  while waiting:
    path = waiting.pop()
    seen.append(path)
    for name in includes(path):
      if name.startswith("absl/") or path.parent == test.parent and name.startswith(("gtest/", "gmock/")):
        continue
      header = ROOT / name
      if not header.is_file():
        pytest.fail(
            f'{path.relative_to(ROOT)} includes "{name}": what a C++ unit test reaches may include only our own headers, '
            "by their path from the root, Abseil's and the standard library's", pytrace=False)
      waiting.extend(
          found for found in (header, header.with_suffix(".cc")) if found.is_file() and found not in seen + waiting)
  return [path for path in seen if path.suffix == ".cc"]


@functools.lru_cache(maxsize=None)
def compiler():
  try:
    return tuple(native.compiler())
  except native.NoCompilerError as error:
    pytest.skip(f"{error} and run again")


class Builder:
  """Compiles every file once for each variant, for all processes that share the directory."""

  def __init__(self, directory):
    self._directory = directory
    directory.mkdir(exist_ok=True)

  def program(self, variant, test):
    sources = [*own_sources(test), *(GOOGLETEST / name for name in FRAMEWORK)]
    # Where other processes run tests they have the other processors.
    at_once = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))
    with futures.ThreadPoolExecutor(at_once) as pool:
      objects = list(pool.map(functools.partial(self._object, variant), sources))
    target = self._directory / f"{variant}_{test.stem}"
    library = next(flag[2:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-L"))
    self._run([
        *objects, *VARIANTS[variant], "-pthread", "-o", target, "-Wl,--as-needed", *tf.sysconfig.get_link_flags(),
        f"-Wl,-rpath,{library}"])
    return target

  def _object(self, variant, source):
    if not source.is_relative_to(ROOT):
      variant = "framework"  # Is not what is examined, and takes part in all variants as it is.
    target = self._directory / f"{variant}{str(source).replace(os.sep, '_')}.o"
    with open(target.with_suffix(".lock"), "w", encoding="utf-8") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not target.exists():
        self._compile(variant, source, target.with_suffix(".part"))
        target.with_suffix(".part").rename(target)
    return target

  def _compile(self, variant, source, target):
    # Tests are not what takes the time when they run, but would be what takes it when they are compiled.
    flags = ["-std=c++17", "-g1", "-O0" if source in TESTS and variant == "address_undefined" else "-O1"]
    for part in ("googletest", "googlemock"):
      flags += ["-isystem", GOOGLETEST / part / "include"]
    if variant in VARIANTS:
      flags += [*VARIANTS[variant], "-Wall", "-Wextra", "-iquote", ROOT, "-isystem", tf.sysconfig.get_include()]
    else:
      # GoogleTest's sources include each other; their warnings are not ours to mend.
      flags += ["-w", "-I", source.parent.parent]
    self._run([*flags, "-c", source, "-o", target])

  def _run(self, arguments):
    done = subprocess.run([*compiler(), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
      pytest.fail(f"does not compile:\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
  if not (GOOGLETEST / FRAMEWORK[0]).is_file():
    pytest.skip("GoogleTest's sources are not there: `apt-get install libgtest-dev`, or set GOOGLETEST to a copy of them")
  compiler()
  directory = tmp_path_factory.getbasetemp()
  # With pytest-xdist each process has a directory of its own within that of all.
  return Builder((directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "cc")


def by_default(variant, test):
  """What is right with each sanitizer is right without; that of threads is for tests that start some."""
  return variant == "address_undefined" or variant == "thread" and "std::thread" in test.read_text()


@pytest.mark.parametrize("variant, test", [
    pytest.param(variant, test, id=f"{variant}-{test.stem}", marks=() if by_default(variant, test) else cases.only_exhaustive)
    for variant in VARIANTS for test in TESTS])
def test_cc(builder, variant, test):
  program = builder.program(variant, test)
  command = [str(program), "--gtest_brief=1"]
  # Of those tests that go on at random for so long as they are told.
  rounds = {"REFURBISH_TF_ROUNDS": "200"} if cases.exhaustive and variant == "plain" else {}
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

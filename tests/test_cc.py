"""Builds the C++ unit tests in tests/cc and runs them: plain, and under the address, undefined and thread sanitizers.

A test is linked with the sources it needs and no others: those beside the headers it includes, directly or through
them. That these need no TensorFlow is part of the design, and checked here; of Abseil, which comes with TensorFlow's
library, they may use `absl::Status` and strings.
"""
import functools
import os
import pathlib
import re
import subprocess
from concurrent import futures

import pytest
import tensorflow as tf

from refurbish_tf import native

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests" / "cc").glob("*_test.cc"))
GOOGLETEST = pathlib.Path(os.environ.get("GOOGLETEST", "/usr/src/googletest"))
FRAMEWORK = ("googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc", "googlemock/src/gmock_main.cc")
# Warnings are errors in the plain build only: the sanitizers' own checks mislead the compiler into false ones.
VARIANTS = {
    "plain": ["-Werror"],
    "address_undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
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
  """Compiles every file once for each variant, two and more at a time, in the order in which the tests ask."""

  def __init__(self, directory):
    self._directory = directory
    self._pool = futures.ThreadPoolExecutor(os.cpu_count())
    self._objects = {}

  def objects(self, variant, test):
    sources = [*own_sources(test), *(GOOGLETEST / name for name in FRAMEWORK)]
    return [self._object(variant, source) for source in sources]

  def program(self, variant, test):
    objects = [future.result() for future in self.objects(variant, test)]
    target = self._directory / f"{variant}_{test.stem}"
    library = next(flag[2:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-L"))
    self._run([
        *objects, *VARIANTS[variant], "-pthread", "-o", target, "-Wl,--as-needed", *tf.sysconfig.get_link_flags(),
        f"-Wl,-rpath,{library}"])
    return target

  def close(self):
    self._pool.shutdown(cancel_futures=True)

  def _object(self, variant, source):
    if (variant, source) not in self._objects:
      target = self._directory / f"{variant}_{len(self._objects)}.o"
      flags = ["-std=c++17", "-O1", "-g1", *VARIANTS[variant]]
      for part in ("googletest", "googlemock"):
        flags += ["-isystem", GOOGLETEST / part / "include"]
      if source.is_relative_to(ROOT):
        flags += ["-Wall", "-Wextra", "-iquote", ROOT, "-isystem", tf.sysconfig.get_include()]
      else:
        # GoogleTest's sources include each other; their warnings are not ours to mend.
        flags += ["-w", "-I", source.parent.parent]
      self._objects[variant, source] = self._pool.submit(self._compile, [*flags, "-c", source, "-o", target], target)
    return self._objects[variant, source]

  def _compile(self, arguments, target):
    self._run(arguments)
    return target

  def _run(self, arguments):
    done = subprocess.run([*compiler(), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
      pytest.fail(f"does not compile:\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def builder(request, tmp_path_factory):
  if not (GOOGLETEST / FRAMEWORK[0]).is_file():
    pytest.skip("GoogleTest's sources are not there: `apt-get install libgtest-dev`, or set GOOGLETEST to a copy of them")
  compiler()
  result = Builder(tmp_path_factory.mktemp("cc"))
  # All that this session will need is begun now, so that no core waits while a test runs.
  for item in request.session.items:
    if getattr(item, "originalname", None) == test_cc.__name__:
      try:
        result.objects(**item.callspec.params)
      except pytest.fail.Exception:
        pass  # Said by the test itself.
  yield result
  result.close()


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", VARIANTS)
def test_cc(builder, variant, test):
  program = builder.program(variant, test)
  command = [str(program), "--gtest_brief=1"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  if "ThreadSanitizer: unexpected memory mapping" in done.stderr:
    # Some kernels scatter addresses wider than the sanitizer's shadow reaches.
    done = subprocess.run(["setarch", "-R", *command], capture_output=True, text=True, timeout=300)
  if done.returncode != 0 or "[  PASSED  ] 0 tests" in done.stdout:
    pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)


def test_schedule_and_store_do_not_know_each_other():
  for part, other in [("schedule", "store"), ("store", "schedule")]:
    for path in (ROOT / "refurbish_tf" / "cc" / part).glob("*.*"):
      assert not [name for name in includes(path) if name.startswith((f"refurbish_tf/cc/{other}/", "refurbish_tf/cc/kernels/"))]

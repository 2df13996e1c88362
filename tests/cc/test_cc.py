"""Builds the C++ unit tests in tests/cc and runs them under the address, undefined and thread sanitizers.

Tests are linked only with the sources they need: the .cc files of the headers that they include, directly or
indirectly. Except for those in the folders `TENSORS`, they must need no TensorFlow, which the build checks. From
TensorFlow's library they may use Abseil's `absl::Status` and strings. Its locks are invisible to the sanitizers,
because it is compiled without them.

Compiling the same headers takes most of the time. So all tests are in three programs: tests of the store on disk, of
code that holds tensors, and the rest. Each program is compiled as two files, one of tests, whose names must therefore
differ, and one of sources. A fourth program, of one file, has the tests that guard a guarantee: the quick run has it
without a sanitizer, the slow run with each. The slow run also has the other tests without TensorFlow and sanitizers.
The tests of each file run in their own process, because some fork, die of signals or lower limits.
"""

import fcntl
import functools
import os
import pathlib
import platform
import re
import subprocess

import pytest
import tensorflow as tf

from refurbish_tf._internal import native
from support import ROOT, cases

CC = ROOT / "tests" / "cc"
# Tests that need TensorFlow, but are linked without the code for other jobs and stores on disk.
ALONE = sorted(CC.rglob("*_alone.cc"))
TESTS = {path.stem: path for path in sorted(CC.rglob("*_test.cc"))}
LAYER = ROOT / "refurbish_tf" / "cc" / "image" / "layer.h"
# The folders with tests of code that holds tensors.
TENSORS = ("batches", "sample_store")
PROGRAMS = {"store": [], "rest": [], "tensors": []}
for _name, _path in sorted(TESTS.items()):
  if _path.parent.relative_to(CC).as_posix() in TENSORS:
    PROGRAMS["tensors"].append(_name)
  else:
    PROGRAMS["store" if "refurbish_tf/cc/store/disk/" in _path.read_text() else "rest"].append(_name)
# The program of the quick run: order, locks, damaged records, and the ring that jobs share.
PROGRAMS["guards"] = ["disk_damage_test", "ordered_workers_test", "schedule_test", "transit_use_test"]
# Turns off checks with which TensorFlow's headers do not compile: GCC no longer finds comparisons with null constant.
SOME_CHECKS = "-fno-sanitize=null,alignment,vptr,nonnull-attribute,returns-nonnull-attribute"
# Warnings are errors, except with the address sanitizer, which causes false warnings. Deprecations are not errors: the
# Abseil of TensorFlow 2.22 deprecates locks of pointers, but the Abseil of 2.19 has no others.
VARIANTS = {
  "plain": ["-Werror", "-Wno-error=deprecated-declarations"],
  # The checks that SOME_CHECKS turns off take half of the compile time, so only the exhaustive run has them. A null
  # pointer crashes even without them.
  "address_undefined": [
    "-fsanitize=address,undefined",
    *([] if cases.exhaustive else [SOME_CHECKS]),
    "-fno-sanitize-recover=all",
  ],
  "thread": ["-fsanitize=thread", "-Werror"],
  # Lets the compiler fuse a product and a sum into one operation, which rounds only once.
  "fused": ["-O2", "-ffp-contract=fast", *(["-mfma"] if platform.machine() == "x86_64" else []), "-Werror"],
}
# How many rounds of random tests the exhaustive run has.
ROUNDS = {"plain": "200", "address_undefined": "20"}


def includes(path):
  return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)


def own_sources(tests, others=()):
  """Returns the .cc files that `tests` must be linked with. `others`: folders of further allowed headers."""
  seen, waiting = [], list(tests)
  while waiting:
    path = waiting.pop()
    seen.append(path)
    for name in includes(path):
      if name.startswith(("absl/", *others)) or CC in path.parents and name == "gtest/gtest.h":
        continue
      header = ROOT / name
      if not header.is_file():
        pytest.fail(
          f'{path.relative_to(ROOT)} includes "{name}": what a C++ unit test reaches may include only our own headers, '
          "by their path from the root, Abseil's and the standard library's",
          pytrace=False,
        )
      found = [header, header.with_suffix(".cc")]
      if header == LAYER:  # Layers register themselves; no header names them.
        found += sorted((LAYER.parent / "layers").glob("*.cc"))
      waiting.extend(path for path in found if path.is_file() and path not in seen + waiting)
  return sorted(path for path in seen if path.suffix == ".cc" and path not in tests)


def starts_threads(test):
  text = test.read_text()
  return any(name in text for name in ("std::thread", "tests/cc/threads.h", "ordered_workers_testing.h"))


@functools.cache
def compiler():
  try:
    return tuple(native.compiler())
  except native.NoCompilerError as error:
    pytest.skip(f"{error} and run again")


class Builder:
  """Builds each program once per variant, for all test processes that share `directory`."""

  def __init__(self, directory):
    self._directory = directory
    directory.mkdir(exist_ok=True)

  def program(self, variant, name):
    tests = [TESTS[test] for test in PROGRAMS[name]]
    if variant == "thread":
      tests = [test for test in tests if starts_threads(test)]
    target = self._directory / f"{variant}_{name}"
    has_tensors = name == "tensors"
    own = own_sources(tests, ("tensorflow/",) if has_tensors else ())
    libraries = ["-l:libtensorflow_cc.so.2"] if has_tensors else []
    flags = [SOME_CHECKS] if has_tensors and variant == "address_undefined" else []
    units = {f"{target}.o": tests + own} if name == "guards" else {f"{target}_tests.o": tests, f"{target}_own.o": own}
    # The first pass compiles everything that no other process is compiling. The second one waits for the rest.
    for wait in (False, True):
      for unit, sources in units.items():
        self._make(pathlib.Path(unit), functools.partial(self._compile, variant, sources, more=flags), wait)
    self._make(target, functools.partial(self._link, variant, list(units), libraries=libraries), wait=True)
    return target

  def fused_program(self):
    """Builds the test of the distortions with plain loops only, because vector loops never have fused operations."""
    target = self._directory / "fused"
    own = [
      ROOT / "refurbish_tf" / "cc" / f"{name}.cc"
      for name in (
        "image/distortion_kernels",
        "image/distortions",
        "image/kernels",
        "image/prepared_distortion",
      )
    ]
    units = {
      f"{target}_tests.o": ("plain", [TESTS["distortions_test"], CC / "image" / "no_vector_kernels.cc"]),
      f"{target}_own.o": ("fused", own),
    }
    for unit, (variant, sources) in units.items():
      self._make(pathlib.Path(unit), functools.partial(self._compile, variant, sources), wait=True)
    self._make(target, functools.partial(self._link, "plain", list(units)), wait=True)
    return target

  def alone_program(self, variant):
    """Builds the tests in `ALONE`, of a stage in memory and its parts, with the sources of the headers they include."""
    tests = [test for test in ALONE if variant != "thread" or starts_threads(test)]
    room = sorted((ROOT / "refurbish_tf" / "cc" / "refurbish").glob("*.cc"))
    own = [*room, *set(own_sources([*tests, *room], ("tensorflow/",))) - set(room)]
    assert not [path for path in own if {"shared", "disk"} & set(path.parts)]
    target = self._directory / f"{variant}_alone"
    for unit, sources in {f"{target}_tests.o": tests, f"{target}_own.o": own}.items():
      self._make(pathlib.Path(unit), functools.partial(self._compile, variant, sources), wait=True)
    self._make(target, functools.partial(self._link, variant, [f"{target}_tests.o", f"{target}_own.o"]), wait=True)
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

  def _compile(self, variant, sources, target, more=()):
    # Optimization and full debug information would take longer to compile than they save, and so would collecting the
    # compiler's garbage.
    flags = [
      *("-std=c++17", "-g1", "-O0", "--param", "ggc-min-heapsize=4000000", *VARIANTS[variant], *more),
      *("-Wall", "-Wextra", "-iquote", ".", "-isystem", tf.sysconfig.get_include()),
    ]
    if all(CC in source.parents for source in sources):
      flags.append("-fno-exceptions")  # GoogleTest's macros make much code for exceptions, and no test throws.
    # Paths are relative, so that ccache finds the same files in another checkout.
    *others, last = [source.relative_to(ROOT) for source in sources]
    for source in others:
      flags += ["-include", source]
    self._run([*flags, "-c", last, "-o", target])

  def _link(self, variant, objects, target, libraries=()):
    library = next(flag[2:] for flag in tf.sysconfig.get_link_flags() if flag.startswith("-L"))
    # GoogleTest comes last, because it is compiled without sanitizers: if several objects have the same function of the
    # standard library, the linker takes the first, which must be one that the sanitizers see.
    self._run(
      [
        *(*objects, *VARIANTS[variant], "-pthread", "-o", target, "-lgtest_main", "-lgtest", "-Wl,--as-needed"),
        *(*tf.sysconfig.get_link_flags(), *libraries, f"-Wl,-rpath,{library}"),
      ]
    )

  def _run(self, arguments):
    done = subprocess.run([*compiler(), *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
      pytest.fail(f"does not compile:\n{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
  found = subprocess.run([*compiler(), "-print-file-name=libgtest_main.a"], capture_output=True, text=True, check=True)
  if not found.stdout.startswith("/"):
    pytest.skip("GoogleTest is not there: `apt-get install libgtest-dev`")
  directory = tmp_path_factory.getbasetemp()
  # With pytest-xdist, each process has its own directory inside of a shared one.
  return Builder((directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory) / "cc")


def names_of_tests(path):
  """Returns a GoogleTest filter for the tests of a file, including parameterized suites."""
  names = re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE)
  return ":".join(f"{suite}.{name}:*/{suite}.{name}/*" for suite, name in names)


def programs(variant):
  """Returns which program has the tests of each file. The last program that has them counts."""
  found = {test: name for name, tests in PROGRAMS.items() for test in tests}
  return {test: name for test, name in found.items() if variant != "thread" or starts_threads(TESTS[test])}


def run_in(variant, name):
  if name == "guards":
    return () if variant == "plain" else cases.slow
  return cases.slow if variant == "plain" and name != "tensors" else cases.only_exhaustive


def run_sanitized(command, environment=()):
  options = {"TSAN_OPTIONS": f"suppressions='{ROOT}/tests/cc/thread_sanitizer.supp'"}
  run = functools.partial(
    subprocess.run,
    capture_output=True,
    text=True,
    timeout=300,
    env={**os.environ, **options, **dict(environment)},
    check=False,
  )
  done = run(command)
  if "ThreadSanitizer: unexpected memory mapping" in done.stderr:
    # Some kernels randomize addresses over a wider range than the sanitizer supports.
    done = run(["setarch", "-R", *command])
  return done


@pytest.mark.parametrize(
  "variant, name, test",
  [
    pytest.param(variant, name, test, id=f"{variant}-{test}", marks=run_in(variant, name))
    for variant in VARIANTS
    if variant != "fused"
    for test, name in programs(variant).items()
  ],
)
def test_cc(builder, variant, name, test):
  program = builder.program(variant, name)
  command = [str(program), "--gtest_brief=1", f"--gtest_filter={names_of_tests(TESTS[test])}"]
  rounds = {"REFURBISH_TF_ROUNDS": ROUNDS[variant]} if cases.exhaustive and variant in ROUNDS else {}
  done = run_sanitized(command, rounds)
  if done.returncode != 0 or "[  PASSED  ] 0 tests" in done.stdout:
    pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)


def run_program(program):
  done = run_sanitized([str(program), "--gtest_brief=1"])
  if done.returncode != 0:
    pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)


@cases.only_exhaustive
@pytest.mark.parametrize("variant", ["plain", "address_undefined", "thread"])
def test_a_stage_in_memory_alone(builder, variant):
  """A stage in memory compiles, links and works without the code for other jobs and stores on disk."""
  run_program(builder.alone_program(variant))


@cases.only_exhaustive
def test_distortions_do_not_depend_on_fused_operations(builder):
  cpu = pathlib.Path("/proc/cpuinfo")
  if "-mfma" in VARIANTS["fused"] and not (cpu.exists() and " fma " in cpu.read_text(encoding="utf-8")):
    pytest.skip("the processor has no fused operations")
  run_program(builder.fused_program())

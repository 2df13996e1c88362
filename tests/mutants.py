"""Breaks the package in named ways, one at a time, and checks that the test that each names fails.

    python tests/mutants.py                 all of them: about an hour and a half on two processors
    python tests/mutants.py "eviction"      those whose names contain this
    python tests/mutants.py --jobs 4        four at once; default: half of the processors

This shows that the tests guard what they claim to guard. CI does not run it. A mutant replaces a text in one file of a copy
of the checkout and names the test that must fail then, which `.ci/run` has; support/mutants has them by topic. So that the list
stays true, the named tests must pass without a mutant, each mutant must compile, and its text must occur exactly once. With
ccache installed, only what a mutant changes is compiled. The exit status is 0 if all mutants were killed.
"""
import argparse
import collections
import functools
import importlib
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent import futures

from support import mutants as package

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longer than any of the tests takes, including a build; a mutant may hang.
LIMIT = 600
TIMED_OUT = 124


def gather():
  """The `MUTANTS` of all modules of support.mutants."""
  found = []
  for module in pkgutil.iter_modules(package.__path__):
    found += importlib.import_module(f"{package.__name__}.{module.name}").MUTANTS
  return found


MUTANTS = gather()


def copy_checkout(to):
  """Copies the files that git tracks or would add, as they are in the working tree."""
  names = subprocess.run(
      ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
      text=True).stdout
  for name in filter(None, names.split("\0")):
    if (ROOT / name).is_file():
      (to / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(ROOT / name, to / name)


class Copy:
  """A copy of the checkout, in which a mutant can be built and tested."""

  def __init__(self, checkout, directory):
    self.root = directory / "checkout"
    shutil.copytree(checkout, self.root)
    self.environment = {
        **os.environ, "PYTHONPATH": str(self.root), "XDG_CACHE_HOME": str(directory / "cache"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    if shutil.which("ccache"):
      # Shared by all copies: ccache goes by the contents.
      self.environment |= {
          "REFURBISH_TF_SINGLE_FILES": "1", "CXX": f"ccache {os.environ.get('CXX', 'g++')}",
          "CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1",
          "CCACHE_DIR": os.environ.get("CCACHE_DIR", str(pathlib.Path.home() / ".cache" / "ccache"))}

  def run(self, *arguments):
    try:
      return subprocess.run(
          [sys.executable, *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired as error:
      return subprocess.CompletedProcess(error.cmd, TIMED_OUT, "", f"not ended after {LIMIT} s")

  def build(self):
    """Builds the library if the mutant is in C++: with one that does not compile every test would fail."""
    return self.run("-c", "from refurbish_tf._internal import native; native.ops()")

  def test(self, *tests):
    return self.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests)


def examine(checkout, mutant):
  """Returns whether the mutant was killed, and a line with the outcome."""
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as directory:
    copy = Copy(checkout, pathlib.Path(directory))
    mutant.apply(copy.root)
    built = copy.build()
    if built.returncode != 0:
      return False, f"DOES NOT BUILD  {mutant.name}\n{built.stderr[-3000:]}"
    tested = copy.test(mutant.test)
    # 1 is the exit status of failed tests; a signal means that TensorFlow aborted the process.
    killed = tested.returncode < 0 or tested.returncode == 1 and re.search(
        r"^\d+ failed", tested.stdout.splitlines()[-1]) is not None
    outcome = "killed  " if killed else "SURVIVED" if tested.returncode == 0 else f"EXIT STATUS {tested.returncode}"
    line = f"{outcome} {mutant.name}: {mutant.test} ({time.monotonic() - began:.0f} s)"
    return killed, line if killed else f"{line}\n{tested.stdout[-3000:]}{tested.stderr[-1000:]}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("name", nargs="*", help="run only mutants whose names contain one of these")
  parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="how many mutants run at once")
  arguments = parser.parse_args()
  chosen = [mutant for mutant in MUTANTS if not arguments.name or any(name in mutant.name for name in arguments.name)]
  if not chosen:
    parser.error(f"no such mutant; choose from: {'; '.join(mutant.name for mutant in MUTANTS)}")
  twice = [name for name, number in collections.Counter(mutant.name for mutant in MUTANTS).items() if number > 1]
  if twice:
    parser.error(f"two mutants have the name: {'; '.join(twice)}")
  with tempfile.TemporaryDirectory() as directory:
    # A snapshot: edits in the meantime do not matter.
    checkout = pathlib.Path(directory) / "now"
    copy_checkout(checkout)
    for mutant in chosen:
      mutant.original(checkout)
    print(f"{len(chosen)} mutants. First their tests, without mutants ...", flush=True)
    unharmed = Copy(checkout, pathlib.Path(directory)).test(*dict.fromkeys(mutant.test for mutant in chosen))
    if unharmed.returncode != 0:
      sys.exit(f"These tests fail without mutants:\n{unharmed.stdout[-6000:]}{unharmed.stderr[-1000:]}")
    with futures.ThreadPoolExecutor(arguments.jobs) as pool:
      outcomes = []
      for killed, line in pool.map(functools.partial(examine, checkout), chosen):
        outcomes.append(killed)
        print(line, flush=True)
  print(f"{sum(outcomes)} of {len(outcomes)} mutants killed.")
  return 0 if all(outcomes) else 1


if __name__ == "__main__":
  sys.exit(main())

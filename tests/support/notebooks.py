"""The notebooks, and how to run them."""

import re

import nbclient
import nbformat

from support import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


# The smallest parameters, and values other than the defaults.
SMALLEST = {
  "data_echoing": {
    "IMAGES": "256",
    "TARGET": "0.05",
    "E": "3",
    "BATCH_SIZE": "16",
    "SHUFFLE_BUFFER_SIZE": "64",
    "SEEDS": "1",
  },
  "data_refurbishing": {"IMAGES": "128", "EPOCHS": "2", "R": "2", "SEEDS": "2"},
  # With its own parameters it would measure for 20 s, and its layers take seconds to trace each time.
  "quickstart": {
    "IMAGES": "20",
    "EPOCHS": "2",
    "SEEDS": "1",
    "replaced": [
      ("epochs=90)", "epochs=90, max_seconds=1)"),
      ("keras.layers.RandomRotation(0.05),\n          keras.layers.RandomZoom(0.1), ", ""),
    ],
  },
  "split_policy": {"IMAGES": "64", "EPOCHS": "2", "R": "2", "SEEDS": "1"},
}


def changed(path, replaced=(), **parameters):
  """Returns a notebook with changed parameters and replaced texts."""
  notebook = nbformat.read(path, as_version=4)
  cell = next(cell for cell in notebook.cells if cell.source.startswith("#@title Parameters"))
  for name, value in parameters.items():
    cell.source, found = re.subn(rf"^{name} = [^ ]+", f"{name} = {value}", cell.source, flags=re.MULTILINE)
    assert found == 1, name
  for old, new in replaced:
    (cell,) = (cell for cell in notebook.cells if old in cell.source)
    cell.source = cell.source.replace(old, new)
  return notebook


def execute(path, **changes):
  """Runs a notebook, changed, in a new kernel. Returns it with its outputs."""
  notebook = changed(path, **changes)
  nbclient.NotebookClient(
    notebook, timeout=600, kernel_name="python3", record_timing=False, resources={"metadata": {"path": path.parent}}
  ).execute()
  return notebook

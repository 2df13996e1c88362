"""Runs notebooks and writes their outputs into them: `python tests/run_notebooks.py [NAME ...]`, by default all of
them."""

import argparse
import re
import subprocess
import sys

import nbformat

from support import notebooks


def main():
  names = [path.stem for path in notebooks.NOTEBOOKS]
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}")
  chosen = parser.parse_args().names or names
  if not set(chosen) <= set(names):
    parser.error(f"NAME must be one of {', '.join(names)}, got {' '.join(chosen)}")
  for path in (path for path in notebooks.NOTEBOOKS if path.stem in chosen):
    print(path.stem, flush=True)
    notebook = notebooks.execute(path)
    for cell in notebook.cells:
      if cell.cell_type == "code":
        # Readers should not see TensorFlow's messages about this machine. The tests look for warnings.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        # They should also not see the earlier states of a progress bar.
        for output in cell.outputs:
          if output.output_type == "stream":
            output.text = re.sub(r"[\r\b]+[^\n]*\n?", "", output.text)
        cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    nbformat.write(notebook, path)
    subprocess.run([sys.executable, "-m", "tensorflow_docs.tools.nbfmt", path], check=True, capture_output=True)


if __name__ == "__main__":
  main()

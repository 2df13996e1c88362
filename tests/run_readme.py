"""Runs the two bash blocks of README.md like a reader: each in a fresh clone, with an empty folder as HOME.

    python tests/run_readme.py      both, one after the other: some minutes each
    python tests/run_readme.py 1    the first, which installs and runs the demo; 2 installs and tests

A clone has only committed files, and does not see this environment. The exit status is 0 if each block ends with 0.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Variables of this environment that the block must not see. Those that choose a compiler or a package index are the
# machine's, and stay.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def blocks():
  """Returns the bash blocks of README.md, in their order."""
  return re.findall(r"^```bash\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def environment(home):
  variables = {name: value for name, value in os.environ.items() if name not in HIDDEN and not name.startswith("XDG_")}
  if sys.prefix != sys.base_prefix:
    variables["PATH"] = variables["PATH"].replace(f"{sys.prefix}/bin{os.pathsep}", "")
  return variables | {"HOME": str(home)}


def run(block):
  """Runs a block in a fresh clone, with an empty HOME. Returns its exit status."""
  with tempfile.TemporaryDirectory() as scratch:
    clone, home = pathlib.Path(scratch, "clone"), pathlib.Path(scratch, "home")
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    return subprocess.run(["bash", "-e", "-c", block], cwd=clone, env=environment(home)).returncode


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("number", nargs="*", type=int, help="which blocks, counted from 1; default: all")
  found = blocks()
  failed = False
  for number in parser.parse_args().number or range(1, 1 + len(found)):
    print(found[number - 1], flush=True)
    began = time.monotonic()
    status = run(found[number - 1])
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"Block {number} of README.md: exit status {status} after {minutes}:{seconds:02d}.", flush=True)
    failed |= status != 0
  sys.exit(failed)


if __name__ == "__main__":
  main()

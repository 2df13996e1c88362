"""Runs the tests of .ci/run with each minor version of TensorFlow that is supported, and with the oldest Keras for it.

    python tests/run_minors.py         all versions, one after the other: as long as .ci/run for each
    python tests/run_minors.py 2.19    this one

Each has a new environment and a copy of the checkout, in which the package is built. The exit status is 0 if all tests pass
with each, and if pip finds that the packages fit each other.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

from mutants import copy_checkout
from support.wheels import build_wheel, new_environment, with_compiler

# Of what TensorFlow and setup.cfg require.
OLDEST_KERAS = """
import importlib.metadata, re, sys
required = "\\n".join([*importlib.metadata.requires("tensorflow"), sys.argv[1]])
asked = re.findall(r"^ *keras ?>=([0-9.]+)", required, re.MULTILINE)
print(max(asked, key=lambda version: [int(part) for part in version.split(".")]))
"""
# TensorFlow Datasets does not say that with the protobuf of TensorFlow 2.19 it needs this.
ALSO = {"2.19": ["tensorflow-metadata<1.18"]}


def run(minor):
  """Returns the exit status of the first command that failed, or 0."""
  with tempfile.TemporaryDirectory() as scratch:
    checkout = pathlib.Path(scratch, "checkout")
    copy_checkout(checkout)
    binaries, environment = with_compiler(
        new_environment(pathlib.Path(scratch, "venv"), f"tensorflow=={minor}.*", "setuptools>=70.1"))
    required = (checkout / "setup.cfg").read_text(encoding="utf-8")
    keras = subprocess.run(
        [binaries / "python", "-c", OLDEST_KERAS, required], env=environment, capture_output=True, text=True,
        check=True).stdout.strip()
    print(f"TensorFlow {minor} with Keras {keras}", flush=True)
    pip = [binaries / "python", "-m", "pip"]
    for command in (
        [*pip, "install", "--quiet", f"keras=={keras}", *ALSO.get(minor, [])],
        [*pip, "install", "--quiet", "--no-build-isolation", "-e", ".[test]"],
        [*pip, "check"], [binaries / "pytest", "-n", "auto", "-m", ""]):
      status = subprocess.run(command, cwd=checkout, env=environment).returncode
      if status != 0:
        return status
  return 0


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      "minor", nargs="*", choices=[*build_wheel.MINORS, []], metavar="MINOR", help="which versions; default: all")
  failed = [minor for minor in parser.parse_args().minor or build_wheel.MINORS if run(minor) != 0]
  sys.exit(f"Not with TensorFlow {', '.join(failed)}." if failed else 0)


if __name__ == "__main__":
  main()

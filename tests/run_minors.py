"""Runs the tests of .ci/run with each minor version of TensorFlow that is supported, and with the oldest Keras for it.

    python tests/run_minors.py         all versions, one after the other: as long as .ci/run for each
    python tests/run_minors.py 2.19    this one
    python tests/run_minors.py 2.22.0rc0    a release candidate, which setup.cfg does not allow yet

Each version has a new environment and a copy of the checkout, in which the package is built. The exit status is 0 if
all tests pass with each version, and if pip finds that the packages fit each other.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

from mutants import copy_checkout
from support.wheels import build_wheel, new_environment, with_compiler

# Prints the oldest Keras that TensorFlow and setup.cfg allow.
OLDEST_KERAS = """
import importlib.metadata, re, sys
required = "\\n".join([*importlib.metadata.requires("tensorflow"), sys.argv[1]])
asked = re.findall(r"^ *keras ?>=([0-9.]+)", required, re.MULTILINE)
print(max(asked, key=lambda version: [int(part) for part in version.split(".")]))
"""
# TensorFlow Datasets needs this with the protobuf of TensorFlow 2.19, but does not require it.
ALSO = {"2.19": ["tensorflow-metadata<1.18"]}


def run(version):
  """Runs the tests with a minor version or release candidate. Returns the exit status of the first command that failed,
  or 0."""
  minor = ".".join(version.split(".")[:2])
  with tempfile.TemporaryDirectory() as scratch:
    checkout = pathlib.Path(scratch, "checkout")
    copy_checkout(checkout)
    binaries, environment = with_compiler(
      new_environment(
        pathlib.Path(scratch, "venv"), f"tensorflow=={version}{'.*' if version == minor else ''}", "setuptools>=70.1"
      )
    )
    settings = checkout / "setup.cfg"
    required = settings.read_text(encoding="utf-8")
    keras = subprocess.run(
      [binaries / "python", "-c", OLDEST_KERAS, required], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"TensorFlow {version} with Keras {keras}", flush=True)
    pip = [binaries / "python", "-m", "pip"]
    if version != minor:
      settings.write_text(re.sub(r"(tensorflow >=2\.\d+), <2\.\d+", rf"\1, <={version}", required), encoding="utf-8")
    for command in (
      [*pip, "install", "--quiet", f"keras=={keras}", *ALSO.get(minor, [])],
      [*pip, "install", "--quiet", "--no-build-isolation", "-e", ".[test]"],
      [*pip, "check"],
    ):
      status = subprocess.run(command, cwd=checkout, env=environment).returncode
      if status != 0:
        return status
    # Restores the requirement, because tests read this file.
    settings.write_text(required, encoding="utf-8")
    return subprocess.run([binaries / "pytest", "-n", "auto", "-m", ""], cwd=checkout, env=environment).returncode


def version_of(argument):
  if argument not in build_wheel.MINORS and not re.fullmatch(r"\d+\.\d+\.\d+rc\d+", argument):
    raise argparse.ArgumentTypeError(
      f"{argument} is not one of {', '.join(build_wheel.MINORS)} or a release candidate, such as 2.22.0rc0"
    )
  return argument


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
    "version",
    nargs="*",
    type=version_of,
    metavar="VERSION",
    help="minor versions or release candidates (default: all minors)",
  )
  failed = [version for version in parser.parse_args().version or build_wheel.MINORS if run(version) != 0]
  sys.exit(f"Not with TensorFlow {', '.join(failed)}." if failed else 0)


if __name__ == "__main__":
  main()

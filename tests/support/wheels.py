"""Imports build_wheel.py, and creates environments."""

import importlib.util
import os
import subprocess
import venv

from support import ROOT

# Seconds. pip alone takes minutes.
LIMIT = 3600

spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "build_wheel.py")
build_wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_wheel)


def new_environment(directory, *packages):
  """Creates an environment with these packages.

  Returns its folder of programs, and environment variables with only this folder in PATH, so without a compiler.
  """
  venv.create(directory, with_pip=True)
  binaries = directory / "bin"
  variables = {
    name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "CXX", "CC")
  }
  subprocess.run(
    [binaries / "python", "-m", "pip", "install", "--quiet", *packages], env=variables, timeout=LIMIT, check=True
  )
  return binaries, variables | {"PATH": str(binaries), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def with_compiler(environment):
  """The result of `new_environment`, with the system's programs added, including a compiler and git."""
  binaries, variables = environment
  return binaries, variables | {"PATH": os.pathsep.join([str(binaries), os.environ["PATH"]])}

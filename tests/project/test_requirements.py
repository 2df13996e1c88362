"""`pip install .` brings TensorFlow, Keras and NumPy, and the package needs nothing else."""

import configparser
import re
import subprocess
import sys

from support import ROOT, cases

# These packages come only with extras. A module that is None in sys.modules cannot be imported.
PROGRAM = """
import importlib, pkgutil, sys
for name in ("tensorflow_datasets", "importlib_resources", "matplotlib", "cloudpickle", "PIL", "torch", "jax"):
  sys.modules[name] = None
import refurbish_tf as rtf
for name in rtf.__all__:
  getattr(rtf, name)
# __main__ runs the command, the worker a process.
names = [module.name for module in pkgutil.walk_packages(rtf.__path__, "refurbish_tf.")]
for name in names:
  if not name.endswith((".__main__", "processes.worker", ".plots", ".torch_state")):
    importlib.import_module(name)
del sys.modules["matplotlib"], sys.modules["PIL"]
importlib.import_module("refurbish_tf.experiments.plots")
from refurbish_tf.cli import startup
from refurbish_tf.experiments import images
print("demo:", startup.main(["demo", "--images", "2", "-r", "2"]))
try:
  images.load("cifar10", 20)
except images.DatasetError as error:
  print("told:", error)
"""


def test_pip_installs_tensorflow_keras_and_numpy():
  config = configparser.ConfigParser()
  config.read(ROOT / "setup.cfg", encoding="utf-8")
  required = [
    re.match(r"[\w-]+", line)[0]
    for line in config["options"]["install_requires"].splitlines()
    if line and line[0] != "#"
  ]
  assert required == ["tensorflow", "numpy", "keras"]


@cases.slow
def test_the_requirements_suffice_to_import_all_and_run_the_demo():
  done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert "\ndemo: 0\n" in done.stdout and "refurbish r=2" in done.stdout
  told = done.stdout.partition("told: ")[2].strip()
  assert "install the extra `demo` of refurbish-tf, or `pip install tensorflow-datasets importlib_resources`" in told

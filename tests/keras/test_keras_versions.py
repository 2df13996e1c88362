"""The parts of Keras beyond its public interface that the callbacks use, in each supported version."""

import ast
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import refurbish_tf as rtf
from refurbish_tf.keras import step
from support import cases
from support.fits import make_dataset
from support.processes import run_killed_fit

OLDEST, NEWEST = re.findall(r"[\d.]+", step.KNOWN_VERSIONS)
MAJOR, MINORS = (
  OLDEST.split(".")[0],
  range(*(int(version.split(".")[1]) + new for new, version in enumerate((OLDEST, NEWEST)))),
)
TESTS = ("test_keras_callbacks.py", "test_keras_bad_backup.py", "test_keras_logger.py")
# Keras reads the environment before pytest does.
PROGRAM = """
import sys
import keras, pytest
print(f"With Keras {keras.__version__} of {keras.__file__}.")
sys.exit(pytest.main(sys.argv[1:]))
"""


def make_restore(tmp_path):
  return rtf.keras.BackupAndRestore(tmp_path / "backup")


def make_logger(_):
  return rtf.keras.RefurbishLogger(make_dataset())


def steps_only(self):
  return self.train_function


def no_batch(self, iterator=None):
  return iterator


@pytest.mark.parametrize(
  "make, cls, method, function, missing",
  [
    (make_restore, keras.Model, "fit", steps_only, "_initial_epoch"),
    (make_restore, keras.Model, "_symbolic_build", no_batch, "data_batch"),
    (make_restore, keras.callbacks.History, "on_train_begin", no_batch, "epoch"),
    (make_logger, keras.Model, "fit", no_batch, "train_function"),
  ],
)
def test_another_keras_is_refused_at_once(tmp_path, monkeypatch, make, cls, method, function, missing):
  make(tmp_path)
  for base in cls.__mro__:
    if method in vars(base):
      monkeypatch.setattr(base, method, function)
  with pytest.raises(
    RuntimeError, match=rf"{cls.__name__}\.{method} .*{missing}.*{keras.__version__} .*{OLDEST} to {NEWEST}"
  ):
    make(tmp_path)


def test_a_removed_method_is_reported_and_a_wrapped_one_is_accepted(tmp_path, monkeypatch):
  fit = keras.Model.fit
  monkeypatch.setattr(keras.Model, "fit", lambda *args, **how: fit(*args, **how))  # Some experiment loggers do this.
  make_restore(tmp_path)
  (owner,) = (base for base in keras.Model.__mro__ if "_symbolic_build" in vars(base))
  monkeypatch.delattr(owner, "_symbolic_build")
  with pytest.raises(RuntimeError, match="supported version: Keras"):
    make_restore(tmp_path)


def assigned(keras_folder, path, function):
  """Returns the names that a function of Keras assigns, found in its source because a backend may not be installed."""
  tree = ast.parse((keras_folder / "src" / path).read_text(encoding="utf-8"))
  (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function)
  return {ast.unparse(target) for node in ast.walk(found) if isinstance(node, ast.Assign) for target in node.targets}


def assert_has_what_is_relied_on(keras_folder):
  for backend in ("jax", "tensorflow", "torch"):
    assert "epoch_iterator" in assigned(keras_folder, f"backend/{backend}/trainer.py", "fit")
  assert {"self.data_adapter", "self.steps_per_epoch"} <= assigned(
    keras_folder, "trainers/epoch_iterator.py", "__init__"
  )
  assert "self._num_batches" in assigned(keras_folder, "trainers/epoch_iterator.py", "reset")
  adapter = "trainers/data_adapters/tf_dataset_adapter.py"
  assert "self._dataset" in assigned(keras_folder, adapter, "__init__")
  source = (keras_folder / "src" / adapter).read_text(encoding="utf-8")
  assert "for batch in self._dataset:" in source and "get_torch_dataloader(self._dataset)" in source
  assert "self._is_multi_process = " in (keras_folder / "src" / "distribution" / "distribution_lib.py").read_text(
    encoding="utf-8"
  )
  assert "def _flatten_layers(" in (keras_folder / "src" / "layers" / "layer.py").read_text(encoding="utf-8")


def test_this_keras_has_all_required_internals():
  assert_has_what_is_relied_on(pathlib.Path(keras.__file__).parent)


@cases.only_exhaustive
@pytest.mark.parametrize("minor", MINORS)
def test_the_callbacks_with_each(tmp_path, minor):
  install = [sys.executable, *"-m pip install --quiet --no-deps --target".split(), tmp_path / "keras"]
  pip = subprocess.run(
    [*install, f"keras=={MAJOR}.{minor}.*"],
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  if pip.returncode != 0 and re.search(
    r"No module named pip|from versions: none|requires a different python", pip.stderr, re.IGNORECASE
  ):
    pytest.skip(f"pip cannot reach an index, or none for this Python: {pip.stderr.strip().splitlines()[-1]}")
  assert pip.returncode == 0, pip.stderr
  assert_has_what_is_relied_on(tmp_path / "keras" / "keras")
  path = [
    str(tmp_path / "keras"),
    str(pathlib.Path(rtf.__file__).parents[1]),
    *filter(None, [os.environ.get("PYTHONPATH")]),
  ]
  here = pathlib.Path(__file__).parent
  result = subprocess.run(
    [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", "-m", "", *(str(here / name) for name in TESTS)],
    env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    cwd=here.parent,
    capture_output=True,
    text=True,
    timeout=1800,
    check=False,
  )
  print(result.stdout)
  assert result.returncode == 0, result.stdout + result.stderr
  assert re.search(rf"With Keras {MAJOR}\.{minor}\.\d+", result.stdout)
  assert f"of {tmp_path / 'keras'}" in result.stdout
  for backend in ("jax", "torch"):
    if importlib.util.find_spec(backend) is not None:
      (tmp_path / backend).mkdir()
      printed = run_killed_fit(
        tmp_path / backend, backend, backend == "jax", [(1, 3), (1, 5), (2, 0)], tmp_path / "keras"
      )
      assert f"of {tmp_path / 'keras'}" in printed and f"on {backend}." in printed

"""On a system or with a TensorFlow that is not supported, importing the package says so in one sentence."""

import pathlib
import runpy
import sys

import pytest
from tensorflow.python.data import ops

import refurbish_tf as rtf

PACKAGE = pathlib.Path(rtf.__file__).parent


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_error_on_other_systems_names_a_remedy(system, monkeypatch):
  monkeypatch.setattr(sys, "platform", system)
  with pytest.raises(ImportError, match="^refurbish_tf runs only on Linux, got .* Start a Linux container"):
    runpy.run_path(PACKAGE / "_internal" / "linux_only.py")


def test_error_names_the_internal_that_tensorflow_lacks(monkeypatch):
  monkeypatch.delattr(ops, "debug_mode")
  monkeypatch.setitem(sys.modules, "tensorflow.python.data.ops.debug_mode", None)
  with pytest.raises(ImportError, match=r"does not support TensorFlow \d.*debug_mode.*Install a newer refurbish_tf"):
    runpy.run_path(PACKAGE / "_internal" / "tensorflow_internals.py")


def test_one_module_imports_what_is_internal_to_tensorflow():
  found = [path.name for path in PACKAGE.rglob("*.py") if "tensorflow.python" in path.read_text(encoding="utf-8")]
  assert found == ["tensorflow_internals.py"]

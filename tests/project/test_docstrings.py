"""The examples in docstrings run and give the results that they show."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import tensorflow as tf

import refurbish_tf as rtf

# All modules except those of the command.
MODULES = [
  "refurbish_tf",
  *(
    module.name
    for module in pkgutil.walk_packages(rtf.__path__, "refurbish_tf.")
    if not module.name.startswith("refurbish_tf.cli")
  ),
]

NEEDS = {f"refurbish_tf.loaders.{framework}_loader": framework for framework in ("torch", "jax")}
NEEDS.update(dict.fromkeys(["refurbish_tf.sources.video_clips", "refurbish_tf.sources.video_frames"], "av"))


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
  if name in NEEDS:
    pytest.importorskip(NEEDS[name])
  module = importlib.import_module(name)
  result = doctest.testmod(module, extraglobs={"tf": tf, "rtf": rtf}, optionflags=doctest.ELLIPSIS)
  assert not result.failed


def test_public_names_have_an_example():
  for name in rtf.__all__:
    public = getattr(rtf, name)
    # Classes that are only returned have their example where they are returned.
    if inspect.isfunction(public) or public is rtf.CacheStore:
      assert ">>>" in public.__doc__, name
  for callback in (rtf.keras.BackupAndRestore, rtf.keras.RefurbishLogger):
    assert ">>>" in callback.__doc__

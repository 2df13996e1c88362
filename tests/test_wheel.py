"""The wheel of build_wheel.py: one file, libraries for all supported minors of TensorFlow, no compiler."""
import configparser
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import venv
import zipfile

import pytest

from refurbish_tf._internal import native
from support import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "build_wheel.py")
build_wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_wheel)

# pip takes minutes of it.
LIMIT = 3600
TRAINING = """
import json, os, sys
import keras
import tensorflow as tf
import refurbish_tf as rtf
from refurbish_tf._internal import native

images = tf.data.Dataset.range(256).map(lambda i: (tf.fill([8, 8, 3], tf.cast(i, tf.uint8)), i % 2))
final_fn = rtf.augment.random_flip()
train = images.refurbish(
    lambda image, label: (image // 2, label), lambda image, label, seed: (final_fn(image, seed=seed), label), r=2, seed=1)
model = keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
losses = model.fit(train.batch(32), epochs=3, verbose=0).history["loss"]
print(json.dumps({"tensorflow": tf.__version__, "library": str(native.library(tf.__version__)), "losses": losses,
                  "fresh": [epoch.fresh for epoch in rtf.stats(train)[0].epochs]}))
"""


def test_it_is_for_all_versions_that_are_supported():
  """An install allows exactly the versions whose libraries are in the wheel."""
  config = configparser.ConfigParser()
  config.read(ROOT / "setup.cfg", encoding="utf-8")
  requirement, = re.findall(r"^tensorflow >=2\.(\d+), <2\.(\d+)$", config["options"]["install_requires"], re.MULTILINE)
  first, end = map(int, requirement)
  assert build_wheel.MINORS == tuple(f"2.{minor}" for minor in range(first, end))
  for name, quote in (("pyproject.toml", '"'), ("README.md", "'"), (".ci/run", "'")):
    assert f"{quote}tensorflow>=2.{first},<2.{end}{quote}" in (ROOT / name).read_text(encoding="utf-8")


def test_it_is_built_from_all_sources_and_nothing_else(tmp_path):
  build_wheel.copy_sources(tmp_path / "sources")
  copied = tmp_path / "sources" / "refurbish_tf"
  for path in (ROOT / "refurbish_tf").rglob("*"):
    if path.suffix in (".py", ".cc", ".h", ".csv") and not any(part.startswith(".build-") for part in path.parts):
      assert (copied / path.relative_to(ROOT / "refurbish_tf")).is_file(), path
  assert not (copied / "_native").exists() and not list(copied.rglob("__pycache__"))


@pytest.mark.parametrize("tool", ["auditwheel", "patchelf"])
def test_a_tool_that_is_missing_is_told_at_once(tool, tmp_path, monkeypatch):
  """Before anything is built."""
  monkeypatch.setattr(build_wheel, "build", lambda *args: pytest.fail("built"))
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == tool else name)
  monkeypatch.setattr(shutil, "which", lambda name, path: None if name == tool else name)
  with pytest.raises(SystemExit, match=f"needs {tool}\\."):
    build_wheel.main(["--output", str(tmp_path)])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """The wheel; pip must be able to fetch TensorFlow."""
  try:
    native.compiler()
  except native.NoCompilerError as error:
    pytest.skip(str(error))
  return build_wheel.main(["--output", str(tmp_path_factory.mktemp("dist"))])


@cases.only_exhaustive
def test_what_is_in_it(wheel):
  assert re.fullmatch(r"refurbish_tf-[\d.]+-py3-none-manylinux_2_35_[a-z0-9_]+\.whl", wheel.name)
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    assert archive.testzip() is None
    for minor in build_wheel.MINORS:
      record = json.loads(archive.read(f"refurbish_tf/_native/{minor}/{native.RECORD}"))
      assert record["tensorflow"].startswith(f"{minor}.") and record["sources"] == native.fingerprint()
  # It has no other libraries than ours, and the sources that they are built from.
  assert sorted(name for name in names if ".so" in name) == [
      f"refurbish_tf/_native/{minor}/{native.LIBRARY}" for minor in build_wheel.MINORS]
  assert "refurbish_tf/cc/ops/ops.cc" in names and "refurbish_tf_launcher.py" in names


@cases.only_exhaustive
@pytest.mark.parametrize("minor", build_wheel.MINORS)
def test_it_trains_without_a_compiler(wheel, tmp_path, minor):
  """In a new environment, from the library in the wheel: nothing is built."""
  venv.create(tmp_path / "venv", with_pip=True)
  binaries = tmp_path / "venv" / "bin"
  environment = {
      name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "CXX", "CC")}
  subprocess.run(
      [binaries / "python", "-m", "pip", "install", "--quiet", wheel, f"tensorflow=={minor}.*"], env=environment,
      timeout=LIMIT, check=True)
  environment |= {
      "PATH": str(binaries), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "-1",
      "TF_CPP_MIN_LOG_LEVEL": "2"}
  assert not any(shutil.which(compiler, path=environment["PATH"]) for compiler in ("g++", "clang++", "c++"))
  done = subprocess.run(
      [binaries / "python", "-c", TRAINING], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT,
      check=False)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  assert found["tensorflow"].startswith(f"{minor}.") and found["fresh"] == [256, 128, 128]
  assert f"site-packages/refurbish_tf/_native/{minor}/" in found["library"]
  assert not (tmp_path / "cache" / "refurbish_tf").exists()
  # The wheel's command works, too.
  version = subprocess.run(
      [binaries / "refurbish-tf", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True,
      timeout=LIMIT, check=False)
  assert (version.returncode, version.stderr) == (0, ""), version.stderr
  assert version.stdout.startswith("refurbish-tf ")

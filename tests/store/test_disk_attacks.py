"""Directories of others; two versions of TensorFlow on one store."""

import json
import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import ROOT, cases
from support.wheels import build_wheel, new_environment, with_compiler

pytestmark = cases.slow

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")

# Makes samples that can be checked without knowing their generation.
SAMPLES = """
import gc, json, os, random, signal, sys
import numpy as np, tensorflow as tf, refurbish_tf as rtf

calls = []

def partial_fn(index, seed):
  def record(index):
    calls.append(int(index))
    return index
  index = tf.ensure_shape(tf.numpy_function(record, [index], tf.int64), [])
  # Every tenth one is large.
  return index, seed, tf.random.stateless_uniform([tf.where(index % 10 == 0, 6000, 100)], seed, 0, 2**30, tf.int32)

def check(index, seed, noise):
  size = 6000 if index % 10 == 0 else 100
  expected = tf.random.stateless_uniform([size], seed, 0, 2**30, tf.int32)
  assert np.array_equal(noise, expected), f"wrong contents of sample {index}"
"""


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o2775])
def test_directory_into_which_others_can_write_is_refused(tmp_path, mode):
  os.chmod(tmp_path, mode)
  with pytest.raises(ValueError, match=f"{mode:04o}.*chmod go-w {re.escape(str(tmp_path))}`"):
    rtf.CacheStore(tmp_path)
  assert os.listdir(tmp_path) == []
  os.chmod(tmp_path, mode & ~0o022)  # The remedy of the error.
  rtf.CacheStore(tmp_path).put(0, 1)


def test_sticky_directory_is_taken(tmp_path):
  """In a sticky directory others can create files, but not replace ours."""
  os.chmod(tmp_path, 0o1777)
  store = rtf.CacheStore(tmp_path)
  store.put(0, 1)
  del store
  assert int(rtf.CacheStore(tmp_path).get(0)) == 1


@needs_root
@pytest.mark.parametrize("name", ["", "index", "lock", "small-00007"])
def test_directories_and_files_of_another_user_are_refused(tmp_path, name):
  """The other user owns the directory itself, or a file in a sticky directory."""
  if name:
    os.chmod(tmp_path, 0o1777)
    (tmp_path / name).write_bytes(b"")
  os.chown(tmp_path / name, 54321, -1)
  with pytest.raises(ValueError, match=f"{name} .*54321" if name else "54321.*0"):
    rtf.CacheStore(tmp_path)
  assert os.listdir(tmp_path) == [name] * bool(name)


RUN = (
  SAMPLES
  + """
path, order_seed, n, epochs = sys.argv[1], *map(int, sys.argv[2:])
dataset = tf.data.Dataset.range(n).refurbish(partial_fn, r=2, seed=1, order_seed=order_seed, store=path)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(epochs):
  seen = []
  for index, seed, noise in dataset.as_numpy_iterator():
    check(index, seed, noise)
    seen.append(int(index))
  assert sorted(seen) == list(range(n)), "not whole"
stats = rtf.CacheStore(path).stats()
print(json.dumps({"tensorflow": tf.__version__, "package": os.path.dirname(rtf.__file__), "calls": len(calls),
                  "corrupt": stats.corrupt, "from_other_jobs": stats.from_other_jobs}))
"""
)


@pytest.fixture(scope="module", name="other_python")
def fixture_other_python(tmp_path_factory):
  """An interpreter with this package and another supported TensorFlow."""
  directory = tmp_path_factory.mktemp("other")
  other = "2.20" if tf.__version__.startswith("2.21.") else "2.21"
  binaries, environment = with_compiler(
    new_environment(directory / "venv", f"tensorflow=={other}.*", "setuptools>=70.1")
  )
  build_wheel.copy_sources(directory / "copy")
  pip = [binaries / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
  subprocess.run([*pip, directory / "copy"], check=True, env=environment)
  return binaries / "python"


def start(python, path, order_seed, n, epochs):
  environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
  if str(python) == sys.executable:
    environment["PYTHONPATH"] = str(ROOT)
  else:
    environment.pop("PYTHONPATH", None)
  process = subprocess.Popen(
    [str(python), "-c", RUN, str(path), str(order_seed), str(n), str(epochs)],
    stdin=subprocess.PIPE,
    text=True,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=environment,
    cwd=path.parent,
  )
  assert process.stdout.readline() == "ready\n", process.communicate()[1]
  return process


def finish(process):
  out, err = process.communicate("\n", timeout=300)
  assert process.returncode == 0, err
  result = json.loads(out.splitlines()[-1])
  assert result["corrupt"] == 0
  return result


@cases.only_exhaustive
def test_two_versions_of_tensorflow_use_one_store(other_python, tmp_path):
  n = 1000
  pythons = [sys.executable, other_python]
  # The interpreters take turns: each run continues where the other one stopped.
  results = [finish(start(python, tmp_path / "turns", 0, n, 1)) for python in [*pythons, *pythons]]
  assert len({result["tensorflow"] for result in results}) == 2
  assert len({result["package"] for result in results}) == 2
  assert [result["calls"] for result in results] == [n, n // 2, n // 2, n // 2]
  assert [result["from_other_jobs"] for result in results] == [0, n // 2, n // 2, n // 2]
  # Both run at the same time.
  processes = [start(python, tmp_path / "both", seed, n, 3) for seed, python in enumerate(pythons)]
  for process in processes:
    process.stdin.write("\n")
    process.stdin.flush()
  results = [finish(process) for process in processes]
  assert all(result["from_other_jobs"] > 0 for result in results)
  # There are fewer calls than without sharing.
  assert sum(result["calls"] for result in results) < 2 * 2 * n

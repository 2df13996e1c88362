"""A cache store on disk that others damage while a training uses it; two versions of TensorFlow on one store."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import venv

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import ROOT, cases

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

# Answers each line with one line: "done", "refused" with the reason, or "harm" when the test should damage a file.
TRAINING = (
  SAMPLES
  + """
N, EPOCHS = 50, 3

def train(path, overwrite, harms):
  try:
    store = rtf.CacheStore(path, overwrite=overwrite)
    dataset = tf.data.Dataset.range(N).refurbish(partial_fn, r=2, seed=1, store=store)
  except ValueError as error:
    return "refused " + str(error).replace("\\n", " ")
  for _ in range(EPOCHS):
    seen = []
    for index, seed, noise in dataset.as_numpy_iterator():
      check(index, seed, noise)
      seen.append(int(index))
      if harms is not None and harms.random() < 0.04:
        print("harm", flush=True)
        sys.stdin.readline()
    assert sorted(seen) == list(range(N)), f"not whole: {sorted(seen)}"
  return "done"

while line := sys.stdin.readline():
  signal.alarm(120)  # Ends it where something blocks.
  overwrite, seed, path = json.loads(line)
  print(train(path, overwrite, None if seed is None else random.Random(seed)), flush=True)
  gc.collect()
"""
)


class Training:
  """A process that trains on one store after another and lets others damage them in the meantime."""

  def __init__(self):
    self._process = subprocess.Popen(
      [sys.executable, "-c", TRAINING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # Reads stderr; otherwise the pipe fills with warnings, and the process blocks.
    self._errors = []
    self._reader = threading.Thread(target=lambda: self._errors.extend(self._process.stderr))
    self._reader.start()

  def run(self, path, *, seed=None, overwrite=False, harm=None):
    self._say(json.dumps([overwrite, seed, str(path)]))
    while (answer := self._process.stdout.readline().strip()) == "harm":
      harm()
      self._say("")
    if not answer:
      self.end()
    return answer

  def _say(self, line):
    self._process.stdin.write(line + "\n")
    self._process.stdin.flush()

  def end(self):
    self._process.stdin.close()
    status = self._process.wait()
    self._reader.join()
    assert status == 0, f"exit status {status}: {''.join(self._errors[-30:])}"


class Attacker:
  """Damages one file of a store at a time: an existing file, or one that it creates."""

  def __init__(self, path, seed):
    self.path = path
    self.victim = path.parent / "victim"
    self.victim.write_bytes(b"two years of work" * 100)
    self._before = self.victim.stat()
    self._random = random.Random(seed)

  def harm(self):
    names = sorted(os.listdir(self.path)) + ["store.new", "small-00007", "large-00007"]
    file = self.path / self._random.choice(names)
    self._random.choice([self._cut, self._cut, self._overwrite, self._replace])(file)

  def _cut(self, file):
    if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
      os.truncate(file, self._random.choice([0, 0, 100, file.stat().st_size // 2, file.stat().st_size + 5000]))

  def _overwrite(self, file):
    if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
      with open(file, "r+b") as opened:
        opened.seek(self._random.choice([0, file.stat().st_size // 2]))
        opened.write(self._random.randbytes(500))

  def _replace(self, file):
    self._remove(file)
    kind = self._random.choice(["nothing", "link", "dangling", "directory link", "hard link", "fifo", "directory"])
    if kind == "link":
      file.symlink_to(self.victim)
    elif kind == "dangling":
      file.symlink_to(self.victim.with_name("none"))
    elif kind == "directory link":
      file.symlink_to(self.victim.parent)
    elif kind == "hard link":
      os.link(self.victim, file)
    elif kind == "fifo":
      os.mkfifo(file)
    elif kind == "directory":
      file.mkdir()

  @staticmethod
  def _remove(file):
    if file.is_dir() and not file.is_symlink():
      file.rmdir()
    else:
      file.unlink(missing_ok=True)

  def clean(self):
    """Deletes foreign files, as the error says. Returns whether there were any."""
    names = [
      name
      for name in os.listdir(self.path)
      if ((self.path / name).is_symlink() or not (self.path / name).is_file() or (self.path / name).stat().st_nlink > 1)
    ]
    for name in names:
      self._remove(self.path / name)
    return bool(names)

  def check_victim(self):
    assert self.victim.read_bytes() == b"two years of work" * 100
    after = self.victim.stat()
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (
      self._before.st_mode,
      self._before.st_uid,
      self._before.st_mtime_ns,
    )
    assert sorted(os.listdir(self.path.parent)) == ["cache", "victim"]


def test_epochs_are_whole_despite_damage_to_the_files(tmp_path):
  """G1 and G9 hold. Afterwards the store works, or its error says what to do."""
  training = Training()
  for seed in range(200 if cases.exhaustive else 2):
    path = tmp_path / str(seed) / "cache"
    path.parent.mkdir()
    attacker = Attacker(path, seed)
    assert training.run(path, seed=seed, harm=attacker.harm) == "done", seed
    attacker.check_victim()
    answer = training.run(path)
    if attacker.clean():
      assert re.match("refused .* Delete it, or give another directory", answer), seed
      answer = training.run(path)
    if answer != "done":
      assert re.match("refused .*overwrite=True", answer), (seed, answer)
      assert training.run(path, overwrite=True) == "done", seed
    shutil.rmtree(path.parent)
  training.end()


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
  venv.create(directory / "venv", with_pip=True)
  python = directory / "venv" / "bin" / "python"
  environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
  pip = [python, "-m", "pip", "install", "--quiet"]
  command = [*pip, f"tensorflow=={other}.*", "setuptools>=70.1"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
  if done.returncode != 0:
    pytest.skip(f"no TensorFlow {other} to be had: {done.stderr[-2000:]}")
  # A copy, because an install leaves files next to the sources.
  shutil.copytree(
    ROOT / "refurbish_tf",
    directory / "copy" / "refurbish_tf",
    ignore=shutil.ignore_patterns("_native", "__pycache__", ".build-*"),
  )
  for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "refurbish_tf_launcher.py"):
    shutil.copy(ROOT / name, directory / "copy")
  command = [*pip, "--no-deps", "--no-build-isolation", directory / "copy"]
  done = subprocess.run(command, capture_output=True, text=True, env=environment)
  assert done.returncode == 0, done.stderr
  return python


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

"""A store on disk knows the function and files that prepared its samples, and warns if they have changed."""

import functools
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import fingerprint
from support import ROOT, cases, processes, stores, traced_functions
from support.python_layers import SOURCE, noise
from support.warned import told

N = 6


@pytest.fixture(scope="module", name="made_here")
def fixture_made_here():
  return {name: traced_functions.of(function) for name, function in traced_functions.functions().items()}


@pytest.fixture(scope="module")
def other_processes():
  """Returns the fingerprints of `traced_functions` in other processes, each with a different order and hash seed."""
  outputs = [
    processes.outputs_of(
      ["-m", "support.traced_functions", order],
      cwd=ROOT / "tests",
      env={**processes.environment(), "PYTHONHASHSEED": order.strip("-")},
    )[0]
    for order in cases.some(["1", "-2", "-1"], 1)
  ]
  return [dict(line.split("\t", 1) for line in output.splitlines()) for output in outputs]


def _run(path, function, source=None, epochs=1, **store):
  """Returns the number of warnings for a new stage, and the sorted first components of its elements in each epoch."""
  source = tf.data.Dataset.range(N) if source is None else source
  made = []

  def build():
    made.append(source.refurbish(function, r=3, seed=7, store=rtf.CacheStore(path, **store)))

  warned = told(build)
  for message in warned:
    assert str(path) in message and "overwrite=True" in message
  return len(warned), [sorted(tf.nest.flatten(each)[0] for each in made[0].as_numpy_iterator()) for _ in range(epochs)]


def _times(factor):
  return lambda x: factor * x


@cases.slow
def test_same_in_other_processes(other_processes, made_here):
  assert any(set(found) == set(made_here) for found in other_processes)
  for name, result in made_here.items():
    assert result["function"], name
    text = "\t".join(map(str, (result["function"], result["constants"])))
    assert all(found.get(name, text) == text for found in other_processes), name


@pytest.mark.parametrize("change", [{"constant": 4}, {"layers": (2, 1)}], ids=["constant", "layers"])
def test_a_changed_function_has_a_different_fingerprint(change, made_here):
  after = traced_functions.functions(**change)
  for name in after if "constant" in change else ["keras"]:
    assert fingerprint.function_differs(made_here[name], traced_functions.of(after[name])), name


def test_a_changed_function_causes_a_warning_until_its_old_samples_are_gone(tmp_path):
  path = stores.new_path(tmp_path)
  # There is no warning, because nothing was prepared.
  assert _run(path, _times(5), epochs=0)[0] == 0
  assert _run(path, _times(1))[0] == 0
  assert _run(path, _times(1), epochs=0)[0] == 0
  assert _run(path, _times(100), epochs=0)[0] == 1
  # Until the new function has prepared a sample, the former one causes no warning.
  assert _run(path, _times(1), epochs=0)[0] == 0
  told, samples = _run(path, _times(100))
  assert told == 1 and sum(each < 10 for each in samples[0]) > N // 2
  # The warning is repeated.
  told, samples = _run(path, _times(100))
  assert told == 1 and sum(0 < each < 10 for each in samples[0]) > 0
  told, samples = _run(path, _times(100))
  assert told == 0 and samples == [[100 * i for i in range(N)]]
  assert _run(path, _times(1), epochs=0)[0] == 1
  assert _run(path, _times(1), overwrite=True)[0] == 0
  store = rtf.CacheStore(path)
  store.clear()
  del store
  assert _run(path, _times(100))[0] == 0


def test_the_warning_points_to_the_users_line(tmp_path):
  path = stores.new_path(tmp_path)
  _run(path, _times(1))
  with pytest.warns(rtf.PipelineWarning, match="another partial_fn") as caught:
    tf.data.Dataset.range(N).refurbish(_times(2), r=3, seed=7, store=path)
  assert caught[0].filename == __file__


def test_no_warning_if_fingerprints_are_not_comparable(tmp_path, monkeypatch):
  path = stores.new_path(tmp_path)
  _run(path, _times(1))
  of_stage = fingerprint.of_stage
  for setting in ("tensorflow", "keras", "python", "refurbish_tf", "source"):

    def with_another(*arguments, setting=setting):
      found = of_stage(*arguments)
      return {**found, "traced_by": {**found["traced_by"], setting: "another"}}

    monkeypatch.setattr(fingerprint, "of_stage", with_another)
    assert _run(path, _times(2), epochs=0)[0] == 0, setting


def test_no_warning_if_the_fingerprint_is_unknown(tmp_path):
  path = stores.new_path(tmp_path)
  _run(path, _times(1))
  # Stores written before fingerprints existed are like this one.
  rtf.CacheStore(path)._agree({fingerprint.PREPARED_WITH: "[]"}, replace=True)
  assert _run(path, _times(2), epochs=0)[0] == 0


def test_constants_that_differ_by_rounding_count_as_equal():
  noise = np.float32(1) + np.float32([1e-7, -3e-7, 2e-7])
  mean = np.float32([0.4913996, 0.48215842, 0.44653093])
  before, after, other = (
    traced_functions.of(lambda x, m=m: tf.cast(x, tf.float32) - m) for m in (mean, mean * noise, mean[::-1].copy())
  )
  assert not fingerprint.function_differs(before, after)
  assert fingerprint.function_differs(before, other)


def test_nan_and_infinite_constants_are_compared():
  made = [
    traced_functions.of(lambda x, c=c: tf.cast(x, tf.float64) + c) for c in (np.inf, np.inf, np.nan, 1.7e308, -1.7e308)
  ]
  assert not fingerprint.function_differs(made[0], made[1])
  assert fingerprint.function_differs(made[3], made[4])


def test_prints_and_assertions_do_not_affect_the_fingerprint():
  def shown(x):
    tf.print("shown", x)
    tf.debugging.assert_less(x[0, 0, 0], tf.constant(99, tf.uint8))
    return x * 2

  assert not fingerprint.function_differs(traced_functions.of(lambda x: x * 2), traced_functions.of(shown))


def test_other_files_cause_a_warning(tmp_path):
  path, folder = stores.new_path(tmp_path), tmp_path / "images"
  for name in ("cats/1.png", "cats/2.png", "dogs/3.png"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(name.encode())

  def run(folder):
    return _run(path, lambda file, label: (file, label), rtf.sources.image_folder(folder))[0]

  assert run(folder) == 0
  moved = tmp_path / "moved"
  shutil.move(folder, moved)
  assert run(moved) == 0
  # Renamed so that the order of the contents stays the same: otherwise the store would be refused.
  os.rename(moved / "cats" / "2.png", moved / "cats" / "4.png")
  assert run(moved) == 1
  (moved / "cats" / "4.png").unlink()
  with pytest.raises(ValueError, match="num_samples is 2, but it was 3.*overwrite=True"):
    run(moved)


GLOBAL_NUMBER = 1


@cases.slow
class TestFingerprint:
  """The fingerprint of a `numpy_layer` includes the code of its function and the values that it holds."""

  @staticmethod
  def warned(path, *functions):
    """Returns whether a store says that other functions prepared it."""
    for fn in functions:
      stage = SOURCE.refurbish([augment.numpy_layer(fn, processes=0)], seed=3, store=str(path))
      list(stage)
      del stage

  @staticmethod
  def adding(number, held=None):
    return lambda image, rng: image + np.uint8(number) * (held is None)

  def test_sees_code_and_closure(self, tmp_path, recwarn):
    class Adder:
      def __init__(self, number):
        self.numbers = [number]

      def __call__(self, image, rng):
        return image + np.uint8(self.numbers[0])

    same = [
      (self.adding(3), self.adding(3)),
      (Adder(3), Adder(3)),
      (self.adding(3, np.ones(3)), self.adding(3, np.ones(3))),
      (functools.partial(noise), functools.partial(noise)),
    ]
    for number, functions in enumerate(same):
      self.warned(tmp_path / f"same{number}", *functions)
    assert not [each for each in recwarn if each.category is rtf.PipelineWarning]
    global GLOBAL_NUMBER
    with pytest.warns(rtf.PipelineWarning, match="another partial_fn has prepared"):
      for GLOBAL_NUMBER in (1, 2):
        self.warned(tmp_path / "global", lambda image, rng: image + np.uint8(GLOBAL_NUMBER))
    others = [
      (self.adding(3), self.adding(4)),
      (Adder(3), Adder(4)),
      (self.adding(3, np.ones(3)), self.adding(3, np.zeros(3))),
      (noise, self.adding(3)),
    ]
    for number, functions in enumerate(others):
      with pytest.warns(rtf.PipelineWarning, match="another partial_fn has prepared"):
        self.warned(tmp_path / f"other{number}", *functions)


def test_the_digest_of_a_source_shows_its_elements(tmp_path):
  """For a shared level, a source is known by its graph and the sizes of its files, but not by its shard and the
  directories. So training and validation files of the same names have different digests."""
  for name in ("train", "validation"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "1").write_text(name)
  floats = np.random.default_rng(1).standard_normal((2, 2000, 32)).astype(np.float32)
  some = tf.data.Dataset.range(100)
  sources = [
    some.take(30),
    some.skip(50).take(30),
    some.take(30).map(_times(2)),
    some.shuffle(100, seed=1, reshuffle_each_iteration=False).take(30),
    tf.data.Dataset.from_tensor_slices(np.arange(30)),
    *map(tf.data.Dataset.from_tensor_slices, floats),
    some.map(lambda x: tf.cast(x, tf.float32) * 1.0),
    some.map(lambda x: tf.cast(x, tf.float32) * 1.0001),
    *(tf.data.Dataset.from_tensor_slices([str(tmp_path / name / "1")]) for name in ("train", "validation")),
    tf.data.Dataset.from_tensor_slices(["/here/a", "/here/b"]),
  ]
  digests = [fingerprint.of_source(source) for source in sources]
  assert all(digests) and len(set(digests)) == len(sources)
  assert fingerprint.of_source(sources[0].shard(3, 1)) == digests[0]
  assert fingerprint.of_source(tf.data.Dataset.from_tensor_slices(["/there/a", "/there/b"])) == digests[-1]
  times = lambda number: tf.function(lambda x: tf.cast(x, tf.float32) * number)
  of = lambda number: fingerprint.of_samples(some, times(number).get_concrete_function(some.element_spec))
  assert of(1.0) == of(1.0) != of(1.0001)
  cached = [rtf.sources.cached(some, str(tmp_path / name)) for name in "ab"]
  assert fingerprint.of_source(cached[0]) == fingerprint.of_source(cached[1])

"""Python functions in processes: any process makes the same bytes, and nothing is lost or left behind."""

import functools
import os
import random
import re
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import cases
from support.checkpoints import restore, save
from support.datasets import read
from support.python_layers import IMAGES, N, SOURCE, epochs_of, noise

pytestmark = cases.slow


def draw(image, rng):
  """Draws from all three generators that a function may use."""
  return image[:1, :1, 0] * 0.0 + [[rng.random(), random.random(), np.random.random()]]


DRAWN = tf.TensorSpec([1, 3], tf.float64)


class TestBytes:
  @cases.each_value
  @pytest.mark.parametrize("r", [1, 3])
  @pytest.mark.parametrize(
    "lists", [lambda layer: ([layer], []), lambda layer: ([tf.identity], [layer])], ids=["first", "second"]
  )
  @pytest.mark.parametrize("fn, signature", [(noise, None), (draw, DRAWN)])
  def test_are_the_same_whichever_process_makes_them(self, fn, signature, lists, r):
    """The results also do not depend on the number of parallel calls, for r = 1 and 3, in either list."""
    expected = None
    for processes, calls in ((0, None), (1, None), (2, None), (2, 7), (4, tf.data.AUTOTUNE)):
      layer = augment.numpy_layer(fn, signature, processes=processes)
      found = epochs_of(SOURCE.refurbish(*lists(layer), r=r, seed=5, num_parallel_calls=calls))
      expected = expected or found
      assert found == expected
    assert len(set(expected[0])) == N

  def test_depend_on_the_seed_alone(self):
    layers = [augment.numpy_layer(draw, DRAWN, processes=number) for number in (0, 2)]
    seeds = [[7, 0], [-7, 0], [7, -1], [2**31 - 1, -(2**31)]]
    for layer in layers:
      found = [layer(IMAGES[0], seed=seed).numpy().tolist() for seed in [*seeds, *reversed(seeds)]]
      assert found[:4] == found[:3:-1] and len(set(np.ravel(found[:4]))) == 12
      np.testing.assert_array_equal(found[0], layer(IMAGES[3], seed=tf.constant([7, 0], tf.int64)))
      assert found == [layers[0](IMAGES[0], seed=seed).numpy().tolist() for seed in [*seeds, *reversed(seeds)]]

  def test_are_the_same_after_a_restart_in_mid_epoch(self, tmp_path):
    def make():
      return SOURCE.refurbish([augment.numpy_layer(noise, processes=2)], [augment.random_flip()], r=2, seed=5).repeat(3)

    expected = [each.tobytes() for each in make().as_numpy_iterator()]
    for stop in (3, N + 1):
      iterator = iter(make())
      for _ in range(stop):
        next(iterator)
      assert [each.numpy().tobytes() for each in restore(make(), save(iterator, tmp_path))] == expected[stop:]

  def test_are_the_same_in_a_map_and_among_layers(self):
    layer = augment.numpy_layer(noise, processes=2)
    fn = augment.compose([augment.random_crop(padding=2), layer, augment.random_flip(), augment.normalize()])
    seeds = tf.data.Dataset.from_tensor_slices(np.arange(2 * N, dtype=np.int32).reshape(N, 2))
    mapped = tf.data.Dataset.zip(SOURCE, seeds).map(lambda image, seed: fn(image, seed=seed), num_parallel_calls=4)
    assert mapped.element_spec == tf.TensorSpec([None, None, 3], tf.float32)
    for found, image, seed in zip(mapped, IMAGES, seeds, strict=True):
      np.testing.assert_array_equal(found, fn(image, seed=seed))


class Transform:
  """Like a transform of albumentations: called with keywords, and with its own generator."""

  def __init__(self):
    self.rng = np.random.default_rng()

  def set_random_seed(self, seed):
    self.rng = np.random.default_rng(seed)

  def __call__(self, image, rng=None):
    del rng
    return self.rng.integers(0, 256, image.shape, np.uint8)


class Monai:
  """Like a transform of MONAI, which is called with one argument."""

  def set_random_state(self, seed=None, state=None):
    self.state = state or np.random.RandomState(seed)
    return self


GLOBAL, GLOBAL_MONAI = Transform(), Monai()


def by_global(image, rng):
  del rng
  return GLOBAL(image)


def by_monai(image, rng):
  del rng
  return (image + GLOBAL_MONAI.state.randint(0, 9, image.shape)).astype(np.uint8)


class TestStatesOfLibraries:
  FUNCTIONS = {
    "the function itself": Transform,
    "what a global variable holds": lambda: by_global,
    "MONAI's": lambda: by_monai,
    "a closure": lambda: (lambda held: lambda image, rng: held["transform"](image))({"transform": Transform()}),
    "a partial": lambda: functools.partial(lambda transform, image, rng: transform(image), Transform()),
    "a method": lambda: Transform().__call__,
  }

  @pytest.mark.parametrize("name", FUNCTIONS)
  def test_are_seeded_for_each_sample(self, name):
    fn = self.FUNCTIONS[name]()
    layers = [augment.numpy_layer(fn, processes=number) for number in (0, 2)]
    expected = [layers[0](IMAGES[0], seed=[number, 1]).numpy() for number in range(5)]
    assert len({each.tobytes() for each in expected}) == 5
    for layer in layers:
      for number in (4, 0, 3):
        np.testing.assert_array_equal(layer(IMAGES[0], seed=[number, 1]), expected[number])

  def test_states_created_by_the_first_call_are_seeded(self):
    class Later:
      transform = None

      def __call__(self, image, rng):
        self.transform = self.transform or Transform()
        return self.transform(image)

    expected = augment.numpy_layer(Later(), processes=0)(IMAGES[0], seed=[7, 1])
    for processes in (0, 1, 2):
      layer = augment.numpy_layer(Later(), processes=processes)
      for _ in range(2):
        np.testing.assert_array_equal(layer(IMAGES[0], seed=[7, 1]), expected)

  def test_states_of_the_calling_process_are_unchanged(self):
    np.random.seed(3)
    random.seed(3)
    augment.numpy_layer(draw, DRAWN, processes=0)(IMAGES[0], seed=[7, 1])
    drawn = np.random.random(), random.random()
    np.random.seed(3)
    random.seed(3)
    assert drawn == (np.random.random(), random.random())


class Held:
  """Has states in a class attribute and in a slot, and a method that draws from both."""

  __slots__ = ("own",)
  shared = Transform()

  def __init__(self):
    self.own = Transform()

  def drawn(self):
    return float(self.own(IMAGES[0]).sum()) + float(self.shared(IMAGES[0])[0].sum())

  def __call__(self, image, rng):
    return image[:1, :1, 0] * 0.0 + [[self.drawn(), 0, 0]]


class TestStatesThatAreHidden:
  @pytest.mark.parametrize("processes", [0, 2])
  def test_states_in_slots_and_classes_are_seeded(self, processes):
    layer = augment.numpy_layer(Held(), DRAWN, processes=processes)
    found = {layer(IMAGES[number % 3], seed=[7, 0]).numpy().tobytes() for number in range(6)}
    assert len(found) == 1
    assert layer(IMAGES[0], seed=[7, 1]).numpy().tobytes() not in found

  @pytest.mark.parametrize("processes", [0, 2])
  def test_generators_held_by_the_function_are_seeded(self, processes, recwarn):
    states = [np.random.default_rng(3), np.random.RandomState(3), random.Random(3)]

    def fn(image, rng, states=states):
      return image[:1, :1, 0] * 0.0 + [[state.random() for state in states]]

    layer = augment.numpy_layer(fn, DRAWN, processes=processes)
    found = {layer(IMAGES[0], seed=[7, 0]).numpy().tobytes() for _ in range(6)}
    assert len(found) == 1 and not [each for each in recwarn if issubclass(each.category, rtf.PipelineWarning)]

  @pytest.mark.parametrize("processes", [0, 1])
  def test_randomness_that_cannot_be_seeded_causes_one_warning(self, processes):
    def fn(image, rng):
      return image[:1, :1, 0] * 0.0 + np.random.default_rng().random([1, 3])

    layer = augment.numpy_layer(fn, DRAWN, processes=processes)
    with pytest.warns(rtf.PipelineWarning, match="two different results for the same sample and seed") as told:
      for _ in range(3):
        layer(IMAGES[0], seed=[7, 0])
    assert len(told) == 1

  def test_sets_are_iterated_in_the_same_order(self):
    def fn(image, rng):
      return np.array([[float(hash(each)) for each in ("flip", "noise", "blur")]])

    layer = augment.numpy_layer(fn, DRAWN, processes=3)
    stage = tf.data.Dataset.from_tensor_slices(np.zeros([24, 2, 2, 3], np.uint8)).map(
      lambda image: layer(image, seed=[7, 0]), 6
    )
    assert len({each.tobytes() for each in stage.as_numpy_iterator()}) == 1

  def test_calls_use_the_current_state_of_the_function(self):
    held = {"added": 1}
    layer = augment.numpy_layer(lambda image, rng: image * 0 + np.uint8(held["added"]), processes=1)
    assert layer(IMAGES[0], seed=[7, 0]).numpy().max() == 1
    held["added"] = 7
    assert layer(IMAGES[0], seed=[7, 0]).numpy().max() == 7
    assert next(iter(SOURCE.refurbish([layer], seed=3))).numpy().max() == 7


class TestArrays:
  @pytest.mark.parametrize("processes", [0, 1])
  @pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "float32", "float64", "bfloat16", "float16", "bool", "complex64", "int64"]
  )
  def test_may_have_any_dtype_and_shape(self, dtype, processes):
    layer = augment.numpy_layer(lambda array, rng: array[::-1], processes=processes)
    for shape in ([5], [3, 4], [2, 3, 4], [2, 3, 4, 5], [0, 3, 4]):
      array = tf.cast(np.arange(np.prod(shape)).reshape(shape), dtype)
      found = layer(array, seed=[7, 0])
      assert found.dtype == dtype
      np.testing.assert_array_equal(found, array[::-1])

  @pytest.mark.parametrize("processes", [0, 1])
  def test_may_hold_strings(self, processes):
    decode = augment.numpy_layer(
      lambda file, rng: np.frombuffer(file, np.uint8), tf.TensorSpec([None], tf.uint8), processes=processes
    )
    assert decode(b"\0abc\0", seed=[7, 0]).numpy().tolist() == [0, 97, 98, 99, 0]
    upper = augment.numpy_layer(
      lambda texts, rng: np.array([text.upper() for text in texts], object),
      tf.TensorSpec([None], tf.string),
      processes=processes,
    )
    assert upper(tf.constant(["a", "", "bcd"]), seed=[7, 0]).numpy().tolist() == [b"A", b"", b"BCD"]
    one = augment.numpy_layer(lambda text, rng: text + b"!", tf.TensorSpec([], tf.string), processes=processes)
    assert one(tf.constant("a"), seed=[7, 0]).numpy() == b"a!"

  def test_grow_and_shrink(self):
    layer = augment.numpy_layer(
      lambda array, rng: np.repeat(array, 1 if len(array) > 99_999 else 50),
      tf.TensorSpec([None], tf.int32),
      processes=1,
    )
    for length in (1, 300_000, 0, 40_000, 2, 1_000_000):
      array = np.arange(length, dtype=np.int32)
      np.testing.assert_array_equal(layer(array, seed=[7, 0]), array if length > 99_999 else np.repeat(array, 50))

  @pytest.mark.parametrize("processes", [0, 1])
  def test_may_be_modified_and_kept_by_the_function(self, processes):
    """The function may write into its input and keep it: neither the store nor the next sample changes."""
    kept = []

    def fn(image, rng):
      kept.append(image)
      image += 1
      return np.stack([each[0, 0, 0] for each in kept])

    layer = augment.numpy_layer(fn, tf.TensorSpec([None], tf.uint8), processes=processes)
    # The first sample is made twice, to check that both results are the same. Here they differ, so the warning is
    # turned off.
    layer._has_warned = True
    images = np.arange(0, 40, 10, dtype=np.uint8)[:, None, None, None] * np.ones([4, 2, 3, 3], np.uint8)
    found = [layer(image, seed=[7, 0]).numpy().tolist() for image in images]
    assert found == [[1], [1, 1, 11], [1, 1, 11, 21], [1, 1, 11, 21, 31]] and images[0].max() == 0

  @pytest.mark.parametrize("processes", [0, 1])
  @pytest.mark.parametrize(
    "made, signature, expected",
    [
      (lambda array, rng: array.astype(">f4"), tf.TensorSpec([3], tf.float32), [0, 1, 2]),
      (lambda array, rng: np.array(["a", "bcd"]), tf.TensorSpec([2], tf.string), [b"a", b"bcd"]),
      (lambda array, rng: np.array(["a", b"bcd"], object), tf.TensorSpec([2], tf.string), [b"a", b"bcd"]),
      (lambda array, rng: "text", tf.TensorSpec([], tf.string), b"text"),
      (lambda array, rng: [1, 2], tf.TensorSpec([2], tf.int64), [1, 2]),
    ],
  )
  def test_results_are_converted_to_the_signature(self, processes, made, signature, expected):
    found = augment.numpy_layer(made, signature, processes=processes)(np.arange(3, dtype=np.float32), seed=[7, 0])
    assert (
      found.dtype == signature.dtype and found.numpy().tolist() == expected
      if found.shape.rank
      else found.numpy() == expected
    )

  @pytest.mark.parametrize("processes", [0, 1])
  @pytest.mark.parametrize(
    "made, said",
    [
      (lambda array, rng: np.array([1, 2], object), "an array of int. Return an array of numbers"),
      (lambda array, rng: {}, "an array of dict"),
      (lambda array, rng: np.array([1], "M8[s]"), "which TensorFlow lacks"),
      (lambda array, rng: np.zeros(2, np.longdouble), "which TensorFlow lacks"),
    ],
  )
  def test_other_results_are_refused(self, processes, made, said):
    with pytest.raises(ValueError, match=f"(?s)numpy_layer, .* raised TypeError.*{said}"):
      augment.numpy_layer(made, processes=processes)(np.arange(3, dtype=np.float32), seed=[7, 0])

  def test_static_shapes(self):
    for spec, made in (
      ([9, 11, 3], [None, None, 3]),
      ([None, None, 1], [None, None, 1]),
      ([16], [None]),
      ([4, 9, 11, 3], [None, None, None, 3]),
      ([5, 6], [None, None]),
      ([], []),
    ):
      traced = tf.function(lambda x: augment.numpy_layer(noise, processes=0)(x, seed=[7, 0])).get_concrete_function(
        tf.TensorSpec(spec, tf.uint8)
      )
      assert traced.structured_outputs.shape.as_list() == made
    declared = augment.numpy_layer(noise, tf.TensorSpec([9, 11, 3], tf.uint8), processes=0)
    assert SOURCE.refurbish([declared]).element_spec == tf.TensorSpec([9, 11, 3], tf.uint8)

  def test_with_targets(self):
    """The function is called with the given names as keywords. It may change the size of maps."""

    def fn(image, mask, bboxes, keypoints, rng):
      assert isinstance(rng, np.random.Generator)
      return {
        "image": image[:, ::-1],
        "mask": mask[:, ::-1],
        "bboxes": bboxes + np.float32([0, 1, 0, 1]),
        "keypoints": keypoints,
      }

    element = {
      "image": IMAGES[0],
      "mask": IMAGES[1, ..., 0],
      "bboxes": np.float32([[0, 0, 3, 4], [1, 1, 2, 2]]),
      "keypoints": np.int32([[1, 2, 1]]),
    }
    kinds = {"mask": "mask", "bboxes": "xyxy", "keypoints": "xy"}
    for processes in (0, 1):
      layers = [augment.numpy_layer(fn, processes=processes), augment.resize((18, 22))]
      stage = tf.data.Dataset.from_tensors(element).refurbish(layers, targets=kinds)
      assert {name: spec.shape.as_list() for name, spec in stage.element_spec.items()} == {
        "image": [18, 22, 3],
        "mask": [18, 22],
        "bboxes": [2, 4],
        "keypoints": [1, 3],
      }
      found = next(stage.as_numpy_iterator())
      np.testing.assert_array_equal(found["mask"][::2, ::2], IMAGES[1, :, ::-1, 0])
      assert found["bboxes"].tolist() == [[0, 2, 6, 10], [2, 4, 4, 6]] and found["keypoints"].tolist() == [[2, 4, 1]]
    by_kind = augment.compose([augment.numpy_layer(fn, processes=0)], {1: "mask", 2: "xyxy", 3: "xy"})
    assert by_kind(*element.values(), seed=[7, 0])[2].shape == (2, 4)
    with pytest.raises(ValueError, match="two have the same name, got .*'mask', 'mask'"):
      augment.compose([augment.numpy_layer(fn)], {1: "mask", 2: "mask"})(IMAGES[0], IMAGES[0], IMAGES[0], seed=[7, 0])

  @pytest.mark.parametrize("processes", [0, 1])
  def test_rows_stay_beside_their_labels(self, processes):
    """If a transform dropped boxes, the labels of the others would no longer match."""

    def crop(image, bboxes, rng):
      return {"image": image, "bboxes": bboxes[1:]}

    element = {"image": IMAGES[0], "bboxes": np.float32([[0, 0, 3, 4], [1, 1, 2, 2]]), "labels": [1, 2]}
    stage = tf.data.Dataset.from_tensors(element).refurbish(
      [augment.numpy_layer(crop, processes=processes)], targets={"bboxes": "xyxy"}
    )
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match=r"as many rows as it gets, .*'bboxes' of shape \[1, 4\] for one of \[2, 4\].*sanitize_boxes",
    ):
      next(iter(stage))

  def test_a_clip_is_one_call(self):
    stage = tf.data.Dataset.from_tensors(IMAGES).refurbish(
      [augment.numpy_layer(lambda clip, rng: clip[:, ::-1] * np.uint8(len(clip)), processes=1)]
    )
    np.testing.assert_array_equal(next(iter(stage)), IMAGES[:, ::-1] * np.uint8(N))


class TestErrors:
  @pytest.mark.parametrize(
    "arguments, error, said",
    [
      ({"fn": 3}, TypeError, "callable"),
      ({"fn": noise, "output_signature": [3]}, TypeError, "tf.TensorSpec or None"),
      ({"fn": noise, "processes": -1}, ValueError, "from 0 to"),
    ],
  )
  def test_bad_arguments_are_refused(self, arguments, error, said):
    with pytest.raises(error, match=said):
      augment.numpy_layer(**arguments)

  @pytest.mark.parametrize("processes", [0, 1])
  @pytest.mark.parametrize(
    "made, said",
    [
      (
        lambda image, rng: image.astype(np.float32),
        r"as declared, uint8 of shape \(None, None, 3\), got its result of float32",
      ),
      (
        lambda image, rng: image[0],
        r"got its result of uint8 and shape \(11, 3\).*output_signature=tf.TensorSpec\(\[11, 3\], tf.uint8\)",
      ),
      (lambda image, rng: None, "returned None"),
      (lambda image, rng: next(iter(())), "StopIteration"),
      (lambda image, rng: sys.exit(3), "SystemExit"),
      (lambda image: image, "takes 1 positional argument"),
      (lambda image, rng: 1 // (int(image[0, 0, 0]) * 0), r"ZeroDivisionError.*line \d+, in <lambda>"),
    ],
  )
  def test_an_error_of_the_function_fails_only_its_sample(self, made, said, processes):
    """The error has a traceback and affects only its own sample. The epoch continues."""
    broken = int(IMAGES[3].sum())
    layer = augment.numpy_layer(
      lambda image, rng: made(image, rng) if image.sum() == broken else image, processes=processes, name="mine"
    )
    found, (error,) = read(SOURCE.refurbish([layer], seed=3))
    assert len(found) == N - 1 and isinstance(error, tf.errors.InvalidArgumentError)
    text = " ".join(str(error).split())
    assert "sample 3 of the source" in text and "fn of numpy_layer, mine," in text
    assert re.search(said, text), text

  def test_functions_that_cannot_be_pickled_are_refused(self):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="must be sent to another process.*pickle '_thread.lock'.*processes=0"):
      SOURCE.refurbish([augment.numpy_layer(lambda image, rng: (lock, image)[1], processes=1)])
    SOURCE.refurbish([augment.numpy_layer(lambda image, rng: (lock, image)[1], processes=0)])

  def test_calls_in_a_forked_process_are_refused(self):
    layer = augment.numpy_layer(noise, processes=1)
    layer(IMAGES[0], seed=[7, 0])
    sent = layer.sent()
    child = os.fork()
    if not child:
      try:
        # `layer.call` does not use TensorFlow, whose threads do not exist in the forked process.
        layer.call(sent, (7, 0), None, [IMAGES[0]])
      except RuntimeError as error:
        os._exit(42 if "forked" in str(error) else 1)
      finally:
        os._exit(2)  # In any case, the forked process must not continue the tests.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_describe_and_stats_say_how_busy_they_are():
  layer = augment.numpy_layer(lambda image, rng: (time.sleep(0.01), image)[1], processes=2, name="slow")
  stage = SOURCE.refurbish([layer], [augment.random_flip()], r=2, seed=3)
  assert "  python  2 processes for slow: 0 calls, busy 0% of the time" in rtf.describe(stage)
  for _ in range(2):
    list(stage)
  (counted,) = rtf.stats(stage)[0].processes
  assert (counted.name, counted.processes, counted.calls) == ("slow", 2, N + N // 2)
  assert 0.01 * 18 <= counted.seconds < 3 and 0 < counted.busy <= 1
  assert str(counted) in str(rtf.stats(stage)[0]) and str(counted) in rtf.describe(stage)

"""The accelerator's pixels: with `keras.ops` alone, it must make exactly the bytes that the layers make on the host."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment.device_layers import DeviceLayers
from refurbish_tf.keras import offloaded_pixels
from support import cases
from support import unfinished
from support.unfinished import MEAN, STD

FINAL = [augment.random_crop(padding=4), augment.random_flip(), augment.cutout(7)]
EVERYWHERE = [augment.cutout(5), augment.random_crop(padding=4), augment.random_flip(), augment.random_crop(padding=2)]
EVERYWHERE += [*augment.rand_augment(1, 3), augment.random_crop(padding=1), augment.cutout(3)]
EVERYWHERE += [augment.random_solarize(90), augment.random_grayscale(0.4), *augment.rand_augment(2, 10)]
EVERYWHERE += [augment.random_flip(), augment.random_crop(padding=3), augment.random_flip()]
EVERYWHERE += [augment.normalize(MEAN, STD)]
# One layer inverts all values, so the padding of a crop becomes white. Arguments are at both ends of their ranges.
COLORS = [augment.random_crop(padding=3), augment.random_solarize(0, p=0.5), augment.cutout(4)]
COLORS += [augment.random_grayscale(0.3), augment.random_solarize(200, p=1), augment.random_flip()]
COLORS += [augment.random_solarize(256, p=1), augment.random_grayscale(0), augment.random_solarize(128, p=0)]
COLORS += [augment.random_solarize(255)]
# Layers, height, width, number of images.
CASES = {
  "each distortion at each magnitude, twice": ([unfinished.every_outcome(), unfinished.every_outcome()], 23, 41, 444),
  "all layers, everywhere": (EVERYWHERE, 31, 17, 67),
  "a hole over everything": ([augment.cutout(2**31 - 1), *augment.rand_augment(1, 9)], 16, 16, 9),
  "auto_augment for CIFAR-10": ([*augment.auto_augment("cifar10"), *FINAL], 32, 32, 250),
  "auto_augment for ImageNet, bfloat16": (
    [*augment.auto_augment("imagenet"), augment.normalize(0.45, 0.22, "bfloat16")],
    32,
    24,
    250,
  ),
  "trivial_augment": ([*augment.trivial_augment(), augment.normalize(MEAN, STD)], 20, 47, 868),
  "ranges of torchvision": (
    [*augment.rand_augment(2, ranges="torchvision"), *augment.auto_augment("cifar10", ranges="torchvision")],
    20,
    47,
    96,
  ),
  "final layers": ([*FINAL, augment.normalize(MEAN, STD)], 32, 32, 99),
  "flips of both axes": (
    [
      augment.random_flip("vertical"),
      augment.random_crop(padding=2),
      augment.random_flip("horizontal_and_vertical", 0.3),
      augment.cutout(5),
      *augment.rand_augment(1),
      augment.random_flip(p=0.8),
    ],
    17,
    21,
    48,
  ),
  "colours": ([*COLORS, augment.normalize(MEAN, STD)], 19, 23, 150),
  "grey": ([augment.random_grayscale(1)], 9, 8, 30),
  "normalize alone": ([augment.normalize(MEAN, STD, "float16")], 256, 3, 1),
  **{
    f"{height} x {width}": (
      [*augment.rand_augment(2, 9), augment.random_crop(padding=1), augment.cutout(1)],
      height,
      width,
      n,
    )
    for n, sizes in {56: "1 1, 1 9, 9 1, 2 5, 5 2, 3 3", 24: "224 224", 3: "500 333", 16: "1 500"}.items()
    for height, width in (map(int, size.split()) for size in sizes.split(", "))
  },
}
# Compiling takes seconds, so runs with a sample of the cases use DEFAULT; `test_batches_of_any_size_in_one_trace` has a
# graph.
MODES = {
  "eager": lambda finish: finish,
  "graph": tf.function,
  "jitted": lambda finish: tf.function(finish, jit_compile=True),
}
DEFAULT = {
  **dict.fromkeys(("each distortion at each magnitude, twice", "trivial_augment", "final layers", "grey"), "jitted"),
  **dict.fromkeys(("all layers, everywhere", "a hole over everything", "auto_augment for ImageNet, bfloat16"), "eager"),
  **dict.fromkeys(("flips of both axes", "ranges of torchvision", "colours", "normalize alone"), "eager"),
  **dict.fromkeys(("1 x 1", "9 x 1", "2 x 5", "3 x 3", "1 x 500"), "eager"),
}


def made_by(run, entries):
  return keras.ops.convert_to_numpy(run(keras.tree.map_structure(keras.ops.convert_to_tensor, entries)))


def check(run, layers, images, draws=None, todo=1):
  """Compares the images with the host's images."""
  entries, expected = unfinished.batch(layers, images, draws, todo)
  made = made_by(run, entries)
  assert made.dtype == expected.dtype and made.shape == expected.shape
  differ = np.flatnonzero((made.view(np.uint8) != expected.view(np.uint8)).any(axis=(1, 2, 3)))
  assert not differ.size, (differ, entries["draws"][differ])


def every(n, stride):
  """Returns 1 for each image that `offload` leaves to the accelerator for a fraction of 1 / stride, otherwise 0."""
  return (np.arange(1, n + 1) % stride == 0).astype(np.int32)


def check_case(name, compiled):
  """Checks each part of a batch left to the accelerator, and more images that need tables than there are tables."""
  layers, height, width, n = CASES[name]
  rng = np.random.default_rng(height)
  images = unfinished.images_like(rng, n, height, width)
  run = compiled(rtf.keras.Offloaded(layers))
  strides = (8, 4, 2) if cases.exhaustive or name.startswith("each distortion") else ()
  for todo in (1, 0, rng.integers(0, 2, n), *(every(n, stride) for stride in strides)):
    check(run, layers, images, todo=todo)
  if name.startswith("each distortion"):
    operations = DeviceLayers.of(layers, "test").layers[0].arguments["operations"]
    check(run, layers, images, np.full([n, 2], operations.index("equalize"), np.int32))
    # All outcomes come, in an order in which those that need tables are spread out.
    drawn = [np.arange(n) % len(operations), rng.permutation(n) % len(operations)]
    check(run, layers, images, np.stack(drawn, axis=1).astype(np.int32))


@pytest.mark.parametrize(
  "name, mode",
  [
    pytest.param(
      name, mode, marks=cases.only_exhaustive if DEFAULT.get(name) != mode else cases.slow if mode == "jitted" else ()
    )
    for name in CASES
    for mode in MODES
  ],
)
def test_the_bytes_are_those_of_the_host(name, mode):
  check_case(name, MODES[mode])


def test_policy_layers_run_on_the_smallest_sufficient_share_of_images():
  """The program runs the policy layers of no image, every 8th, 4th, 2nd or all: the smallest set with all images left
  to do."""
  which = lambda todo: int(offloaded_pixels._which(keras.ops.convert_to_tensor(todo)))
  assert [which(every(24, stride)) for stride in (25, 8, 4, 2, 1)] == [0, 1, 2, 3, 4]
  one = np.eye(24, dtype=np.int32)
  assert [which(one[i]) for i in range(8)] == [4, 3, 4, 2, 4, 3, 4, 1]


@pytest.mark.parametrize(
  "jit_compile", [pytest.param(False, marks=cases.slow), pytest.param(True, marks=cases.only_exhaustive)]
)
def test_batches_of_any_size_in_one_trace(jit_compile):
  layers = [*augment.rand_augment(2, 9), augment.random_crop(padding=4)]
  finish, traces = rtf.keras.Offloaded(layers), []
  fingerprint = DeviceLayers.of(layers, "test").fingerprint

  @tf.function(
    jit_compile=jit_compile,
    input_signature=[
      {
        "unfinished_image": tf.TensorSpec([None, 12, 3 * 10], tf.uint8),
        "draws": tf.TensorSpec([None, 5], tf.int32),
        "layers": tf.TensorSpec([None, 0, fingerprint], tf.int32),
      }
    ],
  )
  def run(entries):
    traces.append(entries)
    return finish(entries)

  for n in (1, 8, 15, 0):
    check(run, layers, unfinished.images_like(np.random.default_rng(n), n, 12, 10))
  assert len(traces) == 1


@pytest.mark.parametrize(
  "normalize",
  [
    augment.normalize(MEAN, STD),
    augment.normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    augment.normalize(0.3, 0.7, "bfloat16", max_pixel_value=130.5),
  ],
  ids=["within 1", "in units of bytes", "told"],
)
def test_finished_batches_are_normalized_and_nothing_else(normalize):
  images = unfinished.images_like(np.random.default_rng(1), 5, 6, 7)
  layers = [*augment.rand_augment(2, 9), augment.random_crop(padding=4), normalize]
  made = made_by(rtf.keras.Offloaded(layers), unfinished.finished(images))
  np.testing.assert_array_equal(made, augment.compose(layers[-1:])(images).numpy())
  made = made_by(rtf.keras.Offloaded(layers[:-1]), unfinished.finished(images))
  assert made.dtype == np.uint8
  np.testing.assert_array_equal(made, images)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_another_dtype_policy_changes_no_byte(policy):
  layers = [*augment.rand_augment(1, 9), augment.normalize(MEAN, STD)]
  images = unfinished.images_like(np.random.default_rng(2), 40, 9, 9)
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(policy)
  try:
    check(rtf.keras.Offloaded(layers), layers, images)
  finally:
    keras.config.set_dtype_policy(before)

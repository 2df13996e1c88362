"""The number by which `normalize` divides. It depends on mean and std, the dtype and `max_pixel_value`, and is part of
the layer's text."""

import re

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases

# The image's dtype, its least and greatest value, the layer, and the range of the result.
ROWS = [
  ("uint8", "0", "255", "normalize(0.5, 0.25)", "-2 to 2"),
  ("uint8", "0", "255", "normalize(127.5, 63.75)", "-2 to 2"),
  ("uint16", "0", "4000", "normalize(1500, 800)", "-1.875 to 3.125"),
  ("uint16", "0", "4000", "normalize(0.15, 0.08)", "an error: pass max_pixel_value"),
  ("uint16", "0", "4000", "normalize(0.15, 0.08, max_pixel_value=10_000)", "-1.875 to 3.125"),
  ("int16", "-1000", "1000", "normalize(0, 400)", "-2.5 to 2.5"),
  ("int16", "-1000", "1000", "normalize(0, 1)", "an error: pass max_pixel_value"),
  ("int16", "-1000", "1000", "normalize(0, 1, max_pixel_value=400)", "-2.5 to 2.5"),
  ("float32", "0", "1", "normalize(0.5, 0.25)", "-2 to 2"),
  ("float32", "0", "255", "normalize(127.5, 63.75)", "-2 to 2"),
  ("float32", "0", "255", "normalize(0.5, 0.25)", "an error when it runs: pass max_pixel_value=255"),
  ("float32", "0", "255", "normalize(0.5, 0.25, max_pixel_value=255)", "-2 to 2"),
  ("bfloat16", "0", "1", "normalize(0.5, 0.25)", "an error: tf.cast(image, tf.float32) first"),
]
# With this seed, a flip at the first position does flip.
SEED = [7, 1]


@pytest.mark.parametrize(
  "dtype, low, high, code, result", ROWS, ids=[f"{row[0]} to {row[2]}, {row[3]}" for row in ROWS]
)
@pytest.mark.parametrize("made_dtype", ["float32", "bfloat16", "float16"])
def test_each_dtype_is_normalized_to_its_documented_range(dtype, low, high, code, result, made_dtype):
  """Each range is checked for an image, in a chain and in a stage."""
  image = tf.cast(tf.reshape(tf.linspace(float(low), float(high), 5 * 9 * 3), [5, 9, 3]), dtype)
  layer = eval(f"augment.{code[:-1]}, dtype={made_dtype!r})")
  calls = [
    lambda: layer(image),
    lambda: augment.compose([augment.random_flip(), layer])(image, seed=SEED),
    lambda: next(iter(tf.data.Dataset.from_tensors(image).refurbish([augment.random_flip()], [layer], r=2))),
  ]
  for call in calls:
    if result.startswith("an error"):
      cure = result.partition(": ")[2].removeprefix("pass ").removesuffix(" first")
      with pytest.raises(
        (ValueError, TypeError, tf.errors.InvalidArgumentError), match=f"image of normalize.*{re.escape(cure)}"
      ):
        call()
    else:
      made = call()
      assert made.dtype == made_dtype
      made = np.float64(made)
      np.testing.assert_allclose([made.min(), made.max()], [float(each) for each in result.split(" to ")], rtol=4e-3)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_single_value_in_other_units_is_found_anywhere(channels):
  """The value is found in a band, in a long row, inside a vector and in the remainder after the last vector, in any
  image of a batch."""
  layer, fn = augment.normalize(0.5, 0.25), augment.compose([augment.random_flip(), augment.normalize(0.5, 0.25)])
  for height, width in ((3, 5), (40, 61), (2, 5000)):
    image = np.full([height, width, channels], 16, np.float32)
    image[:, 0], image[0, -1] = -200, np.nan
    layer(image), fn(image, seed=SEED)
    for place in cases.some([0, 1, image.size // 2, image.size - 8 * channels, image.size - 2, image.size - 1], 4):
      spoiled = image.copy()
      spoiled.flat[place] = 254.5
      for call in (
        lambda spoiled=spoiled: layer(spoiled),
        lambda spoiled=spoiled: fn(spoiled, seed=SEED),
        lambda spoiled=spoiled: layer(np.stack([image, spoiled, image])),
      ):
        with pytest.raises(
          tf.errors.InvalidArgumentError, match="the image has values up to 254.5. Pass max_pixel_value=255"
        ):
          call()


def layers_in_graph(dtype, *args, **options):
  traced = tf.function(augment.normalize(*args, **options)).get_concrete_function(tf.TensorSpec([4, 4, 3], dtype))
  (op,) = (op for op in traced.graph.get_operations() if "Refurbish" in op.type)
  return b"".join(op.get_attr("layers")).decode()


@pytest.mark.parametrize(
  "dtype, numbers, options, unit",
  [
    ("uint8", (0.5, 0.25), {}, ""),
    ("uint8", (0.5, 0.25), {"max_pixel_value": 255}, ""),
    ("uint8", (127, 51), {"max_pixel_value": 255}, ""),
    ("float32", (0.5, 0.25), {}, ""),
    ("float32", (127, 51), {}, ""),
    ("uint8", (127, 51), {}, " max_pixel_value=1.0"),
    ("uint16", (127, 51), {}, " max_pixel_value=1.0"),
    ("uint16", (127, 51), {"max_pixel_value": 255}, " max_pixel_value=255.0"),
    ("float32", (0.5, 0.25), {"max_pixel_value": 1}, " max_pixel_value=1.0"),
  ],
)
def test_fingerprint_texts_of_existing_layers_are_unchanged(dtype, numbers, options, unit):
  """Stores compare this text. Layers with unchanged results must keep it; all others must change it."""
  mean, std = map(float, numbers)
  assert (
    layers_in_graph(dtype, *numbers, **options) == f"normalize position=-1 dtype=float32 mean={mean} std={std}{unit}"
  )


@pytest.mark.parametrize(
  "given, error",
  cases.refused(ValueError=[(0,), (-255,), (float("nan"),), (float("inf"),)], TypeError=[("255",), (True,)]),
)
def test_bad_max_pixel_value_is_refused(given, error):
  with pytest.raises(
    error, match="^max_pixel_value of normalize must be a number .*, got .*Pass the value that becomes 1"
  ):
    augment.normalize(max_pixel_value=given)


def test_a_batch_is_normalized_in_its_units():
  images = np.random.default_rng(7).integers(0, 4000, [3, 5, 6, 2]).astype(np.uint16)
  made = augment.compose([augment.random_crop(), augment.normalize(0.15, 0.08, max_pixel_value=10_000)], clips=False)(
    images
  )
  assert -1.876 < made.numpy().min() < -1.8 and 3 < made.numpy().max() < 3.126

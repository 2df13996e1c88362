"""Files with 16 bits per value: `decode(dtype=tf.uint16)` keeps them, and each dtype refuses files of the other."""

import io
import pickle
import struct
import zlib

import numpy as np
from PIL import Image
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.images import decoded, make_seeds

augment = rtf.augment
# For each number of channels of a PNG file: the file's channel that each channel of the image comes from.
COLOURS = {1: [0, 0, 0], 2: [0, 0, 0], 3: [0, 1, 2], 4: [0, 1, 2]}
# For each EXIF orientation: makes the upright image from the stored one.
TURNED = {
  1: lambda image: image,
  2: lambda image: image[:, ::-1],
  3: lambda image: image[::-1, ::-1],
  4: lambda image: image[::-1],
  5: lambda image: image.swapaxes(0, 1),
  6: lambda image: np.rot90(image, -1),
  7: lambda image: np.rot90(image.swapaxes(0, 1), 2),
  8: np.rot90,
}


def _noise(height, width, channels=3):
  """Values of 16 bits, so that both bytes of a value matter."""
  return np.random.default_rng(height * width).integers(0, 2**16, (height, width, channels), np.uint16)


def _png(image):
  return tf.io.encode_png(image).numpy()


def _lying(image, number):
  """A PNG file with an EXIF block of one entry, the orientation, after the header."""
  exif = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, number, 0, 0)
  chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
  file = _png(image)
  return file[:33] + chunk + file[33:]


def _of_8_bits():
  files = {}
  for kind in ("JPEG", "PNG", "GIF", "BMP", "WebP"):
    file = io.BytesIO()
    Image.fromarray(_noise(20, 30).astype(np.uint8)).save(file, kind)
    files[kind] = file.getvalue()
  return files


@pytest.mark.parametrize("channels", COLOURS)
class TestPixels:
  @pytest.mark.parametrize("height, width", [(33, 47), (1, 9), (9, 1)])
  def test_are_those_of_the_file(self, height, width, channels):
    image = _noise(height, width, channels)
    file = _png(image)
    made = augment.decode(dtype=tf.uint16)(file)
    assert made.dtype == tf.uint16
    np.testing.assert_array_equal(made, tf.io.decode_png(file, channels=3, dtype=tf.uint16))
    np.testing.assert_array_equal(made, image[..., COLOURS[channels]])

  def test_decoding_with_resize_or_crop_equals_the_layers(self, channels):
    file = _png(_noise(33, 47, channels))
    whole = augment.decode(dtype=tf.uint16)(file)
    for size in ((20, 24), (60, 11)):
      made = augment.decode(size, dtype=tf.uint16)(file)
      np.testing.assert_array_equal(made, augment.resize(size)(whole))
      assert len(np.unique(np.asarray(made) % 256)) > 200
      for arguments in ({}, {"scale": (0.3, 0.5), "ratio": (0.2, 0.4)}):
        crop = augment.random_resized_crop(size, antialias=True, **arguments)
        decode_random_resized_crop = augment.decode_random_resized_crop(size, dtype=tf.uint16, **arguments)
        for seed in make_seeds(3):
          np.testing.assert_array_equal(decode_random_resized_crop(file, seed=seed), crop(whole, seed=seed))

  @pytest.mark.parametrize("number", TURNED)
  def test_a_file_with_exif_orientation_equals_the_upright_file(self, number, channels):
    image = _noise(33, 47, channels)
    file, standing = _lying(image, number), _png(np.ascontiguousarray(TURNED[number](image)))
    for size in (None, (20, 24)):
      options = {"dtype": tf.uint16}
      np.testing.assert_array_equal(augment.decode(size, **options)(file), augment.decode(size, **options)(standing))
      for seed in make_seeds(2):
        made = augment.decode_random_resized_crop(size, **options)(file, seed=seed)
        np.testing.assert_array_equal(made, augment.decode_random_resized_crop(size, **options)(standing, seed=seed))
    made = augment.decode(apply_exif_orientation=False, dtype=tf.uint16)(file)
    np.testing.assert_array_equal(made, image[..., COLOURS[channels]])


@pytest.mark.parametrize(
  "layer, name",
  [
    (augment.decode, "decode"),
    (
      lambda *size, **options: lambda file: augment.decode_random_resized_crop(*size, **options)(file, seed=[1, 2]),
      "decode_random_resized_crop",
    ),
  ],
  ids=["decode", "decode_random_resized_crop"],
)
@pytest.mark.parametrize("size", [(), (8,)])
class TestOtherBits:
  @pytest.mark.parametrize("channels", COLOURS)
  def test_16_bit_files_are_refused_for_uint8(self, layer, name, size, channels):
    match = (
      f"^.*file of {name} must have 8 bits per value for dtype=tf.uint8, got a PNG file of .* with 16 bits, half of "
      "which would be lost. Pass dtype=tf.uint16"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      layer(*size)(_png(_noise(20, 30, channels)))

  @pytest.mark.parametrize("kind", decoded(_of_8_bits()))
  def test_8_bit_files_are_refused_for_uint16(self, layer, name, size, kind):
    match = (
      f"^.*file of {name} must have 16 bits per value for dtype=tf.uint16, got a {kind} file of .* with 8 bits. "
      "Leave dtype out"
    )
    file = _of_8_bits()[kind]
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      layer(*size, dtype=tf.uint16)(file)
    assert layer(*size)(file).dtype == tf.uint8


@pytest.mark.parametrize("layer", [augment.decode, augment.decode_random_resized_crop])
class TestDtype:
  @pytest.mark.parametrize("dtype", ["float32", tf.float32, np.int16, tf.string, "16", None, 16])
  def test_must_be_uint8_or_uint16(self, layer, dtype):
    with pytest.raises(ValueError, match=f"^dtype of {layer.__name__} must be uint8 or uint16, got .*tf.uint16"):
      layer(dtype=dtype)

  @pytest.mark.parametrize("dtype", ["uint16", tf.uint16, np.uint16, np.dtype(np.uint16)])
  def test_may_be_given_in_any_form_and_is_shown_by_repr(self, layer, dtype):
    for size in ((), (8,)):
      made = layer(*size, dtype=dtype)
      assert repr(made).endswith("dtype=tf.uint16)") and repr(pickle.loads(pickle.dumps(made))) == repr(made)
      assert "dtype" not in repr(layer(*size, dtype="uint8"))

  def test_is_known_before_it_runs(self, layer):
    seed = {"seed": [1, 2]} if layer is augment.decode_random_resized_crop else {}
    for size, shape in (((), [None, None, 3]), (((20, 30),), [20, 30, 3])):
      files = tf.data.Dataset.from_tensors(_png(_noise(33, 47)))
      dataset = files.map(lambda file, size=size: layer(*size, dtype=tf.uint16)(file, **seed))
      assert dataset.element_spec == tf.TensorSpec(shape, tf.uint16)
      assert next(iter(dataset)).dtype == tf.uint16

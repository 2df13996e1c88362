"""Photographs that are stored on their side, files that claim more pixels than they should, and WebP."""

import contextlib
import io
import re
import struct
import zlib

import numpy as np
from PIL import Image
from PIL import ImageOps
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import fingerprint
from support.images import DECODES_WEBP, decoded, make_seeds, needs_webp

augment = rtf.augment
NUMBERS = range(1, 9)
KINDS = {
  "JPEG": {"quality": 95, "subsampling": 0},
  "PNG": {},
  "WEBP": {"lossless": True, "exact": True},
  "lossy WEBP": {"quality": 80},
}
TAG = 0x112


def _saved(image, kind, **options):
  file = io.BytesIO()
  Image.fromarray(image).save(file, kind.split()[-1], **KINDS.get(kind, {}) | options)
  return file.getvalue()


def _animated(kind, images, **options):
  file = io.BytesIO()
  first, *others = map(Image.fromarray, images)
  first.save(file, kind, save_all=True, append_images=others, **options)
  return file.getvalue()


def _lying(image, kind, number, **options):
  exif = Image.Exif()
  exif[TAG] = number
  return _saved(image, kind, exif=exif.tobytes(), **options)


def _turned(image, number):
  """Turns the image by this EXIF orientation, with Pillow."""
  lying = Image.fromarray(np.asarray(image))
  lying.getexif()[TAG] = number
  return np.asarray(ImageOps.exif_transpose(lying))


def _assert_stands(file, standing, size, seeds):
  """Checks that both layers make the same bytes from `file`, which has to be turned, as from the file `standing`, which
  is upright."""
  made = augment.decode(size)(file)
  np.testing.assert_array_equal(made, augment.decode(size)(standing))
  for seed in make_seeds(seeds):
    made = augment.decode_random_resized_crop(size)(file, seed=seed)
    np.testing.assert_array_equal(made, augment.decode_random_resized_crop(size)(standing, seed=seed))


def _noise(height, width):
  return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)


def _blocks(height, width):
  """A grey image that is constant within each block of 8 x 8 pixels, so JPEG loses nothing at any scale."""
  rows, columns = (height + 7) // 8, (width + 7) // 8
  levels = np.random.default_rng(height * width).integers(0, 256, (rows, columns, 1), np.uint8)
  return np.tile(levels.repeat(8, axis=0).repeat(8, axis=1), 3)[:height, :width]


@pytest.mark.parametrize("number", NUMBERS)
class TestIsPillows:
  @pytest.mark.parametrize("kind", decoded(["PNG", "WEBP"]))
  def test_targets_belong_to_the_upright_image(self, kind, number):
    """The mask is the upright image itself, so it stays equal to the image. Boxes follow as well."""
    standing, file = _turned(_noise(33, 47), number), _lying(_noise(33, 47), kind, number)
    boxes = np.array([[2.0, 3, 20, 30], [0, 0, *standing.shape[1::-1]]])
    kinds = {1: "mask", 2: "xyxy"}
    whole = augment.compose([augment.decode(apply_exif_orientation=True)], kinds)(file, standing, boxes)
    np.testing.assert_array_equal(whole[0], standing)
    np.testing.assert_array_equal(whole[1], standing)
    np.testing.assert_array_equal(whole[2], boxes)
    window = augment.compose([augment.decode_random_resized_crop(apply_exif_orientation=True)], kinds)
    for seed in make_seeds(5):
      image, mask, moved = window(file, standing, boxes, seed=seed)
      np.testing.assert_array_equal(image, mask)
      expected = augment.compose([augment.decode_random_resized_crop(apply_exif_orientation=True)], kinds)(
        _saved(standing, kind), standing, boxes, seed=seed
      )
      np.testing.assert_array_equal(image, expected[0])
      np.testing.assert_array_equal(moved, expected[2])
      np.testing.assert_array_equal(moved[1], [0, 0, *image.shape[1::-1]])
    if standing.shape != (33, 47, 3):
      with pytest.raises(
        tf.errors.InvalidArgumentError, match="its image, 47 x 33.*pass the other apply_exif_orientation"
      ):
        window(file, _noise(33, 47), boxes, seed=[7, 0])

  @pytest.mark.parametrize("kind", decoded(KINDS))
  @pytest.mark.parametrize("height, width", [(48, 64), (33, 47), (1, 9), (9, 2)])
  def test_at_full_size(self, kind, height, width, number):
    """The result equals `exif_transpose` and then a crop, because the window is drawn for the upright photograph."""
    file = _lying(_noise(height, width), kind, number)
    decoded = augment.decode(apply_exif_orientation=False)(file).numpy()
    np.testing.assert_array_equal(decoded, Image.open(io.BytesIO(file)).convert("RGB"))
    turned = _turned(decoded, number)
    standing = _saved(turned, "PNG")
    np.testing.assert_array_equal(augment.decode()(file), turned)
    for seed in make_seeds(3):
      for arguments in ({}, {"scale": (0.3, 0.5), "ratio": (0.2, 0.4)}):
        expected = augment.decode_random_resized_crop(**arguments)(standing, seed=seed)
        made = augment.decode_random_resized_crop(**arguments)(file, seed=seed)
        np.testing.assert_array_equal(made, expected)

  @pytest.mark.parametrize("kind", decoded(KINDS))
  def test_resized(self, kind, number):
    """At these sizes a JPEG file is decoded at full scale. The result equals the upright file's result to the bit."""
    file = _lying(_noise(33, 47), kind, number)
    standing = _saved(_turned(augment.decode(apply_exif_orientation=False)(file), number), "PNG")
    for size in ((30, 27), (60, 20)):
      _assert_stands(file, standing, size, seeds=3)

  @pytest.mark.parametrize("size", [(20, 28), (9, 15), (4, 5)])
  def test_a_scaled_jpeg_is_turned_exactly(self, size, number):
    """The results are equal to the bit at 1/2, 1/4 and 1/8 of the size, because turning keeps JPEG's blocks."""
    image = _blocks(96, 128)
    file, standing = _lying(image, "JPEG", number), _saved(_turned(image, number), "JPEG")
    np.testing.assert_array_equal(augment.decode(apply_exif_orientation=False)(file), image)
    _assert_stands(file, standing, size, seeds=6)

  @pytest.mark.parametrize("size", [(40, 50), (20, 28), (9, 15)])
  def test_a_scaled_jpeg_with_odd_sides_is_turned_within_half_a_pixel(self, size, number):
    """The last scaled pixel of an odd side covers less of the image than the others."""
    for ramp in np.mgrid[:203, :301] * 0.8:
      image = np.tile(ramp.astype(np.uint8)[..., np.newaxis], 3)
      file, standing = _lying(image, "JPEG", number, quality=98), _saved(_turned(image, number), "PNG")
      pairs = [(augment.decode(size)(file), augment.decode(size)(standing))]
      pairs += [
        (
          augment.decode_random_resized_crop(size)(file, seed=seed),
          augment.decode_random_resized_crop(size)(standing, seed=seed),
        )
        for seed in make_seeds(4)
      ]
      for made, expected in pairs:
        difference = made.numpy().astype(float) - expected.numpy()
        assert np.abs(difference).max() <= 3 and np.abs(difference[1:-1, 1:-1].mean()) < 0.4


@needs_webp
class TestWebp:
  @pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 90}, {"quality": 5}], ids=str)
  @pytest.mark.parametrize("alpha", [False, True])
  def test_is_pillows(self, options, alpha):
    """The alpha channel is dropped, as it is for PNG."""
    image = _noise(45, 37)
    file = _saved(np.concatenate([image, image[..., :1]], axis=-1) if alpha else image, "WEBP", **options)
    expected = np.asarray(Image.open(io.BytesIO(file)))[..., :3]
    np.testing.assert_array_equal(augment.decode()(file), expected)
    standing = _saved(expected, "PNG")
    for size in (None, 20):
      for seed in make_seeds(3):
        made = augment.decode_random_resized_crop(size)(file, seed=seed)
        np.testing.assert_array_equal(made, augment.decode_random_resized_crop(size)(standing, seed=seed))

  def test_an_animated_file_gives_its_first_frame_or_an_error(self):
    """With alpha, the first frame is decoded. Without alpha, the file is refused, because TensorFlow would write beyond
    the end of the image."""
    pictures = [_noise(40, 50) // part for part in (1, 2, 3)]
    opaque = _animated("WEBP", pictures, lossless=True)
    for layer in (augment.decode(), augment.decode((8, 8))):
      with pytest.raises(tf.errors.InvalidArgumentError, match="an intact WebP file, .*Animation must be 4 channel"):
        layer(opaque)
    pictures = [np.concatenate([picture, picture[..., :1] | 1], axis=-1) for picture in pictures]
    file = _animated("WEBP", pictures, lossless=True, exact=True)
    np.testing.assert_array_equal(augment.decode()(file), pictures[0][..., :3])


@pytest.mark.skipif(DECODES_WEBP, reason="this TensorFlow decodes it")
def test_webp_that_tensorflow_does_not_decode():
  match = "is a WebP file, which this TensorFlow cannot decode. Install TensorFlow 2.20"
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    augment.decode()(_saved(_noise(40, 40), "WEBP"))


def _chunk(name, data):
  return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _png(height, width, before=b"", bits=8):
  """A grey PNG file. Large files are incomplete."""
  header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
  rows = zlib.compress(bytes(height * (1 + width * bits // 8) if height * width < 10_000 else 200_000))
  return b"\x89PNG\r\n\x1a\n" + before + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _with_sides(kind, place, form, *sides, **options):
  file = bytearray(_saved(_noise(20, 30), kind, **options))
  struct.pack_into(form, file, place(file) if callable(place) else place, *sides)
  return bytes(file)


# Files that claim more pixels than the default `max_pixels`. One of them claims more than fit into an int64.
HUGE = {
  "PNG": (_png(8115, 27_845), "8115 x 27845"),
  "PNG of the largest sides": (_png(2**32 - 1, 2**32 - 1), "4294967295 x 4294967295"),
  "JPEG": (_with_sides("JPEG", lambda file: file.index(b"\xff\xc0") + 5, ">HH", 65_000, 64_000), "65000 x 64000"),
  "GIF of a larger frame": (
    _with_sides("GIF", lambda file: file.index(b",\0\0\0\0") + 5, "<HH", 64_000, 65_000),
    "65000 x 64000",
  ),
  "BMP from the top": (_with_sides("BMP", 18, "<ii", 64_000, -65_000), "65000 x 64000"),
  "WebP, lossless": (_with_sides("WEBP", 21, "<I", 15_999 | 14_999 << 14), "15000 x 16000"),
}


@contextlib.contextmanager
def _bounded_memory():
  """Checks that memory grows by at most 50 MB at any time in the `with` block."""

  def peak():
    with open("/proc/self/status", encoding="ascii") as status:
      return int(re.search(r"VmHWM:\s*(\d+) kB", status.read())[1])

  with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
    refs.write("5")
  before = peak()
  yield
  assert peak() < before + 50_000


class TestMaxPixels:
  @pytest.mark.parametrize("name", HUGE)
  def test_applies_to_the_size_that_a_file_claims(self, name):
    """These files are also damaged, but their size is refused first, before memory is allocated."""
    file, sides = HUGE[name]
    match = (
      f"file of decode.* must have at most max_pixels=178956970 pixels, got a {re.split('[ ,]', name)[0]} "
      f"file of {len(file)} bytes and {sides} pixels. Leave it out, or pass a larger max_pixels if it is intact"
    )
    with _bounded_memory():
      for layer in (
        augment.decode(apply_exif_orientation=False),
        augment.decode((8, 8)),
        augment.decode((8, 8), apply_exif_orientation=True),
      ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=match):
          layer(file)
      with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        augment.decode_random_resized_crop(8)(file, seed=[1, 2])

  @pytest.mark.parametrize("kind", decoded([*KINDS, "GIF", "BMP"]))
  def test_may_be_reached(self, kind):
    file = _saved(_noise(20, 30), kind)
    for layer in (augment.decode, lambda **arguments: augment.decode_random_resized_crop(scale=(1, 1), **arguments)):
      seed = {} if layer is augment.decode else {"seed": [1, 2]}
      np.testing.assert_array_equal(layer(max_pixels=600)(file, **seed), layer()(file, **seed))
      with pytest.raises(tf.errors.InvalidArgumentError, match="at most max_pixels=599 pixels, got .* 20 x 30 pixels"):
        layer(max_pixels=599)(file, **seed)

  def test_does_not_count_pictures_that_are_not_decoded(self):
    """The 600 frames of this GIF would take 600 MB, and the second one is damaged."""
    one = _saved(np.zeros([1000, 1000], np.uint8), "GIF")
    begin = one.index(b",\0\0\0\0")
    many = one[:-1] + b",\0\0\0\0\xff\xff" + one[begin + 7 : -1] + one[begin:-1] * 600 + b";"
    with _bounded_memory():
      np.testing.assert_array_equal(augment.decode()(many), augment.decode()(one))


@pytest.mark.parametrize("before", [b"", _chunk(b"aaAa", b"")])
def test_16_bit_png_is_refused(before):
  for layer in (augment.decode(), augment.decode((8, 8))):
    with pytest.raises(tf.errors.InvalidArgumentError, match="PNG file of .* 16 bits"):
      layer(_png(20, 30, before, bits=16))


@pytest.mark.parametrize("layer", [augment.decode, augment.decode_random_resized_crop])
@pytest.mark.parametrize(
  "arguments, error",
  [
    ({"apply_exif_orientation": 1}, TypeError),
    ({"max_pixels": 0}, ValueError),
    ({"max_pixels": 2**62 + 1}, ValueError),
  ],
)
def test_arguments(layer, arguments, error):
  (name,) = arguments
  with pytest.raises(error, match=f"^{name} of {layer.__name__} must be "):
    layer(**arguments)


def test_arguments_are_shown():
  assert "orientation" not in repr(augment.decode((8, 8))) and "max_pixels" not in repr(augment.decode((8, 8)))
  layer = augment.decode((8, 8), apply_exif_orientation=np.bool_(True), max_pixels=np.int64(7))
  assert repr(layer).endswith("((8, 8), apply_exif_orientation=True, max_pixels=7)")
  assert repr(augment.decode((8, 8), apply_exif_orientation=False)) == "decode((8, 8), apply_exif_orientation=False)"


@pytest.mark.parametrize("make", [augment.decode, augment.decode_random_resized_crop])
def test_targets_require_an_explicit_apply_exif_orientation(make):
  """This holds also for nested targets. Labels are not targets."""
  file = _lying(_noise(33, 47), "PNG", 6)
  seeds = {"seed": [7, 0]} if make is augment.decode_random_resized_crop else {}
  for layer in (make(), make(24)):
    for targets in ({1: "xyxy"}, {"objects": {"bbox": "rel_yxyx"}}, {"mask": "mask", "depth": None}):
      for layers in ([layer], [augment.decode(apply_exif_orientation=True), layer]):
        with pytest.raises(
          ValueError, match=f"^apply_exif_orientation of {make.__name__} must be given with targets.*True if .*False if"
        ):
          augment.compose(layers, targets)
    with pytest.raises(ValueError, match="boxes"):
      augment.compose([layer])({"image": file, "boxes": np.zeros([2, 4], np.float32)}, **seeds)
    for targets in (None, {}, {1: None}):
      assert augment.compose([layer], targets)(file, 3, **seeds)[1] == 3
  standing, lying = (augment.compose([make(apply_exif_orientation=turns)], {1: "mask"}) for turns in (True, False))
  np.testing.assert_array_equal(*standing(file, _turned(_noise(33, 47), 6), **seeds))
  np.testing.assert_array_equal(*lying(file, _noise(33, 47), **seeds))


def test_stores_distinguish_turned_and_unturned_photographs():
  """The default and True have the same fingerprint, because both turn photographs. False has another."""
  source, seed = tf.data.Dataset.from_tensors(b""), tf.TensorSpec([2], tf.int32)

  def of(**arguments):
    layer = augment.compose([augment.decode_random_resized_crop(8, **arguments)])
    function = tf.function(lambda file, seed: layer(file, seed=seed)).get_concrete_function(
      tf.TensorSpec([], tf.string), seed
    )
    return fingerprint.of_stage(source, function)

  assert not fingerprint.function_differs(of(), of(apply_exif_orientation=True))
  assert fingerprint.function_differs(of(), of(apply_exif_orientation=False))

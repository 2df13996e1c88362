"""`decode_random_resized_crop` and `decode`: which part of a file is decoded, at which scale, and bad input."""

import functools
import io
import itertools
import math
import pickle
import resource
import struct

import numpy as np
from PIL import Image, ImageOps
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support.images import DECODES_WEBP, decoded, make_seeds, window

augment = rtf.augment
# Height and width: common ones, one pixel, and some that no window of the ratios fits into.
SIZES = [(300, 400), (64, 48), (1, 1), (2, 3), (10, 200), (200, 10), (1, 77)]


def _file(height, width, channels=3):
  # Each pixel encodes its position, as far as JPEG preserves it.
  rows, columns = np.mgrid[:height, :width]
  image = np.stack([rows % 256, columns % 256, (rows + columns) % 256][:channels], axis=-1)
  return tf.io.encode_jpeg(tf.constant(image, tf.uint8), quality=95)


# Libjpeg's accurate transform, which Pillow also uses. TensorFlow's default is the fast one.
decode_jpeg = functools.partial(tf.io.decode_jpeg, channels=3, dct_method="INTEGER_ACCURATE")
decode_and_crop_jpeg = functools.partial(tf.io.decode_and_crop_jpeg, channels=3, dct_method="INTEGER_ACCURATE")


@pytest.mark.parametrize(
  "scale, ratio", [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.5), (1, 1)), ((1, 1), (0.5, 2)), ((0.001, 0.002), (0.1, 10))]
)
def test_windows_equal_torchvisions_for_the_same_draws(scale, ratio):
  """Compares with `RandomResizedCrop.get_params`. If no drawn window fits, both use the largest part in the middle."""
  attempts = set()
  for (height, width), seed in itertools.product(SIZES, make_seeds(20)):
    drawn = (augment.random_resized_crop(1, scale, ratio).draws(seed).numpy() / 2**31).tolist()
    w, h = width, height
    if width < height * ratio[0]:
      h = max(1, min(height, round(width / ratio[0])))
    elif width > height * ratio[1]:
      w = max(1, min(width, round(height * ratio[1])))
    expected = [(height - h) // 2, (width - w) // 2, h, w]
    for share, at in zip(drawn[:20:2], drawn[1:20:2]):
      area = height * width * (scale[0] + share * (scale[1] - scale[0]))
      aspect = math.exp(math.log(ratio[0]) + at * math.log(ratio[1] / ratio[0]))
      w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
      if 0 < w <= width and 0 < h <= height:
        expected = [int(drawn[20] * (height - h + 1)), int(drawn[21] * (width - w + 1)), h, w]
        break
    assert window(height, width, seed, scale, ratio) == expected
    attempts.add(expected[2:] == [height, width])
  assert False in attempts


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("height, width", [(300, 400), (1, 1), (10, 200)])
def test_result_is_the_drawn_window_of_the_decoded_image(height, width, channels):
  file = _file(height, width, channels)
  decoded = decode_jpeg(file).numpy()
  layer = augment.decode_random_resized_crop()
  for seed in make_seeds(10):
    top, left, h, w = window(height, width, seed)
    part = layer(file, seed=seed).numpy()
    np.testing.assert_array_equal(part, decoded[top : top + h, left : left + w])


def _photograph(height, width):
  """A random image whose amplitudes fall with the frequency, like those of photographs."""
  random = np.random.default_rng(height * width)
  frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij"))
  frequency[0, 0] = 1
  planes = [np.fft.ifft2(np.exp(2j * np.pi * random.random([height, width])) / frequency**1.7).real for _ in range(3)]
  grey, *colours = [plane / plane.std() for plane in planes]
  image = np.stack([grey * 50, grey * 50 + colours[0] * 12, grey * 50 + colours[1] * 12], axis=-1) + 120
  return np.clip(image, 0, 255).astype(np.uint8)


def _levels(one, other):
  return np.asarray(one, float) - np.asarray(other, float)


@pytest.mark.parametrize(
  "mode, options",
  [
    ("RGB", {}),
    ("RGB", {"quality": 30}),
    ("RGB", {"progressive": True}),
    ("RGB", {"subsampling": 0}),
    ("RGB", {"subsampling": 1}),
    ("L", {}),
    ("L", {"progressive": True}),
    ("CMYK", {}),
  ],
  ids=str,
)
def test_pixels_are_pillows(mode, options):
  """Compares the whole image, in every orientation, and parts up to its edges."""
  image = Image.fromarray(_photograph(203, 300)).convert(mode)
  for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = _saved(image, "JPEG", exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB"))
    decoded = augment.decode(apply_exif_orientation=True)(file)
    assert np.abs(_levels(decoded, expected)).max() <= (mode == "CMYK")
    for seed in make_seeds(8):
      top, left, h, w = window(*expected.shape[:2], seed)
      part = augment.decode_random_resized_crop(apply_exif_orientation=True)(file, seed=seed)
      np.testing.assert_array_equal(part, decoded[top : top + h, left : left + w])


class TestSize:
  @pytest.mark.parametrize("size", [(16, 16), (20, 14), (50, 60), (90, 70), (200, 300)])
  def test_result_is_the_resized_window(self, size):
    """At full scale the result is within one level. At smaller scales its position is correct to a fraction of a pixel,
    which the levels of a ramp show."""
    layer = augment.decode_random_resized_crop(size)
    for ramp in np.mgrid[:301, :403] * 0.6:
      file = tf.io.encode_jpeg(ramp.astype(np.uint8)[..., np.newaxis], quality=98)
      for seed in make_seeds(12):
        box = window(301, 403, seed)
        scaled = box[2] >= 2 * size[0] and box[3] >= 2 * size[1]
        part = decode_and_crop_jpeg(file, box)
        difference = _levels(layer(file, seed=seed), tf.image.resize(part, size, antialias=True))
        assert difference.shape == (*size, 3)
        assert scaled or np.abs(difference).max() < 1
        assert np.abs(difference[1:-1, 1:-1].mean()) < 0.3

  @pytest.mark.parametrize(
    "size, ratio", [((97, 128), 1), ((96, 129), 1), ((96, 128), 2), ((49, 64), 2), ((48, 64), 4), ((17, 22), 4)]
  )
  def test_uses_the_smallest_scale_with_enough_pixels(self, size, ratio):
    """The sides of the file are multiples of the scales, so that no further resize is needed."""
    file = tf.io.encode_jpeg(_photograph(192, 256))
    at_scale = decode_jpeg(file, ratio=ratio)
    expected = tf.image.resize(at_scale, size, antialias=True)
    assert np.abs(_levels(augment.decode(size)(file), np.rint(expected))).max() <= 1
    if at_scale.shape[:2] == size:
      np.testing.assert_array_equal(augment.decode(size)(file), at_scale)

  @pytest.mark.parametrize("times", [2, 3, 4, 7, 12, 15])
  def test_differs_little_from_the_full_decode(self, times):
    """The mean difference is at most two levels."""
    file = tf.io.encode_jpeg(_photograph(48 * times, 64 * times), quality=90)
    full = tf.image.resize(decode_jpeg(file), [48, 64], antialias=True)
    assert 0.3 < np.abs(_levels(augment.decode((48, 64))(file), full)).mean() <= 2

  @pytest.mark.parametrize(
    "options",
    [{"format": "progressive"}, {"chroma_downsampling": False}, {"quality": 30}, {"format": "grayscale"}],
    ids=str,
  )
  def test_grayscale_progressive_and_other_jpegs_are_decoded(self, options):
    image = _photograph(203, 300)
    if options.get("format") == "grayscale":
      file = tf.io.encode_jpeg(image[..., :1])
    elif "format" in options:
      file = tf.io.encode_jpeg(image, progressive=True)
    else:
      file = tf.io.encode_jpeg(image, **options)
    for seed in make_seeds(3):
      part = decode_and_crop_jpeg(file, window(203, 300, seed))
      for size in (24, 150):
        expected = tf.image.resize(part, [size, size], antialias=True)
        assert np.abs(_levels(augment.decode_random_resized_crop(size)(file, seed=seed), expected)).mean() <= 2

  def test_cmyk_jpeg_is_decoded(self):
    file = _saved(Image.fromarray(_photograph(60, 80)).convert("CMYK"), "JPEG")
    part = decode_and_crop_jpeg(file, window(60, 80, [1, 2]))
    np.testing.assert_array_equal(augment.decode_random_resized_crop()(file, seed=[1, 2]), part)
    assert augment.decode((30, 40))(file).shape == [30, 40, 3]

  def test_is_known_before_it_runs(self):
    for layer, shape in (
      (augment.decode_random_resized_crop((20, 30)), [20, 30, 3]),
      (augment.decode_random_resized_crop(), [None, None, 3]),
    ):
      dataset = tf.data.Dataset.from_tensors(_file(40, 50)).map(lambda file, layer=layer: layer(file, seed=[1, 2]))
      assert dataset.element_spec == tf.TensorSpec(shape, tf.uint8)
    for layer, shape in ((augment.decode((20, 20)), [20, 20, 3]), (augment.decode(), [None, None, 3])):
      assert tf.data.Dataset.from_tensors(_file(40, 50)).map(layer).element_spec == tf.TensorSpec(shape, tf.uint8)


def _saved(image, kind, **options):
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def _formats():
  image = Image.fromarray(_photograph(60, 80))
  other = Image.fromarray(255 - _photograph(60, 80))
  return {
    "png": _saved(image, "PNG"),
    "png with alpha": _saved(image.convert("RGBA"), "PNG"),
    "grey png": _saved(image.convert("L"), "PNG"),
    "bmp": _saved(image, "BMP"),
    "gif": _saved(image, "GIF"),
    "animated gif": _saved(image, "GIF", save_all=True, append_images=[other]),
  } | ({"webp": _saved(image, "WEBP")} if DECODES_WEBP else {})


def _bmp(bits, columns, palette=b"", compression=0, masks=(), height=5, header=40, num_colors=0):
  """A BMP file that is 7 pixels wide, with `columns` bytes per row."""
  pixels = np.random.default_rng(bits).integers(0, 256, [5, columns], np.uint8).tobytes()
  before = b"\0" * (header - 40) + struct.pack(f"<{len(masks)}I", *masks) + palette
  begin = 14 + 40 + len(before)
  return (
    b"BM"
    + struct.pack(
      "<IHHIIiiHHIIiiII",
      begin + len(pixels),
      0,
      0,
      begin,
      header,
      7,
      height,
      1,
      bits,
      compression,
      len(pixels),
      0,
      0,
      num_colors,
      0,
    )
    + before
    + pixels
  )


PALETTE = np.random.default_rng(1).integers(0, 256, [256, 4], np.uint8).tobytes()
MASKS = (0xFF0000, 0xFF00, 0xFF)
BMP_REFUSED = {
  "1 bit": _bmp(1, 4, PALETTE[:8]),
  "4 bits": _bmp(4, 4, PALETTE[:64]),
  "16 bits": _bmp(16, 16),
  "masks of 16 bits": _bmp(16, 16, compression=3, masks=(0xF800, 0x7E0, 0x1F)),
  "other masks": _bmp(32, 28, compression=3, masks=MASKS[::-1]),
  "run lengths": _bmp(8, 8, PALETTE, compression=1),
  "run lengths of 4 bits": _bmp(4, 4, PALETTE[:64], compression=2),
  "OS/2": b"BM" + struct.pack("<IHHIIHHHH", 146, 0, 0, 26, 12, 7, 5, 1, 24) + bytes(120),
}


def _unusual():
  image = Image.fromarray(_photograph(20, 30)).quantize(16)
  frames = {}
  for name, at, transparent in (("in the middle", (7, 5), None), ("transparent", (0, 0), 3), ("both", (7, 5), 3)):
    file = bytearray(_saved(image, "GIF", **({} if transparent is None else {"transparency": transparent})))
    place = file.index(b",\0\0\0\0\x1e\0\x14\0")
    file[place + 1 : place + 5] = struct.pack("<HH", *at)
    if at[0]:
      file[6:10] = struct.pack("<HH", 40, 50)
    frames[f"a gif {name}"] = bytes(file)
  beyond = bytearray(frames["a gif both"])
  beyond[6:10] = struct.pack("<HH", 8, 9)
  return {
    **frames,
    "a gif beyond its screen": bytes(beyond),
    "an interlaced gif": _saved(image, "GIF", interlace=True),
    "a bmp with a palette": _bmp(8, 8, PALETTE),
    "of 16 colors": _saved(image, "BMP"),
    "from the top": _bmp(8, 8, PALETTE, height=-5),
    "of fewer colors": _bmp(8, 8, PALETTE[:400], num_colors=100),
    "with a longer header": _bmp(8, 8, PALETTE, header=108),
    "24 bits": _bmp(24, 24),
    "32 bits": _bmp(32, 28),
    "usual masks": _bmp(32, 28, compression=3, masks=MASKS),
  }


class TestOtherFormats:
  @pytest.mark.parametrize("name", _formats())
  def test_are_decoded_whole_then_cropped(self, name):
    file = _formats()[name]
    whole = tf.io.decode_image(file, channels=3, expand_animations=False).numpy()
    assert whole.shape == (60, 80, 3)
    np.testing.assert_array_equal(augment.decode()(file), whole)
    resized = tf.image.resize(whole, [25, 30], antialias=True)
    assert np.abs(_levels(augment.decode((25, 30))(file), np.rint(resized))).max() <= 1
    for seed in make_seeds(4):
      top, left, h, w = window(60, 80, seed)
      part = whole[top : top + h, left : left + w]
      np.testing.assert_array_equal(augment.decode_random_resized_crop()(file, seed=seed), part)
      resized = tf.image.resize(part, [25, 30], antialias=True)
      assert np.abs(_levels(augment.decode_random_resized_crop((25, 30))(file, seed=seed), np.rint(resized))).max() <= 1

  @pytest.mark.parametrize("name", _unusual())
  def test_unusual_files_equal_pillows_pixels(self, name):
    file = _unusual()[name]
    expected = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    np.testing.assert_array_equal(augment.decode()(file), expected)
    assert len(np.unique(expected.reshape(-1, 3), axis=0)) > 2

  @pytest.mark.parametrize("name", BMP_REFUSED)
  def test_a_bmp_that_is_not_decoded_is_named(self, tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "this one.bmp").write_bytes(BMP_REFUSED[name])
    stage = rtf.sources.image_folder(tmp_path).refurbish([augment.decode()], seed=1)
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=r"(?s)this one\.bmp.*must be a BMP file of 8, 24 or 32 bits.*PNG"
    ):
      next(iter(stage))

  def test_one_stage_decodes_all_formats_of_an_image_folder(self, tmp_path):
    """The files have all formats that `image_folder` lists."""
    (tmp_path / "a").mkdir()
    for name, file in _formats().items():
      (tmp_path / "a" / f"{name}.{name.split()[-1]}").write_bytes(file)
    (tmp_path / "a" / "one.jpeg").write_bytes(_file(60, 80).numpy())
    (tmp_path / "a" / "with alpha.png").write_bytes(_formats()["png with alpha"])
    source = rtf.sources.image_folder(tmp_path)
    stage = source.refurbish(augment.compose([augment.decode_random_resized_crop(24)]), r=2, seed=1)
    assert stage.element_spec[0].shape == [24, 24, 3]
    assert len(list(stage)) == len(source) >= 5


def test_layers_can_be_sent_to_other_processes():
  file, image = _file(30, 40), tf.zeros([30, 40, 3], tf.uint8)
  seed = {"seed": [1, 2]}
  for layer, given, more in [
    (augment.decode_random_resized_crop(), file, seed),
    (augment.decode_random_resized_crop((8, 9), scale=(0.5, 1)), file, seed),
    (augment.decode(), file, {}),
    (augment.decode((8, 8)), file, {}),
    (augment.random_resized_crop(8), image, seed),
    (augment.rand_augment()[0], image, seed),
    (augment.normalize(), image, {}),
  ]:
    sent = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(sent(given, **more), layer(given, **more))
    assert repr(sent) == repr(layer) and sent.__name__ in repr(sent)


NOT_WHOLE = {
  "decode_random_resized_crop": lambda file: augment.decode_random_resized_crop()(file, seed=[1, 2]),
  "decode_random_resized_crop to a size": lambda file: augment.decode_random_resized_crop(8)(file, seed=[1, 2]),
  "decode": augment.decode(),
  "decode to a size": augment.decode((8, 9)),
}


@pytest.mark.parametrize("name", NOT_WHOLE)
class TestBadFiles:
  @pytest.mark.parametrize(
    "file", [b"", b"no image at all", b"\xff\xd8", b"\x89PNX\0\xff<>", b"RIFF....WAVEfmt "], ids=range(5)
  )
  def test_no_image(self, name, file):
    layer = NOT_WHOLE[name]
    match = f"file of {name.split()[0]} must be a JPEG, PNG, GIF, BMP or WebP file, got {len(file)} bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      layer(tf.constant(file))
    in_graph = tf.data.Dataset.from_tensors(file).map(layer)
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      next(iter(in_graph))

  @pytest.mark.parametrize("keep", [3, 20, 100, 200, 400])
  def test_a_damaged_jpeg(self, name, keep):
    match = f"file of {name.split()[0]} must be an intact JPEG file, got a damaged one of {keep} bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      NOT_WHOLE[name](_file(30, 30).numpy()[:keep])

  @pytest.mark.parametrize("kind", decoded(["PNG", "GIF", "BMP", "WebP"]))
  def test_damaged_others(self, name, kind):
    file = _formats()[kind.lower()]
    for keep in (16, 30, len(file) // 2):
      match = (
        f"file of {name.split()[0]} must be an intact {kind} file, got one of {keep} bytes that TensorFlow "
        r"cannot decode \(.*\). Leave it out"
      )
      with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        NOT_WHOLE[name](file[:keep])

  def test_memory_of_the_decoder_is_freed(self, name):
    """Decoding the whole progressive file takes 10 MB. The damaged file has only its first bytes."""
    whole = tf.io.encode_jpeg(tf.zeros([1300, 1300, 3], tf.uint8), progressive=True).numpy()
    damaged = whole[:400]
    before = None
    for _ in range(20):
      NOT_WHOLE[name](whole)
      with pytest.raises(tf.errors.InvalidArgumentError):
        NOT_WHOLE[name](damaged)
      before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 60_000


def test_a_jpeg_too_large_for_tf_io_is_refused():
  """The file is refused at every scale, before memory is allocated."""
  file = bytearray(_file(30, 30).numpy())
  place = file.index(b"\xff\xc0") + 5
  file[place : place + 4] = (65_000).to_bytes(2, "big") * 2
  arguments = {"max_pixels": 2**62}
  match = r"2\^29 values, got a JPEG file of \d* bytes and 65000 x 65000 pixels with 3 channels"
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  for size in (None, 8):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      augment.decode(size, **arguments)(bytes(file))
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
      augment.decode_random_resized_crop(size, **arguments)(bytes(file), seed=[1, 2])
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100_000


@pytest.mark.parametrize(
  "file, error, match",
  [(tf.zeros([8, 8, 3], tf.uint8), TypeError, "uint8"), (tf.constant([["a", "b"]]), ValueError, r"\(1, 2\)")],
)
def test_other_elements(file, error, match):
  for size in (None, 8):
    with pytest.raises(error, match=f"^file of decode_random_resized_crop .*{match}"):
      augment.decode_random_resized_crop(size)(file, seed=[1, 2])
    with pytest.raises(error, match=f"^file of decode .*{match}"):
      augment.decode(size)(file)


@pytest.mark.parametrize(
  "name, value, error",
  [
    *(("scale", value, ValueError) for value in ((0, 1), (0.5, 1.5), (0.9, 0.5))),
    *(("ratio", value, ValueError) for value in ((0, 1), (1, math.inf), (math.nan, 1))),
    *(("size", value, TypeError) for value in (8.0, (8,), True)),
    *(("size", value, ValueError) for value in (0, (8, 65_536))),
  ],
)
def test_arguments(name, value, error):
  with pytest.raises(error, match=f"^{name} of decode_random_resized_crop "):
    augment.decode_random_resized_crop(**{name: value})
  if name == "size":
    with pytest.raises(error, match="^size of decode "):
      augment.decode(value)

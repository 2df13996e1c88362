"""Labelled images: small ones from TensorFlow Datasets (TFDS), generated shapes, or photographs."""

import dataclasses
import pathlib
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Callable

import absl.logging
import numpy as np
import tensorflow as tf

from refurbish_tf import augment

VALIDATION_IMAGES = 10_000
# Size and quality of generated photographs: about the average of ImageNet.
GENERATED_HEIGHT, GENERATED_WIDTH, JPEG_QUALITY = 375, 500, 90
PROBE_SECONDS = 2.0


class DatasetError(Exception):
  """The data set cannot be used. The message, the end of a sentence, says why, and what can be used instead."""


@dataclasses.dataclass(frozen=True)
class Images:
  """A source of labelled images.

  Attributes:
    title: a description to print.
    note: what users need to know about it, or "".
    train: a `tf.data.Dataset` of (record, label), always in the same order; record: the argument of `decode`; label:
      int64 [].
    validation: the same for the validation images.
    decode: a function from a record to the image, uint8 [height, width, 3].
    shape: the static shape of the image, with None for sizes that vary.
    classes: the number of classes.
  """

  title: str
  note: str
  train: tf.data.Dataset
  validation: tf.data.Dataset
  decode: Callable
  shape: tuple
  classes: int


def load(name, count, seed=0):
  """The images called `name`, or the shapes, with a note, if `name` is not prepared and cannot be downloaded.

  >>> images = load("shapes", 100)
  >>> len(images.train), images.shape, images.classes
  (100, (32, 32, 3), 10)

  Args:
    name: "shapes", or a data set of TensorFlow Datasets with labelled images of one size, such as "cifar10" or "mnist".
    count: the most training images to use.
    seed: the seed of the shapes.

  Raises:
    DatasetError: there is no such set, or TensorFlow Datasets cannot be imported.
  """
  if name == "shapes":
    return shapes(count, seed)
  # Hides the warnings of TFDS about its own deprecated attributes.
  verbosity = absl.logging.get_verbosity()
  absl.logging.set_verbosity(absl.logging.ERROR)
  try:
    builder = _builder(name)
    obstacle = _prepare(builder)
    if not obstacle:
      return _from_tfds(builder, count)
    note = (
      f"{name} is not prepared on this machine (there is no {builder.data_dir}) and cannot be downloaded "
      f"({obstacle}): using the built-in shapes instead."
    )
    return shapes(count, seed, note)
  finally:
    absl.logging.set_verbosity(verbosity)


def load_all(name, count, seed=0):
  """Like `load`, but for comparable runs: raises an error instead of using other or fewer images.

  Raises:
    DatasetError: as for `load`, or there are fewer than `count` images in the set.
  """
  images = load(name, count, seed)
  if images.note:
    raise DatasetError(
      f"{images.note.partition(':')[0]}. Copy it there from another machine, or connect to the internet."
    )
  if len(images.train) < count:
    raise DatasetError(
      f"{name} has only {len(images.train):,} training images, but {count:,} were requested. Request fewer."
    )
  return images


def shapes(count, seed=0, note=""):
  """Ten shapes in any colour, at about the same place, size and orientation, drawn within a second or so.

  They are easy enough for a small network to learn from a few thousand images, augmented by two RandAugment operations:
  accuracies far from 100 % would say more about chance than about the augmentation.
  """
  validation_count = max(10, min(count // 4, VALIDATION_IMAGES))
  images, labels = draw_shapes(count + validation_count, seed)
  # Compressed like the records of TFDS, so that decoding is also part of the augmentation here.
  records = np.array([tf.io.encode_png(image).numpy() for image in images], object)
  train, validation = (
    tf.data.Dataset.from_tensor_slices((records[part], labels[part])) for part in (slice(count), slice(count, None))
  )
  title, shape = f"shapes (generated): {count:,} training and {validation_count:,} validation images", (32, 32, 3)
  return Images(title, note, train, validation, _decoder(shape), shape, classes=10)


def draw_shapes(count, seed=0):
  """Draws images uint8 [count, 32, 32, 3] and labels int64 [count] from 0 to 9, about equally many of each.

  >>> images, labels = draw_shapes(20)
  >>> np.bincount(labels).tolist()
  [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
  """
  rng = np.random.default_rng(seed)
  labels = rng.permutation(np.arange(count) % 10)
  images = np.empty([count, 32, 32, 3], np.uint8)
  y, x = np.mgrid[-1:1:32j, -1:1:32j].astype(np.float32)
  # In parts, to save memory.
  for start in range(0, count, 1000):
    part = labels[start : start + 1000]
    column = lambda low, high: rng.uniform(low, high, [len(part), 1, 1]).astype(np.float32)
    size, angle = column(0.75, 0.95), column(-0.15, 0.15)
    right, down = x - column(-0.1, 0.1), y - column(-0.1, 0.1)
    u = (np.cos(angle) * right + np.sin(angle) * down) / size
    v = (np.cos(angle) * down - np.sin(angle) * right) / size
    inside = np.select([(part == label)[:, None, None] for label in range(10)], _shapes(u, v))
    # The shape differs from the background by at least half of the range in one channel, and by chance in others.
    background, shape = rng.uniform(40, 215, [2, len(part), 1, 1, 3]).astype(np.float32)
    channel = rng.integers(3, size=len(part))
    darker = background[np.arange(len(part)), 0, 0, channel] > 127
    shape[np.arange(len(part)), 0, 0, channel] += np.where(darker, -130, 130)
    slope = (column(-10, 10) * x + column(-10, 10) * y)[..., None]
    noise = rng.normal(0, 5, [len(part), 32, 32, 3]).astype(np.float32)
    image = np.where(inside[..., None], shape, background + slope) + noise
    images[start : start + 1000] = np.clip(image, 0, 255)
  return images, labels


def photographs(directory, count, seed=0):
  """JPEG files of various sizes, to measure the input. There is only one label, and no validation set.

  >>> images = photographs(None, 2)
  >>> images.shape, [images.decode(record).shape.as_list() for record, _ in images.train]
  ((None, None, 3), [[375, 500, 3], [375, 500, 3]])

  Args:
    directory: where to find files; the first `count` in and below it, by name, are used. None generates images.
    count: the maximum number of images.
    seed: the seed of the generated images.

  Raises:
    DatasetError: there is no such directory, it cannot be read, or it has fewer than two JPEG files.
  """
  if directory is None:
    records = draw_photographs(count, seed)
    title = f"{count:,} generated photographs"
    train = tf.data.Dataset.from_tensor_slices(records)
  else:
    directory = pathlib.Path(directory)
    files = _jpeg_files(directory, count)
    title = f"{len(files):,} JPEG files in {directory}"
    train = tf.data.Dataset.from_tensor_slices(list(map(str, files))).map(tf.io.read_file)
    records = [file.read_bytes() for file in files[:10]]
  sizes = np.median([tf.io.extract_jpeg_shape(record).numpy() for record in records[:10]], axis=0).astype(int)
  kilobytes = np.mean([len(record) for record in records[:10]]) / 1000
  shape = (None, None, 3)
  train = train.map(lambda record: (record, tf.constant(0, tf.int64)))
  title += f", about {sizes[1]} x {sizes[0]} pixels and {kilobytes:.0f} kB"
  return Images(title, "", train, train.take(0), _decoder(shape), shape, classes=1)


def _jpeg_files(directory, count):
  if not directory.is_dir():
    raise DatasetError(f"there is no directory {str(directory)!r}")
  files = []
  try:
    for file in sorted(path for path in directory.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")):
      with file.open("rb") as opened:
        # The content decides, not the name.
        if opened.read(3) == b"\xff\xd8\xff":
          files.append(file)
      if len(files) == count:
        break
  except OSError as error:
    raise DatasetError(f"cannot read {error.filename!r}: {error.strerror}") from None
  if len(files) < 2:
    raise DatasetError(
      f"there are {len(files) or 'no'} JPEG files in and below {str(directory)!r}, but at least two are needed"
    )
  return files


def draw_photographs(count, seed=0):
  """Draws images with as much detail as photographs. Returns `count` JPEG files as bytes.

  >>> file, = draw_photographs(1)
  >>> tf.io.decode_jpeg(file).shape.as_list()
  [375, 500, 3]
  """
  rng = np.random.default_rng(seed)
  size = [GENERATED_HEIGHT, GENERATED_WIDTH]
  files = []
  for shape in draw_shapes(count, seed)[0]:
    image = tf.image.resize(shape, size, "bicubic")
    # Details of every size, finer ones weaker, as in nature.
    for finest, strength in ((4, 12), (16, 12), (64, 8), (500, 20)):
      image += tf.image.resize(rng.normal(0, strength, [finest, finest, 3]).astype(np.float32), size)
    image = tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)
    files.append(tf.io.encode_jpeg(image, quality=JPEG_QUALITY).numpy())
  return files


def _shapes(u, v):
  """Whether the point (u, v) is inside, for each shape. The shapes roughly fill the unit circle."""
  radius, largest = np.hypot(u, v), np.maximum(abs(u), abs(v))
  return [
    radius < 0.9,  # disk
    (radius < 1) & (radius > 0.55),  # ring
    (radius < 1) & (v > 0),  # half disk
    (radius < 1) & (np.hypot(u - 0.5, v) > 0.8),  # crescent
    largest < 0.8,  # square
    (largest < 0.85) & (largest > 0.45),  # frame
    (abs(u) < 1) & (abs(v) < 0.3),  # bar
    np.maximum(-v, np.sqrt(0.75) * abs(u) + 0.5 * v) < 0.5,  # triangle
    (largest < 1) & (np.minimum(abs(u), abs(v)) < 0.28),  # cross
    radius < 0.62 + 0.38 * np.cos(5 * np.arctan2(v, u)),  # star
  ]


def _builder(name):
  try:
    import tensorflow_datasets as tfds

    # If one of its packages is missing or does not fit, TFDS may be imported without its contents, and logs why.
    builder = tfds.builder
  except (ImportError, AttributeError) as error:
    raise DatasetError(
      f"{name} is read by tensorflow-datasets, which cannot be imported ({error}): install the extra `demo` of "
      "refurbish-tf, or `pip install tensorflow-datasets importlib_resources` (with TensorFlow 2.19 also "
      "`'tensorflow-metadata<1.18'`)"
    ) from None
  try:
    return builder(name)
  # Depending on the name, TFDS raises nearly anything: AssertionError for a version, ImportError for a namespace.
  except Exception as error:
    reason = str(error).strip().partition("\n")[0]
    raise DatasetError(f"TensorFlow Datasets cannot load {name!r}: {reason}") from None


def _prepare(builder):
  """Downloads the set unless it is prepared. Returns "", or why that is impossible."""
  if builder.is_prepared():
    return ""
  # TFDS would try ten times, at increasing intervals, before it gives up.
  url = next(iter(builder.url_infos or ()), None) or builder.info.homepage or "https://storage.googleapis.com"
  if not _answers(url):
    return f"{urllib.parse.urlsplit(url).hostname} does not answer"
  try:
    builder.download_and_prepare()
  except Exception as error:
    # The cause may be the network, the disk, a checksum, files that must be fetched by hand, a missing package, ...
    return str(error).strip().partition("\n")[0]
  return ""


def _answers(url):
  """Whether the server of `url` answers within a short time."""
  answered = threading.Event()

  def ask():
    try:
      urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS).close()
      answered.set()
    except urllib.error.HTTPError:
      answered.set()
    except (OSError, ValueError):
      pass

  # A thread, because no timeout limits the lookup of a name. A daemon, so that the process does not wait for it.
  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(PROBE_SECONDS)
  return answered.is_set()


def _from_tfds(builder, count):
  import tensorflow_datasets as tfds

  sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
  counts = {"train": min(count, sizes["train"]), "test": min(VALIDATION_IMAGES, sizes["test"])}

  def read(split, **options):
    # Records stay compressed: decoding is a part of the partial augmentation, done for fresh samples only.
    how = {"decoders": {"image": tfds.decode.SkipDecoding()}, "read_config": tfds.ReadConfig(**options)}
    dataset = builder.as_dataset(split=f"{split}[:{counts[split]}]", shuffle_files=False, **how)
    return dataset.map(lambda element: (element["image"], element["label"]))

  height, width, _ = builder.info.features["image"].shape
  shape = (height, width, 3)
  return Images(
    title=(
      f"{builder.info.full_name} (TFDS): {counts['train']:,} of {sizes['train']:,} train images; "
      f"validation on {counts['test']:,} test images"
    ),
    note="",
    train=read("train"),
    # TFDS's cache would warn that only a part of the set is read, so it is off for the validation images.
    validation=read("test", try_autocache=False),
    decode=_decoder(shape),
    shape=shape,
    classes=builder.info.features["label"].num_classes,
  )


def _decoder(shape):
  """A function from an image file, string [], to the image, uint8 `shape`. Grey and transparent ones become RGB."""

  def decode(record):
    return tf.ensure_shape(augment.decode()(record), shape)

  return decode

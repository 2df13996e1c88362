"""Hostile arguments: every public function and layer gets values of any type, size and sign. It refuses them by an
error that says what is wrong, or does the right thing. Values that no argument can mean, such as NaN, are never
accepted."""

import decimal
import fractions
import functools
import inspect
import json
import math
import os
import pathlib
import resource
import tempfile
import traceback

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from run import tell

# Bytes of address space. Without a limit, a huge size would end in the kernel's choice of a process.
MEMORY = 2**34
N = 6
IMAGES = np.random.default_rng(1).integers(0, 256, [N, 12, 12, 3], np.uint8)
LABELS = np.arange(N) % 3
PNG = tf.io.encode_png(IMAGES[0])
BOXES = np.float32([[1, 2, 5, 7], [0, 0, 12, 12]])

# No argument of a number, a text or a choice can mean these.
NONSENSE = [
  *(math.nan, np.float32(math.nan), [math.nan], [0.1, math.nan], tf.constant([math.nan, 1.0]), 1j, object(), b"\xff"),
  *(bytearray(b"1"), {"a": {1, 2}}, [[1, [2, 3]]], NotImplemented, Ellipsis, 10**30, -(10**30), "\udc80", "no name"),
]
VALUES = [
  *NONSENSE,
  *(None, True, False, np.bool_(True), 0, 1, 2, 3, 5, -1, -2, 64, 1000, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1),
  *(2**63, -(2**63), 2**64, 0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 2.5, 1e-320, 1e-9, 1e9, 1e308, -1e308, math.inf, -math.inf),
  *("", "é", "\0", "1", "0.5", "mask", "xyxy", "horizontal", "cifar10", "int8", "float16", "a" * 5000, b"", b"a"),
  *((), [], {}, set(), (1, 2), [2, 1], (0, 0), (0.5, 0.5), (0.25, 4), [-1, 1], (3, 4, 5), [1, 2, 3, 4], (1,) * 100),
  *([None, None], [True, False], ["a", "b"], [1, "b"], [[1, 2], [3, 4]], {0: 1}, {"a": "mask"}, {1: "xyxy"}, {1: None}),
  *(np.int8(3), np.uint64(2**63), np.float16(0.5), np.float64(2), np.array(3), np.array([1, 2]), np.zeros(0)),
  *(np.array(["a"]), np.zeros([2, 2]), np.array([None]), np.datetime64("2020-01-01"), np.ma.masked, np.str_("mask")),
  *(tf.constant(3), tf.constant(0.5), tf.constant([1, 2]), tf.constant("mask"), tf.zeros([0]), tf.Variable(2)),
  *(tf.ragged.constant([[1], [2, 3]]), tf.sparse.from_dense([1, 0]), tf.uint8, tf.TensorSpec([2], tf.float32)),
  *(decimal.Decimal("0.5"), fractions.Fraction(1, 2), range(2), iter([1, 2]), lambda x: x, int, pathlib.Path("/none")),
  *(augment.random_flip(), [augment.random_flip()], tf.data.Dataset.range(2), rtf.AUTOTUNE, float("1e400"), -0.1),
]


def seeded(function, *element):
  takes_seed = "seed" in inspect.signature(function).parameters
  return function(*element, seed=[1, 2]) if takes_seed else function(*element)


def image_layers(made, images=IMAGES, targets=None, clips=None):
  """Applies layers to an image and to all, in a pipeline."""
  layers = made if isinstance(made, list) else [made]
  fn = augment.compose(layers, targets, clips=clips)
  element = (images[0], BOXES) if targets else (images[0],)
  whole = (images, np.stack([BOXES] * N)) if targets else (images,)
  return [seeded(fn, *element), *tf.data.Dataset.from_tensor_slices(whole).map(lambda *x: seeded(fn, *x))]


def batch_layers(made):
  return made(IMAGES, LABELS, seed=[1, 2])


def with_boxes(made):
  return seeded(made, IMAGES[0], BOXES, LABELS[:2])


def pasted(made):
  segments = np.zeros([N, 12, 12], np.int32)
  segments[:, 2:7, 1:5], segments[:, 8:, 8:] = 1, 2
  boxes = np.stack([np.float32([[1, 2, 5, 7], [8, 8, 12, 12]])] * N)
  return made({"image": IMAGES, "boxes": boxes, "segments": segments, "ids": np.array([[1, 2]] * N)}, seed=[1, 2])


def decoded(made):
  return seeded(made, PNG)


def crops(made):
  return made(IMAGES[0])


def first(dataset):
  """Reads a few elements of two passes."""
  return [list(dataset.take(3)), list(dataset.take(100)), rtf.describe(dataset), str(rtf.stats(dataset))]


STORE = rtf.CacheStore()
STORE.put(1, 2)
# Removed when the process ends.
FILES = tempfile.TemporaryDirectory(prefix="refurbish_tf_fuzz_")
PLACE = pathlib.Path(FILES.name)
for each in ("a", "b"):
  (PLACE / "images" / each).mkdir(parents=True)
  (PLACE / "images" / each / "1.png").write_bytes(PNG.numpy())
with tf.io.TFRecordWriter(str(PLACE / "records")) as writer:
  writer.write(b"a record")
BOX = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "iscrowd": 0, "area": 12}
BOX["segmentation"] = [[1, 2, 4, 2, 4, 6, 1, 6]]
ENTRIES = {"images": [{"id": 1, "file_name": "a/1.png", "height": 12, "width": 12}], "annotations": [BOX]}
ENTRIES["categories"] = [{"id": 1, "name": "one"}]
(PLACE / "coco.json").write_text(json.dumps(ENTRIES))


def source():
  return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def used_store(store):
  store.put(1, {"a": 1})
  return [store.get(1), 1 in store, len(store), store.stats(), store.remove(1), store.clear()]


def on_source(function):
  return lambda **given: source().apply(function(**given))


# By the name of a function: the function, arguments that are right, and what is done with the result.
CALLS = {
  "refurbish": (on_source(rtf.refurbish), {"partial_fn": [augment.random_flip()]}, first),
  "echo": (on_source(rtf.echo), {"e": 2}, first),
  "echo augmented": (
    on_source(rtf.echo),
    {"e": 1.5, "where": "after_augment", "augment_fn": lambda *x: x, "batch_size": 2, "shuffle_buffer_size": 3},
    first,
  ),
  "offload": (on_source(rtf.offload), {"layers": [augment.random_flip()], "batch_size": 2}, first),
  "as_offloaded": (rtf.as_offloaded, {"dataset": source().batch(2)}, list),
  "advise": (
    rtf.advise,
    {"source": source(), "layers": [augment.random_flip()], "batch_size": 2, "max_seconds": 0.01, "step_seconds": 0.1},
    str,
  ),
  "describe": (rtf.describe, {"dataset": source()}, str),
  "stats": (rtf.stats, {"dataset": source()}, str),
  "show": (rtf.show, {"dataset": source(), "num_samples": 1, "num_epochs": 1}, lambda figure: None),
  "CacheStore": (rtf.CacheStore, {}, used_store),
  "EpochPosition": (rtf.EpochPosition, {"dataset": source().refurbish(lambda *x: x)}, str),
  "put": (lambda **given: rtf.CacheStore().put(**given), {"index": 1, "sample": 2}, str),
  "get": (lambda **given: STORE.get(**given), {"index": 1}, str),
  "remove": (lambda **given: STORE.remove(**given), {"index": 1}, str),
  "contains": (lambda index: index in STORE, {"index": 1}, str),
  "cached": (rtf.sources.cached, {"source": source()}, list),
  "data_source": (rtf.sources.data_source, {"source": [1, 2, 3]}, list),
  "tfrecord": (rtf.sources.tfrecord, {"files": str(PLACE / "records")}, list),
  "image_folder": (rtf.sources.image_folder, {"directory": PLACE / "images"}, list),
  "coco": (rtf.sources.coco, {"annotations": PLACE / "coco.json", "images": PLACE / "images"}, list),
  "Offloaded": (rtf.keras.Offloaded, {"layers": [augment.random_flip()]}, str),
  "BackupAndRestore": (rtf.keras.BackupAndRestore, {"backup_dir": "backup"}, str),
  "RefurbishLogger": (rtf.keras.RefurbishLogger, {"dataset": source().refurbish(lambda *x: x)}, str),
  "seed_at": (augment.seed_at, {"seed": [1, 2], "index": 0}, lambda seed: seed),
  "compose": (augment.compose, {"layers": [augment.random_flip()]}, lambda fn: fn(IMAGES[0], seed=[1, 2])),
  "compose with targets": (
    augment.compose,
    {"layers": [augment.random_flip()], "targets": {1: "xyxy", 2: None}},
    with_boxes,
  ),
  "split": (augment.split, {"layers": [augment.random_flip(), augment.cutout(2)], "at": 1}, str),
  "numpy_layer": (
    augment.numpy_layer,
    {"fn": lambda image, rng: image, "processes": 0},
    image_layers,
  ),
  "draws": (lambda **given: augment.random_crop(padding=2).draws(**given), {"seed": [1, 2]}, lambda draws: draws),
  "pixels": (
    lambda **given: augment.random_crop(padding=2).pixels(**given),
    {"image": IMAGES[0], "draws": augment.random_crop(padding=2).draws([1, 2])},
    lambda image: image,
  ),
  "layer": (lambda **given: augment.random_flip()(**given), {"image": IMAGES[0], "seed": [1, 2]}, lambda image: image),
  "normalized": (lambda **given: augment.normalize()(**given), {"image": IMAGES[0]}, lambda image: image),
  "mixed": (
    lambda **given: augment.mixup(num_classes=3)(given["images"], given["labels"], seed=given["seed"]),
    {"images": IMAGES, "labels": LABELS, "seed": [1, 2]},
    lambda images: images,
  ),
  "sanitize_boxes": (augment.sanitize_boxes, {"boxes": 1, "with_rows": 2}, with_boxes),
  "mosaic": (augment.mosaic, {"components": {1: None}}, batch_layers),
}
NEEDED = {
  "copy_paste": {"targets": {"boxes": "xyxy"}, "instances": {"segments": "ids"}},
  "auto_augment": {"policy": "cifar10"},
  "deep_auto_augment": {"policy": "cifar10"},
  "frequency_mask": {"freq_mask_param": 2},
  "pad": {"padding": 2},
  "random_adjust_sharpness": {"sharpness_factor": 2},
  "random_affine": {"degrees": 30},
  "random_posterize": {"bits": 3},
  "random_rotation": {"degrees": 30},
  "random_resize": {"min_size": 5, "max_size": 9},
  "time_mask": {"time_mask_param": 2},
}
for each in ("random_apply", "random_choice", "random_order"):
  NEEDED[each] = {"layers": [augment.random_flip()]}
for each in ("center_crop", "five_crop", "ten_crop", "random_resized_crop", "resize"):
  NEEDED[each] = {"size": (4, 5)}
for each in ("mixup", "cutmix", "mixup_or_cutmix"):
  NEEDED[each] = {"num_classes": 3}
NEEDED |= {"cutout": {"size": 3}, "random_depth_crop": {"size": 3}, "decode_wav": {"sample_rate": 8000}}
VOLUMES = functools.partial(image_layers, images=np.stack([IMAGES] * 2), clips=True)
USES = {
  "copy_paste": pasted,
  **dict.fromkeys(("five_crop", "ten_crop"), crops),
  **dict.fromkeys(("random_depth_crop", "random_depth_flip"), VOLUMES),
  **dict.fromkeys(("mixup", "cutmix", "mixup_or_cutmix"), batch_layers),
  **dict.fromkeys(("decode", "decode_random_resized_crop"), decoded),
  "decode_wav": lambda made: made(tf.audio.encode_wav(tf.zeros([9, 1]), 8000)),
  "random_intensity": functools.partial(image_layers, images=np.float32(IMAGES)),
  "random_iou_crop": functools.partial(image_layers, targets={1: "xyxy"}),
}
for each in augment.__all__:
  CALLS.setdefault(each, (getattr(augment, each), NEEDED.get(each, {}), USES.get(each, image_layers)))
# Arguments that may be any object, or any text.
ANY = {"name", "version", "sample", "shared", "figure", "class_names", "backup_dir", "former_dirs", "log_dir", "image"}
ANY |= {"path", "store", "index_dir", "files", "directory", "annotations", "images", "element_spec", "components"}
ANY |= {"clips", "fn", "targets", "partial_fn", "final_fn", "with_rows", "instances", "num_outcomes", "augment_fn"}
# Functions with arguments that may be as large as a number gets.
LARGE = {"refurbish", "advise", "random_iou_crop", "normalize"}
FUNCTIONS = {"partial_fn", "final_fn", "augment_fn", "fn"}


def parameters(name):
  """The names of the arguments of a function, or of those that are right if it is only a lambda."""
  function = getattr(rtf, name.split()[0], CALLS[name][0])
  known = inspect.signature(function).parameters
  return [each for each in known if each != "given"] or list(CALLS[name][1])


ALLOWED = (TypeError, ValueError, OSError, ImportError, tf.errors.OpError)
NOT_ALLOWED = (tf.errors.InternalError, tf.errors.UnknownError, UnicodeError)


def attempt(name, changes):
  """Calls a function with some arguments changed. Returns what is wrong, or None."""
  function, right, use = CALLS[name]
  try:
    use(function(**{**right, **changes}))
  except ALLOWED as error:
    if isinstance(error, NOT_ALLOWED):
      return f"{type(error).__name__}: {error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    # Errors of ops and of files say what was wrong; others come from a check of ours, or name the argument.
    is_ours = "refurbish_tf/" in last.filename and last.line.startswith("raise")
    # TensorFlow says which value is no tensor. A function of the user's may raise anything.
    is_clear = is_ours or last.filename.endswith("constant_op.py") or FUNCTIONS & {*changes}
    is_clear = is_clear or isinstance(error, (tf.errors.OpError, OSError)) or any(key in str(error) for key in changes)
    if not is_clear:
      return f"unclear {type(error).__name__}: {error} at {last.filename}:{last.lineno}"
    return None
  except (Exception, SystemError) as error:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} at {last.filename}:{last.lineno}"
  nonsense = [each for each in NONSENSE if not (isinstance(each, int) and name in LARGE)]
  wrong = [key for key, value in changes.items() if key not in ANY and any(value is each for each in nonsense)]
  return f"accepted {wrong}" if wrong else None


def limit_memory():
  resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))


def case(chance, directory):
  limit_memory()
  name = chance.choice([name for name in CALLS if parameters(name)])
  changes = {key: chance.choice(VALUES) for key in chance.choices(parameters(name), k=chance.choice([1, 1, 2]))}
  # Files and directories that a call creates.
  os.chdir(directory)
  tell(f"{name} {changes!r}"[:500])
  wrong = attempt(name, changes)
  assert wrong is None, f"{name} with {changes!r}: {wrong}"

"""Images with boxes and masks from a JSON file in COCO's format, read by index: `rtf.sources.coco`."""

from __future__ import annotations

import array
import hashlib
import importlib.util
import json
import os
import re
from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph
from . import class_folders
from .data_source import data_source
from .image_folder import _ImageFilesDataset
from .tfrecord import _path

_CHUNK = 1 << 24
# Lists of numbers, or an RLE, which contains no other objects.
_SEGMENTATION = re.compile(rb'"segmentation"\s*:\s*(\[(?:\[[\d\s.,eE+-]*\]|[\s,])*\]|{[^{}]*})')


def coco(
  annotations: str | os.PathLike[str],
  images: str | os.PathLike[str],
  *,
  class_names: Sequence[str] | None = None,
  masks: bool = False,
  crowds: bool = False,
  empty_images: bool = False,
  image_ids: bool = False,
  num_parallel_reads: int = tf.data.AUTOTUNE,
) -> Any:
  """Returns a `tf.data.Dataset` of images with boxes, and masks, from a JSON file in COCO's format, read by index.

  >>> import json, os, tempfile
  >>> directory = tempfile.mkdtemp()
  >>> tf.io.write_file(os.path.join(directory, "7.jpg"), tf.io.encode_jpeg(tf.zeros([48, 64, 3], tf.uint8)))
  >>> with open(os.path.join(directory, "instances.json"), "w") as file:
  ...   json.dump({"images": [{"id": 7, "file_name": "7.jpg", "height": 48, "width": 64}],
  ...              "annotations": [{"image_id": 7, "category_id": 90, "bbox": [4, 6, 40, 30], "iscrowd": 0}],
  ...              "categories": [{"id": 1, "name": "person"}, {"id": 90, "name": "toothbrush"}]}, file)
  >>> source = rtf.sources.coco(file.name, directory)
  >>> source.class_names, [element["bounding_boxes"]["labels"].numpy().tolist() for element in source]
  (['person', 'toothbrush'], [[1]])
  >>> decode = rtf.augment.decode((64, 64), apply_exif_orientation=False)
  >>> train = source.refurbish([decode], [rtf.augment.random_flip()], r=3, targets={"bounding_boxes": "xywh"})

  An element has the form of Keras' detection models: `{"images": file, "bounding_boxes": {"boxes", "labels"}}`, the
  bytes of the file, string `[]`, boxes `[x, y, width, height]` in pixels, float32 `[n, 4]`, and labels, int32 `[n]`.
  Boxes belong to the pixels as stored: decode with `apply_exif_orientation=False`. They are clipped to the image, and
  left out if they are outside. Reading COCO's JSON of 118,287 images takes seconds and 0.6 GB of memory, 1 GB with
  masks.

  Args:
    annotations: the JSON file, such as `instances_train2017.json`.
    images: the directory of the image files.
    class_names: a list of the names of the categories; the label is the position in it. For a validation file, pass
      the training source's. None for all categories of the file in the order of their ids, which may have gaps.
    masks: True adds `"segments"`, int32 `[height, width]`, a map of object numbers, 0 for none, and `"ids"` to the
      `"bounding_boxes"`, int32 `[n]`, the number of each box, from 1. Smaller objects cover larger ones. `compose`
      takes `{"segments": "mask"}`, `mosaic` takes `instances`. An object whose segmentation is missing, null or empty
      has a number but no pixels. pycocotools draws masks in this process: `pip install 'refurbish_tf[coco]'`.
    crowds: False leaves out crowds, as is usual to train detectors. True adds `"is_crowd"` to the boxes, bool `[n]`.
    empty_images: False leaves out images without boxes, as torchvision and mmdetection do for training. True keeps all,
      and also reads a file without annotations, such as `image_info_test2017.json`.
    image_ids: True adds `"image_id"`, int64 `[]`, for an evaluation.
    num_parallel_reads: as for `rtf.sources.image_folder`.

  Returns:
    A `tf.data.Dataset`, in the order of the file's images. Its `class_names` and `file_paths` are lists of strings.
    `rtf.describe` counts what was left out.

  Raises:
    TypeError, ValueError: an argument is not allowed; `annotations` is not JSON of this form, has an image or a
      category twice, no boxes, or a wrong annotation; `class_names` lacks a category in use; `images` lacks files.
    ImportError: `masks` needs pycocotools.
    tf.errors.NotFoundError, tf.errors.UnknownError and the like: when it runs, a file cannot be read, or a mask is
      damaged. The iterator continues with the next element.

  Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014.
  """
  for name, value in (("masks", masks), ("crowds", crowds), ("empty_images", empty_images), ("image_ids", image_ids)):
    checks.checked_flag(name, value)
  if masks and importlib.util.find_spec("pycocotools") is None:
    raise ImportError("masks of coco needs pycocotools, which draws masks: pip install 'refurbish_tf[coco]'.")
  path, directory = os.fsdecode(_path(annotations, "annotations")), os.fsdecode(_path(images, "images"))
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  names, numbers, rows, classes, text = _read(path, masks)
  class_names = class_folders.checked_names(class_names, list(classes.values()), f"categories of {path}")
  place_of, label_of = ({each: number for number, each in enumerate(of)} for of in (numbers[:, 0], class_names))
  place = np.array([place_of.get(each, -1) for each in rows[:, 0]], int)
  label = np.array([label_of.get(classes.get(each), -1) for each in rows[:, 1]], int)
  lacking = np.unique(rows[(label < 0) & (place >= 0), 1])
  if len(lacking):
    listed = ", ".join(f"{each:.0f} ({classes.get(each, 'not in the file')})" for each in lacking[:9])
    raise ValueError(f"class_names lacks the categories {listed} of {path}. Add them, or remove their annotations.")
  # Clipped to [0, width] and [0, height].
  low, high = (np.clip(each, 0, numbers[place, :0:-1]) for each in (rows[:, 3:5], rows[:, 3:5] + rows[:, 5:7]))
  crowd = rows[:, 2] != 0
  kept = (place >= 0) & np.all(high > low, axis=1) & (crowds | ~crowd)
  counts = np.bincount(place[kept], minlength=len(names))
  taken = np.flatnonzero(counts + empty_images)
  if not len(taken):
    raise ValueError(f"annotations must have boxes, but no image of {path} has one. empty_images=True keeps all.")
  files = [os.path.join(directory, names[each]) for each in taken]
  # Each directory is listed once: on a network mount, checking each file would take a millisecond.
  folders = filter(tf.io.gfile.isdir, {os.path.dirname(file) for file in files})
  missing = set(files).difference(os.path.join(each, name) for each in folders for name in tf.io.gfile.listdir(each))
  if missing:
    raise ValueError(
      f"images must be the directory of the files that annotations names, but {checks.printable_path(directory)} lacks "
      f"{len(missing):,} of {len(files):,}, such as {checks.printable_path(min(missing))}."
    )
  order = np.flatnonzero(kept)[np.argsort(place[kept], kind="stable")]
  splits, boxes = np.append(0, np.cumsum(counts[taken])), np.concatenate([low, high - low], axis=1)
  of_boxes = {"boxes": boxes[order].astype(np.float32), "labels": label[order].astype(np.int32)}
  of_boxes |= {"is_crowd": crowd[order]} if crowds else {}
  told = (
    f"{dataset_graph.stage_title('coco', checks.printable_path(path))}\n  images  {len(files):,} with {len(order):,} "
    f"boxes{f', {np.sum(np.diff(rows[order, 7:]) < 3):,} without mask' * masks}; left out: {len(names) - len(files):,} "
    f"images without boxes, {np.sum(crowd & ~kept):,} crowds, {np.sum(~crowd & ~kept):,} boxes without area or image"
  )
  digest = hashlib.sha256(b"".join([text, splits, *of_boxes.values()])).digest()
  source = _ImageFilesDataset(directory, files, np.arange(len(files)), class_names, told, num_parallel_reads, digest)
  segments = _Segments(zip(numbers[taken, 1:].astype(int), np.split(rows[order, 7:].astype(int), splits[1:-1])))
  segments.text = text
  parts = source, data_source(segments, element_spec=tf.TensorSpec([None, None], tf.int32))
  with tf.device("CPU:0"):  # The functions of tf.data run there, even if there are other devices.
    constants, starts, of_images = tf.nest.map_structure(tf.constant, (of_boxes, splits, numbers[taken, 0].astype(int)))

  @tf.autograph.experimental.do_not_convert
  def element(given, segments=None):
    file, position = given
    boxes = {name: each[starts[position] : starts[position + 1]] for name, each in constants.items()}
    made = {"images": file, "bounding_boxes": boxes} | ({"image_id": of_images[position]} if image_ids else {})
    boxes |= {"ids": tf.range(1, tf.size(boxes["labels"]) + 1)} if masks else {}
    return made | ({"segments": segments} if masks else {})

  made = tf.data.Dataset.zip(parts[: 1 + masks]).map(element, tf.data.AUTOTUNE)
  made.class_names, made.file_paths = class_names, files
  return made


def _read(path, masks):
  """Returns a file's image names, `[images, 3]` their ids and sizes, `[annotations, 9]`, a dict of classes, and text.

  A row of an annotation: image, category, crowd, box, and where in the text its segmentation is. Segmentations stay
  text, because most of the file is polygons: so it is read fast, and needs a fraction of the memory of dicts.
  """
  rows, text, parts, rest = array.array("d"), bytearray(), [], b""

  def shortened(found):
    begin = len(text)
    text.extend(found[1].translate(None, b" \n\r\t") * masks)
    return b'"segmentation at":[%d,%d]' % (begin, len(text))

  def entry(given):
    """Called with each object of the file. An annotation becomes a row, unless it is wrong."""
    box = given.get("bbox") if isinstance(given.get("bbox"), list) else []
    row = [given.get("image_id"), given.get("category_id"), given.get("iscrowd", 0), *box]
    # Larger whole numbers are not exact in float64. NaN is not smaller.
    right = len(row) == 7 and {int, float, bool}.issuperset(map(type, row)) and sum(map(abs, row)) < 2**53
    if not right or row[0] % 1 or row[1] % 1 or masks and given.get("segmentation"):
      return given
    rows.extend([*row, *given.get("segmentation at", (0, 0))])

  try:
    with tf.io.gfile.GFile(path, "rb") as file:
      while chunk := file.read(_CHUNK):
        # Cut after an object, and so not within a segmentation.
        part, brace, rest = (rest + chunk).rpartition(b"}")
        parts.append(_SEGMENTATION.sub(shortened, part + brace))
    found = {"annotations": [], "categories": [], **json.loads(b"".join([*parts, rest]), object_hook=entry)}
    names = [os.fspath(each["file_name"]) for each in found["images"]]
    numbers = np.array([[each[k] for k in ("id", "height", "width")] for each in found["images"]], float).reshape(-1, 3)
    for each in filter(None, found["annotations"]):
      of = [name for name, number in zip(names, numbers[:, 0]) if number == each.get("image_id")] or ["no image"]
      raise ValueError(f"annotation {each.get('id')!r} of {of[0]!r} is wrong: {each}")
    classes = dict(sorted((each["id"], str(each["name"])) for each in found["categories"]))
    right = np.all((numbers % 1 == 0) & (numbers < 2**53) & (numbers > [-(2**53), 0, 0]), axis=1)
    for each in numbers[:, 0], [*map(os.path.normpath, names)]:  # The first one with its id, and with its name.
      right &= np.isin(range(len(names)), np.unique(each, return_index=True)[1])
    if not np.all(right):
      raise ValueError(f"image {names[np.argmin(right)]!r} lacks a height or width, or an id or file_name of its own")
    if not names or len(classes) < len(found["categories"]) or len(rows) != 9 * len(found["annotations"]):
      raise ValueError(f"{len(names):,} images, {len(classes):,} ids of categories, {len(rows) // 9:,} annotations")
  except (LookupError, AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
    raise ValueError(
      f"annotations {path} cannot be read: {type(error).__name__}: {str(error)[:300]}. It must be unpacked JSON, such "
      "as instances_train2017.json: images with id, file_name, height and width, annotations with image_id, "
      "category_id and bbox, categories with id and name. Ids are whole, below 2^53, bbox is four numbers, iscrowd 0 "
      "or 1."
    ) from error
  return names, numbers, np.array(rows).reshape(-1, 9), classes, text


class _Segments(list):
  """The sizes of images and where in `text` their segmentations are, read as maps of object numbers."""

  def __getitem__(self, i):
    from pycocotools import mask

    size, places, found = *(each.tolist() for each in super().__getitem__(i)), []
    for number, (begin, end) in enumerate(places, 1):
      segment = json.loads(self.text[begin:end] or b"[]")
      # NaN and larger numbers make pycocotools end the process.
      if isinstance(segment, list) and all(len(p) % 2 == 0 and all(abs(x) < 2**20 for x in p) for p in segment):
        # pycocotools reads two points as a box, and fails without a polygon, so there is always a point.
        segment = mask.merge(mask.frPyObjects([[0] * 6, *(p for p in segment if len(p) > 4)], *size))
      elif isinstance(segment, list) or segment.get("size") != size:
        raise ValueError(f"object {number} has {str(segment)[:80]}, not polygons, [x, y, ...], or RLE of size {size}.")
      elif isinstance(segment["counts"], list):
        if sum(segment["counts"]) != size[0] * size[1]:  # Other pixels would be undefined.
          raise ValueError(f"object {number} has an RLE of {sum(segment['counts']):,} pixels, not of the size {size}.")
        segment = mask.frPyObjects(segment, *size)
      found.append((number, segment))
    drawn = np.zeros(size[::-1], np.int32)
    for number, segment in sorted(found, key=lambda each: -int(mask.area(each[1]))):
      x, y, across, down = map(int, mask.toBbox(segment))
      part = np.s_[x : x + across, y : y + down]
      np.copyto(drawn[part], number, where=mask.decode(segment).T[part] == 1)
    return drawn.T

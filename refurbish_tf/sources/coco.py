"""Images with the boxes and masks of a JSON file of COCO's form, read by index: `rtf.sources.coco`."""

from __future__ import annotations

import array
import hashlib
import importlib.util
import json
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph
from .data_source import data_source
from .image_folder import _ImageFilesDataset
from .tfrecord import _path

_CHUNK = 1 << 24
# A list of polygons has no strings and no objects.
_POLYGONS = re.compile(rb'"segmentation"\s*:\s*(\[[][\w\s.,+-]*\])')


def coco(
  annotations: str | os.PathLike[str],
  images: str | os.PathLike[str],
  *,
  masks: bool = False,
  crowds: bool = False,
  empty_images: bool = False,
  image_ids: bool = False,
  num_parallel_reads: int = tf.data.AUTOTUNE,
) -> Any:
  """A `tf.data.Dataset` of images with boxes, and masks, from a JSON file of COCO's form, read by index.

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

  An element is what Keras' detection models take: `{"images": file, "bounding_boxes": {"boxes", "labels"}}`, the bytes
  of the file, string `[]`, boxes `[x, y, width, height]` in pixels, float32 `[n, 4]`, and labels, int32 `[n]`. Boxes
  are those of the stored pixels: decode with `apply_exif_orientation=False`. They are clipped to the image; boxes
  without area in it are left out. Categories become 0, 1, ... in the order of their ids, which may have gaps. Reading
  the JSON file of COCO's 118,287 images takes seconds, and meanwhile 0.6 GB of memory, or 0.9 GB with masks.

  Args:
    annotations: the JSON file, such as `instances_train2017.json`.
    images: the directory of the image files.
    masks: True adds `"segments"`, int32 `[height, width]`, a map of object numbers, 0 for none, and `"ids"` to the
      `"bounding_boxes"`, int32 `[n]`, the number of each box, from 1. Smaller objects cover larger ones. `compose`
      takes `{"segments": "mask"}`, `mosaic` takes `instances`. pycocotools draws them, in this process:
      `pip install 'refurbish_tf[coco]'`.
    crowds: False leaves crowds out, as detectors are trained. True adds `"is_crowd"` to the boxes, bool `[n]`.
    empty_images: False leaves images without boxes out, as torchvision and mmdetection do for training.
    image_ids: True adds `"image_id"`, int64 `[]`, for an evaluation.
    num_parallel_reads: as for `rtf.sources.image_folder`.

  Returns:
    A `tf.data.Dataset`, in the order of the file's images. Its attributes `class_names` and `file_paths` are lists of
    strings. `rtf.describe` counts what was left out.

  Raises:
    TypeError, ValueError: an argument is not allowed; `annotations` is not JSON of this form, has an id twice or an
      unknown category, or no boxes; `images` lacks files.
    ImportError: `masks` needs pycocotools.
    tf.errors.NotFoundError, tf.errors.UnknownError and the like: when it runs, a file cannot be read, or a mask is
      damaged. The iterator goes on with the next element.

  Lin et al., *Microsoft COCO: Common Objects in Context*, ECCV 2014.
  """
  for name, value in (("masks", masks), ("crowds", crowds), ("empty_images", empty_images), ("image_ids", image_ids)):
    checks.checked_flag(name, value)
  if masks and importlib.util.find_spec("pycocotools") is None:
    raise ImportError("masks of coco needs pycocotools, which draws them: pip install 'refurbish_tf[coco]'.")
  path, directory = os.fsdecode(_path(annotations, "annotations")), os.fsdecode(_path(images, "images"))
  num_parallel_reads = checks.check_parallel_reads(num_parallel_reads)
  names, numbers, rows, classes, text = _read(path, masks)
  place, label = _places(rows[:, 0], numbers[:, 0]), _places(rows[:, 1], sorted(classes))
  if np.any(label < 0) or len(set(numbers[:, 0])) < len(names):
    wrong = "names a category that it does not have" if np.any(label < 0) else "has an image id twice"
    raise ValueError(f"annotations must have one id for each image and each category, but {path} {wrong}.")
  # Clipped to [0, width] and [0, height].
  low, high = (np.clip(each, 0, numbers[place, :0:-1]) for each in (rows[:, 3:5], rows[:, 3:5] + rows[:, 5:7]))
  kept = (place >= 0) & np.all(high > low, axis=1) & (crowds | (rows[:, 2] == 0))
  counts = np.bincount(place[kept], minlength=len(names))
  taken = np.flatnonzero(counts + empty_images)
  if not len(taken):
    raise ValueError(f"annotations must have boxes, but no image of {path} has one. empty_images=True keeps them all.")
  files = [os.path.join(directory, names[each]) for each in taken]
  # Each directory is listed once: on a network mount, a look at each file would take a millisecond.
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
  of_boxes |= {"is_crowd": rows[order, 2] != 0} if crowds else {}
  if masks:
    of_boxes["ids"] = (np.arange(1, len(order) + 1) - np.repeat(splits[:-1], counts[taken])).astype(np.int32)
  digest = hashlib.sha256(b"".join([text, splits, *of_boxes.values()])).digest()
  of_files = np.arange(len(files), dtype=np.int32), map(classes.get, sorted(classes))
  description = (
    f"{dataset_graph.stage_title('coco', checks.printable_path(path))}\n  images  {len(files):,} with {len(order):,} "
    f"boxes; left out: {len(names) - len(files):,} images without boxes, {len(rows) - len(order):,} crowds and others"
  )
  source = _ImageFilesDataset(directory, files, *of_files, description, num_parallel_reads, digest)
  with tf.device("CPU:0"):  # The functions of tf.data run there, even if there are other devices.
    constants, starts, ids = tf.nest.map_structure(tf.constant, (of_boxes, splits, numbers[taken, 0].astype(np.int64)))

  @tf.autograph.experimental.do_not_convert
  def element(file, position, *segments):
    boxes = {name: each[starts[position] : starts[position + 1]] for name, each in constants.items()}
    made = {"images": file, "bounding_boxes": boxes} | ({"image_id": ids[position]} if image_ids else {})
    return made | ({"segments": segments[0]} if masks else {})

  if masks:
    drawn = _Segments(numbers[taken, 1:].astype(int), splits, text, rows[order, 7:].astype(int))
    segments = data_source(drawn, element_spec=tf.TensorSpec([None, None], tf.int32))
    made = tf.data.Dataset.zip(source, segments).map(lambda given, each: element(*given, each), tf.data.AUTOTUNE)
  else:
    made = source.map(element, tf.data.AUTOTUNE)
  made.class_names, made.file_paths = source.class_names, source.file_paths
  return made


def _read(path, masks):
  """Returns a file's image names, `[images, 3]` their ids and sizes, `[annotations, 9]`, a dict of classes, and text.

  A row of an annotation: image, category, crowd, box, and where in the text its segmentation is. Segmentations stay
  text, because most of the file is polygons: so it is read fast, and needs a fraction of the memory of dicts.
  """
  rows, text, parts, rest = array.array("d"), bytearray(), [], b""

  def added(segmentation):
    begin = len(text)
    text.extend(segmentation if masks else b"")
    return begin, len(text)

  def shortened(polygons):
    return b'"segmentation@":[%d,%d]' % added(polygons[1].translate(None, b" \n\r\t"))

  def entry(given):
    """Called with each object of the file. An annotation becomes a row."""
    if "image_id" not in given or "category_id" not in given:
      return given
    x, y, width, height = given["bbox"]
    place = given.get("segmentation@") or added(json.dumps(given["segmentation"]).encode() if masks else b"")
    rows.extend((given["image_id"], given["category_id"], given.get("iscrowd", 0), x, y, width, height, *place))

  try:
    with tf.io.gfile.GFile(path, "rb") as file:
      while chunk := file.read(_CHUNK):
        # Cut after an object, and so not within a polygon.
        part, brace, rest = (rest + chunk).rpartition(b"}")
        parts.append(_POLYGONS.sub(shortened, part + brace))
    found = json.loads(b"".join([*parts, rest]), object_hook=entry)
    missing = [each for each in found["annotations"] if each is not None]
    if missing:
      raise KeyError(f"image_id or category_id of {missing[0]}")
    names = [os.fspath(each["file_name"]) for each in found["images"]]
    numbers = np.array([(each["id"], each["height"], each["width"]) for each in found["images"]], np.float64)
    numbers = numbers.reshape(-1, 3)
    classes = {int(each["id"]): str(each["name"]) for each in found["categories"]}
    annotations = np.array(rows).reshape(-1, 9)
    # Larger whole numbers are not exact in float64.
    if not np.all(np.abs(np.append(annotations[:, :2], numbers[:, 0])) < 2**53) or np.any(np.isnan(annotations)):
      raise ValueError("an id of 2^53 or more, or a number that is NaN")
    if np.any(numbers[:, 1:] < 1):
      raise ValueError("an image without height or width")
    if not names or len(classes) < max(1, len(found["categories"])):
      raise ValueError(f"{len(names):,} images, {len(found['categories']):,} categories with {len(classes):,} ids")
  except (LookupError, TypeError, ValueError, tf.errors.OpError) as error:
    raise ValueError(
      "annotations must be a JSON file such as instances_train2017.json: images with id, file_name, height and width, "
      f"annotations with image_id, category_id and bbox{', segmentation' * masks}, categories with id and "
      f"name; {path} cannot be read: {type(error).__name__}: {str(error)[:300]}. Unpack it if it is compressed."
    ) from error
  return names, numbers, annotations, classes, text


def _places(wanted, ids):
  """Where in `ids` each wanted one is, or -1."""
  places = {each: place for place, each in enumerate(ids)}
  return np.array([places.get(each, -1) for each in wanted.tolist()], int)


def _are_polygons(lists):
  return all(isinstance(each, list) and len(each) % 2 == 0 and all(map(checks.is_real, each)) for each in lists)


class _Segments:
  """For each image a map of its objects' numbers."""

  def __init__(self, sizes, splits, text, places):
    self._sizes, self._splits, self._text, self._places = sizes, splits, text, places

  def __len__(self):
    return len(self._sizes)

  def __getitem__(self, i):
    from pycocotools import mask

    height, width = self._sizes[i].tolist()
    drawn, found = np.zeros([width, height], np.int32), []
    for number, (begin, end) in enumerate(self._places[self._splits[i] : self._splits[i + 1]].tolist(), 1):
      segment = json.loads(self._text[begin:end])
      is_list = isinstance(segment, list)
      if not (_are_polygons(segment) if is_list else segment["size"] == [height, width]):
        raise ValueError(
          f"masks of coco must be lists of polygons, [x, y, x, y, ...], or RLE of the size of the image, {height} x "
          f"{width}. That of object {number} of element {i} is {str(segment)[:80]}. Correct the file."
        )
      if is_list:
        # pycocotools takes two points for a box, and no polygon for an error.
        polygons = [each for each in segment if len(each) > 4]
        segment = mask.merge(mask.frPyObjects(polygons, height, width)) if polygons else None
      elif isinstance(segment["counts"], list):
        segment = mask.frPyObjects(segment, height, width)
      found += [(-int(mask.area(segment)), number, segment)] if segment else []
    for _, number, segment in sorted(found, key=lambda each: each[:2]):
      x, y, across, down = map(int, mask.toBbox(segment))
      part = np.s_[x : x + across, y : y + down]
      np.copyto(drawn[part], number, where=mask.decode(segment).T[part].view(bool))
    return drawn.T

"""`rtf.sources.coco`: the boxes and masks of a JSON file of COCO's form, as pycocotools has them, read by index."""

import importlib
import json

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import checkpoints
from support.datasets import plain

module = importlib.import_module("refurbish_tf.sources.coco")
SIZES = [(30, 40), (48, 20), (25, 25), (33, 17), (20, 20)]
WITHOUT_PIXELS = [[1, 1, 9, 9]], [], None
TRICKY = 'a "segmentation": [[1, 2]] } é ]'


def content():
  """Five images: the fourth has only a crowd, the last one nothing. Ids have gaps; some boxes lack "iscrowd"."""
  rng, rows = np.random.default_rng(7), []
  for number in range(24):
    image = (0, 2, 1)[number % 3]
    size = SIZES[image][::-1]
    polygons = [(rng.random((5, 2)) * size).round(2).ravel().tolist() for _ in range(1 + number % 2)]
    rows.append((90 - image, (rng.random(4) * [*size, *size]).round(2).tolist(), polygons, 0))
  rows.insert(5, (89, [2, 4, 2, 48], {"size": [48, 20], "counts": [100, 60, 5, 800 - 5]}, 1))
  rows += [(87, [1, 2, 9, 9], {"size": [33, 17], "counts": "U2a0`00000000000:HN0000000000m1"}, 1)]
  rows += [(90, box, [], 0) for box in ([-9, 0, 9, 5], [3, 3, 0, 7], [40, 1, 5, 5])]
  rows += [*((88, [-4, 20, 10, 90], each) for each in WITHOUT_PIXELS), (88, [3, 3, 5, 5]), (12345, [1, 1, 5, 5], [])]
  names = "id", "category_id", "image_id", "bbox", "segmentation", "iscrowd"
  return {
    "info": {"description": TRICKY, "segmentation": [1]},
    "categories": [{"id": number, "name": name} for number, name in ((90, "c"), (1, TRICKY), (44, "b"))],
    "images": [
      {"id": 90 - i, "file_name": f"{i}.jpg", "height": height, "width": width, "licenses": [TRICKY, "segmentation"]}
      for i, (height, width) in enumerate(SIZES)
    ],
    "annotations": [dict(zip(names, (number, (90, 1, 44)[number % 3], *row))) for number, row in enumerate(rows)],
  }


def written(tmp_path, found=None, **how):
  path = tmp_path / "instances.json"
  path.write_text(json.dumps(found or content(), **how), encoding="utf-8")
  for number in range(len(SIZES)):
    (tmp_path / f"{number}.jpg").write_bytes(b"file %d" % number)
  return path, tmp_path


def expected(crowds, empty_images):
  """Each image of this file, and its boxes, labels, whether they are crowds, and annotations, made one by one."""
  found = content()
  for image in found["images"]:
    rows = []
    for each in found["annotations"]:
      low, sides = np.reshape(each["bbox"], [2, 2])
      low, high = np.clip([low, low + sides], 0, [image["width"], image["height"]])
      is_crowd = bool(each.get("iscrowd"))
      if each["image_id"] == image["id"] and all(high > low) and crowds >= is_crowd:
        rows.append(([*low, *high - low], [1, 44, 90].index(each["category_id"]), is_crowd, each))
    if rows or empty_images:
      yield image, *(list(zip(*rows)) or [()] * 4)


@pytest.mark.parametrize("crowds", [False, True])
@pytest.mark.parametrize("empty_images", [False, True])
@pytest.mark.parametrize("chunk, how", [(1 << 24, {}), (61, {"indent": 1}), (300, {"ensure_ascii": False})])
def test_elements_are_those_of_the_file(tmp_path, monkeypatch, crowds, empty_images, chunk, how):
  """However the file is written, and wherever a part of it ends."""
  monkeypatch.setattr(module, "_CHUNK", chunk)
  dataset = rtf.sources.coco(*written(tmp_path, **how), crowds=crowds, empty_images=empty_images, image_ids=True)
  assert dataset.class_names == [TRICKY, "b", "c"]
  wanted = list(expected(crowds, empty_images))
  for element, (image, boxes, labels, is_crowd, _), path in zip(dataset, wanted, dataset.file_paths, strict=True):
    found = {name: value.numpy() for name, value in element["bounding_boxes"].items()}
    assert element["images"] == b"file " + image["file_name"][:1].encode() and path.endswith(image["file_name"])
    np.testing.assert_allclose(found.pop("boxes"), np.reshape(boxes, [-1, 4]), rtol=1e-6)
    assert element["image_id"] == image["id"] and tuple(found.pop("labels")) == labels
    assert {name: tuple(value) for name, value in found.items()} == ({"is_crowd": is_crowd} if crowds else {})
  kept = sum(len(boxes) for _, boxes, *_ in wanted)
  left_out = f"{5 - len(wanted)} images without boxes, {2 - 2 * crowds} crowds, 4 boxes without area or image"
  assert f"{len(wanted)} with {kept} boxes; left out: {left_out}" in rtf.describe(dataset)


def test_labels_are_indices_into_class_names(tmp_path):
  """So files with fewer categories have the training file's labels. Those without a box of an image may be absent."""
  found, names = content(), ["unused", "c", TRICKY, "b"]
  found["categories"][:0], found["annotations"][-1]["category_id"] = [{"id": 0, "name": "objects"}], 7
  dataset = rtf.sources.coco(*written(tmp_path, found), class_names=names)
  for element, (_, _, labels, *_) in zip(dataset, expected(False, False), strict=True):
    assert [names[label] for label in element["bounding_boxes"]["labels"]] == [[TRICKY, "b", "c"][i] for i in labels]
  with pytest.raises(ValueError, match=r"class_names lacks the categories 44 \(b\), 90 \(c\) of .*Add them, or remove"):
    rtf.sources.coco(*written(tmp_path), class_names=dataset.class_names[2:3])


def test_a_file_without_annotations_has_only_images(tmp_path):
  path = written(tmp_path, {"images": content()["images"]})
  dataset = rtf.sources.coco(*path, empty_images=True)
  assert [each["bounding_boxes"]["boxes"].shape for each in dataset] == 5 * [(0, 4)]
  with pytest.raises(ValueError, match="no image of .* has one. empty_images=True"):
    rtf.sources.coco(*path)


@pytest.mark.parametrize("crowds", [False, True])
def test_masks_are_those_of_pycocotools(tmp_path, crowds):
  """Smaller objects cover larger ones, and later ones those of their size. Two points are no polygon."""
  pycocotools = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed").COCO
  dataset, peer = rtf.sources.coco(*written(tmp_path), masks=True, crowds=crowds), pycocotools(written(tmp_path)[0])
  for element, (image, *_, annotations) in zip(dataset.as_numpy_iterator(), expected(crowds, False), strict=True):
    segments = np.zeros([image["height"], image["width"]], np.int32)
    drawn = [each.get("segmentation") not in WITHOUT_PIXELS and peer.annToMask(each) > 0 for each in annotations]
    for number, mask in sorted(enumerate(drawn, 1), key=lambda each: -np.sum(each[1])):
      segments[mask] = number
    np.testing.assert_array_equal(element["segments"], segments)
    assert element["bounding_boxes"]["ids"].tolist() == list(range(1, len(drawn) + 1))
  assert "boxes, 3 without mask; left out" in rtf.describe(dataset)


@pytest.mark.parametrize("masks", [False, True])
def test_it_is_read_by_index(tmp_path, masks):
  """Also by shards, and after a restart."""
  if masks:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
  make = lambda: rtf.sources.coco(*written(tmp_path), masks=masks, empty_images=True)
  values = lambda dataset: [[plain(value) for value in tf.nest.flatten(each)] for each in dataset]
  dataset = make()
  in_order = values(dataset)
  assert in_order == values(tf.data.experimental.at(dataset, i) for i in range(len(dataset)))
  assert in_order[1::2] == values(dataset.shard(2, 1))
  train = dataset.refurbish(lambda element: element, r=2, seed=7)
  assert "by index" in rtf.describe(train) and sorted(values(train)) == sorted(in_order)
  of_boxes = lambda element: element["bounding_boxes"]["boxes"]
  checkpoints.assert_restored_at_every_step(lambda: make().refurbish(of_boxes, r=2, seed=7).repeat(2), tmp_path)


def test_another_box_or_polygon_is_noticed(tmp_path):
  others = content(), content()
  others[0]["annotations"][0]["bbox"] = [1, 2, 3, 4]
  others[1]["annotations"][0]["segmentation"][0][2] += 0.5
  sources = [rtf.sources.coco(*written(tmp_path, each), masks=True) for each in (None, *others)]
  stages = [source.refurbish(lambda element: element, r=2) for source in sources]
  assert len({"", *(stage.fingerprint_of_samples()["files"] for stage in stages)}) == 4


@pytest.mark.parametrize(
  "key, text, changes",
  [
    ("images", "KeyError: 'height'. .* images with id, file_name, height", {"height": [None]}),
    ("images", "image '0.jpg' lacks", {"id": [90.5, 2**53 + 1], "height": [0, np.nan]}),
    ("images", "image '[23].jpg' lacks .* an id or file_name of its own", {"id": [88], "file_name": ["./3.jpg"]}),
    ("images", "images must be .* lacks 1 of 3, such as .*gone.jpg", {"file_name": ["gone.jpg"]}),
    ("categories", "ids of categories", {"id": [44], "": [{"image_id": 90, "category_id": 1, "bbox": [1, 2, 3, 4]}]}),
    ("categories", "class_names must have each of the categories of .* once", {"name": ["b"]}),
    ("annotations", r"lacks the categories 5 \(not in the file\)", {"category_id": [5]}),
    ("annotations", "annotation 0 of 'no image' is wrong: ", {"image_id": [None, "90"]}),
    ("annotations", "annotation 0 of '0.jpg' is wrong: .*3\\].* bbox is four numbers", {"bbox": [[1, 2, 3]]}),
    ("annotations", "annotation 0 of '0.jpg'", {"bbox": [None, 5, *([1, 2, 3, each] for each in (np.nan, "4"))]}),
    ("annotations", "annotation 0 of '0.jpg'", {"category_id": ["90", 90.5, 2**53 + 90], "iscrowd": ["0"]}),
    ("annotations", "annotation 0 of '0.jpg'", {"segmentation": [[[[1, 2]]], [1, 2, 3, 4, 5, 6], [[1, 2, np.nan]]]}),
    ("annotations", "object 1 has .* RLE of size", {"segmentation": [[7 * [1]], [6 * [2e9]], {"size": [4, 4]}]}),
    ("annotations", "object 1 has an RLE of 9 ", {"segmentation": [{"size": [30, 40], "counts": [9]}]}),
  ],
)
def test_errors_name_what_is_wrong(tmp_path, key, text, changes):
  if "segmentation" in changes:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
  for name, value in ((name, value) for name, values in changes.items() for value in values):
    found = content()
    found[key][0] = {k: v for k, v in {**found[key][0], name: value}.items() if v is not None}
    with pytest.raises((ValueError, tf.errors.UnknownError), match=text):
      list(rtf.sources.coco(*written(tmp_path, found), masks="segmentation" in changes))
  with pytest.raises(ValueError, match="annotations .*none.json cannot be read: NotFoundError"):
    rtf.sources.coco(tmp_path / "none.json", tmp_path)


def test_masks_need_pycocotools(tmp_path, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ImportError, match=r"pip install 'refurbish_tf\[coco\]'"):
    rtf.sources.coco(*written(tmp_path), masks=True)

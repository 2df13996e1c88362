"""Mosaic and copy-paste: pixels, rows and labels compared with their definitions in NumPy.

Every object is a rectangle of its own color, which its label has, too: so what is where in a result can be seen.
"""

import itertools
import pickle

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import native
from support import cases
from support.boxes import FORMATS, in_format

SEED = [7, 0]
PAIR = {"segments": "ids"}
TARGETS = {"boxes": "xyxy", "mask": "mask", "points": "xy"}
BOXES = {"boxes": "xyxy"}
FOUR = {"boxes": np.zeros([3, 4, 4])}
SMALL = {"boxes": np.zeros([3, 4, 4], np.uint8)}
OTHERS = tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1])
RAGGED = {"boxes": tf.RaggedTensor.from_row_lengths(tf.zeros([3, 4]), [1, 0, 2]), "b": OTHERS}
MANY = {"boxes": np.zeros([3, 1, 4]), "i": np.full([3, 1], 70000), "s": np.full([3, 24, 32], 70000)}
WRONG = {"boxes": np.float32([[[0, 0, 1, 1], [9, 9, 8, 9]]] * 3)}
MOSAIC = {"targets": TARGETS, "with_rows": ("labels", "points"), "instances": PAIR}


def batch_of(number, size=(24, 32), seed=0):
  """Images with up to four objects, none of which covers another one. Dense, as `padded_batch` makes them."""
  random, (height, width) = np.random.default_rng([number, seed]), size
  images = np.zeros([number, height, width, 1], np.float32)
  rows = {"boxes": ([4], np.float32), "labels": ([], np.int64), "ids": ([], np.int32), "points": ([1, 3], np.float32)}
  batch = {name: np.full([number, 4, *shape], -1, dtype) for name, (shape, dtype) in rows.items()}
  segments = np.zeros([number, height, width], np.int32)
  for b in range(number):
    places = random.permutation(4)[: random.integers(5)]
    for row, (place, own) in enumerate(zip(places, random.permutation(9) + 1)):
      # One object in each quarter.
      top, left = np.array([place // 2, place % 2]) * [height // 2, width // 2]
      y, x = random.integers(0, [height // 4, width // 4]) + [top, left]
      bottom, right = random.integers([y, x], [top + height // 2, left + width // 2]) + 1
      label = 10 * b + row + 1
      images[b, y:bottom, x:right], segments[b, y:bottom, x:right] = label, own
      batch["boxes"][b, row], batch["labels"][b, row], batch["ids"][b, row] = [x, y, right, bottom], label, own
      batch["points"][b, row] = [[random.integers(x, right), random.integers(y, bottom), 2]]
  return {"image": images, "mask": images[..., 0].astype(np.uint8), "segments": segments, **batch}


def as_numpy(batch):
  dense = lambda value: value.to_tensor(-1) if hasattr(value, "to_tensor") else value
  return {name: np.asarray(dense(value)) for name, value in batch.items()}


def bounds(shown):
  ys, xs = np.nonzero(shown)
  return [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]


def check_shown(batch, given, least, are_tight=True):
  """Checks that everything is where the image shows it, and that only the fraction `least` of an object was dropped.

  `are_tight`: whether boxes are those of the visible pixels. They are not after a crop of an object that is covered."""
  batch = as_numpy(batch)
  areas = {label: (image == label).sum() for image in given["image"] for label in np.unique(image)}
  np.testing.assert_array_equal(batch["mask"], batch["image"][..., 0])
  for image, segments, boxes, labels, ids, points in zip(
    batch["image"][..., 0], *(batch[name] for name in ("segments", "boxes", "labels", "ids", "points"))
  ):
    count = (labels > 0).sum()
    assert ids.tolist() == [*range(1, count + 1)] + [-1] * (len(ids) - count)
    assert set(np.unique(segments)) <= {0, *ids[:count]} and (boxes[count:] == -1).all()
    for box, label, number, (point,) in zip(boxes[:count], labels, ids, points):
      own = segments == number
      if not own.any():
        assert not are_tight
        continue
      found = np.array(bounds(own))
      assert (image[own] == label).all() and (found[:2] >= box[:2]).all() and (found[2:] <= box[2:]).all()
      assert not are_tight or found.tolist() == box.tolist()
      x, y, visible = point
      is_inside = 0 <= y < image.shape[0] and 0 <= x < image.shape[1]
      # Another object may cover it, which a later paste leaves out.
      assert visible == 0 or visible == 2 and is_inside and (image[int(y), int(x)] > 0 or not are_tight)
    for label in set(np.unique(image)) - {0}:
      assert ((image == label) & (segments == 0)).sum() <= least * areas[label]


def composed(given, centers, shifts, size, fill):
  """Mosaics by the definition, and for each one where the upper left corners of its images are."""
  number, (height, width) = len(given), given.shape[1:3]
  made = np.full([number, *size, given.shape[3]], fill, given.dtype)
  corners = []
  for b, (y, x) in enumerate(centers):
    corners.append([(y - height, x - width), (y - height, x), (y, x - width), (y, x)])
    for shift, (top, left) in zip([0, *shifts], corners[-1]):
      for i, j in itertools.product(range(max(top, 0), min(top + height, size[0])), range(width)):
        if 0 <= left + j < size[1]:
          made[b, i, left + j] = given[(b + shift) % number, i - top, j]
  return made, corners


def pieces_of(fn, images, seed=SEED, p=1.0):
  """For each result and image of it: its number, y, x, height and width of its part, y and x in the result."""
  p = np.full(len(images), p, np.float32)
  return native.ops().refurbish_tf_mosaic_pieces(images=images, seed=seed, p=p, called="it", **fn.arguments).numpy()


class TestMosaic:
  @pytest.mark.parametrize("size", [None, (48, 64), (20, 70), 7])
  @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
  def test_is_its_definition(self, size, dtype):
    """Pixels, boxes of all formats, points, instances and labels, for centers that are read from the result."""
    given = batch_of(6)
    # So a cut may leave less than a pixel of a box.
    given["boxes"] = np.where(given["boxes"] < 0, -1, given["boxes"] + [0.4, 0.4, 0, 0])
    images = np.random.default_rng(3).integers(0, 256, [6, 24, 32, 3]).astype(dtype)
    made = (24, 32) if size is None else (7, 7) if size == 7 else size
    for name, seed in itertools.product(cases.some(FORMATS, 3), range(cases.examples(3))):
      targets = {"boxes": name, "points": "xy", "mask": "mask", "alone": "xy"}
      fn = augment.mosaic(size, targets, with_rows=["labels", "points"], fill_value=114)
      element = {"image": images, **{key: given[key] for key in ("labels", "points", "mask")}}
      element["alone"] = given["points"]
      boxes = np.where(given["boxes"] == -1, -1, in_format(given["boxes"], name, (24, 32)))
      element["boxes"] = boxes.astype(np.float32)
      found = fn(element, seed=[seed, 0])
      parts = pieces_of(fn, images, [seed, 0])
      shifts = (parts[0, 1:, 0] - parts[0, :1, 0]) % 6
      centers = parts[:, 0, 3:5] + parts[:, 0, 5:7]
      assert sorted(set(shifts)) == sorted(shifts) and 0 not in shifts
      least = np.floor_divide(made, 4)
      assert (centers >= least).all() and (centers <= made - least).all()
      expected, corners = composed(images, centers, shifts, made, 114)
      np.testing.assert_array_equal(found["image"], expected)
      masks, _ = composed(given["mask"][..., np.newaxis], centers, shifts, made, 0)
      np.testing.assert_array_equal(found["mask"], masks[..., 0])
      for b in range(6):
        boxes, labels, points, alone = [], [], [], []
        for shift, (top, left), (y, x) in zip([0, *shifts], corners[b], itertools.product([0, 1], repeat=2)):
          low = np.array([x * centers[b, 1], y * centers[b, 0]])
          high = np.array([(centers[b, 1], made[1])[x], (centers[b, 0], made[0])[y]])
          low, high = np.maximum(low, [left, top]), np.minimum(high, [left + 32, top + 24])
          source = (b + shift) % 6
          for box, label, point in zip(given["boxes"][source], given["labels"][source], given["points"][source]):
            moved = box + [left, top, left, top]
            clipped = np.concatenate([np.maximum(moved[:2], low), np.minimum(moved[2:], high)])
            sides, all_sides = clipped[2:] - clipped[:2], box[2:] - box[:2]
            where = point[0, :2] + [left, top]
            is_in = (where + 0.5 >= low).all() and (where + 0.5 <= high).all()
            is_large = (sides > 0.999).all() and sides.prod() >= 0.1 * all_sides.prod() - 1e-6
            if label > 0 and (sides > 0).all() and (is_large or (sides > all_sides - 1e-6).all()):
              boxes.append(clipped)
              labels.append(label)
              points.append([[*where, 2 * is_in]])
            alone += [[[*where, 2]]] if label > 0 and is_in else []
        count = len(labels)
        boxes = in_format(np.reshape(boxes, [-1, 4]), name, made)
        np.testing.assert_allclose(found["boxes"][b, :count], boxes, rtol=1e-5)
        assert (found["boxes"][b, count:] == -1).numpy().all() and found["boxes"].shape[1] == 16
        assert found["labels"][b].numpy().tolist() == labels + [-1] * (16 - count)
        np.testing.assert_array_equal(found["points"][b, :count], np.reshape(points, [-1, 1, 3]))
        # Not in `with_rows`: only rows with a point inside stay.
        np.testing.assert_array_equal(found["alone"][b], alone + [[[-1, -1, -1]]] * (16 - len(alone)))

  @pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 9])
  def test_each_image_comes_four_times(self, number):
    """In a batch of fewer than four images, each comes as seldom as possible."""
    images = np.arange(number, dtype=np.float32).reshape(number, 1, 1, 1) * np.ones([1, 8, 8, 1], np.float32)
    for seed in range(20):
      sources = pieces_of(augment.mosaic(), images, [seed, 1])[..., 0]
      assert (np.sort(sources, 0).T == np.arange(number)).all() and (sources[:, 0] == np.arange(number)).all()
      for own in sources:
        counts = np.bincount(own, minlength=number)
        assert counts.max() == -(-4 // number) and counts.min() >= 4 // number
      made = augment.mosaic()(images, seed=[seed, 1]).numpy()
      assert [made[:, y, x, 0].astype(int).tolist() for y in (0, -1) for x in (0, -1)] == sources.T.tolist()
    orders = {tuple(pieces_of(augment.mosaic(), images, [seed, 1])[0, :, 0]) for seed in range(40)}
    assert len(orders) > 2 * (number > 2)

  def test_an_image_without_mosaic_is_what_center_crop_takes(self):
    given = batch_of(5, (9, 14))
    keys = {"targets": TARGETS, "with_rows": ("labels", "points", "numbers")}
    element = {name: value for name, value in given.items() if name != "segments"}
    given["numbers"] = element["numbers"] = element.pop("ids")
    crop = augment.compose([augment.center_crop((9, 14))], {**TARGETS, "segments": None}, clips=False)
    for size in ((9, 14), (12, 19), (13, 17), (40, 15)):
      found = augment.mosaic(size, p=0, **keys)(element)
      cropped = crop({**found, "segments": 0})
      for name in element:
        np.testing.assert_array_equal(cropped[name][:, : 4 if name not in ("image", "mask") else None], given[name])
    small = augment.mosaic((4, 5), p=0)(given["image"])
    np.testing.assert_array_equal(small, augment.center_crop((4, 5))(given["image"]))

  def test_p_is_drawn_for_each_image_and_may_be_given_at_the_call(self):
    images = np.random.default_rng(3).random([200, 4, 4, 1]).astype(np.float32)
    never = lambda made: (made.numpy() == images).all((1, 2, 3))
    assert 30 < never(augment.mosaic(p=0.7)(images, seed=SEED)).sum() < 90
    assert not never(augment.mosaic()(images, seed=SEED)).any()
    fn = augment.mosaic(p=0.3)
    assert never(fn(images, p=0.0)).all() and never(fn(images, p=np.arange(200) % 2)).tolist() == [True, False] * 100
    np.testing.assert_array_equal(fn(images, seed=SEED, p=0.7), augment.mosaic(p=0.7)(images, seed=SEED))
    for p in (1.5, -1.0, float("nan"), [0.5, 0.5]):
      with pytest.raises(
        tf.errors.InvalidArgumentError, match="p of mosaic must be from 0 to 1, for each image or all"
      ):
        fn(images, p=p)

  def test_whole_labels_and_weights_are_mixed_by_area(self):
    images = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1) * np.ones([1, 6, 10, 1], np.float32)
    weights = np.linspace(0, 1, 8).astype(np.float32)
    for size in (None, (12, 20)):
      fn = augment.mosaic(size, num_classes=8, fill_value=-1, components={"id": None})
      made = fn({"image": images, "label": np.arange(8), "weight": weights, "id": weights}, seed=SEED)
      for image, label, weight in zip(made["image"].numpy(), made["label"].numpy(), made["weight"].numpy()):
        shares = np.array([(image == b).sum() for b in range(8)]) / (image >= 0).sum()
        np.testing.assert_allclose(label, shares, rtol=1e-6)
        np.testing.assert_allclose(weight, shares @ weights, rtol=1e-5)
      assert made["id"] is weights and made["label"].dtype == tf.float32

  def test_turns_off_by_the_epoch_of_final_fn_and_restarts(self, tmp_path):
    """Ragged objects with instances, as coco(..., masks=True) has them, go through refurbish. The epoch comes with the
    samples, so a restored iterator continues with the same `p`."""
    given, ragged = batch_of(8, seed=9), ("boxes", "labels", "ids", "points")
    counts = (given["labels"] > 0).sum(1)

    def element(i):
      whole = {name: tf.constant(value)[i] for name, value in given.items()}
      return {name: value[: tf.constant(counts)[i]] if name in ragged else value for name, value in whole.items()}

    def stage():
      fn = augment.mosaic(components={"epoch": None}, fill_value=0, **MOSAIC)
      source = tf.data.Dataset.range(8).map(element)
      train = source.refurbish(lambda x: x, lambda x, epoch: {**x, "epoch": epoch}, r=2, seed=3)
      train = train.ragged_batch(4).repeat(4)
      return train.map(lambda batch: fn(batch, seed=SEED, p=tf.where(batch["epoch"] < 2, 1.0, 0.0)))

    whole = list(stage())
    assert [set(batch["epoch"].numpy()) for batch in whole] == [{i // 2} for i in range(8)]
    for i, batch in enumerate(whole):
      check_shown(batch, given, 0.1)
      is_given = [(given["image"] == image).all((1, 2, 3)).any() for image in batch["image"].numpy()]
      assert all(is_given) == (i > 3)
    iterator = iter(stage())
    for _ in range(3):
      next(iterator)
    other, saved = iter(stage()), tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "at"))
    tf.train.Checkpoint(iterator=other).restore(saved)
    np.testing.assert_array_equal([batch["image"] for batch in other], [batch["image"] for batch in whole[3:]])

  def test_a_larger_canvas_is_moved_and_cropped_with_its_boxes(self):
    """As in docs/detection.md: twice the size, then random_affine and center_crop of the whole batch."""
    given = batch_of(6, (48, 48))
    given["image"] = given["image"].astype(np.uint8)
    layers = [augment.random_affine(0, (0.1, 0.1)), augment.center_crop(48)]
    shrink = augment.compose(layers, {**TARGETS, "segments": "mask", "labels": None, "ids": None}, clips=False)
    clean = augment.sanitize_boxes("boxes", with_rows=("labels", "ids", "points"), clips=False)
    for seed in range(cases.examples(5)):
      made = clean(shrink(augment.mosaic(96, fill_value=0, **MOSAIC)(given, seed=[seed, 0]), seed=[seed, 1]))
      for segments, boxes, ids in zip(made["segments"].numpy(), made["boxes"].numpy(), made["ids"].numpy()):
        found = {number: bounds(segments == number) for number in set(np.unique(segments)) - {0}}
        assert {number: box.tolist() for number, box in zip(ids, boxes) if number > 0} == found and found
        assert len(found) == (boxes >= 0).all(1).sum()


class TestCopyPaste:
  def test_is_its_definition(self):
    """Objects of one partner are pasted whole; what they cover loses these pixels."""
    given, number, pasted_all = batch_of(12, seed=4), 12, 0
    fn = augment.copy_paste(TARGETS, instances=PAIR, with_rows=("labels", "points"), min_visibility=0.3)
    for seed in range(cases.examples(10)):
      found = as_numpy(fn(given, seed=[seed, 0]))
      check_shown(found, given, 0.3)
      shifts = set()
      for b in range(number):
        labels = found["labels"][b][found["labels"][b] > 0]
        own = [label for label in labels if label // 10 == b]
        others = [label for label in labels if label // 10 != b]
        assert labels.tolist() == own + others and sorted(own) == own and sorted(others) == others
        assert found["ids"][b, : len(labels)].tolist() == [*range(1, len(labels) + 1)]
        shifts |= {(label // 10 - b) % number for label in others}
        for label in others:
          place = given["image"][label // 10] == label
          assert (found["image"][b][place] == label).all()
        pasted = np.isin(found["image"][b], others)
        np.testing.assert_array_equal(found["image"][b][~pasted], given["image"][b][~pasted])
        pasted_all += len(others)
      assert len(shifts) == 1 and 0 not in shifts
    assert 0.4 < pasted_all / (cases.examples(10) * (given["labels"] > 0).sum()) < 0.6

  def test_none_or_all_objects_are_pasted_and_an_image_alone_stays(self):
    given = batch_of(3, seed=2)
    fn = augment.copy_paste(TARGETS, instances=PAIR, with_rows=("labels", "points"))
    for element, p in ((given, 0.0), (batch_of(1, seed=3), 1.0)):
      found = fn(element, p=p)
      for name in ("image", "mask", "labels", "boxes", "points"):
        rows = 4 if name in ("labels", "boxes", "points") else None
        np.testing.assert_array_equal(found[name][:, :rows], element[name])
    found = as_numpy(fn(given, p=1.0, seed=SEED))
    for b in range(3):
      pasted = {label // 10 for label in found["labels"][b] if label > 0} - {b}
      assert all((found["image"][b][given["image"][other] > 0] // 10 == other).all() for other in pasted)


class TestBoth:
  each = pytest.mark.parametrize(
    "fn", [augment.mosaic(40, **MOSAIC), augment.copy_paste(**MOSAIC)], ids=lambda fn: fn.__name__
  )

  @each
  def test_ragged_and_padded_agree_in_a_pipeline(self, fn):
    given = batch_of(6)
    counts = (given["labels"] > 0).sum(1)
    padded = fn(given, seed=SEED)
    rows = ("boxes", "labels", "ids", "points")
    ragged = {name: tf.RaggedTensor.from_tensor(given[name], lengths=counts) for name in rows}
    source = tf.data.Dataset.from_tensor_slices({**given, **ragged}).ragged_batch(6)
    # `ragged_batch` makes the dense components ragged only if their sizes are unknown.
    train = source.map(lambda batch: fn(batch, seed=SEED), tf.data.AUTOTUNE)
    (made,) = train
    for name, spec in train.element_spec.items():
      assert isinstance(spec, tf.RaggedTensorSpec) == (name in rows) and spec.shape[2:] == padded[name].shape[2:]
      found = made[name].to_tensor(-1, shape=padded[name].shape) if name in rows else made[name]
      np.testing.assert_array_equal(found, padded[name])

  @each
  def test_depends_on_the_seed_alone(self, fn):
    given = batch_of(5)
    first = as_numpy(fn(given, seed=SEED))
    others = (fn, np.array(SEED, np.int64)), (pickle.loads(pickle.dumps(fn)), SEED), (tf.function(fn), SEED)
    for other, seed in others:
      for name, value in as_numpy(other(given, seed=tf.constant(seed))).items():
        np.testing.assert_array_equal(value, first[name])
    assert (as_numpy(fn(given, seed=[8, 0]))["image"] != first["image"]).any()

  def test_several_threads_make_what_the_pieces_say(self):
    images = np.random.default_rng(3).integers(0, 256, [64, 128, 96, 3]).astype(np.uint8)
    made = augment.mosaic((140, 90), p=0.8)(images, seed=SEED).numpy()
    for found, parts in zip(made, pieces_of(augment.mosaic((140, 90)), images, p=0.8)):
      expected = np.full_like(found, 114)
      for source, y, x, height, width, made_y, made_x in parts:
        part = images[source, y : y + height, x : x + width]
        expected[made_y : made_y + height, made_x : made_x + width] = part
      np.testing.assert_array_equal(found, expected)

  @each
  def test_whole_boxes_are_exact_and_all_kinds_of_maps_follow(self, fn):
    given = batch_of(5)
    targets = {**TARGETS, "depth": "bilinear", "flow": "flow", "twice": "image"}
    given["depth"] = given["mask"].astype(np.float16)
    given["flow"] = np.repeat(given["image"], 2, 3)
    given["twice"] = given["image"].repeat(2, 1).repeat(2, 2)
    keys = {**MOSAIC, "targets": targets}
    make = augment.mosaic(40, fill_value=0, **keys) if fn.__name__ == "mosaic" else augment.copy_paste(**keys)
    made = make(given, seed=SEED)
    given.update(boxes=given["boxes"].astype(np.int32), segments=given["segments"][..., None])
    other = make(given, seed=SEED)
    assert other["boxes"].dtype == tf.int32 and made["depth"].dtype == tf.float16
    np.testing.assert_array_equal(other["boxes"], made["boxes"])
    np.testing.assert_array_equal(other["segments"][..., 0], made["segments"])
    # The background stays without a number, although the boxes of padding, and one more, have none.
    other = make({**given, "ids": np.minimum(given["ids"], np.arange(4) * 9)}, seed=SEED)
    assert not other["segments"].numpy()[made["segments"] == 0].any()
    for found in (made["depth"][..., tf.newaxis], made["flow"][..., 1:], made["twice"][:, ::2, 1::2]):
      np.testing.assert_array_equal(tf.cast(found, tf.float32), made["image"])

  def test_boxes_of_integers_are_rounded(self):
    fn, given = augment.mosaic((17, 21), {"boxes": "center_xywh"}), batch_of(5)
    boxes = np.int32(in_format(given["boxes"], "center_xywh", (24, 32)))
    made = [fn({"image": given["image"], "boxes": each}, seed=SEED)["boxes"] for each in (boxes, np.float32(boxes))]
    np.testing.assert_array_equal(made[0], np.round(made[1]))
    assert np.any(made[0] != np.trunc(made[1]))

  def test_rows_within_a_dict_of_any_dtype_follow(self):
    given, size = batch_of(5), 40
    names = np.char.add("it", given["labels"].astype(str)).astype(object)
    flags = given["labels"] % 2 == 1
    element = {"image": given["image"], "objects": {"bbox": given["boxes"], "names": names, "flags": flags}}
    fn = augment.mosaic(size, {"objects": "xyxy"}, with_rows=["names", "flags"])
    made, plain = fn(element, seed=SEED)["objects"], augment.mosaic(size, **MOSAIC)(given, seed=SEED)
    labels = plain["labels"].numpy()
    np.testing.assert_array_equal(made["bbox"], plain["boxes"])
    expected = [[b"it%d" % label if label > 0 else b"" for label in row] for row in labels]
    assert made["names"].numpy().tolist() == expected
    np.testing.assert_array_equal(made["flags"], (labels > 0) & (labels % 2 == 1))
    with pytest.raises(ValueError, match=r"what the component 'objects'\['names'\] is"):
      augment.mosaic(size, {"objects": "xyxy"})(element)

  @pytest.mark.parametrize(
    "fn, more, said",
    [
      (augment.mosaic(), {"image": tf.ragged.stack([np.zeros([4, 4, 3])] * 3)}, r"Resize .* before .batch\(...\)"),
      (augment.mosaic(), {"boxes": np.zeros([3, 4, 4])}, "'boxes'.*Name masks, boxes and key points"),
      (augment.mosaic(), {"labels": np.zeros([3, 4], int)}, "what the component 'labels' is.*with_rows"),
      (augment.mosaic(), {"epoch": np.zeros([3], int)}, "component 'epoch'.*components={\"epoch\": None}"),
      (augment.mosaic(), {"mask": np.zeros([3, 24, 32])}, "component 'mask' is.*Name masks"),
      (augment.mosaic(fill_value=0.5), {"image": np.zeros([3, 8, 8, 3], np.uint8)}, "a value of uint8.*0.5"),
      (augment.mosaic(8, BOXES, with_rows="b"), {**FOUR, "b": np.zeros([3, 5])}, "a row for each box, got 'b'"),
      (augment.mosaic(8, BOXES), {**FOUR, "labels": np.zeros([3, 4])}, "'labels' is.*pass with_rows='labels'. Pass"),
      (augment.mosaic(256, BOXES), SMALL, "a dtype that holds the size, 256, got uint8"),
      (augment.mosaic(8, BOXES, with_rows="b"), RAGGED, "a row for each box, got 'b'"),
      (augment.mosaic(8, BOXES, instances={"s": "i"}), MANY, "numbers of at most 65,535"),
      (augment.mosaic(8, BOXES, instances={"s": "i"}), {**MANY, "s": np.zeros([3, 24, 32])}, "got dtype float"),
      (augment.mosaic(8, BOXES), WRONG, "'boxes' of mosaic must have no negative height or width.* in row 1 of image"),
      (augment.copy_paste(BOXES, instances={"s": "i"}), FOUR, "no component 's'"),
      (augment.copy_paste(TARGETS, instances=PAIR), batch_of(3), "what the component 'labels' is"),
      (augment.copy_paste(TARGETS, instances=PAIR), {**batch_of(3), "segments": np.zeros([3, 9, 9])}, "'segments'"),
      (tf.function(augment.mosaic(), [{"image": tf.TensorSpec(None)}]), {"image": np.float32([[[1]]])}, r"\[batch, h"),
    ],
  )
  def test_what_cannot_follow_is_refused(self, fn, more, said):
    with pytest.raises((TypeError, ValueError, tf.errors.InvalidArgumentError), match=said):
      fn({"image": np.zeros([3, 24, 32, 1], np.float32), **more})

  @pytest.mark.parametrize(
    "make, said",
    [
      (lambda: augment.mosaic(0), "size of mosaic"),
      (lambda: augment.mosaic(targets={"a": "xyxy", "b": "xywh"}), "targets of mosaic must name one component"),
      (lambda: augment.mosaic(with_rows="labels"), "must name one component of boxes"),
      (lambda: augment.mosaic(8, {**BOXES, "s": "mask"}, with_rows="ids"), """Pass instances={'s': "ids"} in place"""),
      (lambda: augment.mosaic(min_visibility=-1), "min_visibility of mosaic must be a number from 0 to 1"),
      (lambda: augment.copy_paste(BOXES, instances=None), "instances of copy_paste must be a dict"),
      (lambda: augment.compose([augment.mosaic()]), r"mosaic at position 0 also mixes.*\.batch\(B\)\.map"),
    ],
  )
  def test_bad_arguments_are_refused(self, make, said):
    with pytest.raises((TypeError, ValueError), match=said):
      make()

  @cases.only_exhaustive
  def test_chains_keep_everything_where_its_pixels_are(self):
    random = np.random.default_rng(5)
    turns = [augment.random_rotate90(), augment.random_transpose()]
    flips = [augment.random_flip(), augment.random_flip("vertical"), *turns]
    moves = [*flips, augment.random_crop(padding=3), augment.pad((1, 2, 3, 0)), augment.center_crop(41)]
    keys = {"labels": None, "ids": None}
    names = ("labels", "points")
    for number in range(cases.examples(100)):
      side = int(random.integers(20, 40))
      given = made = batch_of(int(random.integers(1, 7)), (side, side), number)
      kinds = []
      for step in range(4):
        kind, seed = random.integers(3), [number, step]
        kinds.append(kind)
        least = float(random.choice([0.0, 0.1]))
        if kind == 0:
          size = [None, 2 * side, int(random.integers(10, 50))][random.integers(3)]
          made = augment.mosaic(size, fill_value=0, p=0.8, min_visibility=least, **MOSAIC)(made, seed=seed)
        elif kind == 1:
          fn = augment.copy_paste(TARGETS, instances=PAIR, with_rows=names, min_visibility=least)
          made = fn(made, seed=seed)
        else:
          layers = [augment.center_crop(32), moves[random.integers(len(moves))], flips[0], augment.center_crop(30)]
          made = augment.compose(layers, {**TARGETS, "segments": "mask", **keys}, clips=False)(made, seed=seed)
      final = augment.copy_paste(TARGETS, instances=PAIR, with_rows=names, p=0.0, min_visibility=0)
      check_shown(final(made), given, 0.4, are_tight=1 not in kinds[:-1])

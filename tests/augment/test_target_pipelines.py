"""Pipelines like those of Keras, with `refurbish` in place of `map`: what follows an image is where the image shows it.

Every picture shows where things are, so a target that did not follow would be found elsewhere.
"""

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support.masks import PAIRS, aligned

Dataset = tf.data.Dataset
N = 12
SEED = 7


def with_rectangles(random, height, width):
  """Returns an image with a bright rectangle in each of its channels, and their boxes as xyxy. They may overlap."""
  image, boxes = np.zeros([height, width, 3], np.uint8), []
  for channel in range(3):
    size = random.integers([height // 4, width // 4], [height // 2, width // 2])
    y, x = random.integers(0, [height, width] - size + 1)
    image[y : y + size[0], x : x + size[1], channel] = 255
    boxes.append([x, y, x + size[1], y + size[0]])
  return image, np.array(boxes, np.float32)


def shown_box(image, channel):
  """Returns where a channel is bright, as xyxy, or zeros if it is nowhere bright."""
  ys, xs = np.nonzero(image[..., channel] > (127 if image.dtype == np.uint8 else 0.5))
  return [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] if len(xs) else [0] * 4


def are_shown(image, boxes, channels):
  """Returns whether the boxes are where their channels are bright, to a pixel. A cropped box may leave a few bright
  pixels in a channel without a box."""
  found = np.array([shown_box(image, channel) for channel in channels]).reshape([-1, 4])
  missing = np.array([shown_box(image, channel) for channel in range(3) if channel not in channels]).reshape([-1, 4])
  is_little = np.min(missing[:, 2:] - missing[:, :2], axis=1) <= 3
  return np.abs(found - boxes).max(initial=0) <= 1 and is_little.all()


def two_epochs(stage, train):
  """Returns the elements of two epochs, each of which has all samples. In the second epoch, half of them are reused."""
  elements = [list(train.as_numpy_iterator()) for _ in range(2)]
  total = rtf.stats(stage)[0].total
  assert (total.fresh, total.cached) == (N + N // 2, N // 2)
  return elements


class TestSegmentation:
  def test_masks_follow_in_files_of_images_and_masks(self, tmp_path):
    """As in "Image segmentation with a U-Net": photographs, and trimaps in PNG files whose classes count from 1."""
    for number, (image, mask) in enumerate(zip(*PAIRS)):
      (tmp_path / f"{number:02}.jpg").write_bytes(tf.io.encode_jpeg(image, quality=100).numpy())
      (tmp_path / f"{number:02}.png").write_bytes(tf.io.encode_png(tf.cast(mask, tf.uint8)).numpy())
    images, masks = ([str(tmp_path / f"{number:02}.{ending}") for number in range(N)] for ending in ("jpg", "png"))

    def load(image, mask):
      return tf.io.read_file(image), tf.io.decode_png(tf.io.read_file(mask), channels=1)

    stage = (
      Dataset.from_tensor_slices((images, masks))
      .map(load)
      .refurbish(
        [augment.decode_random_resized_crop(48, scale=(0.3, 1), apply_exif_orientation=True)],
        [augment.random_crop(padding=6), augment.random_flip()],
        r=2,
        targets={1: "mask"},
        seed=SEED,
      )
    )
    train = stage.map(lambda image, mask: (tf.cast(image, tf.float32) / 255, tf.cast(mask, tf.int32) - 1)).batch(4)
    for batches in two_epochs(stage, train):
      assert [masks.shape for _, masks in batches] == [(4, 48, 48, 1)] * 3
      # JPEG changes each value a little.
      assert all(
        aligned(np.round(image * 5).astype(np.int64), mask + 1, 0.9) for batch in batches for image, mask in zip(*batch)
      )
      assert {-1, 0, 3} <= set(np.unique([masks for _, masks in batches])) <= {-1, 0, 1, 2, 3}

  def test_masks_follow_in_dicts_of_tfds(self):
    """The elements are like those of TFDS's oxford_iiit_pet."""
    source = Dataset.from_tensor_slices(
      {"image": PAIRS[0][:N], "segmentation_mask": PAIRS[1][:N].astype(np.uint8), "label": np.arange(N)}
    )
    stage = source.refurbish(
      [augment.resize((48, 48)), augment.rand_augment(1, 5)],
      [augment.random_crop(padding=6), augment.random_flip()],
      r=2,
      targets={"segmentation_mask": "mask"},
      seed=SEED,
    )
    for elements in two_epochs(stage, stage):
      assert sorted(element["label"] for element in elements) == list(range(N))
      assert all(aligned(element["image"].astype(np.int64), element["segmentation_mask"]) for element in elements)


class TestDetection:
  @staticmethod
  def tfds(number=N):
    """Returns a source of images of many sizes, with none to three boxes each, like voc and coco in TFDS."""
    random, elements = np.random.default_rng(5), []
    for each in range(number):
      height, width = random.integers(32, 60, 2)
      image, boxes = with_rectangles(random, height, width)
      kept = np.arange(each % 4)
      image[..., len(kept) :] = 0
      relative = boxes[kept][:, [1, 0, 3, 2]] / np.float32([height, width, height, width])
      elements.append({"image": image, "objects": {"bbox": relative, "label": kept}})
    return rtf.sources.data_source(
      elements,
      element_spec={
        "image": tf.TensorSpec([None, None, 3], tf.uint8),
        "objects": {"bbox": tf.TensorSpec([None, 4], tf.float32), "label": tf.TensorSpec([None], tf.int64)},
      },
    )

  @staticmethod
  def preprocess(element, side=96):
    """Does what Keras' example "Object Detection with RetinaNet" does after its random flip."""
    image, boxes = element["image"], element["objects"]["bbox"]
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    resized = tf.cast(tf.math.floor(side / tf.reduce_max(shape) * shape), tf.int32)
    image = tf.image.pad_to_bounding_box(tf.image.resize(tf.cast(image, tf.float32), resized), 0, 0, side, side)
    boxes = boxes * tf.cast(tf.tile(resized, [2]), tf.float32)
    # Converts yxyx to the center, width and height.
    center, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return image / 255, tf.concat([center[:, ::-1], size[:, ::-1]], -1), tf.cast(element["objects"]["label"], tf.int32)

  def stage_of(self, source):
    # The example has no crops, so they are added to its flip.
    return source.refurbish(
      [augment.random_crop(padding=9)],
      [augment.random_crop(padding=3), augment.random_flip()],
      r=2,
      targets={"objects": "rel_yxyx"},
      seed=SEED,
    )

  def test_boxes_follow_in_keras_retina_net(self):
    stage = self.stage_of(self.tfds())
    clean = augment.sanitize_boxes("objects", "rel_yxyx", with_rows="label", min_size=2)
    train = stage.map(clean).map(self.preprocess).padded_batch(4, padding_values=(0.0, 1e-8, -1), drop_remainder=True)
    for batches in two_epochs(stage, train):
      assert len(batches) == N // 4
      for image, boxes, labels in (each for batch in batches for each in zip(*batch)):
        boxes, labels = boxes[labels >= 0], labels[labels >= 0]
        corners = np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], -1)
        # Images of 32 pixels were enlarged three times.
        assert are_shown(image[::3, ::3], corners / 3, labels)

  @pytest.mark.parametrize(
    "targets", [{"bounding_boxes": "xyxy"}, {"bounding_boxes": {"boxes": "xyxy"}}, {}], ids=range(3)
  )
  def test_boxes_follow_in_padded_dicts_of_keras(self, targets):
    """KerasHub's and KerasCV's models require that rows without a box are -1, in the input and in the output."""
    images, boxes = zip(*[with_rectangles(np.random.default_rng(number), 40, 56) for number in range(N)])
    padding = np.full([N, 2, 4], -1, np.float32)
    labels = np.tile(np.int32([0, -1, 1, 2, -1]), [N, 1])
    boxes = np.concatenate([np.array(boxes)[:, :1], padding[:, :1], np.array(boxes)[:, 1:], padding[:, 1:]], 1)
    source = Dataset.from_tensor_slices(
      {"images": np.stack(images), "bounding_boxes": {"boxes": boxes, "labels": labels}}
    )
    stage = source.refurbish(
      [augment.random_resized_crop(48, scale=(0.25, 1))],
      [augment.random_crop(padding=4), augment.random_flip(), augment.cutout(1)],
      r=2,
      targets=targets,
      seed=SEED,
    )
    train = stage.map(augment.sanitize_boxes("bounding_boxes", "xyxy", with_rows="labels", min_size=2)).padded_batch(
      4, padding_values={"images": None, "bounding_boxes": {"boxes": -1.0, "labels": -1}}
    )
    found = []
    for batches in two_epochs(stage, train):
      for batch in batches:
        boxes, labels = batch["bounding_boxes"]["boxes"], batch["bounding_boxes"]["labels"]
        np.testing.assert_array_equal(np.all(boxes == -1, -1), labels == -1)
        found += [
          are_shown(image, box[label >= 0], label[label >= 0])
          for image, box, label in zip(batch["images"], boxes, labels)
        ]
    # With {} the boxes stay where they were, while their images move.
    assert len(found) == 2 * N and (all(found) if targets else sum(found) < 3)


class TestPose:
  """Spots in three colours at three points of a person: the left hand, the right hand and the nose."""

  IN_A_MIRROR = [1, 0, 2]

  @staticmethod
  def people():
    random, images, points = np.random.default_rng(5), [], []
    for number in range(N):
      image = np.zeros([64, 64, 3], np.uint8)
      # A person who looks at us has the left hand on our right.
      left, right, nose = random.integers([38, 4], 60), random.integers(4, [26, 60]), [32, random.integers(4, 60)]
      own = np.array([[*left, 2], [*right, 1], [*nose, 2]], np.float32)
      for channel, (x, y, _) in enumerate(own.astype(int)):
        image[y - 1 : y + 2, x - 1 : x + 2, channel] = 255
      if number % 3 == 0:  # This nose is not labelled.
        own[2] = 0
      images.append(image)
      points.append(own)
    return Dataset.from_tensor_slices({"image": np.stack(images), "keypoints": np.stack(points), "id": np.arange(N)})

  def with_marks(self, element):
    return {**element, "keypoints": tf.concat([element["keypoints"], [[0.0, 0, 0], [1, 0, 0]]], 0)}

  def without_marks(self, element):
    points, left, right = element["keypoints"][:-2], element["keypoints"][-2], element["keypoints"][-1]
    is_mirror = left[0] > right[0]
    points = tf.where(is_mirror, tf.gather(points, self.IN_A_MIRROR), points)
    return {**element, "keypoints": points, "is_mirror": is_mirror}

  def test_key_points_of_coco_follow(self):
    stage = (
      self.people()
      .map(self.with_marks)
      .refurbish(
        [augment.random_resized_crop(48, scale=(0.25, 1))],
        [augment.random_crop(padding=4), augment.random_flip()],
        r=2,
        targets={"keypoints": "xy"},
        seed=SEED,
      )
    )
    mirrors, outside = [], 0
    for elements in two_epochs(stage, stage.map(self.without_marks)):
      for element in elements:
        points, is_mirror = element["keypoints"], element["is_mirror"]
        assert points[0, 0] > points[1, 0]  # The left hand is on our right, even after a flip.
        mirrors.append(is_mirror)
        for row, (x, y, visible) in enumerate(points):
          is_inside = -0.5 <= x < 47.5 and -0.5 <= y < 47.5
          is_labelled = row < 2 or element["id"] % 3
          before = self.IN_A_MIRROR[row] if is_mirror else row
          spot = shown_box(element["image"], before)
          # The first crop may have cut off a spot. The second one may move its place back into the image, where the
          # spot is then missing.
          assert visible == ([2, 1, 2][before] if is_inside and is_labelled and any(spot) else 0)
          outside += not is_inside
          # A spot at an edge can be cut, which moves its middle.
          if visible and 4 <= x < 44 and 4 <= y < 44:
            left, top, right, bottom = spot
            assert abs((left + right - 1) / 2 - x) <= 1 and abs((top + bottom - 1) / 2 - y) <= 1
    assert 2 * N > sum(mirrors) > 0 and outside > 5


class TestVideo:
  """The third channel of a frame encodes its label and its number. The others are the same in all frames of a clip."""

  T = 10

  @classmethod
  def clips(cls):
    clips = np.repeat(np.random.default_rng(5).integers(0, 256, [N, 1, 24, 32, 3], np.uint8), cls.T, axis=1)
    clips[..., 2] = 20 * np.arange(N)[:, None, None, None] + np.arange(cls.T)[:, None, None]
    return clips

  @staticmethod
  def window(clip, seed, length=4):
    begin = tf.random.stateless_uniform([], seed, maxval=tf.shape(clip)[0] - length + 1, dtype=tf.int32)
    return tf.ensure_shape(clip[begin : begin + length], [length, None, None, 3])

  def begins(self, batches, size):
    """Returns where the windows of all labels begin. Checks that each clip has consecutive frames, which are cropped
    and flipped alike."""
    found = {}
    for clips, labels in batches:
      assert clips.shape == (4, 4, *size, 3)
      for clip, label in zip(clips, labels):
        begin = int(clip[0, 0, 0, 2]) - 20 * int(label)
        expected = np.broadcast_to(20 * label + begin + np.arange(4)[:, None, None], clip.shape[:-1])
        np.testing.assert_array_equal(clip[..., 2], expected)
        np.testing.assert_array_equal(clip[..., :2], np.broadcast_to(clip[:1, ..., :2], [*clip.shape[:-1], 2]))
        found[int(label)] = begin
    assert sorted(found) == list(range(N)) and all(0 <= begin <= self.T - 4 for begin in found.values())
    return found

  @pytest.mark.parametrize("kind", ["files", "uint8"])
  def test_classification(self, kind):
    """As in Keras' examples of video classification, a few consecutive frames of each clip come with its label."""
    clips = self.clips()
    if kind == "files":
      clips = np.array([[tf.io.encode_png(frame).numpy() for frame in clip] for clip in clips])
    crop = augment.decode_random_resized_crop if kind == "files" else augment.random_resized_crop
    stage = Dataset.from_tensor_slices((clips, np.arange(N))).refurbish(
      [crop(16, scale=(0.3, 1))],
      [self.window, augment.random_crop(padding=3, padding_mode="reflect"), augment.random_flip()],
      r=2,
      seed=SEED,
    )
    assert "sample  a clip of 10 frames, which have the same draws" in rtf.describe(stage)
    first, second = (self.begins(epoch, [16, 16]) for epoch in two_epochs(stage, stage.batch(4)))
    # A window is drawn again even for a clip from the store.
    assert len(set(first.values())) > 3 and sum(first[label] != second[label] for label in first) > N // 2

  def test_boxes_of_each_frame(self):
    """For tracking, an object keeps its row in all frames, even where it is not visible."""
    random, clips, boxes = np.random.default_rng(5), [], []
    for _ in range(N):
      frames = [with_rectangles(random, 40, 56) for _ in range(5)]
      clips.append([image for image, _ in frames])
      boxes.append([box for _, box in frames])
      clips[-1][1][..., 2], boxes[-1][1][2] = 0, -1
    source = Dataset.from_tensor_slices({"image": np.array(clips), "boxes": np.array(boxes), "label": np.arange(N)})
    stage = source.refurbish(
      [augment.random_resized_crop(48, scale=(0.25, 1))],
      [augment.random_crop(padding=4), augment.random_flip()],
      r=2,
      targets={"boxes": "xyxy"},
      seed=SEED,
    )
    for elements in two_epochs(stage, stage):
      for element in elements:
        assert np.all(element["boxes"][1, 2] == -1)
        for frame, (image, boxes) in enumerate(zip(element["image"], element["boxes"])):
          channels = np.arange(2 if frame == 1 else 3)
          channels = channels[np.min(boxes[channels, 2:] - boxes[channels, :2], 1) >= 2]
          assert are_shown(image, boxes[channels], channels)

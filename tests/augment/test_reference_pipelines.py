"""Training pipelines of other libraries, built only from native layers: their results, and that targets follow."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import cases
from support.masks import IMAGES, MASKS, aligned

TRIALS = 200
# Operations of a compiled function that compute nothing.
PLUMBING = {"Placeholder", "Const", "Identity", "NoOp"}


def ops_of(layers, image):
  """Returns the operations of a function of these layers, without `PLUMBING`."""
  graph = tf.function(lambda: composed(layers, image)).get_concrete_function().graph
  return [node.op for node in graph.as_graph_def().node if node.op not in PLUMBING]


def composed(layers, image):
  """Applies the layers to the image."""
  fn = augment.compose(layers)
  return fn(image, seed=[1, 2]) if "seed" in inspect.signature(fn).parameters else fn(image)


CLASSIFICATION = {
  # torchvision's references/classification, with its TrivialAugment and erasing.
  "torchvision": [
    augment.random_resized_crop(224, antialias=True),
    augment.random_flip(),
    augment.trivial_augment(),
    augment.normalize(),
    augment.random_erasing(p=0.1),
  ],
  # timm's create_transform(224, is_training=True), which jitters colours, with its options vflip, gaussian_blur_prob
  # and re_prob.
  "timm": [
    augment.random_resized_crop(224, antialias=True),
    augment.random_flip(),
    augment.random_flip("vertical", p=0.1),
    augment.random_apply([augment.color_jitter(0.4, 0.4, 0.4)], p=0.8),
    augment.random_grayscale(p=0.1),
    augment.random_apply([augment.gaussian_blur(23)], p=0.1),
    augment.normalize(),
    augment.random_erasing(p=0.25),
  ],
  # timm's pipeline with auto_augment="rand-m9".
  "timm with RandAugment": [
    augment.random_resized_crop(224, antialias=True),
    augment.random_flip(),
    augment.rand_augment(2, 9),
    augment.normalize(),
    augment.random_erasing(p=0.25),
  ],
  # torchvision's references/classification: the validation of its weights, and of timm's with crop_pct=0.875.
  "validation": [augment.resize(256), augment.center_crop(224), augment.normalize()],
}
DETECTION = {
  # torchvision's references/detection, "ssd": photometric distortion, zoom out, crop by boxes, flip. SSD300 resizes.
  "SSD": [
    augment.random_photometric_distort(),
    augment.random_zoom_out(),
    augment.random_iou_crop(),
    augment.random_flip(),
    augment.resize((300, 300)),
  ],
  # torchvision's references/detection, "ssdlite".
  "SSDlite": [augment.random_iou_crop(), augment.random_flip(), augment.resize((320, 320))],
  # KerasHub's guide to object detection: a flip, and images that are resized with padding.
  "Keras": [augment.random_flip(), augment.resize((320, 320), pad_to_aspect_ratio=True)],
  # torchvision's references/detection, "multiscale": shortest sides of 480 to 800 for FCOS and RetinaNet. Here they are
  # a third of these.
  "multiscale": [augment.random_resize(160, 267), augment.random_flip()],
}


class TestClassification:
  @pytest.mark.parametrize("layers", CLASSIFICATION.values(), ids=CLASSIFICATION)
  def test_is_one_native_operation(self, layers):
    photograph = np.random.default_rng(3).integers(0, 256, [300, 400, 3], np.uint8)
    # The layers of the validation draw nothing.
    assert ops_of(layers, photograph) == [
      "RefurbishTf>Image" + ("Pixels" if layers is CLASSIFICATION["validation"] else "Layers")
    ]
    made = composed(layers, photograph)
    assert (made.shape, made.dtype) == ((224, 224, 3), tf.float32)

  def test_validation_is_that_of_torchvision(self):
    """The result is the middle of the photograph after its shortest side became 256 pixels long. The expected values
    are computed by hand."""
    image = np.zeros([512, 1024, 3], np.uint8)
    image[..., 0], image[..., 1] = np.arange(512)[:, None] // 2, np.arange(1024) // 4
    made = augment.compose([augment.resize(256), augment.center_crop(224)])(image).numpy()
    # Rows 16 to 239 of 256, columns 144 to 367 of 512.
    np.testing.assert_allclose(made[..., 0], np.broadcast_to(np.arange(16, 240)[:, None], [224, 224]), atol=1)
    np.testing.assert_allclose(made[..., 1], np.broadcast_to(np.arange(144, 368) // 2, [224, 224]), atol=1)


class TestDetection:
  @staticmethod
  def picture(number):
    """Returns an image of a bright rectangle on black, and two boxes as xyxy: the rectangle and an empty row."""
    random = np.random.default_rng(number)
    size = random.integers(80, 200, 2)
    image = np.zeros([*size, 3], np.uint8)
    top, left = (random.integers(0, side // 2) for side in size)
    bottom, right = random.integers([top + 30, left + 30], size + 1)
    image[top:bottom, left:right] = 255
    return image, np.float32([[left, top, right, bottom], [0, 0, 0, 0]])

  @cases.slow
  @pytest.mark.parametrize("layers", DETECTION.values(), ids=DETECTION)
  def test_boxes_are_where_their_objects_are(self, layers):
    fn = tf.function(
      lambda image, boxes, seed: augment.compose(layers, targets={1: "xyxy"})(image, boxes, seed=seed),
      input_signature=[tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([2, 4]), tf.TensorSpec([2], tf.int32)],
    )
    sizes, missing = set(), 0
    for number in range(TRIALS):
      image, boxes = fn(*self.picture(number), [number, 7])
      sizes.add(tuple(image.shape))
      bright = np.max(image, -1) > np.max(image) / 2
      if not np.any(boxes[0]):
        missing += 1
        continue
      ys, xs = np.nonzero(bright)
      # After a resize, the edge of the rectangle can be at any of several pixels.
      reach = 1 + max(image.shape[:2]) / 80
      np.testing.assert_allclose(boxes[0], [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1], atol=reach)
      assert not np.any(boxes[1])
    assert len(sizes) == (1 if layers is not DETECTION["multiscale"] else len(sizes)) and missing == 0

  def test_a_stage_of_ssd(self):
    """Rows of boxes keep their labels through the stage, and an image without boxes is not an error."""
    images, boxes = zip(*map(self.picture, range(12)))
    boxes = np.stack(boxes)
    boxes[5] = 0
    source = rtf.sources.data_source(
      [
        {"image": image, "boxes": box, "labels": np.int64([number, -1])}
        for number, (image, box) in enumerate(zip(images, boxes))
      ],
      element_spec={
        "image": tf.TensorSpec([None, None, 3], tf.uint8),
        "boxes": tf.TensorSpec([2, 4]),
        "labels": tf.TensorSpec([2], tf.int64),
      },
    )
    *first, flip, resize = DETECTION["SSD"]
    stage = source.refurbish(first + [resize], [flip, augment.normalize()], r=2, targets={"boxes": "xyxy"}, seed=3)
    for _ in range(2):
      elements = list(stage.map(augment.sanitize_boxes("boxes", "xyxy", with_rows="labels")).as_numpy_iterator())
      assert sorted(element["labels"].tolist() for element in elements) == sorted(
        [[n] for n in range(12) if n != 5] + [[]]
      )
      assert {element["image"].shape for element in elements} == {(300, 300, 3)}


class TestSegmentation:
  def test_masks_are_where_their_images_are(self):
    """As in torchvision's references/segmentation: resized to 0.5 to 2 times the base size, flipped, and cropped."""
    layers = [augment.random_resize(32, 128), augment.random_flip(), augment.random_crop(48, pad_if_needed=True)]
    assert ops_of([*layers, augment.normalize()], IMAGES[0]) == ["RefurbishTf>ImageLayers"]
    fn = tf.function(lambda image, mask, seed: augment.compose(layers, targets={1: "mask"})(image, mask, seed=seed))
    for number in range(TRIALS):
      image, mask = fn(IMAGES[number % len(IMAGES)], MASKS[number % len(MASKS)], tf.constant([number, 7]))
      assert image.shape == (48, 48, 3) and mask.shape == (48, 48, 1)
      assert aligned(image.numpy().astype(np.int64), mask.numpy(), 0.9)

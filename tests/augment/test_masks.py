"""Masks follow the geometry of their image. Other components do not move, and an undeclared mask is an error."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment import composition
from support.images import make_seeds, window
from support.masks import ALL_DTYPES, IMAGES, MASKS, SOURCE, aligned

# The mask has the values of its image, so an image pixel that moves without its mask pixel is noticed.
EXACT = tf.data.Dataset.from_tensor_slices(np.random.default_rng(3).integers(1, 256, [40, 17, 23, 1], np.uint8)).map(
  lambda values: (tf.repeat(values, 3, axis=-1), values)
)


def brighter(image):
  return image // 2 + np.uint8(100)


LAYERS = {
  "random_crop": lambda: augment.random_crop(padding=6),
  "random_crop, reflected": lambda: augment.random_crop(padding=6, padding_mode="reflect"),
  "random_flip": augment.random_flip,
  "random_flip of both axes": lambda: [
    augment.random_flip("horizontal_and_vertical"),
    augment.random_crop((40, 80), padding=3, pad_if_needed=True),
  ],
  "random_resized_crop": lambda: augment.random_resized_crop((40, 56), scale=(0.3, 1)),
  "all of these": lambda: [
    augment.random_resized_crop(48, scale=(0.5, 1), antialias=True),
    brighter,
    augment.random_flip(),
    augment.random_crop(padding=8),
  ],
  "rand_augment": lambda: augment.rand_augment(2, 10),
  "auto_augment, cifar10": lambda: augment.auto_augment("cifar10"),
  "auto_augment, imagenet": lambda: augment.auto_augment("imagenet"),
  "deep_auto_augment, cifar10": lambda: augment.deep_auto_augment("cifar10")[:2],
  "deep_auto_augment, imagenet": lambda: augment.deep_auto_augment("imagenet")[:2],
}


class TestAligned:
  @pytest.mark.parametrize("name", LAYERS)
  def test_masks_follow_every_layer_at_every_split(self, name):
    """All 40 masks follow in each epoch: in the partial augmentation, in the final one, and with a split in between."""
    flat = composition.flattened([LAYERS[name]()])
    # Deep AutoAugment's resized crops make wide edges, where image and mask differ.
    share = 0.5 if name.startswith("deep") else 1
    stages = [(flat, None), ([tf.identity], flat), *((flat[:at], flat[at:]) for at in range(1, len(flat)))]
    for layers in stages:
      stage = SOURCE.refurbish(*layers, r=2, targets={1: "mask"}, seed=7)
      for _ in range(2):
        found = [aligned(image, mask, share) for image, mask, _ in stage.as_numpy_iterator()]
        assert found == [True] * 40

  def test_excluded_masks_do_not_follow(self):
    stage = SOURCE.refurbish([augment.random_flip(), augment.random_crop(padding=16)], targets={}, seed=7)
    assert sum(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator()) < 5

  def test_a_resize_takes_the_nearest_pixels(self):
    fn = augment.compose([augment.random_resized_crop((9, 50), antialias=True)], targets={1: "mask"})
    image, mask = next(EXACT.as_numpy_iterator())
    for seed in make_seeds(40):
      y, x, height, width = window(17, 23, augment.seed_at(seed, 0))
      rows, columns = ((2 * np.arange(to) + 1) * size // (2 * to) for to, size in ((9, height), (50, width)))
      np.testing.assert_array_equal(fn(image, mask, seed=seed)[1], mask[y + rows][:, x + columns])

  def test_color_layers_leave_masks_unchanged(self):
    fn = augment.compose([augment.cutout(9), brighter, augment.normalize()], targets={1: "mask"})
    image, mask = next(EXACT.as_numpy_iterator())
    for seed in make_seeds(5):
      found = fn(image, mask, seed=seed)
      assert found[0].dtype == tf.float32
      np.testing.assert_array_equal(found[1], mask)
    unseeded = augment.compose([augment.normalize()], targets={1: "mask"})
    np.testing.assert_array_equal(unseeded(image, mask)[1], mask)

  @pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
  def test_any_dtype_and_number_of_channels(self, dtype):
    """The mask has the largest values of each dtype."""
    fn = augment.compose([augment.random_crop(padding=3), augment.random_flip()], targets={"mask": "mask", 1: "mask"})
    values = next(EXACT.as_numpy_iterator())[1]
    scale = 1 if dtype.is_bool else dtype.max // 255
    as_mask = lambda image: np.repeat(image[..., :1], 5, -1).astype(dtype.as_numpy_dtype) * dtype.as_numpy_dtype(scale)
    for seed in make_seeds(4):
      element, flat = fn({"image": values, "mask": as_mask(values)}, as_mask(values)[..., 0], seed=seed)
      assert element["mask"].dtype == flat.dtype == dtype
      np.testing.assert_array_equal(element["mask"], as_mask(element["image"].numpy()))
      np.testing.assert_array_equal(flat, as_mask(element["image"].numpy())[..., 0])

  @pytest.mark.parametrize("known", [True, False])
  def test_static_shapes(self, known):
    sides = [32, 48] if known else [None, None]
    source = tf.data.Dataset.from_generator(
      lambda: iter(()),
      output_signature={
        "image": tf.TensorSpec([*sides, 3], tf.uint8),
        "mask": tf.TensorSpec(sides, tf.int32),
        "edges": tf.TensorSpec([*sides, 2], tf.bool),
      },
    )

    def moved_by(*layers):
      fn = augment.compose(layers, targets={"mask": "mask", "edges": "mask"})
      return source.map(lambda element: fn(element, seed=[7, 0])).element_spec

    assert moved_by(augment.random_crop(padding=4)) == source.element_spec
    resized = moved_by(brighter, augment.random_crop((24, 24), pad_if_needed=True))
    assert [resized[name].shape.as_list() for name in ("image", "mask", "edges")] == [
      [24, 24, 3],
      [24, 24],
      [24, 24, 2],
    ]

  def test_structures_keep_their_form(self):
    fn = augment.compose([augment.random_crop(padding=4)], targets={"mask": "mask", 2: "mask", "other": None, 3: None})
    image, mask = next(EXACT.as_numpy_iterator())
    given = {"label": "three", "mask": mask, "image": image, "other": mask}
    element, label, second, boxes = fn(given, 3, mask, np.zeros([2, 4]), seed=[7, 0])
    assert list(element) == list(given) and given["mask"] is mask and (label, element["label"]) == (3, "three")
    np.testing.assert_array_equal(element["mask"], element["image"][..., :1])
    np.testing.assert_array_equal(second, element["mask"])
    np.testing.assert_array_equal(element["other"], mask)
    assert boxes.shape == (2, 4) and np.any(second != mask)

  def test_a_mask_of_another_size_when_it_runs(self):
    source = tf.data.Dataset.from_generator(
      lambda: iter([(IMAGES[0], MASKS[0]), (IMAGES[0], MASKS[0][1:])]),
      output_signature=(tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([None, None, 1], tf.int32)),
    )
    stage = iter(
      source.map(lambda *pair: augment.compose([augment.random_flip()], targets={1: "mask"})(*pair, seed=[7, 0]))
    )
    next(stage)
    with pytest.raises(tf.errors.InvalidArgumentError, match="component 1, 'mask', must have the height and width"):
      next(stage)

  def test_color_functions_may_be_placed_between_layers(self):
    layers = [
      augment.random_crop(padding=6),
      tf.keras.layers.RandomBrightness(0.2),
      lambda image: tf.cast(image, tf.uint8),
      functools.partial(tf.image.stateless_random_contrast, lower=0.5, upper=0.9),
      augment.random_flip(),
    ]
    stage = SOURCE.refurbish(layers[:3], layers[3:], targets={1: "mask"}, seed=7)
    assert all(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator())

  def test_masks_follow_images_decoded_from_files(self):
    """Decoding a whole file moves no pixels."""

    def encoded(image, mask, label):
      return tf.io.encode_png(image), mask, label

    layers = [functools.partial(tf.io.decode_png, channels=3), augment.random_crop(padding=6)], [augment.random_flip()]
    stage = SOURCE.map(encoded).refurbish(*layers, targets={1: "mask"}, seed=7)
    assert all(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator())
    with pytest.raises(ValueError, match='targets={1: "mask"}'):
      SOURCE.map(
        lambda image, mask, label: encoded(
          image, tf.ensure_shape(tf.py_function(lambda: mask, [], tf.int32), [None, None, 1]), label
        )
      ).refurbish(*layers)

  def test_advise_accepts_masks(self):
    layers = [augment.random_flip(), augment.random_crop(padding=6)]
    advice = rtf.advise(SOURCE, layers, batch_size=4, epochs=9, max_seconds=0.2, targets={1: "mask"})
    assert {way.kind for way in advice.strategies} == {"standard", "kept", "refurbish", "both"}
    for way in advice.best_per_kind:
      assert all(aligned(image, mask) for image, mask, _ in way.apply(SOURCE).unbatch().as_numpy_iterator())

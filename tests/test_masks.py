"""Masks follow the geometry of their image, and nothing else moves or misses them silently."""
import functools

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import native
from refurbish_tf.augment import composition
from support import final_reference as reference
from support.images import make_seeds
from support.masks import ALL_DTYPES, PAIRS, aligned

IMAGES, MASKS = PAIRS
SOURCE = tf.data.Dataset.from_tensor_slices((IMAGES, MASKS, np.arange(len(IMAGES))))
# In which each value is one of a place: what moves a pixel cannot do so unnoticed.
EXACT = tf.data.Dataset.from_tensor_slices(np.random.default_rng(3).integers(1, 256, [40, 17, 23, 1], np.uint8)).map(
    lambda values: (tf.repeat(values, 3, axis=-1), values))


def brighter(image):
  return image // 2 + np.uint8(100)


LAYERS = {
    "random_crop": lambda: augment.random_crop(6),
    "random_crop, reflected": lambda: augment.random_crop(6, "reflect"),
    "random_flip": augment.random_flip,
    "random_resized_crop": lambda: augment.random_resized_crop((40, 56), scale=(0.3, 1)),
    "all of these": lambda: [
        augment.random_resized_crop(48, scale=(0.5, 1), antialias=True), brighter, augment.random_flip(),
        augment.random_crop(8)],
    "rand_augment": lambda: augment.rand_augment(2, 10),
    "auto_augment, cifar10": lambda: augment.auto_augment("cifar10"),
    "auto_augment, imagenet": lambda: augment.auto_augment("imagenet"),
    "deep_auto_augment, cifar10": lambda: augment.deep_auto_augment("cifar10")[:2],
    "deep_auto_augment, imagenet": lambda: augment.deep_auto_augment("imagenet")[:2],
}


class TestAligned:

  @pytest.mark.parametrize("name", LAYERS)
  def test_of_every_layer_wherever_it_is(self, name):
    """40 of 40 in each epoch: in the partial augmentation, in the final one, and with a split between them."""
    flat = composition.flattened([LAYERS[name]()])
    # Its own resized crops make wide edges.
    share = 0.5 if name.startswith("deep") else 1
    stages = [(flat, None), ([tf.identity], flat), *((flat[:at], flat[at:]) for at in range(1, len(flat)))]
    for layers in stages:
      stage = SOURCE.refurbish(*layers, r=2, masks=(1,), seed=7)
      for _ in range(2):
        found = [aligned(image, mask, share) for image, mask, _ in stage.as_numpy_iterator()]
        assert found == [True] * 40

  def test_would_not_be_if_they_stayed(self):
    stage = SOURCE.refurbish([augment.random_flip(), augment.random_crop(16)], masks=(), seed=7)
    assert sum(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator()) < 5

  @pytest.mark.parametrize("layers", [
      [augment.random_crop(5)], [augment.random_crop(16, "reflect")], [augment.random_flip()],
      [augment.random_crop(2), augment.random_flip(), augment.random_crop(3, "reflect"), augment.random_crop(1)],
      [augment.random_flip(), tf.identity, augment.random_crop(2), augment.random_flip()]], ids=range(5))
  def test_to_the_pixel(self, layers):
    for image, mask in EXACT.refurbish(layers, masks=(1,), seed=7).as_numpy_iterator():
      np.testing.assert_array_equal(image, np.repeat(mask, 3, axis=-1))

  @pytest.mark.parametrize("magnitude", [3, 10])
  def test_of_distortions_to_the_pixel(self, magnitude):
    """Those of RandAugment with a sign are the geometric ones; outside, images are 128."""
    fn = augment.compose(augment.rand_augment(1, magnitude), masks=(1,))
    values = np.random.default_rng(3).integers(129, 256, [300, 17, 23, 1], np.uint8)
    images, masks = fn(np.repeat(values, 3, axis=-1), values, seed=[7, 0])
    drawn = fn.draws([7, 0], 300).numpy()[:, 0]
    assert set(drawn) == set(range(28))
    for image, mask, before, draw in zip(images[..., :1].numpy(), masks.numpy(), values, drawn, strict=True):
      np.testing.assert_array_equal(mask, before if draw < 18 else np.where(image == 128, 0, image))

  def test_a_resize_takes_the_nearest_pixels(self):
    layer = augment.random_resized_crop((9, 50), antialias=True)
    fn, expected = augment.compose([layer], masks=(1,)), reference.ResizedCrop(9, 50)
    image, mask = next(EXACT.as_numpy_iterator())
    for seed in make_seeds(40):
      y, x, height, width = expected.box(17, 23, expected.draws(reference.seed_at(seed, 0)))
      rows, columns = ((2 * np.arange(to) + 1) * size // (2 * to) for to, size in ((9, height), (50, width)))
      np.testing.assert_array_equal(fn(image, mask, seed=seed)[1], mask[y + rows][:, x + columns])

  def test_colours_leave_them(self):
    fn = augment.compose([augment.cutout(9), brighter, augment.normalize()], masks=(1,))
    image, mask = next(EXACT.as_numpy_iterator())
    for seed in make_seeds(5):
      found = fn(image, mask, seed=seed)
      assert found[0].dtype == tf.float32
      np.testing.assert_array_equal(found[1], mask)
    unseeded = augment.compose([augment.normalize()], masks=(1,))
    np.testing.assert_array_equal(unseeded(image, mask)[1], mask)

  @pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
  def test_any_dtype_and_number_of_channels(self, dtype):
    """With the largest values that it holds."""
    fn = augment.compose([augment.random_crop(3), augment.random_flip()], masks=("mask", 1))
    values = next(EXACT.as_numpy_iterator())[1]
    scale = 1 if dtype.is_bool else dtype.max // 255
    as_mask = lambda image: np.repeat(image[..., :1], 5, -1).astype(dtype.as_numpy_dtype) * dtype.as_numpy_dtype(scale)
    for seed in make_seeds(4):
      element, flat = fn({"image": values, "mask": as_mask(values)}, as_mask(values)[..., 0], seed=seed)
      assert element["mask"].dtype == flat.dtype == dtype
      np.testing.assert_array_equal(element["mask"], as_mask(element["image"].numpy()))
      np.testing.assert_array_equal(flat, as_mask(element["image"].numpy())[..., 0])

  @pytest.mark.parametrize("layers", [
      [augment.random_resized_crop(30), augment.random_flip()], augment.rand_augment(1, 10) + [augment.normalize()],
      [augment.normalize()]], ids=range(3))
  def test_of_a_batch_are_those_of_each_image(self, layers):
    fn = augment.compose(layers, masks=("mask", 1))
    seed = {"seed": [7, 0]} if len(layers) > 1 else {}
    found, flat = fn({"image": IMAGES[:6], "mask": MASKS[:6]}, MASKS[:6, ..., 0], **seed)
    for place in range(6):
      own = {name: augment.seed_at(seed[name], place) for name in seed}
      one, one_flat = fn({"image": IMAGES[place], "mask": MASKS[place]}, MASKS[place, ..., 0], **own)
      np.testing.assert_array_equal(found["image"][place], one["image"])
      np.testing.assert_array_equal(found["mask"][place], one["mask"])
      np.testing.assert_array_equal(flat[place], one_flat)

  @pytest.mark.parametrize("known", [True, False])
  def test_static_shapes(self, known):
    sides = [32, 48] if known else [None, None]
    source = tf.data.Dataset.from_generator(lambda: iter(()), output_signature={
        "image": tf.TensorSpec([*sides, 3], tf.uint8), "mask": tf.TensorSpec(sides, tf.int32),
        "edges": tf.TensorSpec([*sides, 2], tf.bool)})
    cropped = source.map(lambda element: augment.compose(
        [augment.random_crop(4)], masks=("mask", "edges"))(element, seed=[7, 0])).element_spec
    assert cropped == source.element_spec
    resized = source.map(lambda element: augment.compose(
        [brighter, augment.random_resized_crop(24)], masks=("mask", "edges"))(element, seed=[7, 0])).element_spec
    assert [resized[name].shape.as_list() for name in ("image", "mask", "edges")] == [[24, 24, 3], [24, 24], [24, 24, 2]]

  def test_structures_keep_their_form(self):
    fn = augment.compose([augment.random_crop(4)], masks=("mask", 2))
    image, mask = next(EXACT.as_numpy_iterator())
    given = {"label": "three", "mask": mask, "image": image, "other": mask}
    element, label, second, boxes = fn(given, 3, mask, np.zeros([2, 4]), seed=[7, 0])
    assert list(element) == list(given) and given["mask"] is mask and (label, element["label"]) == (3, "three")
    np.testing.assert_array_equal(element["mask"], element["image"][..., :1])
    np.testing.assert_array_equal(second, element["mask"])
    np.testing.assert_array_equal(element["other"], mask)
    assert boxes.shape == (2, 4) and np.any(second != mask)

  def test_the_image_is_the_same_with_masks_and_without(self):
    for layers in ([augment.random_crop(4), augment.random_flip(), augment.normalize()], LAYERS["all of these"]()):
      fn, alone = augment.compose(layers, masks=(1,)), augment.compose(layers)
      for seed in make_seeds(4):
        np.testing.assert_array_equal(fn(IMAGES[0], MASKS[0], seed=seed)[0], alone(IMAGES[0], seed=seed))

  def test_a_mask_of_another_size_when_it_runs(self):
    source = tf.data.Dataset.from_generator(
        lambda: iter([(IMAGES[0], MASKS[0]), (IMAGES[0], MASKS[0][1:])]),
        output_signature=(tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([None, None, 1], tf.int32)))
    stage = iter(source.map(lambda *pair: augment.compose([augment.random_flip()], masks=(1,))(*pair, seed=[7, 0])))
    next(stage)
    with pytest.raises(tf.errors.InvalidArgumentError, match="[Mm]asks must have the height and width"):
      next(stage)

  def test_functions_of_colour_stand_among_the_layers(self):
    layers = [
        augment.random_crop(6), tf.keras.layers.RandomBrightness(0.2), lambda image: tf.cast(image, tf.uint8),
        functools.partial(tf.image.stateless_random_contrast, lower=0.5, upper=0.9), augment.random_flip()]
    stage = SOURCE.refurbish(layers[:3], layers[3:], masks=(1,), seed=7)
    assert all(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator())

  def test_of_files(self):
    """Decoding a whole file moves nothing."""
    def encoded(image, mask, label):
      return tf.io.encode_png(image), mask, label

    layers = [functools.partial(tf.io.decode_png, channels=3), augment.random_crop(6)], [augment.random_flip()]
    stage = SOURCE.map(encoded).refurbish(*layers, masks=(1,), seed=7)
    assert all(aligned(image, mask) for image, mask, _ in stage.as_numpy_iterator())
    with pytest.raises(ValueError, match=r"masks=\(1,\)"):
      SOURCE.map(lambda image, mask, label: encoded(image, tf.ensure_shape(
          tf.py_function(lambda: mask, [], tf.int32), [None, None, 1]), label)).refurbish(*layers)

  @pytest.mark.filterwarnings("ignore:recommend_split:UserWarning")
  def test_recommend_split_takes_them(self):
    found = rtf.recommend_split(
        [augment.random_flip(), augment.random_crop(6)], SOURCE, epochs=9, num_outcomes=[2, 169], num_samples=4,
        max_seconds=0.05, masks=(1,))
    assert all(aligned(image, mask) for image, mask, _ in SOURCE.refurbish(**found).as_numpy_iterator())


class TestUnnamed:
  """What looks like a mask must be named or excluded."""

  SEEN = [
      ([32, 48, 3], [32, 48]), ([32, 48, 3], [32, 48, 1]), ([32, 48, 3], [32, 48, 7]), ([None, None, 3], [None, None, 1]),
      ([None, None, 3], [None, None]), ([None, 48, 3], [None, 48, 1]), ([16, 32, 48, 3], [16, 32, 48, 1]),
      ([None, 32, 48, 3], [None, 32, 48])]
  NOT_SEEN = [
      ([32, 48, 3], [10]), ([32, 48, 3], []), ([32, 48, 3], [32]), ([32, 48, 3], [48, 32]), ([32, 48, 3], [32, 4]),
      ([None, None, 3], [None, 4]), ([None, None, 3], [32, 48]), ([32, 48, 3], [None, None, 1]), ([32, 48, 3], None),
      ([16, 32, 48, 3], [16, 10]), ([None, 32, 48, 3], [None, 10, 4]), ([], [32, 48]), ([100, 8], [100, 8]),
      (None, [32, 48])]

  @staticmethod
  def traced(image, other, masks=None):
    """A composed function, for these shapes."""
    tf.function(augment.compose([tf.identity], masks)).get_concrete_function(
        tf.TensorSpec(image, tf.uint8), tf.TensorSpec(other, tf.int32))

  @pytest.mark.parametrize("image, other", SEEN)
  def test_is_an_error(self, image, other):
    with pytest.raises(ValueError, match=r"masks must say what the component 1 .*masks=\(1,\).* else masks=\(\)"):
      self.traced(image, other)
    self.traced(image, other, masks=())

  @pytest.mark.parametrize("image, other", [
      ([None, None, 3], [64, 64, 1]), ([64, 64, 3], [None, None, 1]), ([64, 64, 3], [64, None, 1]), (None, [64, 64, 1])])
  def test_is_an_error_when_it_runs_if_sizes_are_known_only_then(self, image, other):
    pair = tf.data.Dataset.from_tensors(0).map(lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), image),
        tf.ensure_shape(tf.py_function(lambda: MASKS[0].astype(np.int32), [], tf.int32), other)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="masks must say what the component 1 is"):
      list(pair.refurbish([augment.random_flip()], seed=1))
    list(pair.refurbish([augment.random_flip()], masks=(), seed=1))

  def test_boxes_of_any_number_are_none(self):
    pair = tf.data.Dataset.from_tensors(0).map(lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), [None, None, 3]),
        tf.ensure_shape(tf.py_function(lambda: np.zeros([5, 4], np.int32), [], tf.int32), [None, 4])))
    list(pair.refurbish([augment.random_flip()], seed=1))

  @pytest.mark.parametrize("image, other", NOT_SEEN)
  def test_is_none_if_it_looks_otherwise(self, image, other):
    self.traced(image, other)

  @pytest.mark.parametrize("element, said", [
      (lambda image, mask: (image, 3, mask), "component 2 .*masks=\\(2,\\)"),
      (lambda image, mask: {"image": image, "other": mask}, "component 'other' .*masks=\\(\"other\",\\)"),
      (lambda image, mask: ({"image": image}, 3, mask), "component 2 .*masks=\\(2,\\)"),
      (lambda image, mask: (image, {"at": (mask, 3)}), "component 1 .*masks=\\(1,\\)")])
  def test_wherever_it_is(self, element, said):
    source = SOURCE.map(lambda image, mask, label: element(image, mask))
    with pytest.raises(ValueError, match=f"masks must say what the {said}"):
      source.refurbish([tf.identity])
    with pytest.raises(ValueError, match=f"masks must say what the {said}"):
      source.map(augment.compose([tf.identity]))
    assert source.refurbish([tf.identity], masks=()).element_spec == source.element_spec

  def test_of_a_whole_split(self):
    with pytest.raises(ValueError, match=r"masks=\(1,\)"):
      SOURCE.refurbish(*augment.split([tf.identity, augment.random_flip()], 1))
    with pytest.raises(ValueError, match=r"masks=\(1,\)"):
      augment.compose([augment.random_flip()])(IMAGES[0], MASKS[0], seed=[7, 0])

  def test_is_asked_of_what_comes_not_of_what_the_layers_make(self):
    fn = augment.compose([lambda image: tf.image.resize(image, [10, 4])])
    assert fn(IMAGES[0], np.zeros([10, 4]))[0].shape == [10, 4, 3]

  def test_those_beside_a_named_one_are_excluded(self):
    other = MASKS[1]
    assert augment.compose([tf.identity], masks=(1,))(IMAGES[0], MASKS[0], other)[2] is other


def refused(layers, element=(IMAGES[0], MASKS[0], 3), masks=(1,)):
  tf.data.Dataset.from_tensors(element).refurbish(layers, masks=masks)


class TestBadInput:

  @pytest.mark.parametrize("masks, error, said", [
      ("mask", TypeError, r"'mask'.*masks=\(\"mask\",\)"), (1, TypeError, "got 1"), ({"mask"}, TypeError, "tuple"),
      ((1.0,), TypeError, "1.0"), ((True,), TypeError, "True"), ((None,), TypeError, "None"), ((("mask",),), TypeError, "mask"),
      ((0,), ValueError, "beside the image"), ((-1,), ValueError, "-1"), (("image",), ValueError, "'image'")])
  def test_names(self, masks, error, said):
    for whose, function in (
        ("compose", augment.compose), ("split", functools.partial(augment.split, at=1)),
        ("refurbish", tf.data.Dataset.range(3).refurbish),
        ("recommend_split", functools.partial(rtf.recommend_split, dataset=SOURCE, epochs=3))):
      with pytest.raises(error, match=f"^masks of {whose} must .*{said}"):
        function([tf.identity], masks=masks)

  @pytest.mark.parametrize("masks", [(), (1,)])
  def test_names_with_functions(self, masks):
    with pytest.raises(TypeError, match="^masks of refurbish is for lists.*compose"):
      SOURCE.refurbish(lambda *element: element, masks=masks)

  IMAGE, MASK = IMAGES[0], MASKS[0]

  @pytest.mark.parametrize("element, masks, error, said", [
      ((IMAGE, MASK), (2,), ValueError, "no component 2 in an element of 2"),
      ((IMAGE, MASK), ("mask",), ValueError, "no component 'mask' in an element that is no dict"),
      ({"image": IMAGE, "mask": MASK}, ("msk",), ValueError, r"'msk' .*\['image', 'mask'\]"),
      ({"image": IMAGE, "mask": MASK}, (1,), ValueError, "no component 1 in an element of 1"),
      ((IMAGE, {"mask": MASK}), ("mask",), ValueError, "no component 'mask'"),
      ((IMAGE, {"mask": MASK}), (1,), TypeError, "component 1 must be a dense tensor, got a dict"),
      ((IMAGE, tf.RaggedTensor.from_tensor(MASK)), (1,), TypeError, "dense tensor, got a RaggedTensor"),
      ((IMAGE, tf.sparse.from_dense(MASK)), (1,), TypeError, "dense tensor, got a SparseTensor"),
      ((IMAGE, MASK / 2), (1,), TypeError, "integer dtype or bool, got dtype float64"),
      ((IMAGE, "mask.png"), (1,), TypeError, "integer dtype or bool, got dtype string"),
      ((IMAGE, 3), (1,), ValueError, r"\[height, width\].* got shape \(\)"),
      ((IMAGE, MASK[..., 0, 0]), (1,), ValueError, "got shape"),
      ((IMAGE, MASK[:-1]), (1,), ValueError, r"height and width of the image, \(64, 64\), got shape \(63, 64, 1\)"),
      ((IMAGE, MASK[:, 1:, 0]), (1,), ValueError, r"got shape \(64, 63\)"),
      ((IMAGES[:4], MASK), (1,), ValueError, r"\(4, 64, 64\), got shape \(64, 64, 1\)"),
      ((IMAGES[:4], MASK[..., 0]), (1,), ValueError, r"got shape \(64, 64\) beside an image of shape \(4, 64, 64, 3\)"),
      ((IMAGES[:4], MASKS[:3]), (1,), ValueError, r"\(4, 64, 64\), got shape \(3, 64, 64, 1\)"),
      ((IMAGE, MASKS[:4]), (1,), ValueError, "before batch, or batch both")])
  def test_components(self, element, masks, error, said):
    with pytest.raises(error, match=said):
      refused([augment.random_flip()], element, masks)

  @pytest.mark.parametrize("layer, said", [
      (lambda: tf.keras.layers.RandomFlip(), "RandomFlip at position 1"),
      (lambda: tf.keras.layers.RandomRotation(0.1).call, "call at position 1"),
      (lambda: functools.partial(tf.image.stateless_random_flip_left_right), "stateless_random_flip_left_right at"),
      (lambda: tf.image.rot90, "rot90 at"),
      (lambda: tf.keras.Sequential([tf.keras.layers.RandomFlip()]), "RandomFlip at position 1"),
      (lambda: augment.decode(8), "random_resized_crop"),
      (lambda: augment.decode(apply_exif_orientation=True), "if masks lie as photographs are stored"),
      (lambda: augment.compose([augment.random_flip()]), "themselves"),
      (lambda: functools.partial(augment.random_flip(), seed=[1, 0]), "themselves"),
      (lambda: augment.random_crop_and_flip_batch(4), "themselves"), (augment.decode_and_crop, "random_resized_crop"),
      (lambda: lambda image: tf.image.resize(image, [8, 8]), r"<lambda> at position 1 .*returned \[8, 8\]"),
      (lambda: tf.keras.layers.Resizing(8, 8), "at position 1 .*returned"),
      (lambda: lambda image: image[0, 0, 0], "at position 1 .*returned")])
  def test_functions_that_would_leave_them_behind(self, layer, said):
    with pytest.raises(ValueError, match=f"layers with masks must .*{said}"):
      refused([tf.identity, layer()])

  @pytest.mark.parametrize("mask, image_shape, draws", [
      ([4, 4], [5, 4, 3], [0]), ([4, 4], [4], [0]), ([4, 4], [[4, 4, 3]], [0]), ([4, 4], 4, [0]), ([4], [4, 4, 3], [0]),
      ([0, 0], [0, 0, 3], [0]), ([4, 4, 4, 4], [4, 4, 3], [0]), ([4, 4], [4, 4, 3], [2]), ([4, 4], [4, 4, 3], [0, 0]),
      ([4, 4], [4, 4, 3], 0), ([4, 4], [4, 4, 3], [[0]]), ([3, 4, 4], [3, 4, 4, 3], [[0]])])
  def test_of_the_op(self, mask, image_shape, draws):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
      native.ops().refurbish_tf_image_mask(
          masks=tf.zeros(mask, tf.int32), draws=draws, image_shape=image_shape,
          layers=["random_flip position=-1"])

  def test_a_function_that_crops_images_of_unknown_size(self):
    """It is seen when it runs."""
    source = tf.data.Dataset.from_generator(
        lambda: iter([(IMAGES[0], MASKS[0])]),
        output_signature=(tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([None, None, 1], tf.int32)))
    stage = source.apply(tf.data.experimental.assert_cardinality(1)).refurbish([lambda image: image[1:]], masks=(1,))
    with pytest.raises(tf.errors.InvalidArgumentError, match="masks: the component 1 must have the height and width"):
      next(iter(stage))


def test_two_views_of_a_sample():
  """A composed function may be called with several seeds in one final augmentation."""
  view = augment.compose([augment.random_crop(16), augment.random_flip(), augment.normalize()])

  def two_views(image, label, seed):
    return (view(image, seed=augment.seed_at(seed, 0)), view(image, seed=augment.seed_at(seed, 1))), label

  images = tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(40)))
  stage = images.refurbish(augment.compose([brighter]), two_views, r=2, seed=7)
  epochs = [{label: views for views, label in stage.as_numpy_iterator()} for _ in range(2)]
  assert all(len(epoch) == 40 for epoch in epochs)
  assert sum(np.array_equal(*views) for epoch in epochs for views in epoch.values()) <= 2
  assert len({view.tobytes() for epoch in epochs for views in epoch.values() for view in views}) > 150
  seed = tf.constant([3, 4])
  for number, found in enumerate(two_views(IMAGES[0], 0, seed)[0]):
    np.testing.assert_array_equal(found, view(IMAGES[0], seed=augment.seed_at(seed, number)))

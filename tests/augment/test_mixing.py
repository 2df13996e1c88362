"""mixup and CutMix of whole batches, compared with Keras' formula in NumPy."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import native

SEED = [7, 0]
LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6])
FUNCTIONS = {"mixup": augment.mixup, "cutmix": augment.cutmix, "mixup_or_cutmix": augment.mixup_or_cutmix}
each_function = pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
STAGE = {"mixup_alpha": 1.0, "cutmix_alpha": 1.0, "switch_prob": 0.5}


def images_of(dtype, count=8, height=6, width=10):
  values = np.random.default_rng(7).integers(0, 256, [count, height, width, 3])
  return values.astype(np.uint8) if dtype == np.uint8 else (values / 255).astype(np.float32)


def drawn(images, alpha=1.0, switch_prob=0.0, seed=SEED):
  """Returns each image's weight in its mix and the number of its partner, for this seed."""
  _, lambdas, partners = native.ops().refurbish_tf_mix_images(
    images=images, seed=seed, mixup_alpha=alpha, cutmix_alpha=alpha, switch_prob=switch_prob
  )
  return lambdas.numpy(), partners.numpy()


def blended(lambdas, values, partners):
  """Mixes by the formula of `keras.layers.MixUp`."""
  weight = lambdas.reshape([-1] + [1] * (values.ndim - 1))
  return weight * values + (1 - weight) * values[partners]


class TestMixup:
  def test_floats_are_those_of_keras(self):
    images = images_of(np.float32)
    one_hot = np.eye(10, dtype=np.float32)[LABELS]
    lambdas, partners = drawn(images)
    assert len(set(lambdas)) == 8
    mixed, labels = augment.mixup(1, num_classes=10)(images, LABELS, seed=SEED)
    np.testing.assert_array_equal(mixed, blended(lambdas, images, partners))
    np.testing.assert_array_equal(labels, blended(lambdas, one_hot, partners))
    # Labels that are already one-hot or soft give the same.
    for given, classes in (
      (one_hot, None),
      (one_hot, 10),
      (one_hot.astype(np.float64), None),
      (one_hot.astype(np.float16), 10),
    ):
      np.testing.assert_array_equal(augment.mixup(1, classes)(images, given, seed=SEED)[1], labels)
    for given in (LABELS.astype(np.uint8), LABELS[:, np.newaxis], LABELS.astype(np.int32), list(map(int, LABELS))):
      np.testing.assert_array_equal(augment.mixup(1, 10)(images, given, seed=SEED)[1], labels)

  def test_scalar_labels_are_mixed(self):
    """A scalar is a label of two classes, or a quantity."""
    lambdas, partners = drawn(images_of(np.uint8))
    for given in (LABELS.astype(np.float32), LABELS[:, np.newaxis].astype(np.float32)):
      _, labels = augment.mixup(1)(images_of(np.uint8), given, seed=SEED)
      np.testing.assert_array_equal(labels, blended(lambdas, given, partners))


class TestCutmix:
  def test_a_box_is_the_partners_and_labels_are_mixed_by_area(self):
    images = np.broadcast_to(np.arange(64, dtype=np.float32)[:, np.newaxis, np.newaxis, np.newaxis], [64, 9, 12, 3])
    _, partners = drawn(images, switch_prob=1.0)
    mixed, labels = augment.cutmix(num_classes=64)(images, np.arange(64), seed=SEED)
    sizes = set()
    for image, label, own, partner in zip(mixed.numpy(), labels.numpy(), range(64), partners):
      taken = image[..., 0] == partner
      rows, columns = np.flatnonzero(taken.any(1)), np.flatnonzero(taken.any(0))
      assert taken.sum() == len(rows) * len(columns) and (np.diff(rows) == 1).all() and (np.diff(columns) == 1).all()
      np.testing.assert_array_equal(image, np.where(taken[..., np.newaxis], partner, own) * np.ones([1, 1, 3]))
      expected = np.zeros(64, np.float32)
      expected[own] = np.float32(1 - taken.sum() / 108)
      expected[partner] = 1 - expected[own]
      np.testing.assert_array_equal(label, expected)
      sizes.add((len(rows), len(columns)))
    assert len(sizes) > 15


class TestEither:
  def test_each_image_has_one_of_both(self):
    images = np.broadcast_to(np.arange(100, dtype=np.float32).reshape(100, 1, 1, 1), [100, 8, 8, 1])
    mixed = augment.mixup_or_cutmix(0.8, 1.0, 0.3)(images, seed=SEED).numpy()
    number = sum(len(np.unique(image)) == 2 for image in mixed)
    # A box can be empty or cover the whole image, so that only one value is left.
    assert 10 < number < 40
    np.testing.assert_array_equal(
      augment.mixup_or_cutmix(0.8, 1.0, 0)(images, seed=SEED), augment.mixup(0.8)(images, seed=SEED)
    )
    np.testing.assert_array_equal(
      augment.mixup_or_cutmix(0.8, 0.7, 1)(images, seed=SEED), augment.cutmix(0.7)(images, seed=SEED)
    )


class TestBatches:
  @each_function
  def test_depends_on_the_seed_alone(self, make):
    mixed, images = make(num_classes=10), images_of(np.uint8)
    first = mixed(images, LABELS, seed=SEED)
    for fn, seed in ((mixed, np.array(SEED, np.int64)), (pickle.loads(pickle.dumps(mixed)), SEED)):
      tf.random.set_seed(2)
      for one, other in zip(first, fn(images, LABELS, seed=seed)):
        np.testing.assert_array_equal(one, other)
    assert (mixed(images, LABELS, seed=[8, 0])[0] != first[0]).numpy().any()

  def test_draws_are_independent_of_earlier_layers_with_the_same_seed(self):
    """Compares with the draws of one layer, of two, and of a layer that draws several numbers."""
    _, lambdas, _ = native.ops().refurbish_tf_mix_images(
      images=tf.zeros([500, 1, 1, 1]), seed=SEED, **{**STAGE, "switch_prob": 0.0}
    )
    for fn in (
      augment.random_crop(padding=50),
      augment.compose([augment.random_crop(padding=50), augment.random_flip()]),
      augment.color_jitter(0.5, 0.5, 0.5, 0.5),
    ):
      for draws in fn.draws(SEED, 500).numpy().T:
        assert abs(np.corrcoef(draws, lambdas)[0, 1]) < 0.2

  def test_result_does_not_depend_on_threads(self):
    """The batch has more images than one thread handles."""
    images = images_of(np.uint8, 64, 128, 128)
    lambdas, partners = drawn(images)
    mixed = augment.mixup(1)(images, seed=SEED)
    assert mixed.dtype == tf.uint8
    np.testing.assert_array_equal(mixed, np.floor(blended(lambdas.astype(np.float64), images, partners) + 0.5))

  @each_function
  def test_a_batch_of_one_image_is_unchanged(self, make):
    images = images_of(np.uint8, 1)
    mixed, labels = make(num_classes=3)(images, [2], seed=SEED)
    np.testing.assert_array_equal(mixed, images)
    assert labels.numpy().tolist() == [[0, 0, 1]] and labels.dtype == tf.float32

  @each_function
  @pytest.mark.parametrize("shape", [[0, 8, 8, 3], [4, 0, 8, 3], [4, 8, 8, 0], [4, 1, 1, 1]])
  def test_empty_and_tiny_batches_are_accepted(self, make, shape):
    mixed, labels = make(num_classes=3)(tf.zeros(shape), tf.ones(shape[0], tf.int32), seed=SEED)
    assert mixed.shape == shape and labels.shape == [shape[0], 3]
    assert labels.numpy().tolist() == [[0, 1, 0]] * shape[0]

  @pytest.mark.parametrize("known", [True, False])
  def test_in_a_map_with_a_smaller_last_batch(self, known):
    dataset = tf.data.Dataset.from_tensor_slices((images_of(np.uint8), LABELS)).batch(3)
    if not known:
      dataset = dataset.map(lambda *each: tf.numpy_function(lambda *values: values, each, (tf.uint8, tf.int64)))
    dataset = dataset.map(augment.mixup_or_cutmix(num_classes=10), tf.data.AUTOTUNE)
    shape = [None, 6, 10, 3] if known else [None] * 4
    assert [spec.shape.as_list() for spec in dataset.element_spec] == [shape, [None, 10]]
    batches = list(dataset.as_numpy_iterator())
    assert [len(images) for images, _ in batches] == [3, 3, 2]
    for _, labels in batches:
      np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)
    # Without a seed, the draws differ in each epoch.
    assert any((one[0] != other[0]).any() for one, other in zip(batches, dataset.as_numpy_iterator()))


class TestComponents:
  @pytest.fixture
  def images(self):
    return images_of(np.uint8)

  @pytest.fixture
  def mixed(self, images):
    """Returns a function that mixes values in the same way as the images of the batch."""
    lambdas, partners = drawn(images, 0.2)
    return lambda values: blended(lambdas, values, partners)

  def test_tuples_of_images_labels_and_weights_are_mixed(self, images, mixed):
    weights = np.linspace(0, 1, 8, dtype=np.float32)
    made = augment.mixup(num_classes=10)(images, LABELS, weights, seed=SEED)
    np.testing.assert_array_equal(made[1], mixed(np.eye(10, dtype=np.float32)[LABELS]))
    np.testing.assert_array_equal(made[2], mixed(weights))
    dataset = tf.data.Dataset.from_tensors((images, LABELS, weights)).map(augment.mixup(num_classes=10))
    assert [spec.dtype for spec in dataset.element_spec] == [tf.uint8, tf.float32, tf.float32]
    assert len(list(dataset)) == 1

  def test_dicts_are_mixed(self, images, mixed):
    weights, names = np.linspace(0, 1, 8), np.array(list("abcdefgh"))
    element = {"image": images, "label": LABELS, "weight": weights, "id": names, "coarse": LABELS // 2}
    made = augment.mixup(num_classes=10, components={"id": None, "coarse": "label"})(element, seed=SEED)
    np.testing.assert_array_equal(made["image"], augment.mixup()(images, seed=SEED))
    np.testing.assert_array_equal(made["label"], mixed(np.eye(10, dtype=np.float32)[LABELS]))
    np.testing.assert_array_equal(made["coarse"], mixed(np.eye(10, dtype=np.float32)[LABELS // 2]))
    np.testing.assert_array_equal(made["weight"], mixed(weights.astype(np.float32)))
    assert made["id"] is names and element["image"] is images and element["label"] is LABELS

  def test_dicts_within_a_tuple_are_mixed(self, images, mixed):
    heads = {"a": LABELS, "b": np.eye(8, dtype=np.float32), "c": LABELS}
    fn = augment.mixup(num_classes=10, components={1: {"b": "weight", "c": None}})
    _, made = fn(images, heads, seed=SEED)
    np.testing.assert_array_equal(made["a"], mixed(np.eye(10, dtype=np.float32)[LABELS]))
    np.testing.assert_array_equal(made["b"], mixed(heads["b"]))
    assert made["c"] is LABELS
    assert augment.mixup(components={1: None})(images, heads, seed=SEED)[1]["a"] is LABELS
    inputs, labels = augment.mixup(num_classes=10, components={"age": "weight"})(
      {"images": images, "age": np.ones(8)}, LABELS, seed=SEED
    )
    assert set(inputs) == {"images", "age"} and labels.shape == [8, 10]

  @pytest.mark.parametrize(
    "rest, given, error, says",
    [
      ([LABELS], {}, ValueError, "whole numbers, int64, which cannot be mixed. Pass num_classes="),
      (
        [LABELS.astype(np.float32)],
        {"num_classes": 10},
        ValueError,
        r"must be \[batch, 10\] as floats.*tf.cast\(labels, tf.int32\)",
      ),
      ([np.eye(8, dtype=np.float32)], {"num_classes": 10}, ValueError, r"\(8, 8\).*leave num_classes out"),
      ([np.eye(8, dtype=np.int32)], {"num_classes": 8}, ValueError, r"as numbers of classes, got shape \(8, 8\)"),
      ([LABELS > 3], {}, TypeError, r"got dtype bool. Convert it with tf.cast\(..., tf.float32\)"),
      ([LABELS[:7]], {"num_classes": 10}, ValueError, r"got shape \(7,\) for 8 images"),
      ([np.float32(3)], {}, ValueError, r"got shape \(\) for 8 images"),
      ([np.ones([8, 6, 10], np.float32)], {}, ValueError, r"got shape \(8, 6, 10\).*Masks, boxes"),
      (
        [{"boxes": np.ones([8, 4], np.float32)}],
        {},
        ValueError,
        r"1\['boxes'\].*components=\{1: \{\"boxes\": None\}\}",
      ),
      ([tf.ragged.constant([[1.0]] * 8)], {}, TypeError, "dense tensor, got a RaggedTensor"),
      (
        [LABELS, LABELS],
        {"num_classes": 10},
        ValueError,
        r'component 2 is.*components=\{2: "weight"\} to mix it, or components=\{2: None\}',
      ),
      (
        [LABELS, LABELS],
        {"num_classes": 10, "components": {2: "weight"}},
        TypeError,
        "must be floats, got dtype int64",
      ),
      ([np.eye(8)], {"components": {2: None}}, ValueError, "there is no 2 with the images, but 1"),
    ],
  )
  def test_what_cannot_be_mixed_is_refused(self, images, rest, given, error, says):
    with pytest.raises(error, match=f"of mixup.*{says}"):
      augment.mixup(**given)(images, *rest, seed=SEED)

  @each_function
  @pytest.mark.parametrize(
    "name, value",
    [
      ("mask", np.ones([8, 6, 10], np.uint8)),
      ("boxes", np.ones([8, 5, 4], np.float32)),
      ("category", LABELS),
    ],
  )
  def test_unnamed_components_are_refused(self, images, make, name, value):
    element = {"image": images, "label": LABELS, name: value}
    with pytest.raises(ValueError, match=rf"component '{name}' is.*\"{name}\": None.*cannot be mixed"):
      make(num_classes=10)(element, seed=SEED)
    made = make(num_classes=10, components={name: None})(element, seed=SEED)
    assert made[name] is value

  @pytest.mark.parametrize(
    "values, given, says",
    [
      ([0, 10], {"num_classes": 10}, "classes from 0 to 9 for num_classes=10, got 10"),
      ([-1, 3], {"num_classes": 10}, "got -1"),
      ([1, 2, 3], {"num_classes": 10}, r"\[batch\] or \[batch, 1\] with a batch of 2 images, got shape \[3\]"),
      ([[1.0, 2.0]] * 2, {"num_classes": 10}, r"must be \[batch, 10\].*got shape \[2,2\]"),
      ([[[1.0]], [[2.0]]], {}, r"rank|got shape"),
    ],
  )
  def test_bad_labels_are_refused_at_run_time(self, values, given, says):
    dtype = np.asarray(values).dtype
    dataset = tf.data.Dataset.from_tensors((images_of(np.uint8, 2), tf.constant(values)))
    dataset = dataset.map(lambda images, labels: (images, tf.numpy_function(lambda each: each, [labels], labels.dtype)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
      list(dataset.map(augment.mixup(**given)))
    assert dtype.kind in "if"


class TestRefusal:
  @each_function
  @pytest.mark.parametrize(
    "images, error, says",
    [
      (tf.zeros([4, 4, 3], tf.uint8), ValueError, r"shape \(4, 4, 3\). Put it after batch"),
      (tf.zeros([2, 3, 4, 4, 3], tf.uint8), ValueError, r"shape \(2, 3, 4, 4, 3\)"),
      (tf.zeros([2, 4, 4, 3], tf.uint16), TypeError, r"got dtype uint16"),
      (tf.zeros([2, 4, 4, 3], tf.bfloat16), TypeError, r"tf.cast\(images, tf.float32\)"),
    ],
  )
  def test_bad_images_are_refused(self, make, images, error, says):
    with pytest.raises(error, match=f"images of {make.__name__} .*{says}"):
      tf.data.Dataset.from_tensors(images).map(make())

  @each_function
  @pytest.mark.parametrize(
    "alpha, error", [(0, ValueError), (-1.0, ValueError), (np.nan, ValueError), ("1", TypeError), (True, TypeError)]
  )
  def test_bad_alpha_is_refused(self, make, alpha, error):
    with pytest.raises(error, match=f"alpha of {make.__name__} must be a number from 0.001 to 1,000, got {alpha!r}"):
      make(alpha)

  @pytest.mark.parametrize(
    "given, error, says",
    [
      ({"num_classes": 1}, ValueError, "num_classes of mixup must be a whole number from 2"),
      ({"components": {0: "label"}}, ValueError, "must not name the images"),
      ({"components": {"image": None}}, ValueError, "must not name the images"),
      ({"components": {1: "mask"}}, ValueError, 'must give 1 the kind "label" or "weight", or None'),
    ],
  )
  def test_bad_arguments_are_refused(self, given, error, says):
    with pytest.raises(error, match=says):
      augment.mixup(**given)

  @pytest.mark.parametrize(
    "prob, error", [(1.1, ValueError), (-0.1, ValueError), (np.nan, ValueError), ("1", TypeError), (True, TypeError)]
  )
  def test_bad_switch_prob_is_refused(self, prob, error):
    with pytest.raises(error, match="switch_prob of mixup_or_cutmix must be a number from 0 to 1, got"):
      augment.mixup_or_cutmix(switch_prob=prob)

  @each_function
  def test_mixing_within_a_list_of_layers_is_refused(self, make):
    for function in (
      augment.compose,
      lambda layers: augment.split(layers, 1),
      lambda layers: tf.data.Dataset.range(8).refurbish(layers),
      lambda layers: rtf.advise(tf.data.Dataset.range(8), layers, batch_size=2),
    ):
      with pytest.raises(ValueError, match=rf"{make.__name__} at position 1 also mixes the labels.*\.batch\(B\)\.map"):
        function([augment.random_flip(), make()])

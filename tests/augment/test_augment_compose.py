"""Compositions of augmentation layers, their split in two, and batches of images: results, seeds, labels and errors."""

import collections
import functools
import inspect
import pickle

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment import composition
from refurbish_tf.augment.native_layers import HalfAugmented
from support import cases
from support.checkpoints import restore, save
from support.images import IMAGES, make_seeds, mapped
from support.warned import told


def _adding(number):
  return lambda image: image + np.uint8(number)


def _doubling(image):
  return image * np.uint8(2)


def _noting(noted):
  def note(image, seed):
    noted.append(tuple(seed.numpy()))
    return image

  return note


def _noisy(image, seed):
  return image + tf.cast(tf.random.stateless_uniform(image.shape, seed, 0, 200, tf.int32), tf.uint8)


PIPELINE = [_noisy, _adding(3), _noisy, augment.random_crop(padding=2), augment.random_flip()]
PICKLED = [*augment.rand_augment(1), _noisy, augment.random_crop(padding=2), augment.random_flip()]


class TestCompose:
  def test_applies_the_layers_in_order(self):
    image = tf.fill([2, 2, 3], np.uint8(10))
    assert (augment.compose([_adding(3), _doubling])(image).numpy() == 26).all()
    assert (augment.compose((_doubling, _adding(3)))(image).numpy() == 23).all()

  def test_has_a_seed_only_if_a_layer_takes_one(self):
    seeded = inspect.signature(augment.compose([_adding(3), augment.random_flip()])).parameters
    assert list(seeded) == ["image", "rest", "seed"]
    assert seeded["seed"].kind is inspect.Parameter.KEYWORD_ONLY
    unseeded = inspect.signature(augment.compose([_adding(3), tf.io.decode_png])).parameters
    assert list(unseeded) == ["image", "rest"]

  @pytest.mark.parametrize(
    "layer",
    [
      tf.image.random_flip_left_right,
      tf.keras.layers.RandomFlip().call,
      functools.partial(tf.image.random_brightness, max_delta=0.2),
      lambda image, seed=None, /: image,
    ],
  )
  def test_functions_with_a_stateful_seed_get_no_seed(self, layer):
    """The parameter `seed` of these TensorFlow and Keras functions is a number, unlike the seeds of refurbish."""
    fn = augment.compose([layer, lambda image: tf.cast(image, tf.uint8), augment.random_flip()])
    dataset = tf.data.Dataset.from_tensors(np.zeros([4, 4, 3], np.uint8)).map(lambda image: fn(image, seed=[7, 0]))
    assert next(iter(dataset)).shape == [4, 4, 3]

  def test_compositions_within_a_composition_have_seeds_of_their_own(self):
    noted = []
    pair = augment.compose([_noting(noted)] * 2)
    augment.compose([pair, _noting(noted), pair])(np.zeros([1, 1, 3], np.uint8), seed=[7, 0])
    assert len(set(noted)) == 5

  def test_passes_labels_through(self):
    fn = augment.compose(PIPELINE)
    image = IMAGES["noise"]
    alone = fn(image, seed=[7, 0])
    assert tf.is_tensor(alone)
    with_rest = fn(image, 3, "three", seed=[7, 0])
    assert with_rest[1:] == (3, "three")
    np.testing.assert_array_equal(with_rest[0], alone)

  def test_works_on_the_image_of_a_dict(self):
    fn = augment.compose(PIPELINE)
    image = IMAGES["noise"]
    element = collections.OrderedDict(label=3, image=image, name="three")
    result = fn(element, seed=[7, 0])
    assert type(result) is collections.OrderedDict and list(result) == ["label", "image", "name"]
    assert (result["label"], result["name"]) == (3, "three")
    np.testing.assert_array_equal(result["image"], fn(image, seed=[7, 0]))
    assert element["image"] is image
    result, label = fn({"image": image}, 3, seed=[7, 0])
    assert label == 3
    np.testing.assert_array_equal(result["image"], fn(image, seed=[7, 0]))
    partial_fn, final_fn = augment.split(PIPELINE, 3)
    result = final_fn(partial_fn({"image": image, "label": 3}, seed=[7, 0]), seed=[7, 0])
    assert result["label"] == 3
    np.testing.assert_array_equal(result["image"], fn(image, seed=[7, 0]))

  def test_works_in_dataset_map_without_a_seed(self):
    encoded = [tf.io.encode_png(image).numpy() for image in (IMAGES["noise"], IMAGES["odd noise"])]
    dataset = tf.data.Dataset.from_tensor_slices((encoded, [0, 1])).map(
      augment.compose([functools.partial(tf.io.decode_png, channels=3), _doubling])
    )
    for (image, label), expected in zip(
      dataset.as_numpy_iterator(), (IMAGES["noise"], IMAGES["odd noise"]), strict=True
    ):
      np.testing.assert_array_equal(image, expected * np.uint8(2))
      assert label in (0, 1)

  def test_takes_the_stateless_functions_of_tf_image(self):
    image = IMAGES["noise"]
    contrast = functools.partial(tf.image.stateless_random_contrast, lower=0.2, upper=1.8)
    results = mapped(augment.compose([contrast]), image, make_seeds(9))
    assert len({result.tobytes() for result in results}) == 9

  def test_leaves_a_seed_that_is_bound_already(self):
    bound = functools.partial(augment.random_flip(), seed=[1, 0])
    fn = augment.compose([bound])
    assert "seed" not in inspect.signature(fn).parameters
    np.testing.assert_array_equal(fn(IMAGES["noise"]), IMAGES["noise"][:, ::-1])

  def test_layers_may_be_written_for_autograph(self):
    def brighten_dark(image, seed):
      if tf.reduce_max(image) < 128 and seed[0] != 0:
        return image + np.uint8(100)
      return image

    fn = augment.compose([brighten_dark])
    dataset = tf.data.Dataset.from_tensor_slices(np.stack([IMAGES["black"], IMAGES["white"]]))
    dark, bright = dataset.map(lambda image: fn(image, seed=[7, 0]))
    assert (dark.numpy() == 100).all() and (bright.numpy() == 255).all()

  def test_refuses_a_dict_without_image(self):
    with pytest.raises(ValueError, match=r"^image .*\['label', 'picture'\]"):
      augment.compose([_doubling])({"picture": IMAGES["noise"], "label": 3})


class TestSplit:
  def test_all_of_it_may_be_partial(self):
    partial_fn, final_fn = augment.split(PIPELINE, len(PIPELINE))
    assert final_fn is None
    expected = augment.compose(PIPELINE)(IMAGES["noise"], seed=[7, 0])
    np.testing.assert_array_equal(partial_fn(IMAGES["noise"], seed=[7, 0]), expected)

  def test_each_part_has_a_seed_only_if_its_layers_take_one(self):
    partial_fn, final_fn = augment.split([_doubling, augment.random_flip()], 1)
    assert "seed" not in inspect.signature(partial_fn).parameters
    assert "seed" in inspect.signature(final_fn).parameters
    partial_fn, final_fn = augment.split([augment.random_flip(), _doubling], 1)
    assert "seed" in inspect.signature(partial_fn).parameters
    assert "seed" not in inspect.signature(final_fn).parameters

  @pytest.mark.parametrize(
    "at, said, error",
    cases.refused(
      ValueError=[(0, "5.* 0.*r=1"), (6, "5.* 6"), (-1, "5.* -1")],
      TypeError=[(1.0, "5.* 1.0"), ("1", "'1'"), (None, "None"), (True, "True")],
    ),
  )
  def test_refuses_an_invalid_split_position(self, at, error, said):
    with pytest.raises(error, match=f"^at .*{said}"):
      augment.split(PIPELINE, at)


@pytest.mark.parametrize(
  "whose, function", [("compose", augment.compose), ("split", functools.partial(augment.split, at=1))]
)
@pytest.mark.parametrize(
  "given, error, said",
  [
    ([], ValueError, "at least one"),
    (augment.random_flip(), TypeError, r"list .*random_flip\(\)"),
    ([[], ([],)], ValueError, "at least one"),
    (HalfAugmented(1, 2), TypeError, "list .*HalfAugmented"),
    ([_doubling, [_doubling, (_doubling, 3)]], TypeError, "3 at position 3 of 4"),
    ([_doubling, HalfAugmented(1, 2)], TypeError, "HalfAugmented.* at position 1 of 2"),
  ],
)
def test_refuses_layers(whose, function, given, error, said):
  with pytest.raises(error, match=f"^layers of {whose} .*{said}"):
    function(given)


class TestLists:
  """A nested list is equivalent to its members, and two lists are equivalent to a stage's two functions."""

  NESTED = [[_noisy, (_adding(3), [_noisy])], [], (augment.random_crop(padding=2),), augment.random_flip()]

  def test_members_have_positions_of_their_own(self):
    seeds, image = make_seeds(20), IMAGES["noise"]
    expected = mapped(augment.compose(PIPELINE), image, seeds)
    np.testing.assert_array_equal(mapped(augment.compose(self.NESTED), image, seeds), expected)
    for at in range(1, 5):
      partial_fn, final_fn = augment.split(self.NESTED, at)
      parts = mapped(lambda image, seed: final_fn(partial_fn(image, seed=seed), seed=seed), image, seeds)
      np.testing.assert_array_equal(parts, expected)
    with pytest.raises(ValueError, match="^at .* from 1 to 5"):
      augment.split(self.NESTED, 6)

  def test_adjacent_layers_of_two_lists_are_one_op(self):
    fn = tf.function(augment.compose([[augment.random_crop(padding=2)], [[augment.random_flip()]]]))
    graph = fn.get_concrete_function(tf.TensorSpec([8, 8, 3], tf.uint8), seed=tf.TensorSpec([2], tf.int32)).graph
    assert [op.type for op in graph.get_operations() if "Refurbish" in op.type] == ["RefurbishTf>ImageLayers"]

  def test_functions_can_be_pickled(self):
    """Spawned processes need this. It works if the layers can be pickled. A copy has the same draws and seeds."""
    image, mask = tf.constant(IMAGES["noise"]), tf.ones(IMAGES["noise"].shape[:2], tf.int32)
    functions = [
      *augment.split(PICKLED, 2),
      augment.compose(PICKLED[:3], targets={1: "mask"}),
      augment.compose([augment.resize((5, 5))]),
    ]
    for fn in functions:
      sent = pickle.loads(pickle.dumps(fn))
      seed = {"seed": [7, 0]} if "seed" in inspect.signature(fn).parameters else {}
      rest = (mask,) if fn is functions[2] else ()
      for expected, actual in zip(
        tf.nest.flatten(fn(image, *rest, **seed)), tf.nest.flatten(sent(image, *rest, **seed))
      ):
        np.testing.assert_array_equal(expected, actual)
      assert hasattr(sent, "draws") == hasattr(fn, "draws") and inspect.signature(sent) == inspect.signature(fn)

  @pytest.mark.parametrize(
    "first, then",
    [
      (PIPELINE[:1], PIPELINE[1:]),
      ([NESTED[0]], NESTED[1:]),
      (tuple(PIPELINE[:4]), (PIPELINE[4],)),
      (NESTED, []),
      (NESTED, None),
      (PIPELINE, ()),
    ],
  )
  def test_lists_passed_to_refurbish_equal_the_functions_of_split(self, first, then):
    functions = augment.split([*first, *(then or [])], len(composition.flattened(first)))
    by_lists, by_functions = _pixels_of_epochs(first, then), _pixels_of_epochs(*functions)
    assert by_lists == by_functions and len(set(by_lists)) >= 12

  def test_a_list_and_a_function_may_be_mixed(self):
    source, flips = (
      tf.data.Dataset.from_tensors((IMAGES["noise"], np.int64(7))),
      [augment.random_flip(p=1), augment.random_flip(p=1)],
    )
    for functions, numbers in (
      ((flips, lambda image, number, epoch: (image, number + epoch)), [7, 8, 9, 10]),
      ((lambda image, number, generation: (image, number + generation), flips), [7, 7, 8, 8]),
    ):
      stage = source.refurbish(*functions, r=2, seed=3, targets={1: None})
      images, found = zip(*stage.repeat(4).as_numpy_iterator())
      assert [*found] == numbers and all((image == IMAGES["noise"]).all() for image in images)

  def test_a_store_treats_lists_and_equal_functions_alike(self, tmp_path):
    """A store warns of another function only if the partial layers differ, however they are given."""
    source = tf.data.Dataset.from_tensors(IMAGES["noise"])
    for functions in ((PIPELINE[1:3], PIPELINE[3:]), augment.split(PIPELINE[1:], 2), (PIPELINE[1:2], PIPELINE[2:])):
      warned = told(lambda given=functions: list(source.refurbish(*given, seed=7, store=tmp_path)))
      assert len(warned) == (len(functions[0]) == 1 if isinstance(functions[0], list) else 0)

  def test_an_empty_list_after_a_function_means_no_final_augmentation(self):
    source = tf.data.Dataset.range(4)
    assert sorted(source.refurbish(lambda x: x + 1, []).as_numpy_iterator()) == [1, 2, 3, 4]

  @pytest.mark.parametrize(
    "first, then, error, said",
    [
      (None, [_doubling], TypeError, "^partial_fn .*function.*at least one layer, got None"),
      ([], [_doubling], ValueError, "^partial_fn .*at least one.*r=1"),
      ([_doubling], [[_doubling, 3]], TypeError, "^layers of refurbish .*3 at position 2 of 3"),
      (3, None, TypeError, "^partial_fn .*function.*list of layers.* 3"),
    ],
  )
  def test_refuses(self, first, then, error, said):
    for stage in (tf.data.Dataset.range(3).refurbish, rtf.refurbish):
      with pytest.raises(error, match=said):
        stage(first, then)


def _pixels_of_epochs(*functions):
  images = np.stack([IMAGES["noise"] + np.uint8(i) for i in range(6)])
  dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(6))).refurbish(*functions, r=2, seed=7)
  return [(image.tobytes(), label) for _ in range(3) for image, label in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
  "layers",
  [[tf.keras.layers.RandomFlip()], [augment.resize((8, 8)), tf.keras.layers.RandomBrightness(0.5), tf.identity]],
)
def test_keras_layers_alone_draw_without_a_seed(layers):
  """The layers draw other numbers for each image and in each epoch, as they do by themselves in `Dataset.map`."""
  image = np.random.default_rng(0).integers(0, 256, [8, 8, 3], np.uint8)
  mapped_images = tf.data.Dataset.from_tensors(image).repeat(20).map(augment.compose(layers))
  epochs = [{made.tobytes() for made in mapped_images.as_numpy_iterator()} for _ in range(2)]
  assert all(len(epoch) > 1 for epoch in epochs) and (len(epochs[0] | epochs[1]) > 20 or len(layers) == 1)
  with pytest.raises(TypeError, match="seed of a composed function must be given"):
    tf.data.Dataset.from_tensors(image).map(augment.compose([*layers, augment.random_flip()]))


def test_error_for_a_missing_seed_says_where_seeds_come_from():
  fn = augment.compose([augment.random_flip()])
  with pytest.raises(TypeError, match="seed of a composed function must be given.*clips=False"):
    tf.data.Dataset.from_tensors(np.zeros([4, 4, 3], np.uint8)).map(fn)
  with pytest.raises(TypeError, match=r"To cache the elements as they are, pass \[lambda image: image\]"):
    tf.data.Dataset.from_tensors(np.zeros([4, 4, 3], np.uint8)).refurbish(None, [augment.random_flip()])


def batched_layers(padding, *normalisation):
  last = [augment.normalize(*normalisation)] if normalisation else []
  return augment.compose([augment.random_crop(padding=padding), augment.random_flip(), *last], clips=False)


def _images(count, height, width, channels=3):
  return np.random.RandomState(0).randint(0, 256, (count, height, width, channels)).astype(np.uint8)


class TestBatches:
  def test_without_seed_each_batch_and_epoch_has_new_draws(self):
    tf.random.set_seed(3)
    images = np.stack([IMAGES["noise"]] * 8)
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(4).map(batched_layers(4))
    assert len({result.tobytes() for results in [*dataset, *dataset] for result in results.numpy()}) > 12

  def test_with_seeds_an_iterator_is_saved(self, tmp_path):
    """This is the recipe in docs/recipes.md. Without seeds TensorFlow refuses to save the iterator."""
    batched = batched_layers(2, 0.5, 0.25)

    def make():
      batches = (
        tf.data.Dataset.from_tensor_slices(_images(12, 4, 4, 3)).refurbish(tf.identity, None, r=2, seed=1).batch(3)
      )
      seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(4)
      return tf.data.Dataset.zip(batches, seeds).map(lambda batch, seeds: batched(batch, seed=seeds[:2])).repeat(3)

    expected = [batch.tobytes() for batch in make().as_numpy_iterator()]
    iterator = iter(make())
    yielded = [next(iterator).numpy().tobytes() for _ in range(6)]
    yielded += [batch.numpy().tobytes() for batch in restore(make(), save(iterator, tmp_path))]
    # The interrupted epoch continues unchanged. In later epochs, Dataset.random draws other numbers after a restore.
    assert yielded[:8] == expected[:8] and len(yielded) == len(expected) == len(set(expected)) == 12
    unseeded = iter(tf.data.Dataset.from_tensor_slices(_images(12, 4, 4, 3)).batch(3).map(batched))
    with pytest.raises(tf.errors.FailedPreconditionError, match="stateful"):
      save(unseeded, tmp_path)

  @pytest.mark.parametrize("shape", [[None, 32, 48, 3], [4, None, 48, 3], [4, 32, None, None], [None] * 4])
  @pytest.mark.parametrize("normalisation", [(), (0.5, 0.25)])
  def test_keeps_the_static_shape(self, shape, normalisation):
    batched = batched_layers(4, *normalisation)
    spec = tf.function(batched).get_concrete_function(tf.TensorSpec(shape, tf.uint8)).structured_outputs
    assert spec.shape.as_list() == shape and spec.dtype == (tf.float32 if normalisation else tf.uint8)

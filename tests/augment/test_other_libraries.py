"""Layers of other libraries and of Keras: they run as in their libraries, or are refused."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.augment import other_libraries
from support import cases

IMAGES = np.random.default_rng(0).integers(0, 256, [4, 8, 6, 3], np.uint8)
SOURCE = tf.data.Dataset.from_tensor_slices(IMAGES)


def made(layers, images=IMAGES, seed=1, **options):
  source = tf.data.Dataset.from_tensor_slices(images)
  return np.array(
    sorted(source.refurbish(layers, r=2, seed=seed, **options).as_numpy_iterator(), key=lambda image: image.tobytes())
  )


def in_order(images):
  return np.array(sorted(images, key=lambda image: image.tobytes()))


# Other libraries. Stand-ins show what arguments a library's transforms get, and what they return.


def of(module, call):
  """An object with the name and the module of a library's class."""
  if call:
    call.__name__ = "__call__"
  return type("Flip", (), {"__module__": module, "__call__": call, "__repr__": lambda self: "Flip(p=1)"})()


ALBUMENTATIONS = of("albumentations.augmentations.geometric", lambda self, image: {"image": image[:, ::-1].copy()})
IMGAUG = of("imgaug.augmenters.flip", lambda self, image: image[:, ::-1].copy())
MONAI = of("monai.transforms.spatial.array", lambda self, image: image[:, :, ::-1].copy())
TORCHVISION = of("torchvision.transforms.v2._geometry", lambda self, image: image)


def flipped(image):
  return image


flipped.__module__ = "kornia.geometry"


@pytest.mark.parametrize(
  ("layer", "told"),
  [
    (TORCHVISION, "got Flip(p=1) of torchvision"),
    (ALBUMENTATIONS, "Flip(p=1) of albumentations"),
    (MONAI, "of monai"),
    (IMGAUG, "of imgaug"),
    (flipped, "flipped of kornia"),
    (functools.partial(TORCHVISION, p=1), "functools.partial(Flip(p=1), p=1) of torchvision"),
    (TORCHVISION.__call__, "of torchvision"),
    (type("Mine", (type(of("torch.nn.modules.module", None)),), {"__module__": "mine"})(), "of torch"),
  ],
)
def test_transforms_that_ignore_tensors_are_refused(layer, told):
  """The error names the argument and the layer, even if the layer is given instead of a list."""
  for what, build in (
    ("layers of refurbish", lambda: SOURCE.refurbish([augment.random_flip(), layer])),
    ("layers of compose", lambda: augment.compose([layer])),
    ("partial_fn", lambda: SOURCE.refurbish(layer)),
    ("augment_fn", lambda: SOURCE.echo(2, "before_augment", augment_fn=layer, batch_size=2)),
  ):
    with pytest.raises(TypeError) as error:
      build()
    assert (
      str(error.value).startswith(what)
      and told in str(error.value)
      and "Put rtf.augment.numpy_layer(" in str(error.value)
    )


@pytest.mark.parametrize("layer", [ALBUMENTATIONS, IMGAUG, MONAI])
@pytest.mark.parametrize("processes", [0, 1])
def test_numpy_layer_calls_transforms_of_libraries(layer, processes):
  np.testing.assert_array_equal(made([augment.numpy_layer(layer, processes=processes)]), in_order(IMAGES[:, :, ::-1]))


@pytest.mark.parametrize("name", ["mask", "segmentation"])
def test_numpy_layer_gives_albumentations_the_targets(name):
  """The targets have albumentations' own names, because it would leave others unchanged."""
  layer = of(
    "albumentations.core",
    lambda self, image, mask: {"image": image[:, ::-1].copy(), "mask": mask[:, ::-1].copy(), "more": 0},
  )
  source = tf.data.Dataset.from_tensor_slices({"image": IMAGES, name: IMAGES[..., 0]})
  for each in source.refurbish([augment.numpy_layer(layer, processes=0)], targets={name: "mask"}).as_numpy_iterator():
    np.testing.assert_array_equal(each["image"][..., 0], each[name])


@pytest.mark.parametrize(
  ("targets", "more", "text"),
  [
    ({"a": "flow"}, (), "cannot take .*'a', a target 'flow'.*your own function"),
    ({"a": "image"}, (), "'a', a target 'image'"),
    ({"a": "mask", "b": "mask"}, (), "'b', a target 'mask'"),
    ({"a": "xyxy"}, (), r"a target 'xyxy', got None.*bbox_params=BboxParams\('pascal_voc'\)"),
    ({"a": "xywh"}, ("pascal_voc",), "got 'pascal_voc'.*'coco'"),
    ({"a": "yxyx"}, ("pascal_voc",), "convert the target"),
    ({"a": "xy"}, (), r"KeypointParams\('xy'\)"),
  ],
)
def test_targets_that_albumentations_would_not_follow_are_refused(targets, more, text):
  layer = of("albumentations.core", None)
  layer.processors = {"bboxes": types.SimpleNamespace(params=types.SimpleNamespace(format=more[0]))} if more else {}
  shapes = {"flow": (4, 8, 6, 2), "image": IMAGES.shape, "mask": (4, 8, 6), "xy": (4, 3, 2)}
  source = tf.data.Dataset.from_tensor_slices(
    {
      "image": IMAGES,
      **{
        name: np.zeros(shapes.get(kind, (4, 3, 4)), np.uint8 if kind in ("mask", "image") else np.float32)
        for name, kind in targets.items()
      },
    }
  )
  with pytest.raises(ValueError, match=text):
    source.refurbish([augment.numpy_layer(layer)], targets=targets)


def test_channels_first_results_are_refused():
  layer = of("albumentations.pytorch", lambda self, image: {"image": np.moveaxis(image, -1, 0).copy()})
  with pytest.raises(tf.errors.InvalidArgumentError, match="Its channels come first.*ToTensorV2"):
    made([augment.numpy_layer(layer, processes=0)])


@pytest.mark.parametrize("layer", [IMGAUG, MONAI, TORCHVISION])
def test_targets_that_a_library_would_not_follow_are_refused(layer):
  source = tf.data.Dataset.from_tensor_slices((IMAGES, IMAGES[..., 0]))
  with pytest.raises(ValueError, match="is called with the image alone, but targets are.*fn\\(image, mask, rng\\)"):
    source.refurbish([augment.numpy_layer(layer)], targets={1: "mask"})


@pytest.mark.parametrize("layer", [ALBUMENTATIONS, MONAI, TORCHVISION])
def test_files_that_are_not_decoded_are_refused(layer):
  with pytest.raises(TypeError, match="Flip of .* must be pixels, got strings.*Decode it first"):
    tf.data.Dataset.from_tensor_slices([b"file"]).refurbish([augment.numpy_layer(layer)])


def test_monai_gets_a_channel_axis_for_images_without_channels():
  layer = of("monai.transforms", lambda self, image: image[:1, ::-1].copy())
  np.testing.assert_array_equal(
    made([augment.numpy_layer(layer, processes=0)], IMAGES[..., 0]), in_order(IMAGES[:, ::-1, :, 0])
  )


def test_transforms_of_dicts_are_refused():
  single = of("monai.transforms.dictionary", None)
  single.keys = ("image",)
  composed, twice = of("monai.transforms.compose", None), of("monai.transforms.compose", None)
  composed.transforms, twice.transforms = (single,), (composed,)
  for layer in single, composed, twice:
    with pytest.raises(TypeError, match="takes a dict.*the page Volumes"):
      augment.numpy_layer(layer)


def test_clips_are_refused_for_libraries_of_single_images():
  with pytest.raises(tf.errors.InvalidArgumentError, match="Call it for each frame"):
    list(tf.data.Dataset.from_tensors(IMAGES).refurbish([augment.numpy_layer(ALBUMENTATIONS, processes=0)]))


@cases.slow
def test_torchvision_itself():
  """Skipped if torchvision cannot be imported: some versions crash if they are imported after TensorFlow."""
  torch = pytest.importorskip("torch")
  transforms = pytest.importorskip("torchvision.transforms.v2")
  layer = transforms.Compose([transforms.RandomHorizontalFlip(p=1), transforms.ColorJitter(0.5)])
  both = [made([augment.numpy_layer(layer, processes=1)]) for _ in range(2)]
  np.testing.assert_array_equal(*both)
  np.testing.assert_array_equal(
    made([augment.numpy_layer(transforms.RandomHorizontalFlip(p=1), processes=1)]), in_order(IMAGES[:, :, ::-1])
  )
  assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("error")
def test_user_functions_are_called_unchanged():
  np.testing.assert_array_equal(made([lambda image: image]), in_order(IMAGES))


class OfTheUsers(type(of("torch.nn", None))):
  """A user's class that inherits from a library's class."""

  def __call__(self, image, rng):
    return image[:, ::-1].copy()

  flip = __call__

  def flip_tensor(self, image):
    return tf.reverse(image, [1])


@pytest.mark.parametrize(
  "layer",
  [
    augment.numpy_layer(OfTheUsers(), processes=0),
    augment.numpy_layer(OfTheUsers().flip, processes=0),
    OfTheUsers().flip_tensor,
  ],
)
def test_methods_added_by_user_subclasses_are_called_unchanged(layer):
  np.testing.assert_array_equal(made([layer]), in_order(IMAGES[:, :, ::-1]))


def test_keras_layers_on_the_torch_backend_are_not_torch_modules():
  layer = type("Rescaling", (type(of("torch.nn", lambda self, image: image)),), {"__module__": "keras.src.layers"})
  assert other_libraries.library_of(layer()) is None


# Keras layers. --------------------------------------------------------------------------------------------------------

FLOATS = IMAGES.astype(np.float32) / 255


@pytest.mark.parametrize(
  "layer",
  [
    keras.layers.GaussianNoise(0.5),
    keras.layers.Dropout(0.5),
    keras.layers.GaussianDropout(0.5),
    keras.Sequential([keras.layers.Rescaling(1.0), keras.layers.GaussianNoise(0.5)]),
  ],
  ids=lambda layer: layer.name,
)
@pytest.mark.parametrize("form", [lambda layer: [layer], lambda layer: layer])
def test_layers_act_as_in_training_and_draw_by_the_seed_of_the_stage(layer, form):
  first = made(form(layer), FLOATS)
  assert not {image.tobytes() for image in first} & {image.tobytes() for image in FLOATS}
  np.testing.assert_array_equal(first, made(form(layer), FLOATS))
  assert not np.array_equal(first, made(form(layer), FLOATS, seed=2))


def test_layers_draw_from_their_own_state_again_outside():
  layer = keras.layers.GaussianNoise(0.5, seed=3)
  made([layer], FLOATS)
  np.testing.assert_array_equal(
    layer(FLOATS, training=True), keras.layers.GaussianNoise(0.5, seed=3)(FLOATS, training=True)
  )


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_layers_that_mix_a_batch_are_refused(name):
  if not hasattr(keras.layers, name):
    pytest.skip(f"Keras {keras.__version__} has no {name}")
  layer = getattr(keras.layers, name)()
  for form in ([layer], [keras.Sequential([layer])], layer):
    with pytest.raises(ValueError, match=rf"{name} of Keras.*rtf.augment.{name.lower()}"):
      SOURCE.refurbish(form)


def test_layers_that_change_their_variables_are_refused():
  with pytest.raises(ValueError, match="BatchNormalization, a Keras layer, changes its variables at each call"):
    made([keras.layers.BatchNormalization()], FLOATS)
  frozen = keras.layers.BatchNormalization(trainable=False)
  frozen.build([None, None, 3])
  assert np.sum(made([frozen], FLOATS)) == pytest.approx(np.sum(FLOATS), rel=1e-2)
  adapted = keras.layers.Normalization(mean=0.5, variance=0.25)
  assert np.ptp(made([adapted], FLOATS)) > 1.5


class Counts(keras.layers.Layer):
  def __init__(self, way):
    super().__init__()
    self.count = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros")
    self.way = way

  def call(self, image):
    return self.way(lambda: (self.count.assign_add(1), image)[1])


@pytest.mark.parametrize(
  "way",
  [
    lambda count: count(),
    lambda count: tf.function(count)(),
    lambda count: tf.cond(tf.random.uniform([]) > 0.5, count, count),
  ],
)
def test_changes_to_integer_variables_and_inside_functions_are_detected(way):
  with pytest.raises(ValueError, match="Counts, a Keras layer, changes its variables"):
    made([Counts(way)], FLOATS)


def test_layers_may_share_a_generator():
  generator = keras.random.SeedGenerator(3)

  class Noise(keras.layers.Layer):
    def __init__(self):
      super().__init__()
      self.generator = generator

    def call(self, image):
      return image + keras.random.normal(image.shape, seed=self.generator)

  class Wrapped(keras.layers.Layer):
    def __init__(self):
      super().__init__()
      self.noise = keras.Sequential([Noise()])

    def call(self, image):
      return self.noise(image)

  layers = keras.Sequential([Noise(), Wrapped()])
  np.testing.assert_array_equal(made([layers], FLOATS), made([layers], FLOATS))
  noise = (made([layers], FLOATS) - made([Noise()], FLOATS)).std()
  assert noise > 0.5


def test_a_user_layer_named_like_a_mixing_layer_is_accepted():
  made([type("CutMix", (keras.layers.Layer,), {"call": lambda self, image: image})()])


def adapted_to(images):
  layer = keras.layers.Normalization()
  layer.adapt(images)
  return layer


def test_undecoded_files_are_refused_for_keras_layers():
  with pytest.raises(TypeError, match="takes numbers, got strings.*Decode it first"):
    made([keras.layers.Rescaling(1 / 255)], [b"file"])
  with pytest.raises(TypeError, match="takes numbers, got strings.*Decode it first"):
    made([keras.layers.RandomFlip()], [b"file"])


def test_a_keras_layer_called_with_the_label_is_refused():
  with pytest.raises(TypeError, match="called with all 2 components.*put it into a list"):
    tf.data.Dataset.from_tensor_slices((FLOATS, [0, 1, 0, 1])).refurbish(keras.layers.RandomFlip())


def test_layers_that_draw_while_traced_are_refused():
  if not hasattr(keras.layers, "AugMix"):
    pytest.skip(f"Keras {keras.__version__} has no AugMix")
  with pytest.raises(ValueError, match="AugMix of Keras at position 0 chooses its operations once"):
    SOURCE.refurbish([keras.layers.AugMix()])


@pytest.mark.parametrize(
  "layer",
  [
    keras.layers.SpatialDropout2D(0.5),
    keras.layers.Conv2D(3, 3, padding="same"),
    keras.Sequential([keras.Input([8, 6, 3]), keras.layers.GaussianNoise(0.5)]),
    keras.Sequential([keras.layers.GaussianNoise(0.5)]),
    adapted_to(FLOATS),
    keras.Sequential([adapted_to(FLOATS)]),
  ],
  ids=lambda layer: layer.name,
)
def test_layers_that_take_batches_get_one_of_a_single_image(layer):
  images = made([layer], FLOATS)
  assert images.shape == FLOATS.shape and not np.array_equal(images, in_order(FLOATS))


def test_a_layer_without_random_numbers_needs_no_seed():
  composed = augment.compose([keras.layers.Rescaling(2.0)])
  np.testing.assert_array_equal(composed(FLOATS[0]), 2 * FLOATS[0])


def test_a_function_in_a_list_that_requires_the_label_is_refused():
  labelled = tf.data.Dataset.from_tensor_slices((IMAGES, [0, 1, 0, 1]))
  with pytest.raises(
    TypeError,
    match="layers of a list are called with the image alone.*missing a required argument: 'label'.*instead of lists",
  ):
    labelled.refurbish([lambda image, label: image])


@pytest.mark.parametrize(
  ("error", "first"),
  [
    (ValueError("This."), "This."),
    (KeyError("this"), "'this'"),
    (AttributeError("This."), "This."),
    (IndexError("This."), "IndexError: This."),
    (tf.errors.NotFoundError(None, None, "This."), "This."),
  ],
)
def test_an_error_within_a_function_comes_first(error, first):
  def fails(image):
    if tf.reduce_sum(image) > 0:  # Because of this `if`, AutoGraph converts the function.
      raise error
    return image

  with pytest.raises(Exception) as raised:
    SOURCE.refurbish(fails)
  assert str(raised.value).startswith(f"{first}\n") and "in user code" in str(raised.value)

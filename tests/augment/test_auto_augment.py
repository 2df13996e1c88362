"""AutoAugment's layers: the policies compared with a second transcription, and the draws counted."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment.native_layers import HalfAugmented
from support import cases
from support.images import IMAGES, TELLING, by_pillow

# The tables are copied from the authors' TensorFlow code. A line has two operations, each with its probability and
# magnitude. In that code even operations that need no magnitude have one.
PUBLISHED = {
  "cifar10": """
        Invert 0.1 7 Contrast 0.2 6
        Rotate 0.7 2 TranslateX 0.3 9
        Sharpness 0.8 1 Sharpness 0.9 3
        ShearY 0.5 8 TranslateY 0.7 9
        AutoContrast 0.5 8 Equalize 0.9 2
        ShearY 0.2 7 Posterize 0.3 7
        Color 0.4 3 Brightness 0.6 7
        Sharpness 0.3 9 Brightness 0.7 9
        Equalize 0.6 5 Equalize 0.5 1
        Contrast 0.6 7 Sharpness 0.6 5
        Color 0.7 7 TranslateX 0.5 8
        Equalize 0.3 7 AutoContrast 0.4 8
        TranslateY 0.4 3 Sharpness 0.2 6
        Brightness 0.9 6 Color 0.2 8
        Solarize 0.5 2 Invert 0.0 3
        Equalize 0.2 0 AutoContrast 0.6 0
        Equalize 0.2 8 Equalize 0.6 4
        Color 0.9 9 Equalize 0.6 6
        AutoContrast 0.8 4 Solarize 0.2 8
        Brightness 0.1 3 Color 0.7 0
        Solarize 0.4 5 AutoContrast 0.9 3
        TranslateY 0.9 9 TranslateY 0.7 9
        AutoContrast 0.9 2 Solarize 0.8 3
        Equalize 0.8 8 Invert 0.1 3
        TranslateY 0.7 9 AutoContrast 0.9 1""",
  "imagenet": """
        Posterize 0.4 8 Rotate 0.6 9
        Solarize 0.6 5 AutoContrast 0.6 5
        Equalize 0.8 8 Equalize 0.6 3
        Posterize 0.6 7 Posterize 0.6 6
        Equalize 0.4 7 Solarize 0.2 4
        Equalize 0.4 4 Rotate 0.8 8
        Solarize 0.6 3 Equalize 0.6 7
        Posterize 0.8 5 Equalize 1.0 2
        Rotate 0.2 3 Solarize 0.6 8
        Equalize 0.6 8 Posterize 0.4 6
        Rotate 0.8 8 Color 0.4 0
        Rotate 0.4 9 Equalize 0.6 2
        Equalize 0.0 7 Equalize 0.8 8
        Invert 0.6 4 Equalize 1.0 8
        Color 0.6 4 Contrast 1.0 8
        Rotate 0.8 8 Color 1.0 2
        Color 0.8 8 Solarize 0.8 7
        Sharpness 0.4 7 Invert 0.6 8
        ShearX 0.6 5 Equalize 1.0 9
        Color 0.4 0 Equalize 0.6 3
        Equalize 0.4 7 Solarize 0.2 4
        Solarize 0.6 5 AutoContrast 0.6 5
        Invert 0.6 4 Equalize 1.0 8
        Color 0.6 4 Contrast 1.0 8
        Equalize 0.8 8 Equalize 0.6 3""",
}
# The meaning of each magnitude, computed by hand from the same code: the name in `PILLOW`, and the parameters.
AT = {
  "AutoContrast": ("auto_contrast", lambda _: (None, None)),
  "Equalize": ("equalize", lambda _: (None, None)),
  "Invert": ("invert", lambda _: (None, None)),
  "Rotate": ("rotate", lambda m: (3 * m, -3 * m)),
  "ShearX": ("shear_x", lambda m: (0.03 * m, -0.03 * m)),
  "ShearY": ("shear_y", lambda m: (0.03 * m, -0.03 * m)),
  "TranslateX": ("translate_x", lambda m: (15 * m / 331, -15 * m / 331)),
  "TranslateY": ("translate_y", lambda m: (15 * m / 331, -15 * m / 331)),
  "Color": ("color", lambda m: (0.1 + 0.18 * m,) * 2),
  "Contrast": ("contrast", lambda m: (0.1 + 0.18 * m,) * 2),
  "Brightness": ("brightness", lambda m: (0.1 + 0.18 * m,) * 2),
  "Sharpness": ("sharpness", lambda m: (0.1 + 0.18 * m,) * 2),
  "Solarize": ("solarize", lambda m: (256 * m // 10,) * 2),
  "Posterize": ("posterize", lambda m: (4 * m // 10,) * 2),
}


def _published(policy):
  """Returns each sub-policy as a pair of distributions of an operation's results on `TELLING`, {bytes: probability}."""
  sub_policies = []
  for line in PUBLISHED[policy].strip().splitlines():
    words = line.split()
    sub_policies.append([_distribution(*words[:3]), _distribution(*words[3:])])
  return sub_policies


def _distribution(operation, probability, magnitude):
  name, parameters = AT[operation]
  distribution = collections.Counter({TELLING.tobytes(): 1 - float(probability)})
  for parameter in parameters(int(magnitude)):
    distribution[by_pillow(name, parameter, TELLING).tobytes()] += float(probability) / 2
  return distribution


class TestPolicy:
  @pytest.mark.parametrize("policy", PUBLISHED)
  @pytest.mark.parametrize("position", [0, 1])
  def test_is_the_published_one(self, policy, position):
    # A sub-policy has 20 equally likely draws, so the counts are exactly proportional to the probabilities.
    published = _published(policy)
    assert len(published) == 25
    layer = augment.auto_augment(policy)[position]
    cells = tf.data.Dataset.range(25 * 20).map(
      lambda cell: layer.pixels(tf.constant(TELLING), [tf.cast(cell, tf.int32)])
    )
    results = [image.tobytes() for image in cells.as_numpy_iterator()]
    for number, sub_policy in enumerate(published):
      counted = collections.Counter(results[20 * number : 20 * (number + 1)])
      expected = {result: 20 * share for result, share in sub_policy[position].items() if share > 1e-9}
      assert counted == pytest.approx(expected), f"operation {position} of sub-policy {number}"


PIPELINE = [*augment.auto_augment("cifar10"), augment.random_crop(padding=2), augment.random_flip()]


class TestSplit:
  @pytest.mark.parametrize("on_disk", cases.some([False, True], 1))
  def test_sub_policy_travels_through_the_cache_store(self, on_disk, tmp_path):
    first_results = [set(firsts) for firsts, _ in _published("cifar10")]
    partial_fn, _ = augment.split(PIPELINE, 1)
    images = tf.data.Dataset.from_tensor_slices(np.stack([TELLING] * 60))
    dataset = images.refurbish(partial_fn, None, r=3, seed=7, store=str(tmp_path) if on_disk else None)
    for _ in range(3):
      drawn = list(dataset.as_numpy_iterator())
      assert all(image.tobytes() in first_results[sub_policy] for image, sub_policy in drawn)
      assert len({sub_policy for _, sub_policy in drawn}) > 15
    assert rtf.stats(dataset)[0].total.cached

  @pytest.mark.parametrize("element", cases.some(["image", "tuple", "dict"], 1))
  def test_elements_of_any_structure_pass_between_the_two_layers(self, element):
    images = tf.data.Dataset.from_tensor_slices(np.stack([TELLING] * 30))
    numbers = tf.data.Dataset.range(30)
    source = {
      "image": images,
      "tuple": tf.data.Dataset.zip(images, numbers),
      "dict": tf.data.Dataset.zip({"image": images, "number": numbers}),
    }[element]
    dataset = source.refurbish(*augment.split(PIPELINE, 1), r=2, seed=7)
    assert dataset.element_spec == source.element_spec
    for _ in range(2):
      assert len(list(dataset)) == 30

  def test_partially_augmented_sample_is_one_component_of_the_element(self):
    partial_fn, _ = augment.split(PIPELINE, 1)
    images = tf.data.Dataset.from_tensors(TELLING)
    spec = images.map(lambda image: partial_fn(image, seed=[7, 0])).element_spec
    assert isinstance(spec, HalfAugmented)
    assert spec.image == tf.TensorSpec([33, 47, 3], tf.uint8) and spec.sub_policy == tf.TensorSpec([], tf.int32)


class TestRefusal:
  @pytest.mark.parametrize("policy", ["svhn", "CIFAR10", "", None, 9, ["cifar10"]])
  def test_unknown_policy_is_refused(self, policy):
    with pytest.raises(ValueError, match=r"^policy of auto_augment .*\['cifar10', 'imagenet'\]") as raised:
      augment.auto_augment(policy)
    assert repr(policy) in str(raised.value)

  @pytest.mark.parametrize(
    "positions, said",
    [
      ("s", "second .*at position 0"),
      ("fcs", "first .*at position 0"),
      ("cs", "second .*at position 1"),
      ("fsf", "first .*at position 2"),
      ("fi", "'cifar10'.*first .*at position 0"),
    ],
  )
  def test_one_layer_without_the_other_is_refused(self, positions, said):
    first, second = augment.auto_augment("cifar10")
    layer = {"f": first, "s": second, "c": augment.random_crop(padding=1), "i": augment.auto_augment("imagenet")[1]}
    for whose in (augment.compose, lambda layers: augment.split(layers, 1)):
      with pytest.raises(ValueError, match=f"^layers of .*{said}"):
        whose([layer[position] for position in positions])

  def test_image_without_a_sub_policy_is_refused(self):
    _, second = augment.auto_augment("cifar10")
    with pytest.raises(TypeError, match="image of auto_augment_second .*ndarray"):
      second(IMAGES["noise"], [7, 0])


def test_layers_of_separate_calls_can_be_paired():
  first, _ = augment.auto_augment("cifar10")
  _, second = augment.auto_augment("cifar10")
  fn = augment.compose([first, second, *augment.auto_augment("imagenet")])
  assert fn(TELLING, seed=[7, 0]).shape == TELLING.shape

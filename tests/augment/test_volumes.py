"""Volumes: layers along their depth, floats of any range, and shapes and results of MONAI that are easily mistaken for
something else."""

import importlib.util
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import ROOT, cases
from support.images import make_seeds

Dataset = tf.data.Dataset
SHAPE = (9, 12, 10, 1)
VOLUME = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)
MASK = VOLUME[..., 0].astype(np.int32)
BOXES = (
  np.tile(np.float32([[1, 2, 8, 9], [0, 0, 5, 5]]), [9, 1, 1])
  + np.arange(9, dtype=np.float32)[:, np.newaxis, np.newaxis] / 10
)
LAYERS = [
  augment.random_depth_crop(5),
  augment.random_crop((8, 6)),
  augment.random_depth_flip(),
  augment.random_flip("horizontal_and_vertical"),
]
KINDS = {1: "mask", 2: "xyxy"}


def test_targets_follow_along_all_axes():
  """The mask holds the volume's own values, so they must stay equal. The boxes encode their slice."""
  fn = augment.compose(LAYERS, KINDS, clips=True)
  began, reversed_ones = set(), set()
  for seed in make_seeds(25):
    volume, mask, boxes = (each.numpy() for each in fn(VOLUME, MASK, BOXES, seed=seed))
    assert volume.shape == (5, 8, 6, 1) and mask.shape == (5, 8, 6) and boxes.shape == (5, 2, 4)
    np.testing.assert_array_equal(volume[..., 0], mask)
    slices = volume[:, 0, 0, 0] // 120
    assert np.abs(np.diff(slices)).tolist() == [1] * 4
    began.add(slices.min())
    reversed_ones.add(slices[0] > slices[1])
    whole = augment.compose([augment.random_depth_crop(5), augment.random_depth_flip(0)], {1: "xyxy"}, clips=True)(
      VOLUME, BOXES, seed=seed
    )
    np.testing.assert_array_equal(whole[1][:, 0, 0] * 10 - 10, whole[0][:, 0, 0, 0] // 120)
  assert began == set(range(5)) and reversed_ones == {True, False}


@pytest.mark.parametrize("at", range(1, 4))
def test_any_split_gives_the_same(at):
  fn = augment.compose(LAYERS, KINDS, clips=True)
  partial, final = augment.split(LAYERS, at, KINDS, clips=True)
  for seed in make_seeds(5):
    for one, other in zip(
      fn(VOLUME, MASK, BOXES, seed=seed), final(*partial(VOLUME, MASK, BOXES, seed=seed), seed=seed)
    ):
      np.testing.assert_array_equal(one, other)


def test_in_the_lists_of_refurbish():
  """Checks static shapes, that the bytes are the same again, and that `describe` mentions the slices."""

  def stage():
    return (
      Dataset.from_tensors((VOLUME, MASK)).repeat(6).refurbish(LAYERS[:2], LAYERS[2:], r=2, seed=7, targets={1: "mask"})
    )

  assert [spec.shape.as_list() for spec in stage().element_spec] == [[5, 8, 6, 1], [5, 8, 6]]
  epochs = [[(volume.tobytes(), mask.tobytes()) for volume, mask in stage().as_numpy_iterator()] for _ in range(2)]
  assert epochs[0] == epochs[1] and len(set(epochs[0])) > 1
  assert "a clip of 5 frames" in rtf.describe(stage())


@pytest.mark.parametrize("p", [0, 1])
def test_a_flip_mirrors_the_z_of_vectors(p):
  normals, limbs = np.random.default_rng(0).normal(size=(2, *VOLUME.shape[:3], 6)).astype(np.float32)
  fn = augment.compose([augment.random_depth_flip(p)], {1: "vectors", 2: "vectors"}, clips=True)
  _, found, pairs = fn(VOLUME, normals[..., :3], limbs, seed=[7, 0])
  np.testing.assert_array_equal(found, normals[::-1, ..., :3] * [1, 1, -1] if p else normals[..., :3])
  np.testing.assert_array_equal(pairs, limbs[::-1] if p else limbs)


def test_flips_have_the_given_probability():
  for p, least, most in ((0, 0, 0), (0.2, 4, 20), (1, 60, 60)):
    flip = tf.function(augment.random_depth_flip(p))
    assert least <= sum(int(flip(VOLUME, seed=tf.constant(seed))[0, 0, 0, 0]) > 0 for seed in make_seeds(60)) <= most


class TestDepthErrors:
  @pytest.mark.parametrize(
    "make, said, error",
    cases.refused(
      ValueError=[
        (lambda: augment.random_depth_crop(10)(VOLUME, seed=[7, 0]), "at least 10 slices, got 9.*SpatialPad"),
        (lambda: augment.random_depth_flip()(VOLUME[0], seed=[7, 0]), r"a volume \[depth, height, width, channels\]"),
        (lambda: augment.random_depth_flip()(VOLUME[np.newaxis], seed=[7, 0]), "one volume .*before batch"),
        (
          lambda: augment.compose([augment.random_depth_flip()]),
          "clips must be True .*random_depth_flip at position 0",
        ),
        (lambda: augment.compose([augment.random_depth_flip()], clips=False), "clips must be True"),
        (
          lambda: augment.compose(LAYERS[:1], {1: "xyxy"}, clips=True)(
            VOLUME, tf.RaggedTensor.from_tensor(BOXES, ragged_rank=1), seed=[7, 0]
          ),
          "ragged component 1.*to_tensor",
        ),
        (lambda: augment.compose(LAYERS[:1], clips=True)(VOLUME, MASK, seed=[7, 0]), "`targets` does not name it"),
      ],
      TypeError=[
        (lambda: augment.random_apply([augment.random_depth_flip()]), "must be layers of rtf.augment that take images"),
      ],
    ),
  )
  def test_are_raised_when_the_layers_are_built(self, make, error, said):
    with pytest.raises(error, match=said):
      make()

  @pytest.mark.parametrize("layer", [augment.random_depth_crop(5), augment.random_depth_flip()], ids=repr)
  def test_are_raised_at_run_time(self, layer):
    def run(volume, mask, targets=None):
      fn = augment.compose([layer], targets, clips=True)
      called = tf.function(
        lambda volume, mask, seed: fn(volume, mask, seed=seed),
        input_signature=[
          tf.TensorSpec([None] * 4, tf.int16),
          tf.TensorSpec([None] * 3 if targets else mask.shape, tf.int32),
          tf.TensorSpec([2], tf.int32),
        ],
      )
      return called(volume, mask, tf.constant([7, 0]))

    assert run(VOLUME, MASK, {1: "mask"})[1].shape[1:] == MASK.shape[1:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="one part for each slice"):
      run(VOLUME, MASK[:7], {1: "mask"})
    with pytest.raises(tf.errors.InvalidArgumentError, match="`targets` does not name it"):
      run(VOLUME, MASK)
    if "crop" in layer.__name__:
      with pytest.raises(tf.errors.InvalidArgumentError, match="at least 5 slices"):
        run(VOLUME[:4], MASK[:4], {1: "mask"})


class TestIntensity:
  IMAGE = np.random.default_rng(3).normal(0, 300, SHAPE).astype(np.float32)

  def test_is_one_factor_and_one_summand_for_all_slices(self):
    """The product and the sum are each rounded to float32 once, as IEEE requires."""
    layer, drawn = augment.compose([augment.random_intensity(0.25, (5, 9))], {1: "mask"}, clips=True), set()
    for seed in make_seeds(20):
      scale, shift = (
        ends[0] + (ends[1] - ends[0]) * int(each) / 2**31
        for each, ends in zip(layer.draws(seed), ((0.75, 1.25), (5, 9)))
      )
      made, mask = layer(self.IMAGE, MASK, seed=seed)
      np.testing.assert_array_equal(made, self.IMAGE * np.float32(scale) + np.float32(shift))
      np.testing.assert_array_equal(mask, MASK)
      drawn.add((scale, shift))
    assert len(drawn) == 20 and min(drawn)[0] < 0.9 and max(drawn)[0] > 1.1

  def test_one_pass_equals_separate_layers(self):
    """Half of the volumes are changed by `random_apply`."""
    layers = [
      augment.random_flip(),
      augment.normalize([40], [400]),
      augment.random_intensity(0.2),
      augment.random_crop(padding=2),
      augment.random_intensity(shift=(1, 1)),
    ]
    for seed in make_seeds(5):
      expected = VOLUME
      for position, layer in enumerate(layers):
        one = augment.compose([*[tf.identity] * position, layer], clips=True)
        expected = one(expected, seed=seed) if layer.takes_seed else one(expected)
      np.testing.assert_array_equal(augment.compose(layers, clips=True)(VOLUME, seed=seed), expected)
    half = augment.random_apply([augment.random_intensity((2, 2))], p=0.5)
    changed = [bool((half(self.IMAGE[0], seed=seed) == 2 * self.IMAGE[0]).numpy().all()) for seed in make_seeds(100)]
    assert 30 <= sum(changed) <= 70

  @pytest.mark.parametrize(
    "make, error, said",
    [
      (lambda: augment.random_intensity(2), ValueError, "scale of random_intensity must be a number from 0 to 1,"),
      (lambda: augment.random_intensity((0.9, 0.8)), ValueError, "the smaller one first"),
      (
        lambda: augment.random_intensity(0.1)(VOLUME[0], seed=[7, 0]),
        TypeError,
        "must be float32, got dtype int16. Put normalize before it",
      ),
      (
        lambda: augment.compose([augment.normalize([0], [400], "float16"), augment.random_intensity(0.1)])(
          VOLUME[0], seed=[7, 0]
        ),
        TypeError,
        "must be float32, got dtype float16",
      ),
    ],
  )
  def test_errors(self, make, error, said):
    with pytest.raises(error, match=said):
      make()


class TestChannelsThatComeFirst:
  def test_cause_a_warning(self):
    fn = augment.compose([augment.random_flip()], clips=True)
    with pytest.warns(
      rtf.PipelineWarning,
      match=r"\(1, 48, 40, 32\).*\[frames, height, width, channels\], with 32 channels"
      r".*tf.transpose\(image, \[1, 2, 3, 0\]\)",
    ):
      fn(np.zeros([1, 48, 40, 32], np.float32), seed=[7, 0])
    with pytest.raises(ValueError, match=r"1 to 64 channels.*volume whose channels come first.*\[1, 2, 3, 0\]"):
      fn(np.zeros([1, 96, 96, 96], np.float32), seed=[7, 0])

  def test_cause_a_warning_at_run_time(self):
    fn = augment.compose([augment.random_flip()], clips=True)
    called = tf.function(
      lambda volume, seed: fn(volume, seed=seed),
      input_signature=[tf.TensorSpec([None] * 4, tf.float32), tf.TensorSpec([2], tf.int32)],
    )
    with pytest.warns(rtf.PipelineWarning, match="-4 for a volume"):
      called(np.zeros([1, 48, 40, 32], np.float32), tf.constant([7, 0]))

  def test_other_shapes_cause_no_warning(self, recwarn):
    fn = augment.compose([augment.random_flip()], clips=True)
    for shape in ((5, 48, 40, 32), (3, 48, 40, 4), (1, 48, 40, 1)):
      fn(np.zeros(shape, np.float32), seed=[7, 0])
    assert not [each for each in recwarn if each.category is rtf.PipelineWarning]


class MetaTensor(np.ndarray):
  """`numpy_layer` recognizes MONAI's class by this name."""


@pytest.mark.parametrize(
  "made, said",
  [
    (lambda image: {"image": image.view(MetaTensor), "mask": image}, "MONAI's MetaTensor.*no affine.*np.asarray"),
    (
      lambda image: {"image": image, "mask": image, "foreground_start_coord": 3},
      r"\['image', 'mask'\], got one with \['image', 'mask', 'fore.*Other entries would be lost",
    ),
    (lambda image: [{"image": image, "mask": image}] * 2, "got a list"),
  ],
)
def test_nothing_that_monai_returns_is_dropped_silently(made, said):
  layer = augment.numpy_layer(lambda image, mask, rng: made(image), processes=0)
  with pytest.raises(tf.errors.InvalidArgumentError, match=said):
    next(
      iter(
        Dataset.from_tensors((VOLUME, MASK.astype(np.int16)[..., np.newaxis])).refurbish([layer], targets={1: "mask"})
      )
    )


# MONAI is not imported here, because some versions end the process if they are imported after TensorFlow.
@cases.slow
@pytest.mark.skipif(importlib.util.find_spec("monai") is None, reason="not installed: monai")
def test_monai_draws_by_sample_and_epoch_alone(monkeypatch):
  """The bytes of images and masks are the same in any process, and after a restart."""
  monkeypatch.syspath_prepend(str(ROOT / "trainings"))
  import volumes

  images, masks = volumes.draw(6, 16, 1)

  def epochs(processes):
    stage = volumes.pipeline(images, masks, volumes.monai_layer(processes), 2, 7)
    return [[each.tobytes() for batch in stage.as_numpy_iterator() for each in batch] for _ in range(2)]

  found = epochs(1)
  assert found == epochs(2) and len({*found[0], *found[1]}) == 12


def test_components_that_depth_layers_leave_unchanged_cause_a_warning():
  """Labels of frames would no longer match the frames that are left. Channels that come first are not a depth."""
  clips = Dataset.from_tensors((np.zeros([8, 16, 16, 3], np.uint8), np.arange(8)))
  for layer in (augment.random_depth_crop(4), augment.random_depth_flip()):
    with pytest.warns(
      rtf.PipelineWarning, match=f"component 1 of shape .8,. stays as it is, although {layer.__name__} changes"
    ):
      clips.refurbish([layer])
    with warnings.catch_warnings(record=True) as warned:
      clips.refurbish([layer], targets={1: None})
    assert not any("stays as it is" in str(each.message) for each in warned)
  with pytest.warns(rtf.PipelineWarning, match="random_depth_flip has the shape .1, 96, 96, 96.*channels come first"):
    augment.random_depth_flip()(np.zeros([1, 96, 96, 96], np.int16), seed=[7, 0])

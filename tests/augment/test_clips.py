"""Clips: all frames of a clip get the same draws, and no clip is taken for a batch, or the other way around."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment import composition
from support.boxes import in_format
from support.images import make_seeds

SIZE, FRAMES = (20, 26), 8
EVERY_LAYER = {
  "random_crop": [augment.random_crop(padding=5)],
  "random_crop, reflected": [augment.random_crop(padding=5, padding_mode="reflect")],
  "random_crop to a size": [
    augment.random_crop((12, 30), pad_if_needed=True),
    augment.random_flip("horizontal_and_vertical", 0.6),
  ],
  "random_flip": [augment.random_flip()],
  "random_resized_crop": [augment.random_resized_crop((12, 30), antialias=True)],
  "resize": [augment.resize((13, 13))],
  "cutout": [augment.cutout(7)],
  "time_shift": [augment.time_shift(rollover=False), augment.time_mask(9), augment.frequency_mask(9)],
  "grayscale": [augment.random_grayscale(0.5)],
  "color_jitter": [augment.color_jitter(0.4, 0.4, 0.2, 0.1)],
  "solarize": [augment.random_solarize()],
  "gaussian_blur": [augment.gaussian_blur()],
  "distortions": [
    augment.random_posterize((2, 6)),
    augment.random_equalize(),
    augment.random_autocontrast(),
    augment.random_invert(),
  ],
  "random_adjust_sharpness": [augment.random_adjust_sharpness((0, 3))],
  "gaussian_noise": [augment.gaussian_noise()],
  "random_photometric_distort": [augment.random_photometric_distort(), augment.random_channel_permutation()],
  "random_erasing": [augment.random_erasing()],
  "random_affine": [augment.random_affine(30, (0.2, 0.2), (0.7, 1.5), 10)],
  "random_apply": [augment.random_apply([augment.random_flip(), augment.random_crop(padding=5)])],
  "trivial_augment": augment.trivial_augment(),
  "center_crop, random_rotate90": [augment.center_crop(18), augment.random_rotate90()],
  "pad": [augment.pad((1, 2), padding_mode="edge")],
  "random_transpose": [augment.random_transpose(1)],
  "random_rotation": [augment.random_rotation(30)],
  "random_zoom_out": [augment.random_zoom_out()],
  "random_resize": [augment.random_resize(9, 30)],
  "random_choice": [augment.random_choice([augment.random_crop(9), augment.random_flip()])],
  "random_order": [augment.random_order([augment.random_crop(padding=4), augment.random_flip()])],
  "random_perspective": [augment.random_perspective()],
  "random_elastic": [augment.random_elastic()],
  "normalize": [augment.normalize()],
  "rand_augment": augment.rand_augment(2, 10),
  "auto_augment, cifar10": augment.auto_augment("cifar10"),
  "auto_augment, imagenet": augment.auto_augment("imagenet"),
  "deep_auto_augment, cifar10": composition.flattened([augment.deep_auto_augment("cifar10")]),
  "deep_auto_augment, imagenet": composition.flattened([augment.deep_auto_augment("imagenet")]),
  "a function between": [
    augment.random_crop(padding=5),
    lambda image: image // 2,
    *augment.rand_augment(1),
    augment.random_flip(),
  ],
}
KINDS = {"mask": "mask", "depth": "bilinear", "boxes": "xyxy", "points": "xy"}


def frame(number):
  rng = np.random.default_rng(number)
  boxes = rng.integers(0, 9, [3, 4]) + [0, 0, 9, 9]
  return {
    "image": rng.integers(0, 256, [*SIZE, 3], np.uint8),
    "mask": rng.integers(0, 9, SIZE),
    "depth": rng.random([*SIZE, 1], np.float32),
    "boxes": boxes.astype(np.float32),
    "points": boxes[:, :2].astype(np.float32),
  }


def stacked(elements):
  return {name: np.stack([each[name] for each in elements]) for name in elements[0]}


def seeded(layers, seed):
  return {"seed": seed} if any(getattr(layer, "takes_seed", False) for layer in layers) else {}


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_frames_are_all_alike(name):
  """Equal frames give equal results, the same as for a single image. Different frames are each changed like a single
  image."""
  layers = EVERY_LAYER[name]
  clips, images = augment.compose(layers, KINDS, clips=True), augment.compose(layers, KINDS)
  for number, seed in enumerate(make_seeds(10)):
    alone = images(frame(number), **seeded(layers, seed))
    found = clips(stacked([frame(number)] * FRAMES), **seeded(layers, seed))
    for key, expected in alone.items():
      np.testing.assert_array_equal(found[key], np.stack([expected] * FRAMES), err_msg=key)
  several = clips(stacked([frame(number) for number in range(3)]), **seeded(layers, [7, 0]))
  for number in range(3):
    for key, expected in images(frame(number), **seeded(layers, [7, 0])).items():
      np.testing.assert_array_equal(several[key][number], expected)


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_refurbish_treats_a_clip_as_one_sample(name):
  """An element of rank 4 is one sample, before and after the split."""
  layers = EVERY_LAYER[name]
  clips = stacked([stacked([frame(number)] * FRAMES) for number in range(4)])
  source = tf.data.Dataset.from_tensor_slices(clips)
  splits = [(layers, [])] if len(layers) < 2 else [(layers, []), (layers[:1], layers[1:])]
  whole = []
  for partial, final in splits:
    stage = source.refurbish(partial, final, r=2, targets=KINDS, seed=7)
    epochs = [list(stage.as_numpy_iterator()) for _ in range(2)]
    whole.append(epochs[0])
    for element in (each for epoch in epochs for each in epoch):
      for value in element.values():
        assert len(value) == FRAMES
        np.testing.assert_array_equal(value, np.repeat(value[:1], FRAMES, axis=0))
    assert len(epochs[0]) == len(epochs[1]) == 4


def test_a_batch_of_clips():
  """The draws of a clip depend on its place in the batch, and every split gives the same result."""
  layers = [*EVERY_LAYER["rand_augment"], *EVERY_LAYER["random_resized_crop"], augment.random_flip()]
  fn = augment.compose(layers, KINDS, clips=True)
  clips = [stacked([frame(3 * number + each) for each in range(3)]) for number in range(4)]
  found = fn(stacked(clips), seed=[7, 0])
  for number, clip in enumerate(clips):
    for key, expected in fn(clip, seed=augment.seed_at([7, 0], number)).items():
      np.testing.assert_array_equal(found[key][number], expected)
  for at in range(1, 4):
    partial, final = augment.split(layers, at, KINDS, clips=True)
    for key, expected in final(partial(stacked(clips), seed=[7, 0]), seed=[7, 0]).items():
      np.testing.assert_array_equal(found[key], expected)


@pytest.mark.parametrize("layers", [[augment.random_flip()], augment.auto_augment("cifar10")], ids=range(2))
def test_draws_and_pixels(layers):
  fn = augment.compose(layers, clips=True)
  clip = np.random.default_rng(3).integers(0, 256, [2, 5, *SIZE, 3], np.uint8)
  np.testing.assert_array_equal(fn.pixels(clip[0], fn.draws([7, 0])), fn(clip[0], seed=[7, 0]))
  np.testing.assert_array_equal(fn.pixels(clip, fn.draws([7, 0], 2)), fn(clip, seed=[7, 0]))
  with pytest.raises(ValueError, match="draws of .* must be"):
    fn.pixels(clip[0], fn.draws([7, 0], 5))
  for number in (0, 1):
    assert fn(clip[:number, :0], seed=[7, 0]).shape == fn(clip[:number], seed=[7, 0]).shape[:1] + [0, *SIZE, 3]


def test_static_shapes():
  fn = augment.compose([augment.random_crop(padding=3), augment.resize((9, 9))], KINDS, clips=True)
  spec = {
    "image": tf.TensorSpec([None, *SIZE, 3], tf.uint8),
    "mask": tf.TensorSpec([None, None, None], tf.uint8),
    "depth": tf.TensorSpec([4, *SIZE, 1], tf.float16),
    "boxes": tf.TensorSpec([None, None, 4], tf.float32),
    "points": tf.TensorSpec([None, 5, 2], tf.float32),
  }
  made = tf.function(lambda element: fn(element, seed=[7, 0])).get_concrete_function(spec).structured_outputs
  assert {name: each.shape.as_list() for name, each in made.items()} == {
    "image": [None, 9, 9, 3],
    "mask": [None, 9, 9],
    "depth": [4, 9, 9, 1],
    "boxes": [None, None, 4],
    "points": [None, 5, 2],
  }


CLIP = tf.data.Dataset.from_tensors(np.zeros([4, *SIZE, 3], np.uint8))


class TestTakenForABatch:
  """The frames of a clip must not silently be augmented differently, as if they were the images of a batch."""

  FUNCTIONS = {
    "compose": lambda: augment.compose([augment.random_flip()]),
    "split": lambda: augment.split([augment.random_flip(), augment.normalize()], 1)[0],
    "compose in a function": lambda: lambda image, seed: augment.compose([augment.random_flip()])(image, seed=seed),
    "a layer": augment.random_flip,
    "a policy": lambda: augment.compose(augment.auto_augment("cifar10")),
    "a layer that draws nothing": lambda: augment.compose([augment.normalize()]),
    "beside targets": lambda: augment.compose([augment.random_flip()], {}),
  }

  @pytest.mark.parametrize("name", FUNCTIONS)
  def test_a_clip_treated_as_a_batch_is_an_error_inside_a_stage(self, name):
    function = self.FUNCTIONS[name]()
    for build in (
      CLIP.refurbish,
      functools.partial(CLIP.refurbish, lambda image: image),
      lambda function: CLIP.echo(2, "after_augment", augment_fn=function, batch_size=2, shuffle_buffer_size=4),
    ):
      with pytest.raises(
        ValueError, match=r"inside a stage of samples, got shape \(4, 20, 26, 3\).*clips=True.*clips=False"
      ):
        build(function)
    assert CLIP.map(
      lambda image: function(image, seed=[7, 0]) if name != "a layer that draws nothing" else function(image)
    )

  @pytest.mark.parametrize("clips", [True, False])
  def test_the_clips_argument_decides_between_clip_and_batch(self, clips):
    frames = np.random.default_rng(3).integers(0, 256, [1, *SIZE, 3], np.uint8).repeat(16, axis=0)
    stage = tf.data.Dataset.from_tensors(frames).refurbish(
      augment.compose([augment.random_crop(padding=5)], clips=clips), seed=7
    )
    found = next(stage.as_numpy_iterator())
    assert (len({each.tobytes() for each in found}) == 1) == clips

  def test_a_source_of_batches_is_warned_of(self):
    images = tf.data.Dataset.from_tensor_slices(np.zeros([8, *SIZE, 3], np.uint8))
    with pytest.warns(rtf.PipelineWarning, match="source of refurbish yields batches"):
      images.batch(4).refurbish([augment.random_flip()])

  def test_a_batch_of_clips_is_no_sample(self):
    clips = tf.data.Dataset.from_tensors(np.zeros([2, 4, *SIZE, 3], np.uint8))
    with pytest.raises(ValueError, match=r"must be one sample.*got shape \(2, 4, 20, 26, 3\)"):
      clips.refurbish([augment.random_flip()])
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 20, 26, 3\).*clips=True"):
      augment.compose([augment.random_flip()])(np.zeros([2, 4, *SIZE, 3], np.uint8), seed=[7, 0])

  class Own(tf.keras.layers.RandomFlip):
    pass

  @pytest.mark.parametrize(
    "layer, name",
    [
      (lambda: tf.keras.layers.RandomBrightness(0.2), "RandomBrightness"),
      (tf.keras.layers.RandAugment, "RandAugment"),
      (lambda: tf.keras.Sequential([tf.keras.layers.RandomFlip()]), "RandomFlip"),
      (Own, "Own"),
      (lambda: tf.keras.layers.Pipeline([tf.keras.layers.RandomContrast(0.2)]), "RandomContrast"),
      (lambda: tf.keras.layers.RandomFlip(), "RandomFlip"),
      (lambda: tf.image.stateless_random_flip_left_right, "stateless_random_flip_left_right"),
      (lambda: functools.partial(tf.image.stateless_random_flip_up_down), "stateless_random_flip_up_down"),
      (lambda: augment.compose([augment.random_flip()]), "a composed function"),
    ],
  )
  def test_functions_that_draw_for_each_frame(self, layer, name):
    with pytest.raises(ValueError, match=f"frames of a clip alike, but {name} at position 1 draws for each frame"):
      CLIP.refurbish([augment.random_flip(), layer()])
    if name in ("RandomFlip", "stateless_random_flip_up_down", "a composed function"):
      tf.data.Dataset.from_tensors(np.zeros([*SIZE, 3], np.uint8)).refurbish([augment.random_flip(), layer()])

  def test_error_for_an_unknown_rank_suggests_ensure_shape(self):
    source = CLIP.map(lambda clip: tf.numpy_function(lambda clip: clip, [clip], tf.uint8))
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=r"tf.ensure_shape\(image, \[None, None, None, 3\]\) for a clip"
    ):
      next(iter(source.refurbish([augment.random_flip()])))
    layers = [lambda clip: tf.ensure_shape(clip, [None, None, None, 3]), augment.random_flip()]
    assert next(iter(source.refurbish(layers))).shape == (4, *SIZE, 3)

  def test_volumes(self):
    """A volume of one channel has the same rank as a clip, and its slices are augmented alike."""
    volume = np.random.default_rng(3).integers(0, 256, [1, 28, 28, 1], np.uint8).repeat(28, axis=0)
    stage = tf.data.Dataset.from_tensors(volume).refurbish(
      [augment.random_crop(padding=6)], [augment.random_flip()], seed=3
    )
    assert len({each.tobytes() for each in next(stage.as_numpy_iterator())}) == 1


class TestFiles:
  FILES = [tf.io.encode_png(frame(number)["image"]).numpy() for number in range(4)]

  @pytest.mark.parametrize(
    "layer",
    [
      augment.decode_random_resized_crop(11),
      augment.decode_random_resized_crop(),
      augment.decode((30, 12)),
      augment.decode(),
      augment.decode(apply_exif_orientation=False),
    ],
    ids=repr,
  )
  @pytest.mark.parametrize(
    "encode", [tf.io.encode_png, functools.partial(tf.io.encode_jpeg, quality=95)], ids=["png", "jpeg"]
  )
  def test_all_files_of_a_clip_use_one_window(self, layer, encode):
    files = [encode(frame(number)["image"]) for number in range(4)]
    for seed in make_seeds(5):
      seeds = {"seed": seed} if "crop" in layer.__name__ else {}
      found = layer(tf.stack(files), **seeds)
      assert found.shape[0] == 4
      for each, file in zip(found, files, strict=True):
        np.testing.assert_array_equal(each, layer(file, **seeds))

  def test_with_targets(self):
    kinds = {"mask": "mask", "boxes": "rel_xyxy"}
    frames = [frame(number) for number in range(4)]
    given = {
      "image": tf.constant(self.FILES),
      "mask": np.stack([each["mask"] for each in frames]),
      "boxes": np.stack([in_format(each["boxes"], "rel_xyxy", SIZE) for each in frames]),
    }
    layers = (
      [augment.decode_random_resized_crop(16, apply_exif_orientation=True), *augment.rand_augment(1)],
      [augment.random_flip()],
    )
    stage = tf.data.Dataset.from_tensors(given).refurbish(*layers, targets=kinds, seed=3)
    assert [spec.shape.as_list() for spec in stage.element_spec.values()] == [[4, 16, 16, 3], [4, 16, 16], [4, 3, 4]]
    fn = augment.compose([*layers[0], *layers[1]], kinds, clips=True)
    alone = augment.compose([*layers[0], *layers[1]], kinds)
    found = fn(given, seed=[7, 0])
    for number, file in enumerate(self.FILES):
      one = {"image": file, "mask": given["mask"][number], "boxes": given["boxes"][number]}
      for key, expected in alone(one, seed=[7, 0]).items():
        np.testing.assert_array_equal(found[key][number], expected)

  def test_a_vector_of_files_is_a_clip_and_not_a_batch(self):
    """As a batch, the files would be decoded with one draw for all, but later layers would draw once for each."""
    for clips in (None, False):
      fn = augment.compose([augment.decode_random_resized_crop(16), augment.random_flip()], clips=clips)
      with pytest.raises(
        ValueError, match=r"file of decode_random_resized_crop must be a single file.*shape \(4,\).*clips=True"
      ):
        fn(tf.constant(self.FILES), seed=[7, 0])
    source = tf.data.Dataset.from_tensors(0).map(
      lambda _: tf.numpy_function(lambda: np.array(self.FILES, object), [], tf.string)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"tf.ensure_shape\(files, \[None\]\)"):
      next(iter(source.refurbish([augment.decode_random_resized_crop(16)])))

  def test_files_of_unequal_size_are_refused(self):
    odd = tf.io.encode_png(np.zeros([20, 25, 3], np.uint8))
    for layer in (augment.decode((9, 9)), augment.decode()):
      with pytest.raises(
        tf.errors.InvalidArgumentError, match="first one of its clip, 20 x 26 .*got 20 x 25.* It is file number 2 of 3"
      ):
        layer(tf.stack([*self.FILES[:2], odd]))

  def test_damaged_and_missing_files_are_refused(self):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a JPEG.* It is file number 1 of 2"):
      augment.decode()(tf.constant([self.FILES[0], b"no image"]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="or a file for each frame of a clip"):
      augment.decode((3, 3))(tf.zeros([0], tf.string))
    with pytest.raises(ValueError, match=r"or the frames of a clip, \[frames\], got shape \(1, 4\)"):
      augment.decode((3, 3))(tf.constant([self.FILES]))


def test_describe_says_clips():
  layers = [augment.random_crop(padding=5)], [augment.random_flip()]
  assert "  sample  a clip of 4 frames, which have the same draws\n" in rtf.describe(CLIP.refurbish(*layers))
  assert "a clip of 4 frames" in rtf.describe(CLIP.map(lambda clip: {"image": clip, "label": 3}).refurbish(*layers))
  assert "a clip of 4 frames" in rtf.describe(CLIP.refurbish(augment.compose(layers[0], clips=True)))
  assert "a clip of any number of frames" in rtf.describe(
    CLIP.map(lambda clip: clip[: tf.random.uniform([], 1, 3, tf.int32)]).refurbish(*layers)
  )
  image = tf.data.Dataset.from_tensors(np.zeros([*SIZE, 3], np.uint8))
  assert "clip" not in rtf.describe(image.refurbish(*layers))
  assert "clip" not in rtf.describe(CLIP.refurbish(augment.compose(layers[0], clips=False)))

"""`offload` of clips, and of images with targets: both sides make what `refurbish` makes on the host alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import cases
from support.checkpoints import restore, save
from support.offloading import policies
from support.unfinished import MEAN, STD

N, SIDES = 11, (9, 7)
LAYERS = [augment.random_crop(padding=2), augment.cutout(3), augment.random_flip(), augment.normalize(MEAN, STD)]
TARGETS = {
  "mask": "mask",
  "depth": "bilinear",
  "boxes": "xyxy",
  "points": {"xy": "xy"},
  "second": "image",
  "score": None,
}


def as_it_is(element):
  return element


def images(*frames):
  return np.random.default_rng(1).integers(0, 256, (N, *frames, *SIDES, 3), np.uint8)


def with_targets(*frames):
  """Returns elements of an image, or a clip, and one target of each form."""
  rng = np.random.default_rng(2)
  corners = np.sort(rng.integers(0, SIDES[1], (N, *frames, 4, 2, 2)), axis=-2)
  return tf.data.Dataset.from_tensor_slices(
    {
      "image": images(*frames),
      "mask": rng.integers(0, 9, (N, *frames, *SIDES), np.int32),
      "depth": rng.random((N, *frames, *SIDES, 1), np.float32),
      "boxes": corners.reshape(N, *frames, 4, 4).astype(np.float32),
      "points": {"xy": rng.integers(0, SIDES[1], (N, *frames, 5, 2)).astype(np.float32)},
      "second": images(*frames)[::-1],
      "score": rng.random((N, *SIDES[::-1])),
      "label": np.arange(N),
    }
  )


def by_label(elements):
  """Returns the bytes of each element without its label, by label."""
  return {
    int(element.pop("label")): [np.asarray(each).tobytes() for each in tf.nest.flatten(element)] for element in elements
  }


def finished(dataset, layers):
  """Yields the elements of batches, with the images that `Offloaded` makes."""
  finish = rtf.keras.Offloaded(layers)
  for batch in dataset:
    batch = {
      "image": finish(batch),
      **{name: value for name, value in batch.items() if name not in ("unfinished_image", "draws", "layers")},
    }
    yield from tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(tf.convert_to_tensor, batch))


@pytest.mark.parametrize(
  "frames, layers", [((), LAYERS), ((), [*policies(), *LAYERS]), ((3,), LAYERS)], ids=["images", "policies", "clips"]
)
def test_image_and_targets_are_those_of_refurbish(frames, layers):
  first = [augment.random_flip("vertical")]
  expected = with_targets(*frames).refurbish(first, layers, r=2, seed=3, targets=TARGETS)
  stage = with_targets(*frames).refurbish(first, None, r=2, seed=3, targets=TARGETS)
  dataset = stage.offload(layers, 4, targets=TARGETS, clips=bool(frames), drop_remainder=False)
  for _ in range(3):
    assert by_label(finished(dataset, layers)) == by_label(expected)
  assert "'mask': mask, moved by the host" in rtf.describe(dataset)
  assert tf.nest.map_structure(lambda value: value.dtype, next(iter(dataset))) == tf.nest.map_structure(
    lambda spec: spec.dtype, dataset.element_spec
  )


def test_labels_that_are_masks():
  """Elements are pairs, as for `fit`. A target is also allowed if the only layer normalizes, which moves nothing."""
  pairs = with_targets().map(lambda element: (element["image"], element["mask"]))
  for layers in (LAYERS, LAYERS[-1:]):
    expected = pairs.refurbish([lambda image: image], layers, r=1, seed=3, targets={1: "mask"})
    expected = {image.numpy().tobytes(): mask.numpy().tobytes() for image, mask in expected}
    dataset = pairs.refurbish([lambda image: image], None, r=1, seed=3, targets={1: "mask"}).offload(
      layers, 11, targets={1: "mask"}
    )
    batch, masks = next(iter(dataset))
    made = rtf.keras.Offloaded(layers)(batch)
    assert {image.numpy().tobytes(): mask.numpy().tobytes() for image, mask in zip(made, masks)} == expected


@pytest.mark.parametrize("frames", [(), pytest.param((3,), marks=cases.only_exhaustive)], ids=["images", "clips"])
def test_the_rest_of_an_epoch_after_a_restart(frames, tmp_path):
  def make():
    stage = with_targets(*frames).refurbish([lambda image: image], None, r=2, seed=3, targets=TARGETS)
    return stage.offload(LAYERS, 2, targets=TARGETS, clips=bool(frames)).repeat(2)

  expected = [by_label(finished([batch], LAYERS)) for batch in make()]
  for step in (1, 3, 6):
    iterator = iter(make())
    for _ in range(step):
      next(iterator)
    rest = restore(make(), save(iterator, tmp_path))
    assert [by_label(finished([batch], LAYERS)) for batch in rest] == expected[step:]


def test_a_model_trains_on_clips():
  clips = tf.data.Dataset.from_tensor_slices((images(3), np.arange(N) % 2))
  model = keras.Sequential(
    [keras.Input([3, *SIDES, 3]), keras.layers.GlobalAveragePooling3D(), keras.layers.Dense(2, "softmax")]
  )
  trained = rtf.keras.with_offloaded(LAYERS, model)
  trained.compile("sgd", "sparse_categorical_crossentropy")
  train = clips.refurbish([lambda clip: clip], None, r=2).offload(LAYERS, 4, clips=True)
  validation = rtf.as_offloaded(clips.batch(4, drop_remainder=True), clips=True)
  assert validation.element_spec[0]["unfinished_image"].shape == [4, 3, 9, 21]
  history = trained.fit(train, validation_data=validation, epochs=2, verbose=0, shuffle=False).history
  assert np.isfinite(history["val_loss"]).all()
  batch, _ = next(iter(validation))
  plain = augment.compose(LAYERS[-1:], clips=True)(images(3)[:4])
  assert trained.finish(batch).numpy().tobytes() == plain.numpy().tobytes()
  single = next(iter(rtf.as_offloaded(clips, clips=True)))[0]
  assert single["unfinished_image"].shape == [3, 9, 21]


@pytest.mark.parametrize(
  "make, arguments, message, error",
  cases.refused(
    ValueError=[
      (lambda: with_targets(), {"targets": TARGETS}, "need a refurbish stage without final_fn directly before"),
      (lambda: with_targets().refurbish(as_it_is, as_it_is), {"targets": TARGETS}, "leave final_fn out"),
      (lambda: with_targets().refurbish(as_it_is), {}, "'mask' of shape .* but `targets` does not name it"),
      (lambda: with_targets().refurbish(as_it_is), {"targets": {"mask": "mask"}}, "`targets` does not name it"),
      (lambda: with_targets().refurbish(as_it_is), {"targets": {"masks": "mask"}}, "no component 'masks'"),
      (lambda: with_targets(), {"targets": {"mask": "box"}}, "one of the kinds mask"),
      (lambda: with_targets(), {"targets": TARGETS, "component": "second"}, "leave component out"),
      (lambda: photo(), {"component": "photo"}, "'w' of shape .9, 7. .*`targets` does not name it"),
      (lambda: with_targets(3), {"targets": {}}, r"\[height, width, 3\], got shape \(3, 9, 7, 3\).*clips=True"),
      (lambda: with_targets(), {"targets": {}, "clips": True}, r"\[frames, height, width, 3\], got shape \(9, 7, 3\)"),
      (lambda: with_targets(3), {"targets": {}, "clips": True, "layers": policies()}, "must not have policies"),
    ],
    TypeError=[(lambda: with_targets(), {"clips": 3}, "clips must be True or False")],
  ),
)
def test_bad_targets_and_clips_are_refused(make, arguments, error, message):
  with pytest.raises(error, match=message):
    make().offload(**{"layers": LAYERS, "batch_size": 4, **arguments})


def test_clips_of_other_lengths_are_an_error():
  lied = tf.data.Dataset.range(2).map(
    lambda i: tf.ensure_shape(tf.py_function(lambda i: images(3 + int(i))[0], [i], tf.uint8), [None, *SIDES, 3])
  )
  with pytest.raises(ValueError, match="one known size"):
    lied.offload(LAYERS, 2, clips=True)


def photo():
  """Returns elements whose image has an unusual name, with weights that do not move."""
  return with_targets().map(
    lambda element: ({"photo": element["image"], "w": element["depth"][..., 0]}, element["label"])
  )


def test_an_image_of_another_name():
  batch, _ = next(iter(photo().offload(LAYERS, 4, component="photo", targets={"w": None})))
  assert batch["w"].shape == [4, *SIDES]

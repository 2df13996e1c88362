"""Fixes suggested by errors about images and targets: each is accepted, and keeps the input's content."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support.loaders import numpy_loader
from support.warned import told

SEED = [7, 0]
FLIP = augment.random_flip()
LAYERS = [FLIP]
SLICES = tf.data.Dataset.from_tensor_slices


def of_values(values):
  """Returns an image with each of these values in three channels."""
  values = np.asarray(values)
  return np.repeat(values.reshape(4, -1, 1), 3, -1)


def offloaded(image):
  (batch,) = tf.data.Dataset.from_tensors(image).offload(LAYERS, 1, num_replicas=1, device_fraction=1)
  return batch["unfinished_image"]


def finished(image):
  return next(iter(rtf.as_offloaded(tf.data.Dataset.from_tensors(image))))["unfinished_image"]


BATCHED = augment.compose([FLIP], clips=False)
CALLS = {"layer": lambda image: FLIP(image, seed=SEED), "batch": lambda image: BATCHED(image[None], seed=SEED)}
# Functions that accept only uint8 images.
OF_UINT8 = {
  "policy": lambda image: augment.deep_auto_augment([[("random_flip", None, 1.0)]])[0](image, seed=SEED),
  "offload": offloaded,
  "as_offloaded": finished,
}
ROUNDED = "tf.saturate_cast(tf.round(image), tf.uint8)"
SCALED = "tf.image.convert_image_dtype(image, tf.uint8, saturate=True)"
CAST = "tf.cast(image, tf.uint8)"


@pytest.mark.parametrize("call", OF_UINT8.values(), ids=OF_UINT8)
@pytest.mark.parametrize(
  "image, condition, remedy, expected",
  [
    (np.linspace(0, 1, 256, dtype=np.float32), "from 0 to 1", SCALED, np.arange(256)),
    (np.linspace(-0.1, 1.1, 256).astype(np.float64), "from 0 to 1", SCALED, None),  # For example, after a cubic resize.
    (np.arange(256, dtype=np.float32) - np.float32(0.01), "from 0 to 255", ROUNDED, np.arange(256)),
    (
      np.arange(0, 65536, 256, dtype=np.uint16),
      "65,535",
      "tf.image.convert_image_dtype(image, tf.uint8)",
      np.arange(256),
    ),
    (np.arange(256, dtype=np.uint16), "from 0 to 255", CAST, np.arange(256)),
    (np.arange(256), "from 0 to 255", CAST, np.arange(256)),
    (np.arange(256) % 2 > 0, "* 255", f"{CAST} * 255", np.array([0, 255])),
  ],
)
def test_remedies_for_image_dtypes_work(call, image, condition, remedy, expected):
  image = of_values(image)
  with pytest.raises(TypeError, match="uint8(, got| images, got)") as raised:
    call(image)
  assert condition in str(raised.value) and remedy in str(raised.value)
  result = np.unique(call(eval(remedy)))
  if expected is None:  # Black stays black, and white stays white.
    assert len(result) > 200 and result.min() == 0 and result.max() == 255
  else:
    np.testing.assert_array_equal(result, expected)


GREY = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)
COLORED, WIDE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3), np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
POLICY = lambda image: augment.rand_augment(1)[0](image, seed=SEED)


@pytest.mark.parametrize(
  "call, image, remedies",
  [
    (CALLS["layer"], GREY, ["image[..., tf.newaxis]"]),
    (CALLS["batch"], GREY, ["images[..., tf.newaxis]"]),
    (CALLS["layer"], np.stack([COLORED[None]] * 2), ["tf.reshape(image, tf.concat([[-1], tf.shape(image)[-3:]], 0))"]),
    (POLICY, GREY, ["image[..., tf.newaxis]", "tf.image.grayscale_to_rgb(image)"]),
    (POLICY, COLORED[..., [0, 1, 2, 2]], ["image[..., :3]"]),
    (POLICY, WIDE.transpose(2, 0, 1), ["tf.transpose(image, [1, 2, 0])"]),
    (POLICY, WIDE.transpose(2, 0, 1)[None], ["tf.transpose(image, [0, 2, 3, 1])"]),
    (POLICY, np.stack([GREY] * 5), ["image[..., tf.newaxis]", "tf.image.grayscale_to_rgb(image)"]),
    (offloaded, GREY, ["image[..., tf.newaxis]", "tf.image.grayscale_to_rgb(image)"]),
    (offloaded, COLORED[..., [0, 1, 2, 2]], ["image[..., :3]"]),
    (finished, GREY[..., None], ["tf.image.grayscale_to_rgb(image)"]),
    (finished, WIDE.transpose(2, 0, 1), ["tf.transpose(image, [1, 2, 0])"]),
  ],
)
def test_remedies_for_image_shapes_work(call, image, remedies):
  values, image = np.unique(image), tf.constant(image)
  for remedy in remedies:
    with pytest.raises(ValueError, match="got shape") as raised:
      call(image)
    assert remedy in str(raised.value) and "Decode" not in str(raised.value)
    image = eval(remedy, {"image": image, "images": image, "tf": tf})
  if call is not POLICY:  # POLICY changes colours.
    np.testing.assert_array_equal(np.unique(call(image)), values)
  else:
    assert call(image).shape == image.shape


@pytest.mark.parametrize(
  "image, remedy",
  [
    (np.stack([GREY] * 5), "image[..., tf.newaxis]"),
    (np.zeros([128, 48, 64], np.uint8), "image[..., tf.newaxis]"),
    (WIDE.transpose(2, 0, 1), "tf.transpose(image, [1, 2, 0])"),
    (WIDE.transpose(2, 0, 1)[None], "tf.transpose(image, [0, 2, 3, 1])"),
    (np.zeros([13, 60, 64], np.uint8), "tf.transpose(image, [1, 2, 0])"),
  ],
)
def test_remedies_for_suspicious_image_shapes_work(image, remedy):
  """Channels that come first, or are missing, cause only a warning, because any number of channels is allowed."""
  with pytest.warns(rtf.PipelineWarning, match="read as") as warned:
    CALLS["layer"](image)
  assert remedy in str(warned[0].message) and warned[0].filename == __file__
  for other in (eval(remedy, {"image": image, "tf": tf}), np.zeros([64, 48, 13], np.uint8)):
    assert not told(lambda other=other: CALLS["layer"](other))


@pytest.mark.parametrize("known", [None, (None, None, None), (3, None, None), (None, None, 16)])
def test_remedies_for_suspicious_shapes_known_at_run_time_work(known):
  def read(shape, remedy=lambda image: image):
    source = tf.data.Dataset.from_tensors(np.zeros(shape, np.uint8)).map(
      lambda image: tf.numpy_function(np.copy, [image], tf.uint8)
    )
    return source.map(lambda image: FLIP(remedy(tf.ensure_shape(image, known)), SEED))

  with pytest.warns(rtf.PipelineWarning, match=r"the shape \[3,20,16\], which is read as") as warned:
    list(read([3, 20, 16]))
  assert (
    len(warned) == 1
    and "tf.experimental.numpy.moveaxis(image, -3, -1)" in str(warned[0].message)
    and warned[0].filename == __file__
  )
  assert not told(lambda: list(read([3, 20, 16], lambda image: tf.experimental.numpy.moveaxis(image, -3, -1))))
  if known in (None, (None, None, None)):
    assert not told(lambda: [list(read(shape)) for shape in ([20, 17, 16], [3, 20, 3], [20, 16, 1], [1, 20, 4])])


@pytest.mark.parametrize(
  "kind, given, remedy, made",
  [
    ("mask", tf.io.encode_png(GREY[:4, :4, None]), "tf.io.decode_png", tf.io.decode_png),
    ("bilinear", GREY[:4, :4], 'name it "mask"', None),
    ("xyxy", GREY[:3, :4] > 3, "tf.cast(boxes, tf.float32)", None),
    ("image", np.int32(COLORED), "like the image itself", lambda image: tf.cast(image, tf.uint8)),
    ("flow", np.int16(COLORED[..., :2]), "tf.cast(flow, tf.float32)", lambda flow: tf.cast(flow, tf.float32)),
    ("xy", GREY[:3, :2], "tf.cast(points, tf.float32)", lambda points: tf.cast(points, tf.float32)),
    ("rel_xyxy", np.zeros([3, 4], np.int32), "name a format in pixels", None),
  ],
)
def test_remedies_for_target_dtypes_work(kind, given, remedy, made):
  with pytest.raises(TypeError, match="targets: the component 1, .* must have .*, got dtype") as raised:
    augment.compose(LAYERS, targets={1: kind})(COLORED, given, seed=SEED)
  assert remedy in str(raised.value)
  kind = {"bilinear": "mask", "rel_xyxy": "xyxy"}.get(kind, kind)
  given = tf.cast(given, tf.float32) if given.dtype == bool else given
  augment.compose(LAYERS, targets={1: kind})(COLORED, made(given) if made else given, seed=SEED)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint64, bool, np.float16, np.float64])
def test_remedies_for_mask_sizes_work(dtype):
  fn, mask = (
    augment.compose(LAYERS, targets={1: "mask"}),
    GREY.astype(dtype) + (dtype(0.5) if issubclass(dtype, np.floating) else dtype(0)),
  )
  with pytest.raises(ValueError, match="height and width of the image") as raised:
    fn(COLORED, mask, seed=SEED)
  cast = "mask" if issubclass(dtype, np.floating) else "tf.cast(mask, tf.int64)"
  remedy = f'tf.image.resize({cast}[..., tf.newaxis], [4, 4], "nearest")'
  assert remedy in str(raised.value)
  made = fn(COLORED, eval(remedy, {"mask": mask, "tf": tf}), seed=SEED)[1]
  assert set(np.unique(made)) <= set(np.unique(mask))


def test_remedy_for_a_path_instead_of_file_contents_works(tmp_path):
  path = str(tmp_path / "1.png")
  tf.io.write_file(path, tf.io.encode_png(COLORED))
  layers = [augment.decode(), *LAYERS]
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=r"begin with .*If this is a path, first read its file with tf.io.read_file\."
  ) as raised:
    next(iter(SLICES([path]).refurbish(layers)))
  assert "HEIC" not in str(raised.value)
  (image,) = SLICES([path]).map(tf.io.read_file).refurbish(layers)
  assert np.unique(image).tolist() == np.unique(COLORED).tolist()


@pytest.mark.parametrize(
  "call",
  [
    lambda images, **targets: images.refurbish(LAYERS, **targets),
    lambda images, **targets: images.offload(LAYERS, 2, **targets),
    lambda images, **targets: images.batch(4).map(augment.compose([FLIP], clips=False, **targets)),
  ],
  ids=["refurbish", "offload", "batch"],
)
def test_remedies_for_rows_and_labels_of_four_classes_work(call):
  images = np.stack([COLORED] * 4)
  for rows, kind in [
    (np.zeros([4, 1, 5], np.float32), "xyxy"),
    (np.zeros([4, 3, 4], np.int32), "xyxy"),
    (np.zeros([4, 5, 2]), "xy"),
    (np.zeros([4, 99, 99, 3], np.uint8), "image"),
    (np.zeros([4, 7, 7, 1], np.float32), "image"),
  ]:
    with pytest.warns(rtf.PipelineWarning, match="The component 1 of shape .* stays in place") as warned:
      call(SLICES((images, rows)))
    assert f'targets={{1: "{kind}"}}' in str(warned[0].message)
    assert not told(lambda rows=rows: call(SLICES((images, rows)), targets={1: None}))
    assert not told(lambda: call(SLICES((images, np.eye(4, dtype=np.float32)))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.int16])
@pytest.mark.parametrize(
  "shape, way",
  [
    *((shape, None) for shape in ([3, 17, 3], [3, 17, 2], [17, 3], [17, 2], [None, 17, 3], [3, 4, 2])),
    ([3, 8], [-1, 4, 2]),
    *((shape, [-1, 17, 3]) for shape in ([3, 51], [None, 51])),
  ],
)
def test_remedies_for_key_points_work(dtype, shape, way):
  """The warning names key points first. After the remedy each visibility stays with its point."""
  points = np.arange(1, 1 + np.prod([side or 2 for side in shape])).reshape([side or 2 for side in shape]).astype(dtype)
  source = tf.data.Dataset.from_generator(
    lambda: [(COLORED, points)], output_signature=(tf.TensorSpec(COLORED.shape, tf.uint8), tf.TensorSpec(shape, dtype))
  ).apply(tf.data.experimental.assert_cardinality(1))
  with pytest.warns(rtf.PipelineWarning, match="stays in place") as warned:
    source.refurbish([FLIP])
  said = re.search(r"If it holds ([^,]*), .*?pass targets=({.*?})(.*)", str(warned[0].message))
  assert len(warned) == 1 and said.group(2) == '{1: "xy"}' and re.search("key points|four corners", said.group(1))
  if way:
    assert f"after a reshape to [n, {way[1]}, {way[2]}]" in said.group(3)
  given = tf.cast(tf.reshape(points, way or points.shape), tf.float32)
  _, made = augment.compose([augment.random_flip(p=1)], eval(said.group(2)))(COLORED, given, seed=SEED)
  np.testing.assert_array_equal(made[..., 0], COLORED.shape[1] - 1 - given[..., 0])
  inside = np.all((given[..., :2] >= 0) & (given[..., :2] < COLORED.shape[1]), -1)
  np.testing.assert_array_equal(made[..., 2:], np.where(inside[..., None], given[..., 2:], 0))


@pytest.mark.parametrize(
  "other",
  [
    np.eye(8, dtype=np.float32)[3],
    np.eye(3, dtype=np.float32),
    np.ones([3], np.int64),
    np.ones([5, 3], bool),
    np.ones([5, 34], np.float32),
    np.ones([17], np.int32),
    {"pose": 3, "joints": np.float32(2), "landmark_id": 7, "num_keypoints": 17},
    {"pose": np.eye(3), "camera_pose": np.eye(3)},
    {"num_keypoints": np.ones([8], np.int64)},
    np.ones([17, 2], np.uint8),
    np.ones([501, 2], np.float32),
    {"audio": np.ones([9, 2], np.float32), "labels": np.ones([5, 2], np.int64)},
    {
      "extrinsics": np.ones([3, 4], np.float32),
      "pose": np.ones([3, 4], np.float32),
      "one_hot": np.ones([5, 3], np.float32),
    },
    {"text_embedding": np.ones([3, 8], np.float32), "token_ids": np.ones([4, 3], np.int32)},
  ],
  ids=lambda other: str(other)[:50],
)
@pytest.mark.filterwarnings("error")
def test_other_components_are_not_taken_for_key_points(other):
  element = [{"image": COLORED, **other}] if isinstance(other, dict) else [COLORED, other]
  augment.compose([FLIP])(*element, seed=SEED)


@pytest.mark.parametrize(
  "name, shape",
  [
    ("kpts", [17, 3]),
    ("keypoints", [54]),
    ("joints", [3, 34]),
    ("polygons", [3, None, 2]),
    ("pose", [3, 51]),
    ("face_landmarks", [68, 2]),
    ("hand_joints_2d", [21, 2]),
  ],
)
def test_remedies_for_components_named_like_key_points_work(name, shape):
  def call(targets=None):
    tf.function(augment.compose([FLIP], targets)).get_concrete_function(
      {"image": tf.TensorSpec([4, 4, 3], tf.uint8), name: tf.TensorSpec(shape, tf.float32)}, seed=SEED
    )

  with pytest.raises(
    ValueError, match=f'component \'{name}\' is, which has a name of key points.*Pass targets={{"{name}": "xy"}}, or'
  ) as raised:
    call()
  reshape = {
    34: "[17, 2]",
    51: "[17, 3] with visibility",
    54: "[27, 2] or [18, 3] with visibility",
  }.get(shape[-1])
  found = re.search(r"after a reshape to \[(n, )?(.*?) in Dataset.map", str(raised.value))
  assert reshape is None and found is None or found.groups() == ("n, " if len(shape) == 2 else None, reshape[1:])
  call({name: None})
  if shape[-1] in (2, 3):
    call({name: "xy"})
  else:
    with pytest.raises(
      ValueError, match=r"Reshape it, such as \[n, 51\] to \[n, 17, 3\] and \[n, 8\] to \[n, 4, 2\], or put"
    ):
      call({name: "xy"})


@pytest.mark.parametrize(
  "call",
  [
    lambda source: source.refurbish(LAYERS),
    lambda source: source.refurbish([lambda pair: pair, *LAYERS]),
    lambda source: source.refurbish([tf.identity], LAYERS),
    lambda source: source.refurbish([keras.layers.Rescaling(0.5)]),
    lambda source: source.refurbish([tf.image.random_flip_left_right]),
    lambda source: source.refurbish(*augment.split([FLIP, FLIP], 1)),
    lambda source: source.refurbish([augment.numpy_layer(np.copy)]),
    lambda source: source.map(lambda pair, _: FLIP(pair, SEED)),
    lambda source: source.map(lambda pair, label: FLIP.pixels(pair, FLIP.draws(SEED))),
    lambda source: source.echo(
      2, "before_augment", augment_fn=augment.compose(LAYERS), batch_size=2, shuffle_buffer_size=4
    ),
    lambda source: source.batch(2).map(BATCHED),
    lambda source: source.batch(2).map(augment.mixup(4)),
    lambda source: source.offload(LAYERS, 2),
    lambda source: numpy_loader(source.refurbish(LAYERS)),
  ],
)
def test_remedies_for_two_input_images_work(call):
  images = np.stack([COLORED] * 4)
  with pytest.raises(ValueError, match=r'(?s)must be one tensor, got a tuple of 2.*"second": second}.*"mask".*None'):
    call(SLICES(((images, images), np.arange(4))))


@pytest.mark.parametrize("made", [tf.stack, keras.layers.Average(), lambda pair: tf.concat(pair, 0)])
def test_two_inputs_may_be_merged_or_named_as_targets(made):
  images = np.stack([COLORED] * 4)
  SLICES(((images, images), np.arange(4))).refurbish([made, augment.resize((4, 4))])
  pairs = SLICES(((images, images), np.arange(4))).map(
    lambda pair, label: ({"image": pair[0], "second": pair[1]}, label)
  )
  for kind in ("mask", "image"):
    for pair, _ in pairs.refurbish(LAYERS, targets={"second": kind}).as_numpy_iterator():
      np.testing.assert_array_equal(pair["image"], pair["second"])

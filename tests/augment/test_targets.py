"""What follows an image must be named, and is refused where it cannot follow it."""

import collections
import functools
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import native
from support.images import noise
from support.masks import IMAGES, MASKS, SOURCE


class TestUnnamed:
  """What looks like a mask must be named or excluded."""

  SEEN = [
    ([32, 48, 3], [32, 48]),
    ([32, 48, 3], [32, 48, 1]),
    ([32, 48, 3], [32, 48, 7]),
    ([None, None, 3], [None, None, 1]),
    ([None, None, 3], [None, None]),
    ([None, 48, 3], [None, 48, 1]),
    ([16, 32, 48, 3], [16, 32, 48, 1]),
    ([None, 32, 48, 3], [None, 32, 48]),
  ]
  NOT_SEEN = [
    ([32, 48, 3], [10]),
    ([32, 48, 3], []),
    ([32, 48, 3], [32]),
    ([32, 48, 3], [48, 32]),
    ([32, 48, 3], [32, 4]),
    ([None, None, 3], [None, 4]),
    ([None, None, 3], [32, 48]),
    ([32, 48, 3], [None, None, 1]),
    ([32, 48, 3], None),
    ([16, 32, 48, 3], [16, 10]),
    ([32, 48, 3], [32, 5, 48]),
    ([None, 32, 48, 3], [None, 10, 4]),
    ([], [32, 48]),
    ([100, 8], [100, 8]),
    (None, [32, 48]),
  ]

  @pytest.mark.parametrize(
    "image, other",
    [
      ([32, 48, 3], [5, 32, 48]),
      ([16, 32, 48, 3], [32, 48]),
      ([16, 32, 48, 3], [32, 48, 1]),
      ([2, 16, 32, 48, 3], [16, 32, 48]),
    ],
  )
  def test_behind_other_dimensions_or_without_them(self, image, other):
    """Masks of instances; one mask for a clip or a batch."""
    with pytest.raises(ValueError, match=r"component 1 .* It would have to be \[height, width, channels\]"):
      self.traced(image, other)
    self.traced(image, other, targets={})

  @staticmethod
  def traced(image, other, targets=None):
    """A composed function, for these shapes."""
    tf.function(augment.compose([tf.identity], targets)).get_concrete_function(
      tf.TensorSpec(image, tf.uint8), tf.TensorSpec(other, tf.int32)
    )

  @pytest.mark.parametrize("image, other", SEEN)
  def test_is_an_error(self, image, other):
    with pytest.raises(
      ValueError, match='The component 1 .* does not name it. Pass targets={1: "mask"} .* or targets={1: None} if'
    ):
      self.traced(image, other)
    self.traced(image, other, targets={})

  @pytest.mark.parametrize(
    "image, other",
    [
      ([None, None, 3], [64, 64, 1]),
      ([64, 64, 3], [None, None, 1]),
      ([64, 64, 3], [64, None, 1]),
      (None, [64, 64, 1]),
      ([64, 64, 3], None),
    ],
  )
  def test_is_an_error_when_it_runs_if_sizes_are_known_only_then(self, image, other):
    pair = tf.data.Dataset.from_tensors(0).map(
      lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), image),
        tf.ensure_shape(tf.py_function(lambda: MASKS[0].astype(np.int32), [], tf.int32), other),
      )
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="The component 1 of shape .* does not name it"):
      list(pair.refurbish([augment.random_flip()], seed=1))
    list(pair.refurbish([augment.random_flip()], targets={}, seed=1))

  def test_boxes_of_any_number_are_none(self):
    pair = tf.data.Dataset.from_tensors(0).map(
      lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), [None, None, 3]),
        tf.ensure_shape(tf.py_function(lambda: np.zeros([5, 4], np.int32), [], tf.int32), [None, 4]),
      )
    )
    list(pair.refurbish([augment.random_flip()], seed=1))

  @pytest.mark.parametrize("image, other", NOT_SEEN)
  def test_is_none_if_it_looks_otherwise(self, image, other):
    self.traced(image, other)

  @pytest.mark.parametrize(
    "element, said",
    [
      (lambda image, mask: (image, 3, mask), 'component 2 .*targets={2: "mask"}'),
      (lambda image, mask: {"image": image, "other": mask}, 'component \'other\' .*targets={"other": "mask"}'),
      (lambda image, mask: ({"image": image}, 3, mask), 'component 2 .*targets={2: "mask"}'),
      (lambda image, mask: (image, {"at": (mask, 3)}), r"component 1\['at'\]\[0\] .*targets={1: {\"at\": "),
    ],
  )
  def test_wherever_it_is(self, element, said):
    source = SOURCE.map(lambda image, mask, label: element(image, mask))
    with pytest.raises(ValueError, match=f"The {said}"):
      source.refurbish([tf.identity])
    with pytest.raises(ValueError, match=f"The {said}"):
      source.map(augment.compose([tf.identity]))
    assert source.refurbish([tf.identity], targets={}).element_spec == source.element_spec

  def test_of_a_whole_split(self):
    with pytest.raises(ValueError, match='targets={1: "mask"}'):
      SOURCE.refurbish(*augment.split([tf.identity, augment.random_flip()], 1))
    with pytest.raises(ValueError, match='targets={1: "mask"}'):
      augment.compose([augment.random_flip()])(IMAGES[0], MASKS[0], seed=[7, 0])

  def test_is_asked_of_what_comes_not_of_what_the_layers_make(self):
    fn = augment.compose([lambda image: tf.image.resize(image, [10, 4])])
    assert fn(IMAGES[0], np.zeros([10, 4]))[0].shape == [10, 4, 3]

  def test_those_beside_a_named_one_must_be_named_too(self):
    fn = augment.compose([tf.identity], {1: "mask"})
    with pytest.raises(ValueError, match="component 2 .*targets={2: None}"):
      fn(IMAGES[0], MASKS[0], MASKS[1])
    other = MASKS[1]
    assert augment.compose([tf.identity], {1: "mask", 2: None})(IMAGES[0], MASKS[0], other)[2] is other

  @pytest.mark.parametrize(
    "decoder",
    [
      lambda file: tf.io.decode_png(file, 3),
      augment.decode(),
      augment.decode_random_resized_crop(32),
      augment.decode((64, 64)),
    ],
    ids=range(4),
  )
  def test_beside_a_file(self, decoder):
    """What has the size of any image, `[None, None]`, or that of what is decoded."""
    composed = augment.compose([decoder, augment.random_flip()])
    with pytest.raises(ValueError, match="component 1 "):
      tf.function(lambda file, mask: composed(file, mask, seed=[1, 0])).get_concrete_function(
        tf.TensorSpec([], tf.string), tf.TensorSpec([None, None, 1], tf.uint8)
      )
    of_one_size = tf.data.Dataset.from_tensors(
      (tf.io.encode_png(IMAGES[0]), MASKS[0, :32, :32] if "crop" in repr(decoder) else MASKS[0])
    )
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="component 1 "):
      list(of_one_size.refurbish([decoder, augment.random_flip()]))

  @pytest.mark.parametrize("name", ["boxes", "bbox", "bboxes", "bounding_boxes", "keypoints", "Boxes"])
  @pytest.mark.parametrize("nested", [False, True])
  def test_names_of_boxes(self, name, nested):
    """An error beside layers that move pixels, and no others."""
    held = {name: np.zeros([3, 4], np.float32)}
    source = tf.data.Dataset.from_tensors({"image": IMAGES[0], **({"objects": held} if nested else held)})
    path = f"'objects'\\['{name}'\\]" if nested else f"'{name}'"
    movers = [
      augment.random_flip(),
      augment.random_crop(padding=3),
      augment.random_resized_crop(32),
      augment.resize((32, 32)),
      augment.rand_augment(),
      augment.auto_augment("imagenet"),
      tf.image.flip_left_right,
      lambda image: tf.image.resize(image, [32, 32]),
      tf.keras.layers.Resizing(32, 32),
    ]
    for layer in movers:
      with pytest.raises(
        ValueError, match=f"targets must say what the component {path} .*Pass targets=.* Otherwise pass targets="
      ):
        source.refurbish([layer])
    still = [
      augment.normalize(),
      augment.cutout(3),
      augment.random_grayscale(),
      augment.decode,
      lambda image: image // 2,
    ]
    source.refurbish([still[1], still[2], still[4]], [still[0]])
    source.refurbish([augment.random_flip()], targets={})
    source.refurbish([augment.random_flip()], targets={"objects": {name: None}} if nested else {name: None})

  @pytest.mark.parametrize(
    "element, targets",
    [
      ((IMAGES[0], {"objects": {"bbox": np.ones([3, 4])}}), {1: {"objects": {"bbox": "xyxy"}}}),
      ({"image": IMAGES[0], "boxes": (np.ones([3, 4]), 3)}, {"boxes": {0: "xyxy", 1: None}}),
      (
        {"image": IMAGES[0], "bounding_boxes": {"xyxy": np.ones([3, 4]), "labels": np.ones([3])}},
        {"bounding_boxes": {"xyxy": "xyxy"}},
      ),
    ],
  )
  def test_what_an_error_says_of_what_is_deep_inside_works(self, element, targets):
    source = tf.data.Dataset.from_tensors(element)
    with pytest.raises(ValueError, match="targets must say what the component") as raised:
      source.refurbish([augment.random_flip()])
    said = re.search(r"Pass targets=({.*?}), or", str(raised.value)).group(1)
    source.refurbish([augment.random_flip()], targets={**eval(said), **targets})
    assert source.refurbish([augment.resize((32, 32))], targets=targets).element_spec[
      1 if isinstance(element, tuple) else "image"
    ]

  @pytest.mark.parametrize(
    "element, said",
    [
      ({"image": IMAGES[0], "head_bbox": np.zeros([4], np.float32)}, "component 'head_bbox'"),
      ((IMAGES[0], {"box": np.zeros([4], np.float32)}), r"component 1\['box'\]"),
      ((IMAGES[0], (np.zeros([2, 4], np.float32), 3)), r"component 1\[0\]"),
    ],
  )
  def test_what_may_be_boxes_elsewhere(self, element, said):
    with pytest.warns(rtf.PipelineWarning, match=said):
      tf.data.Dataset.from_tensors(element).refurbish([augment.random_flip()])

  def test_named_tuples(self):
    pair = collections.namedtuple("Pair", ["image", "boxes"])(IMAGES[0], np.zeros([2, 4], np.float32))
    with pytest.raises(TypeError, match=r"named tuple, Pair\('image', 'boxes'\).*element._asdict\(\)"):
      tf.data.Dataset.from_tensors(pair).refurbish([augment.random_flip()], targets={"boxes": "xyxy"})
    source = tf.data.Dataset.from_tensors(pair).map(lambda element: element._asdict())
    assert list(source.refurbish([augment.random_flip()], targets={"boxes": "xyxy"}).element_spec) == ["image", "boxes"]

  def test_a_tuple_with_what_may_be_boxes(self):
    """A warning, when the stage is built."""
    source = tf.data.Dataset.from_tensors((IMAGES[0], np.zeros([3, 4], np.float32), np.zeros([3, 3], np.int32)))
    with pytest.warns(rtf.PipelineWarning, match='component 1 .*targets={1: "xyxy"}, .* targets={1: None}'):
      source.refurbish([augment.random_flip()])
    with pytest.warns(rtf.PipelineWarning, match='component 1 .*targets={1: "xyxy"}, .* targets={1: None}'):
      source.offload([augment.random_flip()], 1)
    for layers, targets in (
      ([augment.normalize()], None),
      ([augment.random_flip()], {}),
      ([augment.random_flip()], {1: "xyxy"}),
    ):
      with warnings.catch_warnings():
        warnings.simplefilter("error")
        source.refurbish(layers, targets=targets)


@pytest.mark.parametrize(
  "shape, dtype, said",
  [
    ([24, 30, 3], "uint8", 'targets={1: "image"} for a second picture, or'),
    (
      [24, 30, 2],
      "float32",
      'targets={1: "bilinear"} for a map to be blended, targets={1: "flow"} for an optical flow, targets={1: '
      '"vectors"} for',
    ),
    (
      [24, 30, 3],
      "float32",
      'targets={1: "vectors"} for directions, such as surface normals, which "bilinear" does not turn, or',
    ),
    ([24, 30, 38], "float32", 'blended, targets={1: "vectors"} for directions, such as'),
    ([24, 30, 17], "float32", 'targets={1: "bilinear"} for a map to be blended, or'),
    ([24, 30], "float32", 'targets={1: "disparity"} for the disparity of two views, or'),
    (
      [96, 120, 3],
      "uint8",
      'a picture that belongs to the image, pass targets={1: "image"}, of the image\'s size or a multiple of it',
    ),
    ([12, 15, 2], "float32", 'an optical flow, pass targets={1: "flow"}, resized to the image\'s size'),
  ],
)
def test_what_is_not_named(shape, dtype, said):
  with pytest.raises((ValueError, rtf.PipelineWarning)) as raised, warnings.catch_warnings():
    warnings.simplefilter("error")
    augment.compose([augment.random_flip()])(noise(24, 30, 3), np.zeros(shape, dtype), seed=[7, 0])
  assert said in str(raised.value)


@pytest.mark.parametrize(
  "of_image, of_second, of_mask",
  [
    ([10, 12, 3], [40, 48, 3], [40, 48]),
    ([10, 12, 3], [40, 48, 3], [5, 40, 48]),
    ([10, 12, 3], [None, None, 3], [40, 48]),
    ([10, 12, 3], [40, 48, 3], [None, None, 1]),
    ([10, 12, 3], [None, 48, 3], None),
  ],
)
def test_what_is_not_named_beside_a_larger_image(of_image, of_second, of_mask):
  shape = (
    [40, 48]
    if of_mask is None
    else [side or known for side, known in zip(of_mask, (40, 48, 1))]
    if None in of_mask
    else of_mask
  )

  def traced(targets, shape=shape):
    fn = augment.compose([augment.random_flip()], {"high": "image", **targets})
    signature = {
      "image": tf.TensorSpec(of_image, tf.uint8),
      "high": tf.TensorSpec(of_second, tf.uint8),
      "mask": tf.TensorSpec(of_mask, tf.int32),
    }
    return tf.function(lambda element: fn(element, seed=[7, 0]), input_signature=[signature])(
      {"image": noise(10, 12, 3), "high": noise(40, 48, 3), "mask": np.zeros(shape, np.int32)}
    )

  with pytest.raises(
    (ValueError, tf.errors.InvalidArgumentError),
    match="mask.* of the component .*high.*image.*, but `targets` does not name it",
  ):
    traced({})
  traced({"mask": None})
  if of_mask is None:
    traced({}, [40]), traced({}, [40, 47])


@pytest.mark.parametrize(
  "shape, kind, said",
  [
    ([12, 10, 2], "flow", lambda flow: flow * [3.0, 2.0]),
    ([12, 10], "disparity", lambda disparity: disparity * 3.0),
    ([12, 10, 1], "disparity", lambda disparity: disparity * 3.0),
    ([12, 10, 4], "vectors", lambda known: known),
    ([12, 10, 1], "bilinear", lambda known: known),
  ],
)
def test_the_way_to_a_map_of_its_size(shape, kind, said):
  """What an error says makes vectors of the right length."""
  given = np.ones(shape, np.float32)
  with pytest.raises(ValueError, match="Resize one of them in Dataset.map before") as raised:
    augment.compose([augment.random_crop(8)], {1: kind})(noise(24, 30, 3), given, seed=[7, 0])
  code = re.search(r"tf\.image.*(?=\.$)", str(raised.value)).group()
  made = eval(code, {"tf": tf, kind: given, "map": given})
  np.testing.assert_allclose(made, said(np.ones([24, 30, shape[-1] if len(shape) == 3 else 1], np.float32)), rtol=1e-6)
  augment.compose([augment.random_crop(8)], {1: kind})(noise(24, 30, 3), made, seed=[7, 0])


def refused(layers, element=(IMAGES[0], MASKS[0], 3), targets={1: "mask"}):  # noqa: B006
  tf.data.Dataset.from_tensors(element).refurbish(layers, targets=targets)


class TestBadInput:
  @pytest.mark.parametrize(
    "targets, error, said",
    [
      ("mask", TypeError, "'mask'.*targets={"),
      (("mask",), TypeError, "a dict from names"),
      ({1.0: "mask"}, TypeError, "1.0"),
      ({True: "mask"}, TypeError, "True"),
      ({None: "mask"}, TypeError, "None"),
      ({1: 3}, TypeError, "got 3"),
      ({1: ["mask"]}, TypeError, "mask"),
      ({0: "mask"}, ValueError, "beside the image"),
      ({-1: "mask"}, ValueError, "-1"),
      ({"image": "mask"}, ValueError, "'image'"),
      ({"images": "mask"}, ValueError, "'images'"),
      ({"boxes": "xyx"}, ValueError, "'boxes' .*xyxy, yxyx.*'xyx'"),
      ({"a": {"b": "rel"}}, ValueError, r"'a'\['b'\]"),
    ],
  )
  def test_names(self, targets, error, said):
    for whose, function in (
      ("compose", augment.compose),
      ("split", functools.partial(augment.split, at=1)),
      ("refurbish", tf.data.Dataset.range(3).refurbish),
      ("advise", functools.partial(rtf.advise, SOURCE, batch_size=2)),
    ):
      with pytest.raises(error, match=f"^targets of {whose} must .*{said}"):
        function([tf.identity], targets=targets)

  @pytest.mark.parametrize("targets", [{}, {1: "mask"}])
  def test_names_with_functions(self, targets):
    with pytest.raises(TypeError, match="^targets of refurbish is for lists.*compose"):
      SOURCE.refurbish(lambda *element: element, targets=targets)

  @pytest.mark.parametrize("clips", [0, "yes", 1.0])
  def test_clips(self, clips):
    for function in (augment.compose, functools.partial(augment.split, at=1)):
      with pytest.raises(TypeError, match="^clips of .* must be True, False or None, got"):
        function([tf.identity], clips=clips)

  IMAGE, MASK = IMAGES[0], MASKS[0]
  BOX = np.zeros([3, 4], np.float32)

  @pytest.mark.parametrize(
    "element, targets, error, said",
    [
      ((IMAGE, MASK), {2: "mask"}, ValueError, "no component 2 in an element of 2"),
      ((IMAGE, MASK), {"mask": "mask"}, ValueError, "no component 'mask' in an element that is no dict"),
      ({"image": IMAGE, "mask": MASK}, {"msk": "mask"}, ValueError, r"'msk' .*\['image', 'mask'\]"),
      ({"image": IMAGE, "mask": MASK}, {1: "mask"}, ValueError, "no component 1 in an element of 1"),
      (
        {"image": IMAGE, "mask": MASK},
        {"mask": {"a": "mask"}},
        ValueError,
        "no 'a' in the component 'mask', there is a ndarray|Tensor",
      ),
      (
        {"image": IMAGE, "a": {"mask": MASK}},
        {"a": {"b": "mask"}},
        ValueError,
        r"no 'b' in the component 'a', there are \['mask'\]",
      ),
      (
        {"image": IMAGE, "images": IMAGE},
        {},
        ValueError,
        r"one entry 'image' or 'images', got .*\['image', 'images'\]",
      ),
      (
        (IMAGE, {"mask": MASK}),
        {"mask": "mask"},
        ValueError,
        'is in the component 1: pass targets={1: {"mask": "mask"}}',
      ),
      ((IMAGE, {"mask": MASK}), {1: "mask"}, TypeError, "component 1 must be a dense tensor, got a dict"),
      ((IMAGE, {"boxes": BOX, "bbox": BOX}), {1: "xyxy"}, TypeError, "got a dict"),
      ((IMAGE, tf.RaggedTensor.from_tensor(MASK)), {1: "mask"}, TypeError, "dense tensor, got a RaggedTensor"),
      ((IMAGE, tf.sparse.from_dense(MASK)), {1: "mask"}, TypeError, "dense tensor, got a SparseTensor"),
      ((IMAGE, "mask.png"), {1: "mask"}, TypeError, "a number or a bool, got dtype string"),
      ((IMAGE, MASK * 1j), {1: "mask"}, TypeError, "got dtype complex128"),
      ((IMAGE, MASK), {1: "bilinear"}, TypeError, 'a floating dtype, got dtype int32.*"mask"'),
      ((IMAGE, BOX.astype(np.int32)), {1: "rel_xyxy"}, TypeError, "from 0 to 1, got dtype int32"),
      ((IMAGE, BOX > 0), {1: "xyxy"}, TypeError, "a number, got dtype bool"),
      ((IMAGE, BOX[:, :2].astype(np.uint8)), {1: "xy"}, TypeError, "int32, int64 or a floating dtype, got dtype uint8"),
      ((IMAGE, 3), {1: "mask"}, ValueError, r"\[height, width\].* got shape \(\)"),
      ((IMAGE, MASK[..., 0, 0]), {1: "mask"}, ValueError, "got shape"),
      (
        (IMAGE, MASK[:-1]),
        {1: "mask"},
        ValueError,
        r"height and width of the image, \(64, 64\), got shape \(63, 64, 1\)",
      ),
      ((IMAGE, MASK[:, 1:, 0]), {1: "mask"}, ValueError, r"got shape \(64, 63\)"),
      ((IMAGE, MASK[::4, ::4] / 2), {1: "bilinear"}, ValueError, r"height and width .*got shape \(16, 16, 1\).*Resize"),
      ((IMAGE, BOX[:, :3]), {1: "xyxy"}, ValueError, r"\[n, 4\], four numbers a box, got shape \(3, 3\)"),
      ((IMAGE, np.zeros([3, 5])), {1: "rel_xywh"}, ValueError, r"'rel_xywh', must be \[n, 4\].*got shape \(3, 5\)"),
      ((IMAGE, BOX), {1: "xy"}, ValueError, r"three numbers a point.*got shape \(3, 4\)"),
      ((IMAGE, BOX[0, 0]), {1: "xyxy"}, ValueError, r"got shape \(\)"),
      ((IMAGE, BOX[None]), {1: "xyxy"}, ValueError, r"got shape \(1, 3, 4\) beside an image of shape \(64, 64, 3\)"),
      ((IMAGES[:4], MASK), {1: "mask"}, ValueError, r"\(4,\) of the images, got shape \(64, 64, 1\)"),
      (
        (IMAGES[:4], MASK[..., 0]),
        {1: "mask"},
        ValueError,
        r"got shape \(64, 64\) beside an image of shape \(4, 64, 64, 3\)",
      ),
      ((IMAGES[:4], MASKS[:3]), {1: "mask"}, ValueError, r"\(4,\) of the images, got shape \(3, 64, 64, 1\)"),
      (
        (IMAGE, MASK[::2, ::2, 0]),
        {1: "mask"},
        ValueError,
        r'cast\(mask, tf.int64\)\[..., tf.newaxis\], \[64, 64\], "nearest"\)\.',
      ),
      ((IMAGE, MASK[..., 0].astype(np.uint8)), {1: "image"}, ValueError, r"image\[..., tf.newaxis\]"),
      ((IMAGES[:4], BOX), {1: "xyxy"}, ValueError, r"\(4,\) of the images, got shape \(3, 4\)"),
      ((IMAGE, MASKS[:4]), {1: "mask"}, ValueError, "before batch, or batch both"),
    ],
  )
  def test_components(self, element, targets, error, said):
    with pytest.raises(error, match=said):
      refused([augment.random_flip()], element, targets)

  BEYOND = [[1.0, 2, 66, 4]]

  @pytest.mark.parametrize(
    "kind, rows, said",
    [
      ("xyxy", BEYOND, r"lie in their image of 64 x 64 pixels, got \[1, 2, 66, 4\] in row 0"),
      ("yxyx", [[1.0, 2, 3, 4], [-3.0, 2, 3, 4]], "in row 1"),
      ("xywh", [[60.0, 2, 10, 4]], r"got \[60, 2, 10, 4\]"),
      ("rel_xyxy", [[0.1, 0.2, 30, 0.4]], "lie in their image"),
      ("rel_center_xywh", [[0.0, 0.2, 0.3, 0.4]], "lie in"),
      ("xyxy", [[5.0, 2, 3, 4]], "no negative height or width"),
      ("xywh", [[5.0, 2, -3, 4]], "no negative"),
      ("yxyx", [[1.0, np.nan, 3, 4]], "finite numbers, got .*nan"),
      ("xyxy", [[1.0, 2, np.inf, 4]], "finite"),
      ("xy", [[1.0, np.nan]], "finite numbers, got .* in row 0"),
      ("rel_xy", [[0.5, 0.5, 2], [0.5, np.inf, 2]], "in row 1"),
    ],
  )
  def test_numbers(self, kind, rows, said):
    """When it runs, whatever was drawn; each error names the component, and the next element goes on."""
    right = np.full_like(rows, 0.5) if kind.startswith("rel") else np.full_like(rows, 3)
    right = np.zeros_like(rows) if kind == "rel_center_xywh" else right
    source = tf.data.Dataset.from_tensor_slices((IMAGES[:2], np.stack([rows, right])))
    stage = iter(source.refurbish([augment.cutout(3), augment.random_flip()], targets={1: kind}, seed=7))
    found, errors = 0, []
    for _ in range(2):
      try:
        next(stage)
        found += 1
      except tf.errors.InvalidArgumentError as error:
        errors.append(str(error))
    assert found == 1 and len(errors) == 1
    assert re.search(f"targets: the component 1, '{kind}', must .*{said}", errors[0]), errors

  @pytest.mark.parametrize(
    "images, rows, clips, said",
    [
      (
        IMAGES[:3],
        np.float32([[[1, 2, 3, 4]], [[1, 2, 3, 4]], [[5, 2, 3, 4]]]),
        None,
        r"\[5, 2, 3, 4\] in row 0 of image 2\.",
      ),
      (
        IMAGES[:2],
        np.float32([[[1, 2, 3, 4], [1, 2, 3, 4]], [[1, 2, 3, 4], [5, 2, 3, 4]]]),
        True,
        r"\[5, 2, 3, 4\] in row 1 of frame 1\.",
      ),
    ],
  )
  def test_numbers_of_several(self, images, rows, clips, said):
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
      augment.compose([augment.random_flip()], {1: "xyxy"}, clips=clips)(images, rows, seed=[7, 0])

  def test_a_dtype_that_does_not_hold_the_sides(self):
    fn = augment.compose([augment.resize((70, 200))], {1: "xyxy"})
    with pytest.raises(
      tf.errors.InvalidArgumentError, match="dtype that holds the sides of its image, got int8.*tf.int32"
    ):
      fn(IMAGES[0], np.array([[1, 2, 3, 4]], np.int8))
    assert fn(IMAGES[0], np.array([[0, 0, 64, 64]], np.uint8))[1].numpy().tolist() == [[0, 0, 200, 70]]

  @pytest.mark.parametrize(
    "layer, said",
    [
      (lambda: tf.keras.layers.RandomFlip(), "RandomFlip at position 1"),
      (lambda: tf.keras.layers.RandomRotation(0.1).call, "call at position 1"),
      (lambda: functools.partial(tf.image.stateless_random_flip_left_right), "stateless_random_flip_left_right at"),
      (lambda: tf.image.rot90, "rot90 at"),
      (lambda: tf.keras.Sequential([tf.keras.layers.RandomFlip()]), "RandomFlip at position 1"),
      (lambda: augment.compose([augment.random_flip()]), "themselves"),
      (lambda: functools.partial(augment.random_flip(), seed=[1, 0]), "themselves"),
      (lambda: augment.decode_random_resized_crop(apply_exif_orientation=True), "file of decode_random_resized_crop"),
      (lambda: lambda image: tf.image.resize(image, [8, 8]), r"<lambda> at position 1 .*returned \[8, 8\]"),
      (lambda: tf.keras.layers.Resizing(8, 8), "at position 1 .*returned"),
      (lambda: lambda image: image[0, 0, 0], "at position 1 .*returned"),
    ],
  )
  def test_functions_that_would_leave_them_behind(self, layer, said):
    for targets, component in (({1: "mask"}, self.MASK), ({1: "xyxy"}, self.BOX)):
      with pytest.raises((ValueError, TypeError), match=said):
        refused([tf.identity, layer()], (self.IMAGE, component), targets)

  @pytest.mark.parametrize(
    "target, kind, images, draws",
    [
      ([4, 4], "mask", [5, 4, 3], [0]),
      ([4], "mask", [4, 4, 3], [0]),
      ([4, 4, 4, 4], "mask", [4, 4, 3], [0]),
      ([4, 4], "mask", [4, 4, 3], [2]),
      ([4, 4], "mask", [4, 4, 3], [0, 0]),
      ([4, 4], "mask", [4, 4, 3], 0),
      ([4, 4], "mask", [4, 4, 3], [[0]]),
      ([3, 4, 4], "mask", [3, 4, 4, 3], [[0]]),
      ([4, 4], "bilinear", [4, 4, 3], [0]),
      ([4], "boxes", [4, 4, 3], [0]),
      ([3], "xyxy", [4, 4, 3], [0]),
      ([2, 4], "xyxy", [3, 4, 4, 3], [[0], [1], [0]]),
      ([1, 1, 1, 4], "xyxy", [4, 4, 3], [0]),
      ([], "xyxy", [4, 4, 3], [0]),
      ([2, 4], "xy", [4, 4, 3], [0]),
    ],
  )
  @pytest.mark.parametrize("graph", [False, True])
  def test_of_the_op(self, target, kind, images, draws, graph):
    def run(target, images, draws):
      return native.ops().refurbish_tf_image_pixels(
        images=images,
        draws=draws,
        targets=[target],
        kinds=[kind],
        names=["it"],
        layers=["random_flip position=-1"],
        clips=False,
        T=tf.uint8,
        Tmoved=[tf.int32],
      )

    given = tf.zeros(target, tf.int32), tf.zeros(images, tf.uint8), tf.constant(draws)
    signature = [tf.TensorSpec(None, each.dtype) for each in given]
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
      (tf.function(run, input_signature=signature) if graph else run)(*given)

  def test_a_function_that_crops_images_of_unknown_size(self):
    """It is seen when it runs."""
    for component, kind in ((self.MASK, "mask"), (self.BOX, "xyxy")):
      source = tf.data.Dataset.from_generator(
        lambda component=component: iter([(IMAGES[0], component)]),
        output_signature=(
          tf.TensorSpec([None, None, 3], tf.uint8),
          tf.TensorSpec([None] * component.ndim, component.dtype),
        ),
      )
      stage = source.apply(tf.data.experimental.assert_cardinality(1)).refurbish(
        [lambda image: image[1:]], targets={1: kind}
      )
      with pytest.raises(
        tf.errors.InvalidArgumentError, match="layers with targets must leave the image its size.*<lambda> at"
      ):
        next(iter(stage))

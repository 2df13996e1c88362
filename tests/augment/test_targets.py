"""A component that looks like a target of an image must be named or excluded."""

import collections
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support.images import noise
from support.masks import IMAGES, MASKS, SOURCE


class TestUnnamed:
  """A component that looks like a mask must be named or excluded."""

  SEEN = [
    *(([32, 48, 3], other) for other in ([32, 48], [32, 48, 1], [32, 48, 7])),
    *(([None, None, 3], other) for other in ([None, None, 1], [None, None])),
    ([None, 48, 3], [None, 48, 1]),
    ([16, 32, 48, 3], [16, 32, 48, 1]),
    ([None, 32, 48, 3], [None, 32, 48]),
  ]
  NOT_SEEN = [
    *(([32, 48, 3], other) for other in ([10], [], [32], [48, 32], [32, 4], [None, None, 1], None, [32, 5, 48])),
    *(([None, None, 3], other) for other in ([None, 4], [32, 48])),
    ([16, 32, 48, 3], [16, 10]),
    ([None, 32, 48, 3], [None, 10, 4]),
    ([100, 8], [100, 8]),
    *((image, [32, 48]) for image in ([], None)),
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
  def test_a_mask_with_more_or_fewer_dimensions_is_an_error(self, image, other):
    """Masks of instances have more dimensions than the image. One mask for a clip or a batch has fewer."""
    with pytest.raises(ValueError, match=r"component 1 .* It would have to be \[height, width, channels\]"):
      self.traced(image, other)
    self.traced(image, other, targets={})

  @staticmethod
  def traced(image, other, targets=None):
    """Traces a composed function for these shapes."""
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
  def test_is_an_error_at_run_time_if_sizes_are_unknown_before(self, image, other):
    pair = tf.data.Dataset.from_tensors(0).map(
      lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), image),
        tf.ensure_shape(tf.py_function(lambda: MASKS[0].astype(np.int32), [], tf.int32), other),
      )
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="The component 1 of shape .* does not name it"):
      list(pair.refurbish([augment.random_flip()], seed=1))
    list(pair.refurbish([augment.random_flip()], targets={}, seed=1))

  def test_boxes_of_unknown_number_are_not_taken_for_a_mask(self):
    pair = tf.data.Dataset.from_tensors(0).map(
      lambda _: (
        tf.ensure_shape(tf.py_function(lambda: IMAGES[0], [], tf.uint8), [None, None, 3]),
        tf.ensure_shape(tf.py_function(lambda: np.zeros([5, 4], np.int32), [], tf.int32), [None, 4]),
      )
    )
    list(pair.refurbish([augment.random_flip()], seed=1))

  @pytest.mark.parametrize("image, other", NOT_SEEN)
  def test_other_shapes_are_not_taken_for_targets(self, image, other):
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
  def test_is_an_error_anywhere_in_an_element(self, element, said):
    source = SOURCE.map(lambda image, mask, label: element(image, mask))
    with pytest.raises(ValueError, match=f"The {said}"):
      source.refurbish([tf.identity])
    with pytest.raises(ValueError, match=f"The {said}"):
      source.map(augment.compose([tf.identity]))
    assert source.refurbish([tf.identity], targets={}).element_spec == source.element_spec

  def test_is_an_error_in_split_and_composed_functions(self):
    with pytest.raises(ValueError, match='targets={1: "mask"}'):
      SOURCE.refurbish(*augment.split([tf.identity, augment.random_flip()], 1))
    with pytest.raises(ValueError, match='targets={1: "mask"}'):
      augment.compose([augment.random_flip()])(IMAGES[0], MASKS[0], seed=[7, 0])

  def test_the_input_size_counts_and_not_the_output_size(self):
    fn = augment.compose([lambda image: tf.image.resize(image, [10, 4])])
    assert fn(IMAGES[0], np.zeros([10, 4]))[0].shape == [10, 4, 3]

  def test_all_targets_must_be_named_if_one_is(self):
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
  def test_a_component_with_the_size_of_a_decoded_file_is_an_error(self, decoder):
    """The component has the size of any image, `[None, None]`, or that of the decoded image."""
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
  def test_a_component_named_like_boxes_is_an_error(self, name, nested):
    """The error comes only with layers that move pixels."""
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
  def test_remedy_for_a_nested_component_works(self, element, targets):
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
  def test_possible_boxes_elsewhere_cause_a_warning(self, element, said):
    with pytest.warns(rtf.PipelineWarning, match=said):
      tf.data.Dataset.from_tensors(element).refurbish([augment.random_flip()])

  def test_named_tuples(self):
    pair = collections.namedtuple("Pair", ["image", "boxes"])(IMAGES[0], np.zeros([2, 4], np.float32))
    with pytest.raises(TypeError, match=r"named tuple, Pair\('image', 'boxes'\).*element._asdict\(\)"):
      tf.data.Dataset.from_tensors(pair).refurbish([augment.random_flip()], targets={"boxes": "xyxy"})
    source = tf.data.Dataset.from_tensors(pair).map(lambda element: element._asdict())
    assert list(source.refurbish([augment.random_flip()], targets={"boxes": "xyxy"}).element_spec) == ["image", "boxes"]

  def test_possible_boxes_in_a_tuple_cause_a_warning(self):
    """The warning comes when the stage is built."""
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
def test_error_suggests_the_kind_of_an_unnamed_component(shape, dtype, said):
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
def test_an_unnamed_mask_of_a_larger_image_is_an_error(of_image, of_second, of_mask):
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
def test_remedy_for_a_map_of_another_size_works(shape, kind, said):
  """The remedy of the error message makes vectors of the right length."""
  given = np.ones(shape, np.float32)
  with pytest.raises(ValueError, match="Resize one of them in Dataset.map first") as raised:
    augment.compose([augment.random_crop(8)], {1: kind})(noise(24, 30, 3), given, seed=[7, 0])
  code = re.search(r"tf\.image.*(?=\.$)", str(raised.value)).group()
  made = eval(code, {"tf": tf, kind: given, "map": given})
  np.testing.assert_allclose(made, said(np.ones([24, 30, shape[-1] if len(shape) == 3 else 1], np.float32)), rtol=1e-6)
  augment.compose([augment.random_crop(8)], {1: kind})(noise(24, 30, 3), made, seed=[7, 0])

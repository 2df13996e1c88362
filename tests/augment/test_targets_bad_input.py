"""Targets that cannot follow their image are refused, when the layers are composed or when they run."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import native
from support import cases
from support.masks import IMAGES, MASKS, SOURCE


def refused(layers, element=(IMAGES[0], MASKS[0], 3), targets={1: "mask"}):  # noqa: B006
  tf.data.Dataset.from_tensors(element).refurbish(layers, targets=targets)


class TestBadInput:
  @pytest.mark.parametrize(
    "targets, error, said",
    [
      ("mask", TypeError, "'mask'.*targets={"),
      ({1: 3}, TypeError, "got 3"),
      ({0: "mask"}, ValueError, "not name the image"),
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
    with pytest.raises(TypeError, match="^targets of refurbish needs lists.*compose"):
      SOURCE.refurbish(lambda *element: element, targets=targets)

  @pytest.mark.parametrize("clips", [0, "yes", 1.0])
  def test_clips(self, clips):
    for function in (augment.compose, functools.partial(augment.split, at=1)):
      with pytest.raises(TypeError, match="^clips of .* must be True, False or None, got"):
        function([tf.identity], clips=clips)

  IMAGE, MASK = IMAGES[0], MASKS[0]
  BOX = np.zeros([3, 4], np.float32)

  @pytest.mark.parametrize(
    "element, targets, said, error",
    cases.refused(
      ValueError=[
        ((IMAGE, MASK), {2: "mask"}, "no component 2 in an element of 2"),
        ((IMAGE, MASK), {"mask": "mask"}, "no component 'mask' in an element that is not a dict"),
        ({"image": IMAGE, "mask": MASK}, {"msk": "mask"}, r"'msk' .*\['image', 'mask'\]"),
        ({"image": IMAGE, "mask": MASK}, {1: "mask"}, "no component 1 in an element of 1"),
        (
          {"image": IMAGE, "mask": MASK},
          {"mask": {"a": "mask"}},
          "no 'a' in the component 'mask', which is a ndarray|Tensor",
        ),
        (
          {"image": IMAGE, "a": {"mask": MASK}},
          {"a": {"b": "mask"}},
          r"no 'b' in the component 'a', which has \['mask'\]",
        ),
        ({"image": IMAGE, "images": IMAGE}, {}, r"one entry 'image' or 'images', got .*\['image', 'images'\]"),
        ((IMAGE, {"mask": MASK}), {"mask": "mask"}, 'is in the component 1: pass targets={1: {"mask": "mask"}}'),
        ((IMAGE, 3), {1: "mask"}, r"\[height, width\].* got shape \(\)"),
        ((IMAGE, MASK[:-1]), {1: "mask"}, r"height and width of the image, \(64, 64\), got shape \(63, 64, 1\)"),
        ((IMAGE, MASK[::4, ::4] / 2), {1: "bilinear"}, r"height and width .*got shape \(16, 16, 1\).*Resize"),
        ((IMAGE, BOX[:, :3]), {1: "xyxy"}, r"\[n, 4\], four numbers a box, got shape \(3, 3\)"),
        ((IMAGE, BOX), {1: "xy"}, r"three numbers a point.*got shape \(3, 4\)"),
        ((IMAGE, BOX[None]), {1: "xyxy"}, r"got shape \(1, 3, 4\) with an image of shape \(64, 64, 3\)"),
        ((IMAGES[:4], MASK), {1: "mask"}, r"\(4,\) of the images, got shape \(64, 64, 1\)"),
        (
          (IMAGE, MASK[::2, ::2, 0]),
          {1: "mask"},
          r'cast\(mask, tf.int64\)\[..., tf.newaxis\], \[64, 64\], "nearest"\)\.',
        ),
        ((IMAGE, MASK[..., 0].astype(np.uint8)), {1: "image"}, r"image\[..., tf.newaxis\]"),
        ((IMAGE, MASKS[:4]), {1: "mask"}, "before batch, or batch both"),
      ],
      TypeError=[
        ((IMAGE, {"mask": MASK}), {1: "mask"}, "component 1 must be a dense tensor, got a dict"),
        ((IMAGE, tf.RaggedTensor.from_tensor(MASK)), {1: "mask"}, "dense tensor, got a RaggedTensor"),
        ((IMAGE, "mask.png"), {1: "mask"}, "a numeric or bool dtype, got dtype string"),
        ((IMAGE, MASK), {1: "bilinear"}, 'a floating dtype, got dtype int32.*"mask"'),
        ((IMAGE, BOX.astype(np.int32)), {1: "rel_xyxy"}, "from 0 to 1, got dtype int32"),
        ((IMAGE, BOX > 0), {1: "xyxy"}, "a numeric dtype, got dtype bool"),
        ((IMAGE, BOX[:, :2].astype(np.uint8)), {1: "xy"}, "int32, int64 or a floating dtype, got dtype uint8"),
      ],
    ),
  )
  def test_components(self, element, targets, error, said):
    with pytest.raises(error, match=said):
      refused([augment.random_flip()], element, targets)

  BEYOND = [[1.0, 2, 66, 4]]

  @pytest.mark.parametrize(
    "kind, rows, said",
    [
      ("xyxy", BEYOND, r"be within their image of 64 x 64 pixels, got \[1, 2, 66, 4\] in row 0"),
      ("rel_xyxy", [[0.1, 0.2, 30, 0.4]], "be within their image"),
      ("xyxy", [[5.0, 2, 3, 4]], "no negative height or width"),
      ("yxyx", [[1.0, np.nan, 3, 4]], "finite numbers, got .*nan"),
      ("xy", [[1.0, np.nan]], "finite numbers, got .* in row 0"),
      ("rel_xy", [[0.5, 0.5, 2], [0.5, np.inf, 2]], "in row 1"),
    ],
  )
  def test_numbers(self, kind, rows, said):
    """The error comes at run time, whatever was drawn, and names the component. The next element is unaffected."""
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
  def test_error_gives_the_row_and_the_image_or_frame(self, images, rows, clips, said):
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
  def test_functions_that_would_not_move_targets_are_refused(self, layer, said):
    for targets, component in (({1: "mask"}, self.MASK), ({1: "xyxy"}, self.BOX)):
      with pytest.raises((ValueError, TypeError), match=said):
        refused([tf.identity, layer()], (self.IMAGE, component), targets)

  @pytest.mark.parametrize(
    "target, kind, images, draws",
    [
      ([4, 4], "mask", [5, 4, 3], [0]),
      ([4, 4, 4, 4], "mask", [4, 4, 3], [0]),
      ([4, 4], "mask", [4, 4, 3], [2]),
      ([4, 4], "mask", [4, 4, 3], [0, 0]),
      ([3, 4, 4], "mask", [3, 4, 4, 3], [[0]]),
      ([4], "boxes", [4, 4, 3], [0]),
      ([3], "xyxy", [4, 4, 3], [0]),
      ([2, 4], "xyxy", [3, 4, 4, 3], [[0], [1], [0]]),
      ([2, 4], "xy", [4, 4, 3], [0]),
    ],
  )
  @pytest.mark.parametrize("graph", [False, True])
  def test_the_op_refuses_bad_targets(self, target, kind, images, draws, graph):
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
    """The error comes at run time, because the sizes are unknown before."""
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
        tf.errors.InvalidArgumentError, match="layers with targets must keep the size of the image.*<lambda> at"
      ):
        next(iter(stage))

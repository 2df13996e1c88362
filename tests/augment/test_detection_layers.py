"""`random_zoom_out`, `random_iou_crop` and `random_resize`: compared with torchvision, their draws, and images of
several different sizes."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import ROOT
from support.boxes import in_format
from support.images import chi_square, make_seeds
from support.moved_pixels import check_pixels, followers, noise
from support.words import below, fraction, seed_at

pytestmark = pytest.mark.filterwarnings("ignore::refurbish_tf.PipelineWarning")
RIVALS = json.loads((ROOT / "tests" / "support" / "rival_detection.json").read_text(encoding="utf-8"))
UNIT = 2**31
ZOOM, CROP, SIZES = augment.random_zoom_out(7, (1, 3), p=0.6), augment.random_iou_crop(), augment.random_resize(9, 30)


def rivals(name):
  return pytest.mark.parametrize("case", RIVALS[name], ids=range(len(RIVALS[name])))


def check_followers(layer, draws, case):
  boxes, points = case.get("boxes", RIVALS["given"]["boxes"]), RIVALS["given"]["points"]
  found = followers(layer, draws, np.zeros([*case["image"], 3], np.uint8), ("xyxy", boxes), ("xy", points))
  for made, expected in zip(found, (case["moved_boxes"], case["moved_points"]), strict=True):
    np.testing.assert_allclose(made, expected, rtol=0, atol=1e-3)


@rivals("zoom_out")
def test_zoom_out_is_torchvisions(case):
  layer, draws = (
    augment.random_zoom_out(case["fill"], (1, 2.5), p=1),
    [0, *(int(each * UNIT) for each in case["drawn"])],
  )
  check_pixels(layer, draws, case["image"], case["made"], fill=case["fill"])
  check_followers(layer, draws, case)


@rivals("resize")
def test_resize_is_torchvisions(case):
  image = noise(np.uint8, *case["image"], 3)
  made = augment.random_resize(4, 13).pixels(image, np.int32([case["drawn"] - 4]))
  assert made.shape == [*case["made"], 3]
  np.testing.assert_array_equal(made, augment.resize(case["drawn"])(image))


@rivals("iou_crop")
def test_iou_crop_is_torchvisions(case):
  """Compares images of several kinds and their targets. The draws come from the same seed in the same order."""
  layer, draws, size = augment.random_iou_crop(**case["arguments"]), [*case["seed"], 0, 0, 0, 0], case["image"]
  top, left, height, width = case["crop"]
  for dtype, channels in ((np.uint8, 3), (np.uint8, 1), (np.float32, 5), (np.int16, 13)):
    image = noise(dtype, *size, channels)
    made, (_, mask) = layer._chain._made(
      tf.constant(image),
      tf.constant(draws),
      [("it", "xyxy", tf.constant(case["boxes"])), ("it", "mask", tf.constant(image))],
    )
    for moved in (made, mask):
      np.testing.assert_array_equal(moved, image[top : top + height, left : left + width])
  check_followers(layer, draws, case)


class TestDraws:
  def test_are_the_words_of_a_seed(self):
    for seed in make_seeds(20):
      words = [fraction(seed, k) for k in range(4)]
      assert ZOOM.draws(seed).numpy().tolist() == words
      assert CROP.draws(seed).numpy().tolist() == words[:2] + [0] * 4
      assert SIZES.draws(seed).numpy().tolist() == [below(seed, 0, 21)]

  def test_are_uniform(self):
    drawn = augment.random_zoom_out().draws([7, 0], 6400).numpy()
    for column in drawn.T:
      assert chi_square(np.bincount(column >> 26, minlength=32)) < 31 + 4 * 62**0.5
    assert np.abs(np.corrcoef(drawn.T.astype(np.float64)) - np.eye(4)).max() < 5 / 6400**0.5
    counts = np.bincount(SIZES.draws([7, 0], 4200).numpy()[:, 0])
    assert len(counts) == 21 and chi_square(counts) < 20 + 4 * 40**0.5
    assert (augment.random_resize(9, 10)(noise(np.uint8, 4, 8, 3), [3, 0]).shape) == [9, 18, 3]

  @pytest.mark.parametrize("p", [0, 0.3, 1])
  def test_zooms_with_probability_p(self, p):
    layer = augment.random_zoom_out(side_range=(2, 2), p=p)
    grown = [layer(np.zeros([1, 1, 1], np.uint8), seed).shape[0] == 2 for seed in make_seeds(400)]
    assert abs(np.mean(grown) - p) < 0.08 and (0 < p < 1 or np.mean(grown) == p)

  def test_outcomes(self):
    assert SIZES.outcomes == (21, 21) and CROP.outcomes is None
    assert augment.random_zoom_out(p=1).outcomes == (math.inf, math.inf)
    assert augment.random_zoom_out(side_range=(1, 1)).outcomes == (1, 1)


def cropped(fn, size, boxes, seed):
  """Applies `fn` to an image in which each pixel's value is its index. Returns the crop as left, top, right, bottom,
  and the boxes."""
  made = fn({"image": np.arange(size[0] * size[1], dtype=np.float32).reshape(*size, 1), "boxes": boxes}, seed=seed)
  top, left = divmod(int(made["image"][0, 0, 0]), size[1])
  return np.array([left, top, left + made["image"].shape[1], top + made["image"].shape[0]]), made["boxes"].numpy()


def overlap(crop, box):
  common = np.prod(np.minimum(crop[2:], box[2:]) - np.maximum(crop[:2], box[:2]))
  return common / (np.prod(crop[2:] - crop[:2]) + np.prod(box[2:] - box[:2]) - common)


class TestIouCrop:
  @pytest.mark.parametrize("least", [0, 0.5, 0.9])
  def test_crops_meet_their_limits_of_size_ratio_and_overlap(self, least):
    """In 200 trials, sides, ratio and overlap are within the limits. A box is where its pixels are, or 0 if its center
    is outside the crop."""
    fn = augment.compose([augment.random_iou_crop(0.4, 0.9, 0.7, 1.5, [least], 60)], {"boxes": "rel_yxyx"})
    random, size, crops = np.random.default_rng(5), (50, 40), 0
    for seed in make_seeds(200):
      corners = random.uniform(0, [25, 35], (3, 2))
      boxes = np.concatenate([corners, corners + random.uniform(5, 15, (3, 2))], 1)
      # This box is as large as a crop can be.
      boxes[0] = [2, 3, 34, 41]
      given = np.concatenate([in_format(boxes, "rel_yxyx", size), [[-1] * 4, [0] * 4]])
      crop, found = cropped(fn, size, given, seed)
      assert found[3].tolist() == [-1] * 4 and found[4].tolist() == [0] * 4
      width, height = crop[2:] - crop[:2]
      if (height, width) == size:
        np.testing.assert_allclose(found, given, rtol=0, atol=1e-9)
        continue
      crops += 1
      assert 0.4 * 40 - 1 < width < 0.9 * 40 and 0.4 * 50 - 1 < height < 0.9 * 50 and 0.7 <= width / height <= 1.5
      middles = (boxes[:, :2] + boxes[:, 2:]) / 2
      kept = np.all((middles > crop[:2]) & (middles < crop[2:]), 1)
      assert max(overlap(crop, box) for box in boxes[kept]) >= least
      moved = in_format(np.clip(boxes - [*crop[:2]] * 2, 0, [width, height] * 2), "rel_yxyx", (height, width))
      np.testing.assert_allclose(found[:3], moved * kept[:, np.newaxis], rtol=0, atol=1e-9)
    assert crops > 150

  @pytest.mark.parametrize("boxes", [np.zeros([0, 4]), [[-1.0] * 4] * 2, [[0.0] * 4]])
  def test_without_boxes_the_image_stays(self, boxes):
    fn = augment.compose([augment.random_iou_crop(sampler_options=[0])], {"boxes": "xyxy"})
    for seed in make_seeds(5):
      crop, found = cropped(fn, (20, 30), boxes, seed)
      assert crop.tolist() == [0, 0, 30, 20] and found.tolist() == np.asarray(boxes).tolist()

  def test_the_image_stays_if_no_crop_is_possible(self):
    """Torchvision would retry forever here, because no crop contains that much of the box or has sides that small."""
    for size, options in (((30, 30), [0.99]), ((1, 1), [0]), ((3, 1), [0.2])):
      fn = augment.compose([augment.random_iou_crop(sampler_options=options, trials=7)], {"boxes": "xyxy"})
      assert cropped(fn, size, [[0.0, 0, 1, 1]], [7, 0])[0].tolist() == [0, 0, *size[::-1]]

  def test_uses_the_first_boxes_as_moved_by_earlier_layers(self):
    """This holds also in a batch, where each image has its own boxes, and for all frames of a clip."""
    layers = [augment.random_zoom_out(p=1), augment.random_flip(p=1), CROP, augment.resize((16, 24))]
    kinds, one = {"boxes": "xyxy", "others": "xywh"}, [[2.0, 3, 14, 18]]
    fn, sized = augment.compose(layers, kinds), augment.compose(layers, kinds, clips=True)
    images, boxes = noise(np.uint8, 6, 20, 30, 3), np.float32([np.add(one, [k, 0, 2 * k, 0]) for k in range(6)])
    batch = fn({"image": images, "boxes": boxes, "others": boxes[::-1]}, seed=[7, 0])
    for number in range(6):
      alone = fn(
        {"image": images[number], "boxes": boxes[number], "others": boxes[5 - number]},
        seed=augment.seed_at([7, 0], number),
      )
      for name, expected in alone.items():
        np.testing.assert_array_equal(batch[name][number], expected)
    clip = sized({"image": images, "boxes": boxes, "others": boxes}, seed=[7, 0])
    together = fn({"image": images[0], "boxes": boxes.reshape(6, 4), "others": boxes[0]}, seed=[7, 0])
    np.testing.assert_array_equal(clip["boxes"].numpy().reshape(6, 4), together["boxes"])
    np.testing.assert_array_equal(clip["image"][0], together["image"])
    crop, element = augment.compose([CROP], kinds), {"image": images[0], "boxes": boxes[0], "others": boxes[0]}
    assert len({len(crop(element, seed=seed)["image"]) for seed in make_seeds(9)}) > 3

  def test_needs_boxes(self):
    image, match = noise(np.uint8, 9, 9, 3), "needs the boxes of an image, got none.*targets="
    source = tf.data.Dataset.from_tensors({"image": image, "mask": image[..., 0]})
    for make in (
      lambda: CROP(image, [7, 0]),
      lambda: CROP.pixels(image, CROP.draws([7, 0])),
      lambda: augment.compose([augment.random_choice([CROP, augment.random_flip()])], {1: "mask"})(
        image, image, seed=[7, 0]
      ),
      lambda: source.refurbish([CROP], targets={"mask": "mask"}),
    ):
      with pytest.raises(TypeError, match=match):
        make()


class TestSizes:
  """Images that have one size before a layer and several sizes after it."""

  @pytest.mark.parametrize(
    "layers",
    [[ZOOM], [SIZES], [augment.random_flip(), augment.random_choice([augment.resize(9), augment.pad(2)])]],
    ids=range(3),
  )
  def test_a_batch_needs_one_size(self, layers):
    images = noise(np.uint8, 8, 12, 10, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="images of a batch must have one size after .*Put resize"):
      augment.compose(layers)(images, seed=[7, 0])
    fn = augment.compose([*layers, augment.resize((7, 11))])
    made = fn(images, seed=[7, 0])
    assert made.shape == [8, 7, 11, 3] and fn(images[:0], seed=[7, 0]).shape == [0, 7, 11, 3]
    for number, image in enumerate(images):
      np.testing.assert_array_equal(made[number], fn(image, seed=augment.seed_at([7, 0], number)))
    assert augment.compose(layers)(images[:0], seed=[7, 0]).shape[0] == 0

  def test_later_layers_check_each_drawn_size(self):
    """A drawn size is known only at run time. A crop of a smaller image is then an error."""
    fn = augment.compose([augment.random_resize(10, 30), augment.random_crop(20)])
    counts = {True: 0, False: 0}
    for seed in make_seeds(40):
      fits = bool(augment.random_resize(10, 30).draws(seed_at(seed, 0))[0] >= 10)
      counts[fits] += 1
      if fits:
        assert fn(noise(np.uint8, 9, 9, 3), seed=seed).shape == [20, 20, 3]
      else:
        with pytest.raises(
          tf.errors.InvalidArgumentError, match="image of random_crop must have a height of at least 20 pixels"
        ):
          fn(noise(np.uint8, 9, 9, 3), seed=seed)
    assert min(counts.values()) > 5
    with pytest.raises(tf.errors.InvalidArgumentError, match="random_crop must have a height of at least 20 pixels"):
      fn(noise(np.uint8, 30, 9, 9, 3), seed=[7, 0])

  @pytest.mark.parametrize("at", [1, 2, 4])
  def test_in_a_stage(self, at):
    """Several workers make the same images as one worker in each epoch, even if they write rows of a batch."""
    layers = [augment.random_zoom_out(p=0.8), CROP, augment.random_flip(), augment.resize((12, 15))]
    images, boxes = noise(np.uint8, 12, 20, 30, 3), np.float32([[[k, 2, k + 15, 18]] for k in range(12)])
    source = tf.data.Dataset.from_tensor_slices((images, boxes))
    stages = [
      source.refurbish(layers[:at], layers[at:], targets={1: "xyxy"}, seed=5, order_seed=1, num_parallel_calls=workers)
      for workers in (None, 3, 3)
    ]
    stages[2] = stages[2].batch(4).unbatch()
    for _ in range(3):
      expected, *others = [
        [tf.nest.map_structure(lambda each: each.numpy(), element) for element in stage] for stage in stages
      ]
      assert len(expected) == 12 and len(np.unique([boxes for _, boxes in expected])) > 12
      for found in others:
        tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    plain = (
      source.map(lambda image, boxes: image)
      .refurbish([ZOOM], [SIZES, *layers[3:]], seed=5, num_parallel_calls=3)
      .batch(5)
    )
    assert [each.shape[1:].as_list() for each in plain] == [[12, 15, 3]] * 3

  def test_static_shapes(self):
    image = tf.TensorSpec([9, 11, 3], tf.uint8)
    for layers, expected in (([ZOOM], [None, None]), ([SIZES], [None, None]), ([ZOOM, augment.resize((5, 6))], [5, 6])):
      fn = augment.compose(layers)
      made = tf.function(lambda image, fn=fn: fn(image, seed=[7, 0])).get_concrete_function(image)
      assert made.structured_outputs.shape.as_list() == [*expected, 3]


@pytest.mark.parametrize(
  "make, error, match",
  [
    (lambda: augment.random_zoom_out(256), ValueError, "fill of random_zoom_out must be a whole number from 0 to 255"),
    (
      lambda: augment.random_zoom_out(side_range=(0.5, 2)),
      ValueError,
      "side_range of random_zoom_out must be two numbers from 1 to 1,000",
    ),
    (lambda: augment.random_zoom_out(side_range=(3, 2)), ValueError, "the smaller one first"),
    (lambda: augment.random_resize(5, 5), ValueError, "max_size of random_resize"),
    (lambda: augment.random_iou_crop(0.9, 0.3), ValueError, "min_scale"),
    (lambda: augment.random_iou_crop(min_aspect_ratio=3), ValueError, "min_aspect_ratio"),
    (
      lambda: augment.random_iou_crop(sampler_options=[]),
      ValueError,
      "sampler_options of random_iou_crop must be a list of one or more",
    ),
    (lambda: augment.random_iou_crop(trials=0), ValueError, "trials of random_iou_crop must be a whole number from 1"),
  ],
)
def test_refuses(make, error, match):
  with pytest.raises(error, match=match):
    make()


@pytest.mark.parametrize(
  "layer, shape, dtype, error, match",
  [
    (ZOOM, [4, 4, 5], np.uint8, ValueError, "have 1 or 2 or 3 or 4 channels"),
    (ZOOM, [4, 4, 3], np.float32, TypeError, "be uint8"),
    (SIZES, [1, 9000, 1], np.uint8, ValueError, "sides of at most 65535 pixels when its shortest has 29, got 1 x 9000"),
    (augment.random_zoom_out((1, 2, 3)), [4, 4, 1], np.uint8, ValueError, "have 3 channels"),
  ],
)
def test_refuses_images(layer, shape, dtype, error, match):
  with pytest.raises(error, match=f"image of {layer.__name__} must .*{match}"):
    layer(np.zeros(shape, dtype), [7, 0])


def test_an_intermediate_image_with_too_many_pixels_is_refused():
  zooms = [augment.random_zoom_out(side_range=(1000, 1000), p=1)] * 2
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"at most 2\^48 pixels"):
    augment.compose([*zooms, augment.resize((4, 4))])(tf.zeros([200, 200, 64], tf.uint8), seed=[7, 0])

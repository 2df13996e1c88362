"""`augmix` is torchvision's AugMix of Pillow's distortions, for given draws, which have the paper's distributions."""

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support import cases, torchvision_policies
from support.images import noise

WHOLE, SEED = 2**24, [7, 0]
COLORS = ["Color", "Contrast", "Brightness", "Sharpness"]
# In the order of their draws: each has two for each severity. Those with a sign have the positive one first.
NAMES = ["AutoContrast", "Equalize", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", *COLORS]
NAMES += ["Solarize", "Posterize"]


def read(draws, width, least=1):
  """Returns m, the weights of the chains, and the draws of their distortions."""
  part, *weights = draws[:width].tolist()
  rows = draws[width:].reshape(width, -1).tolist()
  weights.append(WHOLE - sum(weights))
  return part / WHOLE, [each / WHOLE for each in weights], [row[1 : 1 + least + row[0]] for row in rows]


def job(image, draws, severity, width, depth=-1, all_ops=True, fill=0):
  """What torchvision would draw for the draws of a layer."""
  part, weights, chains = read(draws, width, 1 if depth == -1 else depth)
  named, drawn, whole = [], [], []
  for chain in chains:
    whole += [len(chain)] * (depth == -1)
    for draw in chain:
      name = [name for name in NAMES if all_ops or name not in COLORS][draw // (2 * severity)]
      cell, has_strength = draw % (2 * severity), name not in ("AutoContrast", "Equalize")
      has_sign = has_strength and name not in ("Solarize", "Posterize")
      named.append(name)
      whole += [cell % severity if has_sign else cell // 2] * has_strength
      # Translations to the left are positive here, negative in torchvision.
      drawn += [0.75 if (cell < severity) != name.startswith("Translate") else 0.25] * has_sign
  arguments = "AugMix", severity, width, depth, 1.0, all_ops, "nearest", fill
  return arguments, image, named, drawn, whole, [[1 - part, part], weights]


@cases.slow
def test_pixels_are_torchvisions():
  """Checks each distortion, strength and direction, and whole mixtures."""
  found, jobs = [], []

  def add(layer, image, draws, *arguments):
    found.append(layer.pixels(image, draws).numpy())
    jobs.append(job(image, draws, *arguments))

  for severity, all_ops in ((10, True), (2, False)):
    layer = augment.augmix(severity, 1, 1, all_ops=all_ops)
    for draw in range(2 * severity * (13 if all_ops else 9)):
      add(layer, noise(40, 54, 3), np.int32([WHOLE, 0, draw]), severity, 1, 1, all_ops)
  mixtures = [(3, 3, -1, 0), (10, 1, 4, 128), (5, 7, -1, 9), (3, 3, 2, 0)]
  for number, (severity, width, depth, fill) in enumerate(mixtures):
    layer = augment.augmix(severity, width, depth, fill=fill)
    for image in (noise(33, 47, 3), noise(8, 9, 3)):
      add(layer, image, layer.draws([number, 1]).numpy(), severity, width, depth, True, fill)
  for image, expected, each in zip(found, torchvision_policies.made(jobs), jobs, strict=True):
    np.testing.assert_array_equal(image, expected, err_msg=f"{each[0]} {each[2:]}")


def test_the_blend_is_a_truncated_sum_of_floats():
  """With m = 1 and the whole weight, a chain alone is the result."""
  layer, alone, image = augment.augmix(10), augment.augmix(10, 1), noise(31, 45, 3)
  for seed in range(20):
    draws = layer.draws([seed, 0]).numpy()
    part, weights, _ = read(draws, 3)
    expected = np.float32(1 - part) * image.astype(np.float32)
    for weight, row in zip(weights, draws[3:].reshape(3, -1)):
      chain = alone.pixels(image, np.int32([WHOLE, *row])).numpy()
      expected += np.float32(weight) * np.float32(part) * chain.astype(np.float32)
    np.testing.assert_array_equal(layer.pixels(image, draws), expected.astype(np.uint8))


@pytest.mark.parametrize("alpha", [0.02, 0.5, 1, 8])
def test_weights_are_drawn_from_beta_and_dirichlet(alpha):
  number, random = 40_000, np.random.default_rng(3)
  for width in (1, 2, 5):
    draws = augment.augmix(3, width, 1, alpha).draws(SEED, number).numpy()
    weights = np.c_[draws[:, 1:width], WHOLE - draws[:, 1:width].sum(1)] / WHOLE
    assert weights.min() >= 0 and (width == 1 or abs(np.corrcoef(draws[:, 0], weights[:, 0])[0, 1]) < 0.02)
    variance = (width - 1) / width**2 / (width * alpha + 1)
    np.testing.assert_allclose(weights.var(0), variance, rtol=0.06)
    expected = random.dirichlet([alpha] * width, number)
    for pair in [(draws[:, 0] / WHOLE, random.beta(alpha, alpha, number)), *zip(weights.T, expected.T)]:
      # The largest difference of the distribution functions is above this by chance less than once in 100,000 times.
      below = [np.sort(each).searchsorted(np.linspace(0, 1, 300)[1:-1], "right") / number for each in pair]
      assert np.abs(below[0] - below[1]).max() < 0.018


def test_depths_and_distortions_are_equally_likely():
  draws = augment.augmix(4, 2).draws(SEED, 20_000).numpy()
  chains = draws[:, 2:].reshape(-1, 4)
  np.testing.assert_allclose(np.bincount(chains[:, 0]) / len(chains), [1 / 3] * 3, atol=0.012)
  for place in range(3):
    assert not chains[chains[:, 0] < place, 1 + place].any()
    counts = np.bincount(chains[chains[:, 0] >= place, 1 + place])
    assert len(counts) == 13 * 2 * 4 and np.abs(counts / counts.mean() - 1).max() < 0.35
  assert abs(np.corrcoef(draws[:, 2], draws[:, 6])[0, 1]) < 0.03
  operations = draws[(draws[:, [2, 6]] == 2).all(1)][:, [3, 4, 5, 7, 8, 9]]
  assert np.abs(np.corrcoef(operations.T) - np.eye(6)).max() < 0.1
  assert not augment.augmix(3, 2, 16).draws(SEED, 100).numpy()[:, [2, 19]].any()


def test_the_same_seed_gives_the_same_bytes_everywhere():
  layer, images = augment.augmix(), noise(4, 20, 26, 3)
  batch = augment.compose([layer], clips=False)(images, seed=SEED)
  clip = augment.compose([layer], clips=True)(images, seed=SEED)
  for number, image in enumerate(images):
    seed = augment.seed_at(augment.seed_at(SEED, number), 0)
    np.testing.assert_array_equal(batch[number], layer(image, seed))
    np.testing.assert_array_equal(batch[number], layer.pixels(image, layer.draws(seed)))
    np.testing.assert_array_equal(clip[number], augment.compose([layer])(image, seed=SEED))
  assert not np.array_equal(augment.random_choice([augment.random_apply([layer], 1)])(images, SEED), images)
  stage = tf.data.Dataset.from_tensor_slices(images).refurbish([layer], [augment.random_flip()], r=2, seed=3)
  assert [image.shape for image in stage] == [(20, 26, 3)] * 4


def test_targets_are_refused_unless_they_stay_as_they_are():
  """They would have several places. A second image follows with the same draws."""
  layer, image, mask = augment.augmix(), noise(20, 26, 3), noise(20, 26)
  for layers in ([layer], [augment.random_flip("vertical"), augment.random_apply([layer])]):
    for kind in ("mask", "disparity", "flow"):
      with pytest.raises(ValueError, match=r"1 cannot follow .*augmix.* several places. Use rand.*\{1: None\}"):
        augment.compose(layers, {1: kind})
  made, same = augment.compose([layer], {1: None})(image, mask, seed=SEED)
  np.testing.assert_array_equal(same, mask)
  np.testing.assert_array_equal(augment.compose([layer], {1: "image"})(image, image, seed=SEED)[1], made)
  with pytest.raises(ValueError, match="augmix.* stays on the host"):
    tf.data.Dataset.from_tensors(image).offload([layer], 1, num_replicas=1)


def test_bad_arguments_and_draws():
  for arguments, error, told in (
    ({"severity": 0}, ValueError, "severity of augmix must be a whole number from 1 to 10, got 0. Pass 3"),
    ({"mixture_width": 17}, ValueError, "mixture_width of augmix must be a whole number from 1 to 16"),
    ({"chain_depth": 0}, ValueError, "chain_depth of augmix .*Pass -1 to draw"),
    ({"alpha": 0}, ValueError, "alpha of augmix must be a number from 0.001 to 1,000"),
    ({"all_ops": 1}, TypeError, "all_ops of augmix must be True or False"),
    ({"fill": (1, 2, 3)}, TypeError, "fill of augmix must be a whole number from 0 to 255"),
  ):
    with pytest.raises(error, match=told):
      augment.augmix(**arguments)
  layer = augment.augmix()
  draws = layer.draws(SEED).numpy()
  # Larger weights would make a blend that exceeds a byte.
  for place, value in ((0, WHOLE + 1), (2, WHOLE + 1 - draws[1]), (3, 3), (4, 78)):
    with pytest.raises(tf.errors.InvalidArgumentError, match="A draw must be from 0 to"):
      layer.pixels(noise(4, 4, 3), np.where(np.arange(len(draws)) == place, value, draws).astype(np.int32))

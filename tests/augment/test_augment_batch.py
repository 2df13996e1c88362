"""Composed layers of a batch, with a seed and without, compared with those of single images."""
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support.images import IMAGES

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)


def batched_layers(padding, *normalisation):
  last = [augment.normalize(*normalisation)] if normalisation else []
  return augment.compose([augment.random_crop(padding=padding), augment.random_flip(), *last], clips=False)


def _images(count, height, width, channels=3):
  return np.random.RandomState(0).randint(0, 256, (count, height, width, channels)).astype(np.uint8)


class TestBatches:

  @pytest.mark.parametrize("known", [True, False])
  def test_is_what_compose_makes_of_each_image(self, known):
    batched, images = batched_layers(4, MEAN, STD), _images(30, 8, 9)
    single = augment.compose([augment.random_crop(padding=4), augment.random_flip(), augment.normalize(MEAN, STD)])
    function = tf.function(batched, autograph=False).get_concrete_function(
        tf.TensorSpec(images.shape if known else [None] * 4, tf.uint8), seed=tf.TensorSpec([2], tf.int32))
    np.testing.assert_array_equal(
        function(tf.constant(images), seed=tf.constant([7, 0])),
        [single(image, seed=augment.seed_at([7, 0], i)) for i, image in enumerate(images)])
    np.testing.assert_array_equal(
        batched.pixels(images, batched.draws([7, 0], 30)), batched(images, seed=[7, 0]))

  def test_without_seed_draws_anew_for_each_batch_and_epoch(self):
    tf.random.set_seed(3)
    images = np.stack([IMAGES["noise"]] * 8)
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(4).map(batched_layers(4))
    assert len({result.tobytes() for results in [*dataset, *dataset] for result in results.numpy()}) > 12

  def test_with_seeds_an_iterator_is_saved(self, tmp_path):
    """As in docs/batches.md. Without seeds TensorFlow refuses to save it."""
    batched = batched_layers(2, 0.5, 0.25)

    def make():
      batches = tf.data.Dataset.from_tensor_slices(_images(12, 4, 4, 3)).refurbish(tf.identity, None, r=2, seed=1).batch(3)
      seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(4)
      return tf.data.Dataset.zip(batches, seeds).map(lambda batch, seeds: batched(batch, seed=seeds[:2])).repeat(3)

    expected = [batch.tobytes() for batch in make().as_numpy_iterator()]
    iterator = iter(make())
    yielded = [next(iterator).numpy().tobytes() for _ in range(6)]
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
    restored = iter(make())
    tf.train.Checkpoint(iterator=restored).read(path).assert_consumed()
    yielded += [batch.numpy().tobytes() for batch in restored]
    # This epoch continues unchanged; in epochs after a restore Dataset.random draws other numbers.
    assert yielded[:8] == expected[:8] and len(yielded) == len(expected) == len(set(expected)) == 12
    unseeded = iter(tf.data.Dataset.from_tensor_slices(_images(12, 4, 4, 3)).batch(3).map(batched))
    with pytest.raises(tf.errors.FailedPreconditionError, match="stateful"):
      tf.train.Checkpoint(iterator=unseeded).write(str(tmp_path / "another"))

  @pytest.mark.parametrize("shape", [[None, 32, 48, 3], [4, None, 48, 3], [4, 32, None, None], [None] * 4])
  @pytest.mark.parametrize("normalisation", [(), (0.5, 0.25)])
  def test_keeps_the_static_shape(self, shape, normalisation):
    batched = batched_layers(4, *normalisation)
    spec = tf.function(batched).get_concrete_function(tf.TensorSpec(shape, tf.uint8)).structured_outputs
    assert spec.shape.as_list() == shape and spec.dtype == (tf.float32 if normalisation else tf.uint8)

  def test_passes_labels_and_dicts_on(self):
    batched = batched_layers(2)
    images = _images(4, 8, 8)
    alone = batched(images, seed=[7, 0])
    result, labels = batched(images, [1, 2, 3, 4], seed=[7, 0])
    assert labels == [1, 2, 3, 4]
    np.testing.assert_array_equal(result, alone)
    result = batched({"image": images, "label": 3}, seed=[7, 0])
    assert result["label"] == 3
    np.testing.assert_array_equal(result["image"], alone)

  @pytest.mark.parametrize("seed, error", [(7, ValueError), ([0.5, 1.5], TypeError)])
  def test_refuses_seeds(self, seed, error):
    with pytest.raises(error, match="seed of a composed function"):
      batched_layers(4)(_images(2, 4, 4), seed=seed)

"""The batched crop, flip and normalisation, compared with the layers for single images."""
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from support.images import IMAGES

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)


def _images(count, height, width, channels=3):
  return np.random.RandomState(0).randint(0, 256, (count, height, width, channels)).astype(np.uint8)


class TestRandomCropAndFlipBatch:

  @pytest.mark.parametrize("known", [True, False])
  def test_is_what_compose_makes_of_each_image(self, known):
    batched, images = augment.random_crop_and_flip_batch(4, MEAN, STD), _images(30, 8, 9)
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
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(4).map(augment.random_crop_and_flip_batch(4))
    assert len({result.tobytes() for results in [*dataset, *dataset] for result in results.numpy()}) > 12

  def test_with_seeds_an_iterator_is_saved(self, tmp_path):
    """As in docs/batches.md. Without seeds TensorFlow refuses to save it."""
    batched = augment.random_crop_and_flip_batch(2, 0.5, 0.25)

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
    batched = augment.random_crop_and_flip_batch(4, *normalisation)
    spec = tf.function(batched).get_concrete_function(tf.TensorSpec(shape, tf.uint8)).structured_outputs
    assert spec.shape.as_list() == shape and spec.dtype == (tf.float32 if normalisation else tf.uint8)

  def test_passes_labels_and_dicts_on(self):
    batched = augment.random_crop_and_flip_batch(2)
    images = _images(4, 8, 8)
    alone = batched(images, seed=[7, 0])
    result, labels = batched(images, [1, 2, 3, 4], seed=[7, 0])
    assert labels == [1, 2, 3, 4]
    np.testing.assert_array_equal(result, alone)
    result = batched({"image": images, "label": 3}, seed=[7, 0])
    assert result["label"] == 3
    np.testing.assert_array_equal(result["image"], alone)


class TestRefusal:

  @pytest.mark.parametrize("images, error, said", [
      (tf.zeros([4, 4, 3], tf.uint8), ValueError, r"shape \(4, 4, 3\).*after batch"),
      (tf.zeros([1, 2, 4, 4, 3], tf.uint8), ValueError, r"shape \(1, 2, 4, 4, 3\)")])
  def test_of_images(self, images, error, said):
    batched = augment.random_crop_and_flip_batch(4)
    with pytest.raises(error, match=f"images of random_crop_and_flip_batch .*{said}"):
      batched(images)
    with pytest.raises(error, match=f"images of random_crop_and_flip_batch .*{said}"):
      tf.data.Dataset.from_tensors(images).map(batched)

  @pytest.mark.parametrize("seed, error", [(7, ValueError), ([0.5, 1.5], TypeError)])
  def test_of_a_seed(self, seed, error):
    with pytest.raises(error, match="seed of random_crop_and_flip_batch"):
      augment.random_crop_and_flip_batch(4)(_images(2, 4, 4), seed=seed)

  @pytest.mark.parametrize("padding, error", [
      (-1, ValueError), (16_384, ValueError), (1.0, TypeError), (None, TypeError)])
  def test_of_a_padding(self, padding, error):
    with pytest.raises(error, match=f"padding of random_crop_and_flip_batch .*{padding}"):
      augment.random_crop_and_flip_batch(padding)

  @pytest.mark.parametrize("mean, std, error, said", [
      (0.5, None, ValueError, "mean and std .*mean=0.5 and std=None"), (None, 1, ValueError, "mean and std "),
      ("0.5", 1, TypeError, "^mean .*'0.5'")])
  def test_of_a_normalisation(self, mean, std, error, said):
    with pytest.raises(error, match=said):
      augment.random_crop_and_flip_batch(4, mean, std)
    with pytest.raises(ValueError, match="max_pixel_value .*must come with mean and std, got 255"):
      augment.random_crop_and_flip_batch(4, max_pixel_value=255)

  def test_of_images_with_another_number_of_channels(self):
    with pytest.raises(ValueError, match="channels of mean and std, 3, got shape"):
      augment.random_crop_and_flip_batch(4, MEAN, STD)(_images(2, 4, 4, 1))

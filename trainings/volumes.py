"""Seconds until a small 3-D U-Net reaches a target Dice on drawn volumes, for several reuse factors.

    PYTHONPATH=. python trainings/volumes.py --output volumes.csv

The noisy volumes have ellipsoids, which the network must find, and tubes of the same brightness. MONAI's transforms
prepare them in worker processes; crop, flips and intensity are the final augmentation. Only r differs between
trainings, and the values of r take turns. The program adds a row for each training, and continues where it was stopped.
Only training time counts: the clock pauses during validation. It needs MONAI, cloudpickle and an otherwise idle
machine.
"""

import argparse
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.experiments import positive_number, results, tables, turns

DATASET = "drawn volumes"
SIDE, VOLUMES, VALIDATION, BATCH_SIZE, WIDTH = 48, 48, 16, 2, 8
KEY = ("dataset", "images", "side", "batch_size", "r", "learning_rate", "target", "most_epochs", "seed")
COLUMNS = ("steps", "dice", "seconds", "cpu_seconds")
# The learning rate was chosen with `TUNING_SEED`: with r = 1 it reached the target sooner than 0.003. 0.01 was only
# tried with r = 3, and did not reach it.
REUSE, SEEDS, TUNING_SEED = (1, 2, 3), tables.SEEDS_OF_VOLUMES, 100
LEARNING_RATE, TARGET, MOST_EPOCHS = 0.006, 0.7, 40


def draw(count, side, seed):
  """Returns `count` volumes, int16 `[count, side, side, side, 1]`, and their masks, uint8 without the last axis."""
  rng = np.random.default_rng(seed)
  volumes, masks = np.zeros([count, side, side, side], np.float32), np.zeros([count, side, side, side], np.uint8)
  places = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).astype(np.float32)
  for volume, mask in zip(volumes, masks):
    for is_tube in [False] * rng.integers(2, 5) + [True] * rng.integers(3, 6):
      turned = (places - rng.uniform(0.2 * side, 0.8 * side, 3)) @ np.linalg.qr(rng.normal(size=[3, 3]))[0].astype(
        np.float32
      )
      radii = rng.uniform(0.08, 0.2, 3) * side
      radii[0] = 10 * side if is_tube else radii[0]
      radii[1:] *= 0.5 if is_tube else 1
      inside = ((turned / radii) ** 2).sum(-1) < 1
      volume[inside] = rng.uniform(200, 500)
      mask[inside] = not is_tube
  noise = rng.normal(0, 150, volumes.shape) + rng.uniform(-200, 200, [count, 1, 1, 1])
  return (volumes + noise).astype(np.int16)[..., np.newaxis], masks


def monai_layer(processes=None):
  """Returns the partial augmentation: eight transforms of MONAI."""
  # Made in each worker process, because some versions of TensorFlow and MONAI do not work in the same process.
  made = []

  def prepare(image, mask, rng):
    if not made:
      from monai import transforms

      both, modes = ["image", "mask"], ("bilinear", "nearest")
      made.append(
        transforms.Compose(
          [
            transforms.Rand3DElasticd(both, (6, 8), (60, 180), prob=1, mode=modes, padding_mode="border"),
            transforms.RandRotated(both, 0.3, 0.3, 0.3, prob=0.5, mode=modes),
            transforms.RandZoomd(both, min_zoom=0.8, max_zoom=1.25, prob=0.5, mode=("trilinear", "nearest")),
            transforms.RandBiasFieldd(["image"], prob=0.3),
            transforms.RandGaussianSmoothd(["image"], prob=0.3),
            transforms.RandGibbsNoised(["image"], prob=0.2, alpha=(0, 0.4)),
            transforms.RandAdjustContrastd(["image"], prob=0.3, gamma=(0.7, 1.5)),
            transforms.RandGaussianNoised(["image"], prob=0.3, std=50.0),
          ]
        )
      )
    made[0].set_random_state(seed=int(rng.integers(2**31)))
    result = made[0]({"image": np.moveaxis(image, -1, 0).astype(np.float32), "mask": mask[np.newaxis]})
    return {
      "image": np.moveaxis(np.asarray(result["image"]), 0, -1).round().astype(image.dtype),
      "mask": np.asarray(result["mask"])[0].astype(mask.dtype),
    }

  return augment.numpy_layer(prepare, processes=processes)


def pipeline(volumes, masks, layer, r, seed):
  """Batches of volumes and masks."""
  return (
    tf.data.Dataset.from_tensor_slices((volumes, masks))
    .refurbish(
      [layer],
      [
        augment.random_crop(padding=3),
        augment.random_depth_flip(),
        augment.random_flip("horizontal_and_vertical"),
        augment.normalize([0], [300]),
        augment.random_intensity(0.1, 0.1),
      ],
      r=r,
      seed=seed,
      targets={1: "mask"},
    )
    .batch(BATCH_SIZE, drop_remainder=True)
    .prefetch(2)
  )


def unet(side, width):
  """A U-Net of three levels, the first at half the resolution, with nnU-Net's normalization and activation."""

  def block(x, filters):
    for _ in range(2):
      x = keras.layers.Conv3D(filters, 3, padding="same", use_bias=False)(x)
      x = keras.layers.LeakyReLU(0.01)(keras.layers.GroupNormalization(groups=-1)(x))
    return x

  inputs = keras.Input([side, side, side, 1])
  fine = block(keras.layers.Conv3D(width, 4, strides=2, padding="same")(inputs), width)
  middle = block(keras.layers.MaxPooling3D()(fine), 2 * width)
  coarse = block(keras.layers.MaxPooling3D()(middle), 4 * width)
  middle = block(keras.layers.Concatenate()([keras.layers.UpSampling3D()(coarse), middle]), 2 * width)
  fine = block(keras.layers.Concatenate()([keras.layers.UpSampling3D()(middle), fine]), width)
  return keras.Model(inputs, keras.layers.Reshape([side] * 3)(keras.layers.Conv3DTranspose(1, 2, strides=2)(fine)))


def loss(masks, logits):
  """One minus the soft Dice of a batch, plus the cross entropy."""
  masks, found = tf.cast(masks, tf.float32), tf.sigmoid(logits)
  return (
    1
    - (2 * tf.reduce_sum(found * masks) + 1) / (tf.reduce_sum(found) + tf.reduce_sum(masks) + 1)
    + tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(masks, logits))
  )


def train(row, data, layer, width=WIDTH):
  """Trains on the first pair of `data` until the second one reaches the target. Returns the remaining columns of the
  row."""
  keras.utils.set_random_seed(row["seed"])
  volumes, masks = (data[1][0] / 300).astype(np.float32), data[1][1]
  model = unet(row["side"], width)
  model.compile(keras.optimizers.Adam(row["learning_rate"]), loss, jit_compile=False)

  def dice():
    found = model.predict(volumes, BATCH_SIZE, verbose=0) > 0
    return 2 * masks[found].sum() / (masks.sum() + found.sum())

  def batches():
    made = pipeline(*data[0], layer, row["r"], row["seed"])
    return lambda _: made

  reached, seconds, cpu = turns.timed_epochs(model, batches, dice, row["most_epochs"], row["target"])
  steps = int(model.optimizer.iterations)
  keras.backend.clear_session()
  return {
    "steps": steps,
    "dice": " ".join(f"{each:.4f}" for each in reached),
    "seconds": round(sum(seconds), 2),
    "cpu_seconds": round(sum(cpu), 2),
  }


def main(argv=None):
  """Runs the trainings that are not in the table yet, and prints the results."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  parser.add_argument("--output", type=pathlib.Path, default="volumes.csv", help="the table to write or to complete")
  parser.add_argument(
    "--seeds", type=int, nargs="+", default=SEEDS, help=f"any seeds except {TUNING_SEED}, which chose the learning rate"
  )
  parser.add_argument("--learning-rate", type=positive_number, default=LEARNING_RATE, help="learning rate of Adam")
  parser.add_argument("--target", type=positive_number, default=TARGET, help="the validation Dice to reach")
  parser.add_argument("--most-epochs", type=int, default=MOST_EPOCHS, help="epochs after which a training ends")
  args = parser.parse_args(argv)
  layer = monai_layer()
  opened, data = results.open_table(
    parser, args.output, KEY, COLUMNS, lambda: (draw(VOLUMES, SIDE, 1), draw(VALIDATION, SIDE, 2))
  )
  row_of = lambda r, seed: dict(
    zip(KEY, (DATASET, VOLUMES, SIDE, BATCH_SIZE, r, args.learning_rate, args.target, args.most_epochs, seed))
  )
  turns.complete(opened, REUSE, args.seeds, row_of, lambda row: train(row, data, layer))
  print(tables.volumes(results.read(opened.path)))


if __name__ == "__main__":
  sys.exit(main())

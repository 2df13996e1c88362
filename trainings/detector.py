"""Seconds until a small detector reaches a target mAP: standard training against reuse, with mosaic.

    PYTHONPATH=. python trainings/detector.py OUT_DIR

Pieces of photographs of groceries are pasted onto grey photographs and stored as JPEG files. The training images come
from the train split, the validation images from the test split. The network is a CenterNet, so small that a training
step costs about as much CPU time as its input. The clock pauses during validation. The strategies take turns, and each
training has its own process. The program adds a row to OUT_DIR/detector.csv for each training, and continues where it
was stopped. The machine should be otherwise idle.
"""

import argparse
import concurrent.futures
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import dataset_graph
from refurbish_tf.experiments import images as image_sets, results, tables, training, turns

STRATEGIES, SEEDS, PILOT_SEED = ("standard", "refurbish r=2", "refurbish r=3"), tables.SEEDS_OF_DETECTOR, 100
# The side lengths of a stored image, of the network's input, and of a cell of its output.
HEIGHT, WIDTH, SIDE, STRIDE = 480, 640, 128, 8
# An image has at most this many objects. Unused rows are -1.
MOST_BOXES = 6
# The last epochs have no mosaic, as in YOLOX.
IMAGES, BATCH_SIZE, EPOCHS, LAST_EPOCHS = 1200, 16, 18, 2
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 1e-2, 0.05, 1e-4
# The multiple of 5 points below the mAP of the pilot, standard training with seed 100, after two thirds of its epochs.
TARGET = 0.5
KEY = ("dataset", "images", "batch_size", "epochs", "learning_rate", "target", "strategy", "seed")
COLUMNS = ("steps", "parameters", "maps", *turns.COLUMNS[2:])


def load(photographs):
  """Returns (images, classes) to train and to validate on: "groceries" from TFDS, or drawn "shapes"."""
  if photographs == "shapes":
    return [image_sets.draw_shapes(200, seed) for seed in range(2)]
  import tensorflow_datasets as tfds

  splits = [tfds.as_numpy(tfds.load(photographs, split=split, shuffle_files=False)) for split in ("train", "test")]
  return [tuple(zip(*((element["image"], int(element["label"])) for element in split))) for split in splits]


def compose(photographs, classes, rng):
  """Returns an image, uint8, its boxes, "xyxy" in pixels, float32 `[MOST_BOXES, 4]`, and their classes, int32.

  Each object is a piece of a photograph, cut out as an ellipse or a rounded rectangle. Objects do not overlap.
  """
  classes = np.asarray(classes)
  resized = lambda image, size: tf.image.resize(image, size).numpy()
  grey = resized(photographs[rng.integers(len(photographs))].mean(-1, keepdims=True), (HEIGHT, WIDTH))
  image = np.repeat(rng.uniform(0.4, 0.9) * (grey - 128) + rng.uniform(90, 160), 3, -1)
  boxes, labels = np.full([MOST_BOXES, 4], -1, np.float32), np.full([MOST_BOXES], -1, np.int32)
  for row in range(rng.integers(2, MOST_BOXES + 1)):
    for _ in range(20):
      tall, wide = (HEIGHT * np.exp(rng.uniform(*np.log((0.16, 0.55)))) * rng.uniform(0.8, 1.25, 2)).astype(int)
      top, left = rng.integers(0, (HEIGHT - tall, WIDTH - wide))
      box = np.array([left, top, left + wide, top + tall])
      if not overlaps(box[None], boxes).any():
        break
    else:
      continue
    label = rng.choice(np.unique(classes))
    photograph = photographs[rng.choice(np.flatnonzero(classes == label))]
    side = int(rng.uniform(0.3, 0.8) * min(photograph.shape[:2]))
    y, x = (rng.integers(0, length - side + 1) for length in photograph.shape[:2])
    piece = resized(photograph[y : y + side, x : x + side], (tall, wide))
    y, x = (np.abs(np.arange(length) + 0.5 - length / 2) / (length / 2) for length in (tall, wide))
    inside = (y[:, None] ** (power := rng.choice([2, 4])) + x**power)[..., None] < 1
    place = image[top : top + tall, left : left + wide]
    place[:] = np.where(inside, piece, place)
    boxes[row], labels[row] = box, label
  return np.clip(image, 0, 255).astype(np.uint8), boxes, labels


def write_images(folder, photographs, count, seed):
  """Writes composed images as JPEG files, and their boxes and classes, unless the folder exists."""
  if folder.exists():
    return

  def write(number):
    rng = np.random.default_rng([seed, number])
    image, *target = compose(*photographs, rng)
    # With grain the files are about as large as those of COCO.
    image = np.clip(image + rng.normal(0, 6, [HEIGHT, WIDTH, 1]), 0, 255).astype(np.uint8)
    (new / f"{number:05}.jpg").write_bytes(tf.io.encode_jpeg(image, quality=95).numpy())
    return target

  with turns.new_folder(folder) as new, concurrent.futures.ThreadPoolExecutor() as pool:
    boxes, labels = map(np.stack, zip(*pool.map(write, range(count))))
    np.savez(new / "targets.npz", boxes=boxes, labels=labels)


def source(folder):
  """A dataset of {"image": the content of a file, "boxes", "labels"}, and all labels."""
  with np.load(folder / "targets.npz") as arrays:
    boxes, labels = arrays["boxes"], arrays["labels"]
  files = [f"{folder}/{number:05}.jpg" for number in range(len(boxes))]
  read = lambda file, boxes, labels: {"image": tf.io.read_file(file), "boxes": boxes, "labels": labels}
  return tf.data.Dataset.from_tensor_slices((files, boxes, labels)).map(read), labels


class Batches:
  """The training batches of (images, rows of a box and its class), epoch by epoch."""

  def __init__(self, images, row):
    layers, targets = (
      [
        augment.decode_random_resized_crop(SIDE, scale=(0.3, 1), apply_exif_orientation=False),
        augment.color_jitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.02),
        augment.random_flip(),
      ],
      {"boxes": "xyxy"},
    )
    self._mosaic = augment.mosaic(SIDE, targets=targets, with_rows=("labels",))
    self._batch_size, with_mosaic = row["batch_size"], row["epochs"] - LAST_EPOCHS
    # The probability and seed of each mosaic pass through the pipeline, as a pure function of seed and epoch.
    mosaic = lambda epoch, seed: {"p": tf.cast(epoch < with_mosaic, tf.float32), "mosaic_seed": seed}
    if row["strategy"] == "standard":
      augmented = augment.compose(layers, targets=targets)
      seeds = tf.data.Dataset.random(row["seed"], rerandomize_each_iteration=True).batch(2)
      shuffled = tf.data.Dataset.zip(images.shuffle(len(images), row["seed"]), seeds)
      self._stage_of = lambda epoch: shuffled.map(
        lambda element, seed: {**augmented(element, seed=seed), **mosaic(epoch, seed)}, dataset_graph.PLAIN_MAP_CALLS
      )
    else:
      partial_fn, final_layers = augment.split(layers, 2, targets)
      final_fn = lambda element, seed, epoch: {**final_layers(element, seed=seed), **mosaic(epoch, seed)}
      stage = images.refurbish(partial_fn, final_fn, int(row["strategy"].split("r=")[1]), seed=row["seed"])
      self._stage_of = lambda _: stage

  def epoch(self, number):
    """The batches of an epoch. Epochs must be read one after the other."""

    def finished(batch):
      batch = self._mosaic(batch, seed=batch.pop("mosaic_seed")[0], p=batch.pop("p")[0])
      return batch["image"], tf.concat([batch["boxes"], tf.cast(batch["labels"], tf.float32)[..., tf.newaxis]], -1)

    return self._stage_of(number).batch(self._batch_size, drop_remainder=True).map(finished, 2).prefetch(2)


def network(classes, width=40):
  """Finds in each cell the logits of centres by class, the offset of a centre, and the logarithm of its box's sides."""

  def active(x, filters, size=3, strides=1):
    x = keras.layers.Conv2D(filters, size, strides, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))

  inputs = keras.Input([SIDE, SIDE, 3], dtype="uint8")
  x = active(keras.layers.Rescaling(1 / 64, offset=-2)(inputs), width // 2, 4, 4)
  near = active(x, width, 2, 2)
  near = near + active(near, width)
  far = active(near, 2 * width, 3, 2)
  far = far + active(far, 2 * width)
  x = near + keras.layers.UpSampling2D()(active(far, width, 1))
  x = x + active(x, width)
  heat = keras.layers.Conv2D(classes, 1, bias_initializer=keras.initializers.Constant(-3.0))(x)
  return keras.Model(inputs, keras.layers.Concatenate()([heat, keras.layers.Conv2D(4, 1)(x)]))


def loss(rows, found):
  """CenterNet's loss (Zhou et al., 2019). As in TTFNet, cells near a centre also learn its box, with less weight."""
  boxes, classes = rows[..., :4] / STRIDE, rows[..., 4]
  size = boxes[..., 2:] - boxes[..., :2]
  valid = (classes >= 0) & (tf.reduce_min(size, -1) >= 0.5)
  center, size = (boxes[..., 2:] + boxes[..., :2]) / 2, tf.maximum(size, 0.5)
  # [batch, row, y, x, 2]: from each cell to each centre.
  cells = tf.cast(tf.stack(tf.meshgrid(*[tf.range(SIDE // STRIDE)] * 2), -1), tf.float32) + 0.5
  offset = center[:, :, tf.newaxis, tf.newaxis] - cells
  middle = tf.reduce_max(tf.abs(offset), -1) <= 0.5
  near = tf.exp(-tf.reduce_sum(tf.square(offset / (size[:, :, tf.newaxis, tf.newaxis] / 6 + 0.2)), -1) / 2)
  near = tf.where(valid[..., tf.newaxis, tf.newaxis], tf.where(middle, 1.0, near), 0.0)
  # Objects hardly overlap, so a cell learns only the nearest one.
  weight, owner = tf.reduce_max(near, 1), tf.argmax(near, 1, output_type=tf.int32)
  of_owner = lambda values: tf.gather(values, owner, batch_dims=1)
  heat = weight[..., tf.newaxis] * tf.one_hot(of_owner(tf.cast(classes, tf.int32)), found.shape[-1] - 4)
  logits = found[..., :-4]
  miss = tf.sigmoid(-logits)
  focal = tf.where(
    heat == 1, miss**2 * tf.nn.softplus(-logits), (1 - heat) ** 4 * (1 - miss) ** 2 * tf.nn.softplus(logits)
  )
  wanted = tf.concat([of_owner(center) - cells, tf.math.log(of_owner(size))], -1)
  weight = tf.where(weight > 0.3, weight, 0.0)
  error = tf.reduce_sum(tf.abs(found[..., -4:] - wanted), -1) * weight
  count = tf.maximum(tf.reduce_sum(tf.cast(valid, tf.float32)), 1)
  return tf.reduce_sum(focal) / count + tf.reduce_sum(error) / tf.maximum(tf.reduce_sum(weight), 1)


def detections(found, most=50):
  """Returns boxes `[images, most, 4]`, scores and classes of the highest peaks in the network's output."""
  heat = tf.sigmoid(found[..., :-4])
  heat = tf.where(heat == tf.nn.max_pool2d(heat, 3, 1, "SAME"), heat, 0)
  classes, columns = heat.shape[-1], heat.shape[2]
  scores, places = tf.math.top_k(tf.reshape(heat, [heat.shape[0], -1]), most)
  cell = places // classes
  center_size = tf.gather(tf.reshape(found[..., -4:], [heat.shape[0], -1, 4]), cell, batch_dims=1)
  center = tf.cast(tf.stack([cell % columns, cell // columns], -1), tf.float32) + 0.5 + center_size[..., :2]
  half = tf.exp(tf.minimum(center_size[..., 2:], 5.0)) / 2
  boxes = tf.clip_by_value(STRIDE * tf.concat([center - half, center + half], -1), 0, SIDE)
  return boxes.numpy(), scores.numpy(), (places % classes).numpy()


def overlaps(ones, others):
  """The intersection over union of each box of `ones` with each of `others`."""
  low, high = np.maximum(ones[:, None, :2], others[:, :2]), np.minimum(ones[:, None, 2:], others[:, 2:])
  both = np.maximum(high - low, 0).prod(-1)
  area = lambda boxes: (boxes[:, 2:] - boxes[:, :2]).prod(-1)
  return both / np.maximum(area(ones)[:, None] + area(others) - both, 1e-9)


def mean_average_precision(boxes, scores, classes, true_boxes, true_classes, least=0.5):
  """Pascal VOC's mAP since 2010: the mean area below the precision curves of the classes, made monotonic.

  All arguments but the last have an entry for each image. A detection is correct if it overlaps its best true box of
  the same class by at least `least`, and no detection with a higher score has that box. Class -1 is padding.
  """
  averages = []
  for label in sorted({int(label) for each in true_classes for label in each if label >= 0}):
    right, order, count = [], [], 0
    for found, score, classes_found, true, classes_true in zip(boxes, scores, classes, true_boxes, true_classes):
      score, true = score[classes_found == label], true[classes_true == label]
      overlap, taken = overlaps(found[classes_found == label], true), set()
      count += len(true)
      order.extend(score)
      is_right = np.zeros(len(score), bool)
      for place in np.argsort(-score, kind="stable") if len(true) else ():
        best = int(overlap[place].argmax())
        is_right[place] = overlap[place, best] >= least and best not in taken
        taken.add(best if is_right[place] else None)
      right.extend(is_right)
    right = np.array(right, bool)[np.argsort(-np.array(order), kind="stable")]
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    averages.append(falling[right].sum() / count)
  return float(np.mean(averages))


class Validation:
  """The validation images, decoded once and resized to the network's input, and their boxes."""

  def __init__(self, folder):
    images, self._labels = source(folder)
    whole = augment.compose([augment.decode((SIDE, SIDE), apply_exif_orientation=False)], targets={"boxes": "xyxy"})
    elements = [*images.map(whole, 2).as_numpy_iterator()]
    self._images, self._boxes = (np.stack([element[name] for element in elements]) for name in ("image", "boxes"))

  def mean_average_precision(self, model):
    found = detections(tf.constant(model.predict(self._images, 50, verbose=0)))
    return mean_average_precision(*found, self._boxes, self._labels)


def train(row, folder):
  """Trains once. Returns the remaining columns of the row."""
  keras.utils.set_random_seed(row["seed"])
  (images, labels), validation = source(folder / "train"), Validation(folder / "validation")
  model, steps = network(int(labels.max()) + 1), row["epochs"] * (row["images"] // row["batch_size"])
  rate = training.cosine(row["learning_rate"], steps, WARM_UP)
  model.compile(keras.optimizers.AdamW(rate, WEIGHT_DECAY), loss, jit_compile=training.jit_compile())
  found = lambda: validation.mean_average_precision(model)
  return turns.by_epoch(
    model, "maps", turns.timed_epochs(model, lambda: Batches(images, row).epoch, found, row["epochs"])
  )


def main(argv=None):
  """Runs the trainings that are not in the table yet, and prints the results."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  parser.add_argument(
    "folder", type=pathlib.Path, metavar="OUT_DIR", help="the folder for the table, detector.csv, and the images"
  )
  parser.add_argument("--strategy", choices=STRATEGIES, nargs="+", default=STRATEGIES, help="train only with these")
  parser.add_argument(
    "--seed", type=int, nargs="+", default=SEEDS, help=f"seeds; {PILOT_SEED} is the pilot that set the target"
  )
  parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of each training")
  parser.add_argument("--images", type=int, default=IMAGES, help="training images; a quarter as many validate")
  parser.add_argument("--photographs", choices=("groceries", "shapes"), default="groceries", help="objects to paste")
  args = parser.parse_args(argv)
  table, data = results.open_table(parser, args.folder / "detector.csv", KEY, COLUMNS, lambda: load(args.photographs))
  parts = {"train": args.images, "validation": args.images // 4}
  folder = args.folder / f"{args.photographs}-{args.images}"
  for number, (name, count) in enumerate(parts.items()):
    write_images(folder / name, data[number], count, number)
  values = (f"composed {args.photographs}", args.images, BATCH_SIZE, args.epochs, LEARNING_RATE, TARGET)
  row_of = lambda strategy, seed: dict(zip(KEY, (*values, strategy, seed)))
  turns.complete(table, args.strategy, args.seed, row_of, lambda row: turns.in_own_process(train, row, folder))
  print(tables.detector(results.read(table.path)))


if __name__ == "__main__":
  sys.exit(main())

"""Alternatives to our layers of a final augmentation: TensorFlow's operations, Keras, DALI, torchvision."""
import importlib
import os

import numpy as np
import tensorflow as tf

PADDING, MEAN, STD = 4, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PROCESSORS = len(os.sched_getaffinity(0))
# DALI takes only batches; torchvision's transforms draw once for a whole batch.
TAKES_BATCHES = {"DALI": True, "torchvision": False}


def installed():
  """By name: functions that make the calls of a peer; and the reasons why others are missing."""
  peers, absent = {}, {}
  for name, make, module in (("DALI", _dali, "nvidia.dali"), ("torchvision", _torchvision, "torchvision")):
    try:
      importlib.import_module(module)
      peers[name] = make
    except ModuleNotFoundError:
      absent[name] = "not installed"
    except Exception as error:  # pylint: disable=broad-exception-caught
      # A library of another machine or version may raise anything.
      absent[name] = f"failed: {type(error).__name__}: {error}"[:60]
  return peers, absent


def in_dataset(side, batched):
  """By name: functions `fn(image, seed)` of TensorFlow and Keras, and the name of their input."""
  crop_flip = tensorflow_batch if batched else tensorflow_image
  return {
      "TensorFlow: crop, flip": (crop_flip, "images"),
      "TensorFlow: crop, flip, normalize float32": (
          lambda image, seed: _tensorflow_normalized(crop_flip(image, seed)), "images"),
      **({} if batched else {"TensorFlow: resized crop": (
          lambda image, seed: _tensorflow_resized(image, seed, side), "large")}),
      "Keras: crop, flip": (_keras(side, False), "padded"),
      "Keras: crop, flip, normalize float32": (_keras(side, True), "padded"),
  }


def tensorflow_image(image, seed):
  padded = tf.pad(image, [[PADDING, PADDING], [PADDING, PADDING], [0, 0]])
  cropped = tf.image.stateless_random_crop(padded, image.shape, seed)
  return tf.image.stateless_random_flip_left_right(cropped, seed + 1)


def tensorflow_batch(images, seed):
  """Gathers each pixel from its place, as TensorFlow's own random_crop takes the same part of all images."""
  batch, height, width, channels = images.shape
  y, x = tf.unstack(tf.random.stateless_uniform([2, batch], seed, 0, 2 * PADDING + 1, tf.int32))
  flip = tf.random.stateless_uniform([batch], seed + 1, 0, 2, tf.int32)
  rows = tf.reshape(images, [batch, height, width * channels])
  padded = tf.pad(rows, [[0, 0], [PADDING, PADDING], [PADDING * channels, PADDING * channels]])
  row = (tf.range(batch) * (height + 2 * PADDING) + y)[:, tf.newaxis] + tf.range(height)
  column = (x + flip * (width - 1))[:, tf.newaxis] + (1 - 2 * flip)[:, tf.newaxis] * tf.range(width)
  place = (row * (width + 2 * PADDING))[:, :, tf.newaxis] + column[:, tf.newaxis]
  return tf.gather_nd(tf.reshape(padded, [-1, channels]), place[..., tf.newaxis])


def _tensorflow_normalized(image):
  return (tf.cast(image, tf.float32) / 255 - np.float32(MEAN)) / np.float32(STD)


def _tensorflow_resized(image, seed, side):
  begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
      tf.shape(image), tf.zeros([1, 0, 4]), seed, aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0),
      use_image_if_no_bounding_boxes=True)
  return tf.cast(tf.image.resize(tf.slice(image, begin, size), [side, side]) + 0.5, tf.uint8)


def _keras(side, normalized):
  dtype = "float32" if normalized else "uint8"
  layers = [tf.keras.layers.RandomCrop(side, side, dtype=dtype), tf.keras.layers.RandomFlip("horizontal", dtype=dtype)]
  if normalized:
    layers.append(tf.keras.layers.Normalization(mean=255 * np.array(MEAN), variance=np.square(255 * np.array(STD))))

  def apply(image, seed):
    del seed  # They have a state of their own.
    for layer in layers:
      image = layer(image, training=True) if layer.name.startswith("random") else layer(image)
    return image

  return apply


def _dali(padded, large, side, batched, count):
  """Its pipelines, with a thread for each processor."""
  from nvidia.dali import fn, pipeline_def, types  # pylint: disable=import-outside-toplevel
  if batched != TAKES_BATCHES["DALI"]:
    return {}

  def source(images):
    return fn.external_source(source=lambda: images, batch=True, layout="HWC", no_copy=True)

  def cropped(dtype, mean, std):
    return fn.crop_mirror_normalize(
        source(padded), crop=(side, side), crop_pos_x=fn.random.uniform(range=[0.0, 1.0]),
        crop_pos_y=fn.random.uniform(range=[0.0, 1.0]), mirror=fn.random.coin_flip(), dtype=dtype, output_layout="HWC",
        mean=mean, std=std)

  def resized():
    return fn.random_resized_crop(
        source(large), size=[side, side], random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3],
        interp_type=types.INTERP_LINEAR, antialias=False)

  def call(operations):
    pipeline = pipeline_def(operations)(
        batch_size=len(padded), num_threads=PROCESSORS, device_id=None, prefetch_queue_depth=1, exec_pipelined=False,
        exec_async=False)
    pipeline.build()

    # No work ahead, which would count for another one.
    def run():
      for _ in range(count // len(padded)):
        pipeline.run()

    return run

  return {
      "crop, flip": call(lambda: cropped(types.UINT8, [0.0] * 3, [1.0] * 3)),
      "crop, flip, normalize float32": call(
          lambda: cropped(types.FLOAT, [255 * mean for mean in MEAN], [255 * std for std in STD])),
      "resized crop": call(resized),
  }


def _torchvision(padded, large, side, batched, count):
  """Its transforms of tensors."""
  import torch  # pylint: disable=import-outside-toplevel
  from torchvision.transforms import v2  # pylint: disable=import-outside-toplevel
  if batched != TAKES_BATCHES["torchvision"]:
    return {}
  torch.set_num_threads(PROCESSORS)
  crop_flip = [v2.RandomCrop(side, padding=PADDING), v2.RandomHorizontalFlip()]
  normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]

  def call(images, transforms):
    images = [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]
    transform = v2.Compose(transforms)

    def run():
      for number in range(count):
        transform(images[number % len(images)])

    return run

  unpadded = padded[:, PADDING:-PADDING, PADDING:-PADDING]
  return {
      "crop, flip": call(unpadded, crop_flip),
      "crop, flip, normalize float32": call(unpadded, crop_flip + normalize),
      "resized crop": call(large, [v2.RandomResizedCrop(side, antialias=False)]),
  }

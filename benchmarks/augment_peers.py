"""Libraries to compare our layers with: TensorFlow's operations, DALI, torchvision, Pillow, albumentations."""

import dataclasses
import importlib
import math
import os
import random
import sys
from typing import Callable

import numpy as np
import tensorflow as tf

PADDING, MEAN, STD = 4, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PROCESSORS = len(os.sched_getaffinity(0))
# Magnitude 9 of 10, in torchvision's and DALI's bins from 0 to 30.
BINS = 27
SCALE, RATIO = [0.08, 1.0], [3 / 4, 4 / 3]
CROP, FLIP, CUTOUT, CROP_FLIP = "crop", "flip", "cutout", "crop, flip"
NORMALIZE, NORMALIZED = "normalize float32", "crop, flip, normalize float32"
RESIZED, RESIZED_SMOOTH = "resized crop", "resized crop, antialiased"
RESIZE, RESIZE_SMOOTH = "resize", "resize, antialiased"
RAND_ONE, RAND, AUTO, DEEP = "RandAugment, one layer", "RandAugment", "AutoAugment", "Deep AutoAugment"
JITTER, SOLARIZE, BLUR = "color jitter", "solarize", "Gaussian blur"
POSTERIZE, EQUALIZE, AUTOCONTRAST, SHARPNESS, INVERT = "posterize", "equalize", "autocontrast", "sharpness", "invert"
PERMUTATION, NOISE, PHOTOMETRIC = "channel permutation", "Gaussian noise", "photometric distort"
ERASING, AFFINE, TRIVIAL, AUGMIX = "random erasing", "random affine", "TrivialAugment", "AugMix"
ELASTIC = "elastic deformation"
ZOOM_OUT, IOU_CROP, RANDOM_SIZE = "zoom out, resize", "IoU crop, resize", "random size, antialiased, crop"
MOSAIC = "mosaic with boxes"
CHOICE, ORDER = "crop, flip or cutout", "crop, flip, cutout in any order"
# SimCLR's color jitter at strength 1: the jitter of brightness, contrast and saturation, and of the hue.
STRENGTH, TURN = 0.8, 0.2
SIGMA = (0.1, 2.0)
DEGREES, MOVE, ZOOM, SHEAR = 15, (0.1, 0.1), (0.9, 1.1), 5
PIPELINE = "RandAugment, crop, flip, normalize float32"


@dataclasses.dataclass(frozen=True)
class Peer:
  """A library that our layers are compared with.

  Attributes:
    modules: the modules that it needs.
    batched: whether it takes only batches.
    names: the operations that are compared.
    make: a function of `Inputs` that returns functions by these names, each of which augments all `count` images.
  """

  modules: tuple
  batched: bool
  names: tuple
  make: Callable


@dataclasses.dataclass(frozen=True)
class Inputs:
  """A batch of images, the same images padded, and larger images to be resized."""

  side: int
  count: int
  images: np.ndarray
  padded: np.ndarray
  large: np.ndarray


def kernel_size(side):
  """SimCLR's kernel size: a tenth of the side, and odd."""
  return side // 10 | 1


def sizes(side):
  """The range from which the shortest side is drawn before the crop, without its end."""
  return side, side + side // 4


def boxes(side):
  """Three boxes for an image with this side."""
  return np.float32([[0.1, 0.2, 0.4, 0.5], [0.3, 0.1, 0.9, 0.8], [0.6, 0.6, 0.9, 0.7]]) * side


def installed():
  """The reasons why peers are missing, by name."""
  # Hides Triton, which crashes together with TensorFlow, because both contain LLVM. PyTorch works without it.
  sys.modules.setdefault("triton", None)
  absent = {}
  for name, peer in PEERS.items():
    try:
      for module in peer.modules:
        importlib.import_module(module)
    except ModuleNotFoundError:
      absent[name] = "not installed"
    except Exception as error:
      # A library for another machine or version may raise any exception.
      absent[name] = f"failed: {type(error).__name__}: {error}"[:60]
  return absent


# Functions that run in a tf.data pipeline. ----------------------------------------------------------------------------


def in_dataset(side):
  """By name: functions `fn(image, seed)` with TensorFlow's operations, and the names of their inputs."""

  def resized_crop(image, seed):
    return _tensorflow_resized(tf.slice(image, *_window(tf.shape(image), seed)), side, False)

  return {
    f"TensorFlow: {CROP_FLIP}": (tensorflow_image, "images"),
    f"TensorFlow: {NORMALIZED}": (lambda image, seed: _tensorflow_normalized(tensorflow_image(image, seed)), "images"),
    f"TensorFlow: {RESIZE}": (lambda image, seed: _tensorflow_resized(image, side, False), "large"),
    f"TensorFlow: {RESIZE_SMOOTH}": (lambda image, seed: _tensorflow_resized(image, side, True), "large"),
    f"TensorFlow: {RESIZED}": (resized_crop, "large"),
  }


def tensorflow_image(image, seed):
  padded = tf.pad(image, [[PADDING, PADDING], [PADDING, PADDING], [0, 0]])
  cropped = tf.image.stateless_random_crop(padded, image.shape, seed)
  return tf.image.stateless_random_flip_left_right(cropped, seed + 1)


def _window(shape, seed):
  begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
    shape, tf.zeros([1, 0, 4]), seed, aspect_ratio_range=RATIO, area_range=SCALE, use_image_if_no_bounding_boxes=True
  )
  return begin, size


def _tensorflow_resized(image, side, antialias):
  return tf.cast(tf.image.resize(image, [side, side], antialias=antialias) + 0.5, tf.uint8)


def _tensorflow_normalized(image):
  return (tf.cast(image, tf.float32) / 255 - np.float32(MEAN)) / np.float32(STD)


# Libraries that run in their own loops. -------------------------------------------------------------------------------


def _dali(inputs):
  """DALI's pipelines, with one thread per core. One of them does nothing, to measure the overhead."""
  from nvidia.dali import auto_aug, fn, math as dali_math, pipeline_def, types

  size = [inputs.side] * 2

  def call(batch, operations):
    @pipeline_def(enable_conditionals=True)
    def pipeline():
      return operations(fn.external_source(source=lambda: batch, batch=True, layout="HWC", no_copy=True))

    at_once = {"prefetch_queue_depth": 1, "exec_pipelined": False, "exec_async": False}
    built = pipeline(batch_size=len(batch), num_threads=PROCESSORS, device_id=None, **at_once)
    built.build()

    # `at_once` keeps DALI from working ahead, which would count for the next candidate.
    def run():
      for _ in range(inputs.count // len(batch)):
        built.run()

    return run

  def cropped(images, **how):
    x, y = fn.random.uniform(range=[0.0, 1.0]), fn.random.uniform(range=[0.0, 1.0])
    return fn.crop_mirror_normalize(
      images, crop=size, crop_pos_x=x, crop_pos_y=y, mirror=fn.random.coin_flip(), output_layout="HWC", **how
    )

  def resized(images, antialias):
    how = {"random_area": SCALE, "random_aspect_ratio": RATIO, "interp_type": types.INTERP_LINEAR}
    return fn.random_resized_crop(images, size=size, antialias=antialias, **how)

  # Nearest-neighbour interpolation, like our layers; DALI's default is bilinear.
  nearest = {"shape": size, "fill_value": 0, "interp_type": types.INTERP_NN}

  def rand_augment(images, n):
    return auto_aug.rand_augment.rand_augment(images, n=n, m=BINS, **nearest)

  def uniform(low, high, count=()):
    return fn.random.uniform(range=[low, high], shape=count)

  def jitter(images):
    factors = {name: uniform(1 - STRENGTH, 1 + STRENGTH) for name in ("brightness", "contrast", "saturation")}
    return fn.color_twist(images, hue=uniform(-360 * TURN, 360 * TURN), **factors)

  def erasing(images):
    area, ratio = uniform(0.02, 0.33), dali_math.exp(uniform(math.log(0.3), math.log(3.3)))
    shape = fn.stack(dali_math.sqrt(area * ratio), dali_math.sqrt(area / ratio))
    return fn.erase(images, anchor=uniform(0, 1, 2) * (1 - shape), shape=shape, axis_names="HW", normalized=True)

  def affine(images):
    middle, moved = [inputs.side / 2] * 2, [part * inputs.side for part in MOVE]
    shift = fn.stack(*(uniform(-part, part) for part in moved))
    steps = fn.transforms.rotation(angle=uniform(-DEGREES, DEGREES), center=middle)
    steps = fn.transforms.scale(steps, scale=fn.stack(*[uniform(*ZOOM)] * 2), center=middle)
    steps = fn.transforms.shear(steps, angles=fn.stack(uniform(-SHEAR, SHEAR), 0.0), center=middle)
    return fn.warp_affine(
      images, matrix=fn.transforms.translation(steps, offset=shift), interp_type=types.INTERP_NN, fill_value=0
    )

  to_uint8 = {"dtype": types.UINT8, "mean": [0.0] * 3, "std": [1.0] * 3}
  to_float32 = {"dtype": types.FLOAT, "mean": [255 * mean for mean in MEAN], "std": [255 * std for std in STD]}
  importlib.import_module("nvidia.dali.auto_aug.rand_augment")
  importlib.import_module("nvidia.dali.auto_aug.auto_augment")
  importlib.import_module("nvidia.dali.auto_aug.trivial_augment")
  solarize = importlib.import_module("nvidia.dali.auto_aug.augmentations").solarize
  window = kernel_size(inputs.side)
  return {
    "nothing": call(inputs.images, lambda images: images),
    FLIP: call(inputs.images, lambda images: fn.flip(images, horizontal=fn.random.coin_flip())),
    CROP_FLIP: call(inputs.padded, lambda images: cropped(images, **to_uint8)),
    NORMALIZED: call(inputs.padded, lambda images: cropped(images, **to_float32)),
    NORMALIZE: call(inputs.images, lambda images: fn.crop_mirror_normalize(images, output_layout="HWC", **to_float32)),
    RESIZED: call(inputs.large, lambda images: resized(images, False)),
    RESIZED_SMOOTH: call(inputs.large, lambda images: resized(images, True)),
    RESIZE: call(inputs.large, lambda images: fn.resize(images, size=size, antialias=False)),
    RESIZE_SMOOTH: call(inputs.large, lambda images: fn.resize(images, size=size, antialias=True)),
    RAND_ONE: call(inputs.images, lambda images: rand_augment(images, 1)),
    RAND: call(inputs.images, lambda images: rand_augment(images, 2)),
    AUTO: call(inputs.images, lambda images: auto_aug.auto_augment.auto_augment_image_net(images, **nearest)),
    JITTER: call(inputs.images, jitter),
    SOLARIZE: call(inputs.images, lambda images: solarize(images, magnitude_bin=15, num_magnitude_bins=31)),
    BLUR: call(inputs.images, lambda images: fn.gaussian_blur(images, window_size=window, sigma=uniform(*SIGMA))),
    ERASING: call(inputs.images, erasing),
    AFFINE: call(inputs.images, affine),
    TRIVIAL: call(inputs.images, lambda images: auto_aug.trivial_augment.trivial_augment_wide(images, **nearest)),
  }


def _torchvision(inputs):
  """torchvision's transforms of tensors."""
  import torch
  from torchvision import tv_tensors
  from torchvision.transforms import v2

  # One thread, as in a DataLoader's worker. Several threads spin while they wait for each other.
  torch.set_num_threads(1)
  side = inputs.side

  def call(images, *transforms):
    tensors = [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]
    return _loop(inputs, tensors, v2.Compose(transforms))

  crop, flip = v2.RandomCrop(side, padding=PADDING), v2.RandomHorizontalFlip()
  normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
  policy = v2.AutoAugmentPolicy.CIFAR10 if side == 32 else v2.AutoAugmentPolicy.IMAGENET
  rand = v2.RandAugment(2, BINS)
  images, large = inputs.images, inputs.large
  resize, cutout = v2.Resize([side, side], antialias=True), v2.RandomErasing(1, scale=(1 / 16, 1 / 16), ratio=(1, 1))
  beside = tv_tensors.BoundingBoxes(boxes(side), format="XYXY", canvas_size=(side, side))
  cropped = v2.Compose([v2.RandomIoUCrop(), resize])
  return {
    CROP: call(images, crop),
    FLIP: call(images, flip),
    CUTOUT: call(images, cutout),
    NORMALIZE: call(images, *normalize),
    CROP_FLIP: call(images, crop, flip),
    NORMALIZED: call(images, crop, flip, *normalize),
    RESIZED: call(large, v2.RandomResizedCrop(side, antialias=False)),
    RESIZED_SMOOTH: call(large, v2.RandomResizedCrop(side, antialias=True)),
    RESIZE: call(large, v2.Resize([side, side], antialias=False)),
    RESIZE_SMOOTH: call(large, v2.Resize([side, side], antialias=True)),
    RAND_ONE: call(images, v2.RandAugment(1, BINS)),
    RAND: call(images, rand),
    AUTO: call(images, v2.AutoAugment(policy)),
    JITTER: call(images, v2.ColorJitter(STRENGTH, STRENGTH, STRENGTH, TURN)),
    SOLARIZE: call(images, v2.RandomSolarize(128, p=1)),
    POSTERIZE: call(images, v2.RandomPosterize(4, p=1)),
    EQUALIZE: call(images, v2.RandomEqualize(p=1)),
    AUTOCONTRAST: call(images, v2.RandomAutocontrast(p=1)),
    SHARPNESS: call(images, v2.RandomAdjustSharpness(2, p=1)),
    INVERT: call(images, v2.RandomInvert(p=1)),
    PERMUTATION: call(images, v2.RandomChannelPermutation()),
    NOISE: call(images, v2.GaussianNoise()),
    PHOTOMETRIC: call(images, v2.RandomPhotometricDistort()),
    BLUR: call(images, v2.GaussianBlur(kernel_size(side), SIGMA)),
    ERASING: call(images, v2.RandomErasing(1)),
    AFFINE: call(images, v2.RandomAffine(DEGREES, MOVE, ZOOM, SHEAR)),
    TRIVIAL: call(images, v2.TrivialAugmentWide()),
    AUGMIX: call(images, v2.AugMix(interpolation="nearest")),
    ELASTIC: call(images, v2.ElasticTransform()),
    ZOOM_OUT: call(images, v2.RandomZoomOut(p=1), resize),
    IOU_CROP: call(images, lambda image: cropped(image, beside)),
    RANDOM_SIZE: call(large, v2.RandomResize(*sizes(side)), v2.RandomCrop(side)),
    CHOICE: call(images, v2.RandomChoice([crop, flip, cutout])),
    ORDER: call(images, v2.RandomOrder([crop, flip, cutout])),
    PIPELINE: call(images, rand, crop, flip, *normalize),
  }


def _pillow(inputs):
  """Pillow's own operations, in Python, without conversions to or from arrays."""
  from PIL import Image, ImageEnhance, ImageFilter, ImageOps

  side, bilinear = inputs.side, Image.Resampling.BILINEAR

  def resized_crop(image):
    (width, height), area, ratio = image.size, random.uniform(*SCALE), random.uniform(*RATIO)
    cut_width = min(width, (width * height * area * ratio) ** 0.5)
    cut_height = min(height, (width * height * area / ratio) ** 0.5)
    x, y = random.uniform(0, width - cut_width), random.uniform(0, height - cut_height)
    return image.resize((side, side), bilinear, (x, y, x + cut_width, y + cut_height))

  def crop(image):
    x, y = random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING)
    return ImageOps.expand(image, PADDING).crop((x, y, x + side, y + side))

  def flip(image):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image

  def affine(*matrix):
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix)

  enhancers = [ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness]
  distortions = [
    lambda image: image,
    ImageOps.autocontrast,
    ImageOps.equalize,
    lambda image: ImageOps.solarize(image, 26),
    lambda image: ImageOps.posterize(image, 4),
    lambda image: image.rotate(27),
    affine(1, 0.27, 0, 0, 1, 0),
    affine(1, 0, 0, 0.27, 1, 0),
    affine(1, 0, 0.4 * side, 0, 1, 0),
    affine(1, 0, 0, 0, 1, 0.4 * side),
    *(lambda image, enhancer=enhancer: enhancer(image).enhance(1.81) for enhancer in enhancers),
  ]

  def distort(image):
    return random.choice(distortions)(image)

  def turn_hue(image):
    hue, saturation, value = image.convert("HSV").split()
    turn = round(255 * random.uniform(-TURN, TURN))
    hue = hue.point([(each + turn) % 256 for each in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")

  def jitter(image):
    for change in random.sample([*enhancers[:3], None], 4):
      image = change(image).enhance(random.uniform(1 - STRENGTH, 1 + STRENGTH)) if change else turn_hue(image)
    return image

  def turn_and_move(image):
    (x, y), scale, turn = image.size, random.uniform(*ZOOM), math.radians(random.uniform(-DEGREES, DEGREES))
    slope = math.tan(math.radians(random.uniform(-SHEAR, SHEAR)))
    a, b = math.cos(turn) / scale, math.sin(turn) / scale
    matrix = [a, b + a * slope, 0, -b, a - b * slope, 0]
    move = [side / 2 + random.uniform(-part, part) * side for side, part in zip((x, y), MOVE)]
    for row, side in ((0, x), (3, y)):
      matrix[row + 2] = side / 2 - matrix[row] * move[0] - matrix[row + 1] * move[1]
    return image.transform(image.size, Image.Transform.AFFINE, matrix)

  def zoom_out(image):
    longer = int(side * random.uniform(1, 4))
    made = Image.new("RGB", (longer, longer))
    made.paste(image, (random.randint(0, longer - side), random.randint(0, longer - side)))
    return made.resize((side, side), bilinear)

  def random_size(image):
    shortest = random.randrange(*sizes(side))
    x, y = random.randint(0, shortest - side), random.randint(0, shortest - side)
    return image.resize((shortest, shortest), bilinear).crop((x, y, x + side, y + side))

  images, large = ([Image.fromarray(image) for image in each] for each in (inputs.images, inputs.large))
  return {
    CROP: _loop(inputs, images, crop),
    FLIP: _loop(inputs, images, flip),
    CROP_FLIP: _loop(inputs, images, lambda image: flip(crop(image))),
    RESIZED_SMOOTH: _loop(inputs, large, resized_crop),
    RESIZE_SMOOTH: _loop(inputs, large, lambda image: image.resize((side, side), bilinear)),
    RAND_ONE: _loop(inputs, images, distort),
    RAND: _loop(inputs, images, lambda image: distort(distort(image))),
    JITTER: _loop(inputs, images, jitter),
    SOLARIZE: _loop(inputs, images, ImageOps.solarize),
    POSTERIZE: _loop(inputs, images, lambda image: ImageOps.posterize(image, 4)),
    EQUALIZE: _loop(inputs, images, ImageOps.equalize),
    AUTOCONTRAST: _loop(inputs, images, ImageOps.autocontrast),
    SHARPNESS: _loop(inputs, images, lambda image: ImageEnhance.Sharpness(image).enhance(2)),
    INVERT: _loop(inputs, images, ImageOps.invert),
    PERMUTATION: _loop(inputs, images, lambda image: Image.merge("RGB", random.sample(image.split(), 3))),
    BLUR: _loop(inputs, images, lambda image: image.filter(ImageFilter.GaussianBlur(random.uniform(*SIGMA)))),
    AFFINE: _loop(inputs, images, turn_and_move),
    ZOOM_OUT: _loop(inputs, images, zoom_out),
    RANDOM_SIZE: _loop(inputs, large, random_size),
  }


def _albumentations(inputs):
  """albumentations' transforms of arrays, which are mostly OpenCV's."""
  import albumentations
  import cv2

  # One thread, as in a DataLoader's worker.
  cv2.setNumThreads(1)
  side = inputs.side

  def call(images, *transforms):
    compose = albumentations.Compose(transforms)
    return _loop(inputs, list(images), lambda image: compose(image=image))

  crop = [albumentations.Pad(PADDING), albumentations.RandomCrop(side, side)]
  flip, images = albumentations.HorizontalFlip(p=0.5), inputs.images
  cutout = albumentations.Erasing(scale=(1 / 16, 1 / 16), ratio=(1, 1), p=1)
  mosaic = albumentations.Compose(
    [albumentations.Mosaic(target_size=(side, side), cell_shape=(side, side), p=1)],
    bbox_params=albumentations.BboxParams("pascal_voc"),
  )
  others = {"bboxes": boxes(side), "mosaic_metadata": [{"image": each, "bboxes": boxes(side)} for each in images[:3]]}
  shear, by = (-SHEAR, SHEAR), [1 - STRENGTH, 1 + STRENGTH]
  return {
    CROP_FLIP: call(images, *crop, flip),
    NORMALIZED: call(images, *crop, flip, albumentations.Normalize(MEAN, STD)),
    RESIZED: call(inputs.large, albumentations.RandomResizedCrop((side, side))),
    JITTER: call(images, albumentations.ColorJitter(by, by, by, (-TURN, TURN), p=1)),
    SOLARIZE: call(images, albumentations.Solarize(threshold_range=(0.5, 0.5), p=1)),
    POSTERIZE: call(images, albumentations.Posterize(4, p=1)),
    EQUALIZE: call(images, albumentations.Equalize(mode="pil", p=1)),
    AUTOCONTRAST: call(images, albumentations.AutoContrast(method="pil", p=1)),
    SHARPNESS: call(images, albumentations.Sharpen(alpha=(1, 1), p=1)),
    INVERT: call(images, albumentations.InvertImg(p=1)),
    PERMUTATION: call(images, albumentations.ChannelShuffle(p=1)),
    NOISE: call(images, albumentations.GaussNoise(std_range=(0.1, 0.1), p=1)),
    BLUR: call(images, albumentations.GaussianBlur(blur_limit=(kernel_size(side),) * 2, sigma_limit=SIGMA, p=1)),
    ERASING: call(images, albumentations.Erasing(p=1)),
    ELASTIC: call(images, albumentations.ElasticTransform(alpha=25, sigma=5, p=1)),
    AFFINE: call(
      images,
      albumentations.Affine(
        scale=ZOOM,
        translate_percent={axis: (-part, part) for axis, part in zip("xy", MOVE)},
        rotate=(-DEGREES, DEGREES),
        shear={"x": shear, "y": (0, 0)},
        interpolation=cv2.INTER_NEAREST,
        p=1,
      ),
    ),
    RANDOM_SIZE: call(
      inputs.large,
      albumentations.SmallestMaxSize(list(range(*sizes(side))), interpolation=cv2.INTER_AREA),
      albumentations.RandomCrop(side, side),
    ),
    MOSAIC: _loop(inputs, list(images), lambda image: mosaic(image=image, **others)),
    CHOICE: call(images, albumentations.OneOf([albumentations.Sequential(crop, p=1), flip, cutout], p=1)),
    ORDER: call(images, albumentations.RandomOrder([albumentations.Sequential(crop, p=1), flip, cutout], n=3, p=1)),
  }


def _loop(inputs, images, function):
  def run():
    for number in range(inputs.count):
      function(images[number % len(images)])

  return run


_RESIZES = (RESIZED, RESIZED_SMOOTH, RESIZE, RESIZE_SMOOTH)
_COLORS = (JITTER, SOLARIZE, POSTERIZE, EQUALIZE, AUTOCONTRAST, SHARPNESS, INVERT, PERMUTATION)
_OF_DALI = (FLIP, CROP_FLIP, NORMALIZE, NORMALIZED, *_RESIZES, RAND_ONE, RAND, AUTO)
_OF_DALI += (JITTER, SOLARIZE, BLUR, ERASING, AFFINE, TRIVIAL)
_OF_TORCHVISION = (CROP, FLIP, CUTOUT, CROP_FLIP, NORMALIZE, NORMALIZED, *_RESIZES, RAND_ONE, RAND, AUTO, *_COLORS)
_OF_TORCHVISION += (NOISE, PHOTOMETRIC, BLUR, ERASING, AFFINE, TRIVIAL, PIPELINE, ZOOM_OUT, IOU_CROP, RANDOM_SIZE)
_OF_TORCHVISION += (CHOICE, ORDER, AUGMIX, ELASTIC)
_OF_PILLOW = (CROP, FLIP, CROP_FLIP, RESIZED_SMOOTH, RESIZE_SMOOTH, RAND_ONE, RAND, *_COLORS)
_OF_PILLOW += (BLUR, AFFINE, ZOOM_OUT, RANDOM_SIZE)
_OF_ALBUMENTATIONS = (CROP_FLIP, NORMALIZED, RESIZED, *_COLORS, NOISE, BLUR, ERASING, ELASTIC, AFFINE)
_OF_ALBUMENTATIONS += (RANDOM_SIZE, MOSAIC, CHOICE, ORDER)
PEERS = {
  "DALI": Peer(("nvidia.dali",), True, _OF_DALI, _dali),
  "torchvision": Peer(("torch", "torchvision"), False, _OF_TORCHVISION, _torchvision),
  "Pillow": Peer(("PIL",), False, _OF_PILLOW, _pillow),
  "albumentations": Peer(("albumentations", "cv2"), False, _OF_ALBUMENTATIONS, _albumentations),
}

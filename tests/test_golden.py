"""For each seed, the native layers return exactly the bytes that were recorded in support/golden.json.

The other tests compare the layers with other libraries and definitions, often within a level. This test lets no byte
change. `python tests/test_golden.py` records the bytes again, which is right only after a layer's version was
raised on purpose.
"""

import functools
import inspect
import itertools
import json
import pathlib
import zlib

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment

FILE = pathlib.Path(__file__).parent / "support" / "golden.json"
SEEDS = np.array([[7, 0], [-1, 5], [2**31 - 1, -(2**31)], [2**40 + 3, -(2**63)]], np.int64)
SIZES = [(1, 1), (2, 5), (33, 47), (500, 333)]
# By the number of channels.
MEAN = {1: 0.4914, 3: [0.485, 0.456, 0.406], 4: [0.485, 0.456, 0.406, 0.5]}
STD = {1: 0.247, 3: [0.229, 0.224, 0.225], 4: [0.229, 0.224, 0.225, 0.3]}
signature = functools.cache(inspect.signature)


@functools.cache
def pictures(height, width, channels, number=3):
  """Returns a batch in which all values, a narrow range of them, and three values take turns: tables depend on them."""
  images = np.random.RandomState(0).randint(0, 256, (number, height, width, channels), np.uint8)
  images[1::3] = images[1::3] // 3 + 70
  images[2::3] = images[2::3] % 3 * 90 + 10
  return images


@functools.cache
def masks_of(height, width, number=3):
  """A batch of masks without channels, uint8, and one with two, int32."""
  random = np.random.RandomState(0)
  return (
    random.randint(0, 256, (number, height, width), np.uint8),
    random.randint(-(2**31), 2**31, (number, height, width, 2), np.int32),
  )


def data(values):
  """The bytes of nested tensors and arrays."""
  return b"".join(np.ascontiguousarray(value).tobytes() for value in tf.nest.flatten(values))


def called(function, *components, seed):
  return function(*components, **({"seed": seed} if "seed" in signature(function).parameters else {}))


def by_seed(function, images, *masks):
  """Returns the results for each seed. The images take turns."""
  return [called(function, *each, seed=seed) for each, seed in zip(itertools.cycle(zip(images, *masks)), SEEDS)]


def of_sizes(name, function, channels=(1, 3, 4), sizes=SIZES):
  """An entry for each size and number of channels."""
  for (height, width), number in itertools.product(sizes, channels):
    yield f"{name}, {height} x {width} x {number}", by_seed(function, pictures(height, width, number))


def final_layers():
  """The layers that take any number of channels, by name."""
  layers = [augment.random_flip(), *map(augment.cutout, (1, 2, 8, 301))]
  layers += [augment.random_crop(padding=padding) for padding in (0, 1, 4, 400)]
  for antialias in (False, True):
    layers += [augment.resize(size, antialias) for size in ((1, 1), (3, 70), (24, 24), (224, 16))]
    layers += [augment.random_resized_crop(size, antialias=antialias) for size in ((1, 1), (24, 24), (50, 9))]
    layers.append(augment.random_resized_crop((20, 31), scale=(0.5, 0.6), ratio=(0.1, 9), antialias=antialias))
  return {repr(layer): layer for layer in layers}


def normalizations(channels):
  several = [
    augment.normalize(MEAN[number], STD[number], dtype)
    for number in {1, channels}
    for dtype in ("float32", "bfloat16", "float16")
  ]
  return {
    repr(layer): layer
    for layer in [*several, augment.normalize(-0.3, 2.5, max_pixel_value=255), augment.normalize(0, 1 / 255)]
  }


def all_operations():
  """A policy of Deep AutoAugment's form whose single layer has each operation, at each of several magnitudes."""
  of_magnitude = "shear_x shear_y translate_x translate_y rotate solarize posterize color contrast brightness sharpness"
  others = (
    "identity auto_contrast equalize invert random_flip random_crop_4 random_cutout_16 random_cutout_60 "
    "random_resized_crop"
  )
  pairs = [*itertools.product(of_magnitude.split(), (0, 1, 4.5, 6, 7, 10, 12)), *zip(others.split(), [None] * 9)]
  return [[(*pair, 1 / len(pairs)) for pair in pairs]]


# Functions that make the layers of a policy, which takes three channels.
POLICIES = {
  **{
    f"rand_augment{both}": functools.partial(augment.rand_augment, *both)
    for both in ((1, 0), (1, 5), (1, 9), (1, 10), (2, 9), (5, 3.3))
  },
  **{
    f"{make.__name__}({name})": functools.partial(make, name)
    for name in ("cifar10", "imagenet")
    for make in (augment.auto_augment, augment.deep_auto_augment)
  },
  "deep_auto_augment of all operations": functools.partial(augment.deep_auto_augment, all_operations()),
}


# Lists of layers for images of three channels, which may be split anywhere.
COMPOSITIONS = {
  "rand_augment to normalize": lambda: [
    augment.rand_augment(2),
    augment.random_crop(padding=4),
    augment.random_flip(),
    augment.cutout(8),
    augment.normalize(),
  ],
  "resized crop to normalize": lambda: [
    augment.random_resized_crop(24),
    augment.auto_augment("imagenet"),
    augment.random_flip(),
    augment.normalize(dtype="bfloat16"),
  ],
  "antialiased between policies": lambda: [
    augment.auto_augment("cifar10"),
    augment.random_resized_crop((20, 31), (0.3, 1), antialias=True),
    augment.rand_augment(1, 10),
    augment.resize((40, 40)),
    augment.cutout(5),
  ],
  "flips and crops": lambda: [
    augment.random_flip(),
    augment.random_crop(padding=3),
    augment.random_flip(),
    augment.random_crop(padding=9),
    augment.random_crop(padding=1, padding_mode="reflect"),
    augment.random_flip(),
    augment.normalize(0.5, 0.25, "float16"),
  ],
  "reflecting crops and cutouts": lambda: [
    augment.random_crop(padding=5, padding_mode="reflect"),
    augment.cutout(9),
    augment.random_crop(padding=4, padding_mode="reflect"),
    augment.cutout(6),
    augment.random_flip(),
    augment.cutout(3),
    augment.random_crop(padding=2),
  ],
  "deep_auto_augment to cutout": lambda: [
    augment.deep_auto_augment("cifar10"),
    augment.resize((29, 18)),
    augment.cutout(4),
    augment.normalize(0.4, 0.2),
  ],
  "final layers before a policy": lambda: [
    augment.cutout(12),
    augment.random_crop(padding=4),
    augment.random_flip(),
    augment.resize((30, 44), False),
    augment.deep_auto_augment("imagenet")[:2],
    augment.rand_augment(1, 7),
  ],
  "a function between": lambda: [
    augment.random_crop(padding=4),
    augment.rand_augment(1),
    tf.identity,
    augment.random_flip(),
    augment.normalize(),
  ],
  "more layers than one op takes": lambda: (
    [augment.random_crop(padding=1), augment.random_flip(), augment.cutout(1)] * 23
  ),
}


def of_composition(name):
  """The results of a composition alone and with masks, for images and batches. Checks that splits give the same."""
  layers = tf.nest.flatten(COMPOSITIONS[name]())
  places = range(1, len(layers) + 1) if len(layers) < 20 else (1, 33, 64, 65, len(layers))
  for size in ((33, 47), (64, 50)):
    images, masks, shown = pictures(*size, 3), masks_of(*size), "{} x {}".format(*size)
    whole, with_masks = augment.compose(layers), augment.compose(layers, targets={1: "mask", 2: "mask"})
    alone, moved = by_seed(whole, images), by_seed(with_masks, images, *masks)
    assert data([image for image, *_ in moved]) == data(alone)
    yield shown, alone
    yield f"{shown}, masks", moved
    if hasattr(whole, "draws"):
      yield f"{shown}, draws", list(map(whole.draws, SEEDS))
      assert data([whole.pixels(images[i % 3], whole.draws(seed)) for i, seed in enumerate(SEEDS)]) == data(alone)
    if tf.identity not in layers:
      whole_batches = [with_masks(images, *masks, seed=seed) for seed in SEEDS[:2]]
      assert data([whole(images, seed=seed) for seed in SEEDS[:2]]) == data([each[0] for each in whole_batches])
      yield f"{shown}, batches and masks", whole_batches
    for at in places if shown == "33 x 47" else ():
      partial_fn, final_fn = augment.split(layers, at)
      first, second = augment.split(layers, at, targets={1: "mask", 2: "mask"})
      results, triples = by_seed(partial_fn, images), by_seed(first, images, *masks)
      if final_fn:
        results = [called(final_fn, image, seed=seed) for image, seed in zip(results, SEEDS)]
        triples = [called(second, *triple, seed=seed) for triple, seed in zip(triples, SEEDS)]
      assert data(results) == data(alone) and data(triples) == data(moved), f"split at {at}"


def of_final_layers(kind):
  for name, layer in final_layers().items():
    if name.startswith(kind):
      yield from of_sizes(name, layer)
      yield (
        f"{name}, batches",
        [called(layer, pictures(33, 47, channels), seed=seed) for channels in (1, 3, 4) for seed in SEEDS],
      )


def of_other_layers(kind):
  """Layers of uint8 with three channels, and those that take more."""
  layers = [
    augment.color_jitter(0.8, 0.8, 0.8, 0.2),
    augment.color_jitter((0, 3), hue=(-0.5, 0.5)),
    augment.random_grayscale(0.5),
    augment.random_solarize(),
    augment.random_solarize(0, p=1),
    augment.gaussian_blur(),
    augment.gaussian_blur(sigma=(0.5, 6)),
    augment.gaussian_blur(23, 3),
    augment.random_erasing(),
    augment.random_erasing(1, (0.1, 0.9), (0.1, 9), (1, 2, 3)),
    augment.random_affine(20),
    augment.random_affine((-180, 180), (0.3, 0.1), (0.3, 3), (-40, 40, -10, 10)),
    augment.random_apply(
      [augment.color_jitter(0.4, 0.4, 0.2, 0.1), augment.random_flip(), augment.gaussian_blur()], 0.8
    ),
    augment.random_posterize((2, 6)),
    augment.random_adjust_sharpness((0, 3)),
    augment.random_equalize(),
    augment.random_autocontrast(),
    augment.random_invert(),
    augment.random_channel_permutation(),
    augment.random_photometric_distort(),
    augment.gaussian_noise(),
    augment.gaussian_noise(0.1, (0, 0.3)),
    augment.time_mask(40, 2, 0.8),
    augment.time_shift(),
    *augment.trivial_augment(),
  ]
  for layer in layers:
    if layer.__name__ == kind:
      channels = (
        (1, 3, 4)
        if kind.startswith("gaussian")
        else (1, 3)
        if kind in ("random_equalize", "random_adjust_sharpness")
        else (3,)
      )
      yield from of_sizes(repr(layer), layer, channels)
      yield f"{layer!r}, draws", [(layer.draws(seed), layer.draws(seed, 5)) for seed in SEEDS]
      masked = augment.compose([layer], targets={1: "mask", 2: "mask"})
      yield (
        f"{layer!r}, batches of 100 and masks",
        [masked(pictures(16, 19, 3, 100), *masks_of(16, 19, 100), seed=seed) for seed in SEEDS[:2]],
      )


def of_augmix():
  layers = augment.augmix(), augment.augmix(10, 5, 2, 0.3, fill=128), augment.augmix(5, 1, alpha=20, all_ops=False)
  for layer in layers:
    yield from of_sizes(repr(layer), layer, (3,))
    yield f"{layer!r}, draws", [(layer.draws(seed), layer.draws(seed, 50)) for seed in SEEDS]


def of_reflecting_crops():
  for padding, sizes in ((0, SIZES), (1, SIZES[1:]), (4, SIZES[2:]), (32, SIZES[2:]), (332, SIZES[3:])):
    yield from of_sizes(f"padding {padding}", augment.random_crop(padding=padding, padding_mode="reflect"), sizes=sizes)
  yield (
    "batches",
    [augment.random_crop(padding=20, padding_mode="reflect")(pictures(33, 47, 4), seed=seed) for seed in SEEDS],
  )


def of_crops_to_a_size_and_flips():
  for layer in (
    augment.random_crop((24, 40), padding=2, pad_if_needed=True),
    augment.random_crop((1, 1)),
    augment.random_crop(60, padding_mode="reflect", pad_if_needed=True),
    augment.random_flip("vertical"),
    augment.random_flip("horizontal_and_vertical", 0.3),
    augment.random_flip(p=0.9),
  ):
    yield from of_sizes(repr(layer), layer, sizes=SIZES[2:])
    masked = augment.compose([layer], targets={1: "mask", 2: "mask"})
    yield (
      f"{layer!r}, draws, batches and masks",
      [(layer.draws(seed, 5), masked(pictures(33, 47, 3), *masks_of(33, 47), seed=seed)) for seed in SEEDS],
    )


def of_geometry():
  """Layers of geometry on square images, which all of them accept."""
  for layer in (
    augment.center_crop((20, 41)),
    augment.pad((3, 0, 2, 7), 9),
    augment.pad(5, padding_mode="edge"),
    augment.pad((1, 4), padding_mode="reflect"),
    augment.pad(5, padding_mode="symmetric"),
    augment.random_rotate90(),
    augment.random_transpose(),
    augment.random_rotation(60),
    augment.random_perspective(p=1),
    augment.random_elastic(),
  ):
    colors = layer.__name__ in ("random_rotation", "random_perspective")
    yield from of_sizes(repr(layer), layer, (1, 3) if colors else (1, 3, 4), [(5, 5), (33, 33), (224, 224)])
    masked = augment.compose([layer], targets={1: "mask", 2: "mask"})
    yield (
      f"{layer!r}, draws, batches and masks",
      [(layer.draws(seed, 5), called(masked, pictures(33, 33, 3), *masks_of(33, 33), seed=seed)) for seed in SEEDS],
    )


def of_drawn_sizes():
  """Layers whose draws say how large an image becomes, and those that choose and order others."""
  flip, crop, zoom = augment.random_flip(), augment.random_crop(padding=4), augment.random_zoom_out(9, (1, 2), 0.7)
  for layer in (
    zoom,
    augment.random_resize(10, 90),
    augment.random_choice([zoom, [flip, crop]], [1, 3]),
    augment.random_order([flip, crop, augment.cutout(9)]),
  ):
    yield from of_sizes(repr(layer), layer, sizes=SIZES[:3])
  boxes = np.float32([[3, 4, 30, 20], [9, 2, 20, 30]])
  fn = augment.compose([zoom, augment.random_iou_crop(), flip], {1: "xyxy", 2: "mask"})
  yield "by boxes", [fn(pictures(33, 47, 3)[0], boxes, masks_of(33, 47)[0][0], seed=seed) for seed in SEEDS]


def of_normalize():
  for channels in (1, 3, 4):
    for name, layer in normalizations(channels).items():
      yield from of_sizes(name, layer, channels=(channels,))
      yield f"{name}, batch, {channels} channels", layer(pictures(33, 47, channels))


def of_policies(kind):
  for name, make in POLICIES.items():
    if name.startswith(kind):
      layers, function = make(), augment.compose(make())
      yield from of_sizes(name, function, channels=(3,))
      # There are so many images that nearly all outcomes occur.
      yield f"{name}, batches of 300", [function(pictures(16, 19, 3, 300), seed=seed) for seed in SEEDS[:2]]
      masked = augment.compose(layers, targets={1: "mask", 2: "mask"})
      yield (
        f"{name}, masks",
        [masked(pictures(16, 19, 3, 300), *masks_of(16, 19, 300), seed=seed)[1:] for seed in SEEDS[:2]],
      )
      for position, layer in enumerate(layers):
        if not layer.takes_over:
          yield f"{name}, layer {position}", by_seed(layer, pictures(33, 47, 3))


def of_draws():
  yield "seed_at", [augment.seed_at(seed, index) for seed in SEEDS for index in (0, 1, [2, 63, 2**40])]
  layers = {
    **final_layers(),
    "normalize": augment.normalize(),
    "reflecting": augment.random_crop(padding=4, padding_mode="reflect"),
  }
  layers.update((f"{name}, {i}", layer) for name, make in POLICIES.items() for i, layer in enumerate(make()))
  layers.update((name, augment.compose(make())) for name, make in POLICIES.items())
  for name, layer in layers.items():
    if not getattr(layer, "takes_over", None):
      yield name, [(layer.draws(seed), layer.draws(seed, 5)) for seed in SEEDS]


def of_crop_and_flip():
  for (height, width), channels in itertools.product(SIZES[:3], (1, 3, 4)):
    for padding, of in ((0, None), (4, None), (3, 1), (4, channels)):
      normalized = [augment.normalize(MEAN[of], STD[of])] if of else []
      function = augment.compose(
        [augment.random_crop(padding=padding), augment.random_flip(), *normalized], clips=False
      )
      yield (
        f"padding {padding}, mean {MEAN.get(of)}, {height} x {width} x {channels}",
        [(function(pictures(height, width, channels), seed=seed), function.draws(seed, 3)) for seed in SEEDS],
      )


def of_datasets():
  """Traced functions in a dataset, where no size is known, with several images at a time."""
  images = pictures(33, 47, 3, 12)
  seeds = augment.seed_at(SEEDS[1], tf.range(12)).numpy()
  for name in ("resized crop to normalize", "deep_auto_augment to cutout"):
    function = augment.compose(COMPOSITIONS[name]())
    dataset = tf.data.Dataset.from_generator(
      lambda: zip(images, seeds), output_signature=(tf.TensorSpec(None, tf.uint8), tf.TensorSpec([2], tf.int32))
    )
    found = list(dataset.map(lambda image, seed: function(image, seed=seed), 2))
    assert data(found) == data([function(image, seed=seed) for image, seed in zip(images, seeds)])
    yield name, found


GROUPS = {
  **{
    kind: functools.partial(of_final_layers, kind)
    for kind in ("random_crop", "random_flip", "cutout", "random_resized_crop", "resize")
  },
  **{
    kind: functools.partial(of_other_layers, kind)
    for kind in (
      "color_jitter",
      "random_grayscale",
      "random_solarize",
      "gaussian_blur",
      "random_erasing",
      "random_affine",
      "random_apply",
      "random_posterize",
      "random_adjust_sharpness",
      "random_equalize",
      "random_autocontrast",
      "random_invert",
      "random_channel_permutation",
      "random_photometric_distort",
      "gaussian_noise",
      "time_mask",
      "time_shift",
      "trivial_augment",
    )
  },
  "augmix": of_augmix,
  "crops to a size and flips": of_crops_to_a_size_and_flips,
  "geometry": of_geometry,
  "drawn sizes": of_drawn_sizes,
  "reflecting random_crop": of_reflecting_crops,
  "normalize": of_normalize,
  **{kind: functools.partial(of_policies, kind) for kind in ("rand_augment", "auto_augment", "deep_auto_augment")},
  "draws": of_draws,
  "crop and flip": of_crop_and_flip,
  "datasets": of_datasets,
  **{name: functools.partial(of_composition, name) for name in COMPOSITIONS},
}


def entries(group):
  """The checksum of each entry of a group, as text, by group and name."""
  found = [(f"{group}: {name}", f"{zlib.crc32(data(values)):08x}") for name, values in GROUPS[group]()]
  assert len(dict(found)) == len(found), "names that are not unique"
  return dict(found)


@pytest.mark.parametrize("group", GROUPS)
def test_bytes_are_those_recorded(group):
  recorded = json.loads(FILE.read_text(encoding="utf-8"))
  assert {name.partition(": ")[0] for name in recorded} == set(GROUPS)
  assert entries(group) == {name: value for name, value in recorded.items() if name.startswith(f"{group}: ")}


if __name__ == "__main__":
  made = {name: value for group in GROUPS for name, value in entries(group).items()}
  FILE.write_text(json.dumps(made, indent=0, sort_keys=True) + "\n", encoding="utf-8")

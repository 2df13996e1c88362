"""Volumes per second and CPU time with MONAI's transforms, by r, compared with a DataLoader.

Each pipeline runs in its own process, with two more processes for the transforms, and without a model.
"""

import importlib.util
import json
import random
import subprocess
import sys
import time

import numpy as np

SIDE, PATCH, BATCH, PROCESSES, ROUNDS = 96, (80, 80, 80), 2, 2, 5
PIPELINES = {"loader": "DataLoader", **{f"r{r}": f"refurbish, r = {r}" for r in (1, 2, 3)}}


def transforms_of(side):
  """Ten transforms from MONAI's tutorials and nnU-Net, whose results are cached; and a cheap crop, flips and
  intensities, which run at each use."""
  from monai import transforms

  both, modes = ["image", "mask"], ("bilinear", "nearest")
  partial = transforms.Compose(
    [
      transforms.SpatialPadd(both, [side] * 3),
      transforms.RandAffined(
        both, prob=1, rotate_range=[0.3] * 3, scale_range=[0.2] * 3, mode=modes, padding_mode="border"
      ),
      transforms.Rand3DElasticd(both, (3, 4), (20, 60), prob=0.2, mode=modes, padding_mode="border"),
      transforms.RandGaussianSmoothd(["image"], prob=0.2),
      transforms.RandBiasFieldd(["image"], prob=0.2),
      transforms.RandSimulateLowResolutiond(["image"], prob=0.25),
      transforms.RandAdjustContrastd(["image"], prob=0.3),
      transforms.RandHistogramShiftd(["image"], prob=0.2),
      transforms.RandGibbsNoised(["image"], prob=0.1),
      transforms.RandGaussianNoised(["image"], prob=0.2),
    ]
  )
  final = transforms.Compose(
    [
      transforms.RandSpatialCropd(both, [side * PATCH[0] // SIDE] * 3, random_size=False),
      *(transforms.RandFlipd(both, prob=0.5, spatial_axis=axis) for axis in range(3)),
      transforms.RandScaleIntensityd(["image"], 0.1, prob=1),
      transforms.RandShiftIntensityd(["image"], 0.1, prob=1),
    ]
  )
  return partial, final


def measure(quick):
  """Yields the section."""
  import common  # Imports TensorFlow, after which some versions of MONAI crash, so `run` does not import `common`.

  if importlib.util.find_spec("monai") is None:
    rows = [common.Row(key, f"{name}: not installed", "volumes/s", []) for key, name in PIPELINES.items()]
    rows.append(common.Row("r1_of_r3", "r = 1: not installed", "of r = 3's volumes/s", [], 0.5))
    yield common.Section("MONAI's transforms", "MONAI is not installed.", rows)
    return
  found = {key: [] for key in PIPELINES}
  for _ in range(common.rounds(quick, ROUNDS)):
    for key in random.sample(list(PIPELINES), len(PIPELINES)):
      common.say(PIPELINES[key])
      done = subprocess.run(
        [sys.executable, __file__, key, *["quick"] * quick],
        check=True,
        capture_output=True,
        text=True,
        env=common.environment(),
      )
      found[key].append(json.loads(done.stdout.splitlines()[-1]))
  speed = {key: [each["speed"] for each in runs] for key, runs in found.items()}
  share = [each["share"] for each in found["r1"]]
  yield common.Section(
    "MONAI's transforms",
    f"Generated volumes of {SIDE}³ with masks, ten transforms of MONAI, then a crop to {PATCH[0]}³, flips of three "
    f"axes and an intensity: MONAI's in the DataLoader, native layers in refurbish. Batches of {BATCH}, {PROCESSES} "
    "processes, three epochs after the first. CPU seconds of all processes.",
    [
      *(common.Row(key, name, "volumes/s", speed[key]) for key, name in PIPELINES.items()),
      *(
        common.Row(f"{key}_cpu", name, "CPU s/volume", [each["cpu"] for each in found[key]])
        for key, name in PIPELINES.items()
      ),
      common.Row("share", "refurbish, r = 1", "of CPU time in the processes", share),
      common.Row(
        "r1_of_r3", "refurbish, r = 1", "of r = 3's volumes/s", common.quotients(speed["r1"], speed["r3"]), 0.5
      ),
    ],
    lambda row: row.unit in ("volumes/s", "CPU s/volume"),
  )


def run(key, quick):
  """Prints the measurements of a pipeline as JSON."""
  side, count = (24, 4) if quick else (SIDE, 24)
  rng = np.random.default_rng(7)
  images = [rng.normal(0, 300, [side, side, side, 1]).astype(np.float32) for _ in range(4)]
  samples = [(images[i % 4], (images[i % 4][..., 0] > 400).astype(np.uint8)) for i in range(count)]
  partial, final = transforms_of(side)  # Imports MONAI, which must come before TensorFlow.
  batches = _loader(samples, partial, final) if key == "loader" else _refurbish(samples, partial, side, int(key[1:]))

  def epoch():
    for _ in batches:
      pass

  epoch()
  from refurbish_tf.experiments.results import cpu_of_family

  began, cpu, own = time.perf_counter(), cpu_of_family(), time.process_time()
  for _ in range(3):
    epoch()
  seconds, cpu, own = time.perf_counter() - began, cpu_of_family() - cpu, time.process_time() - own
  print(json.dumps({"speed": 3 * count / seconds, "cpu": cpu / 3 / count, "share": 1 - own / cpu}))


def _refurbish(samples, partial, side, r):
  import tensorflow as tf
  import refurbish_tf as rtf

  def prepare(image, mask, rng):
    made = partial({"image": np.moveaxis(image, -1, 0), "mask": mask[np.newaxis]})
    return {
      "image": np.moveaxis(np.asarray(made["image"]), 0, -1),
      "mask": np.asarray(made["mask"])[0].astype(mask.dtype),
    }

  size = side * PATCH[0] // SIDE
  return (
    tf.data.Dataset.from_tensor_slices(tuple(map(np.stack, zip(*samples))))
    .refurbish(
      [rtf.augment.numpy_layer(prepare, processes=PROCESSES)],
      [
        rtf.augment.random_depth_crop(size),
        rtf.augment.random_crop(size),
        rtf.augment.random_depth_flip(),
        rtf.augment.random_flip("horizontal_and_vertical"),
        rtf.augment.random_intensity(0.1, 0.1),
      ],
      r=r,
      seed=7,
      targets={1: "mask"},
    )
    .batch(BATCH)
    .prefetch(2)
  )


def _loader(samples, partial, final):
  from torch.utils import data

  class Volumes(data.Dataset):
    def __len__(self):
      return len(samples)

    def __getitem__(self, index):
      image, mask = samples[index]
      return final(partial({"image": np.moveaxis(image, -1, 0), "mask": mask[np.newaxis]}))

  return data.DataLoader(Volumes(), BATCH, shuffle=True, num_workers=PROCESSES, persistent_workers=True)


if __name__ == "__main__":
  run(sys.argv[1], len(sys.argv) > 2)

"""PyTorch's DataLoader and torchvision's `transforms.v2`, on uint8 tensors throughout, with a worker process for each
core.

It follows "Getting started with transforms v2": v2, tensors rather than PIL images, uint8.
"""

import torch
from torch.utils import data
from torchvision import io
from torchvision.transforms import v2

import epochs

# Magnitude 9 of 10, in torchvision's bins from 0 to 30.
MAGNITUDE = 27


class Images(data.Dataset):
  """The transformed results of `read`, for each sample."""

  def __init__(self, samples, read, transforms):
    self._samples = samples
    self._read = read
    self._transforms = v2.Compose(transforms)

  def __len__(self):
    return len(self._samples)

  def __getitem__(self, place):
    return self._transforms(self._read(self._samples[place]))


def small(images):
  return epochs_of(Images(images, lambda image: torch.from_numpy(image).permute(2, 0, 1), _augmentation(32)))


def decoded(file):
  return io.decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8), io.ImageReadMode.RGB)


def large(files):
  normalize = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(epochs.MEAN, epochs.STD)]
  return epochs_of(Images(files, decoded, [v2.RandomResizedCrop(224, antialias=True), *_augmentation(224), *normalize]))


def _augmentation(side):
  return [v2.RandAugment(num_ops=2, magnitude=MAGNITUDE), v2.RandomCrop(side, padding=4), v2.RandomHorizontalFlip()]


def epochs_of(dataset):
  loader = data.DataLoader(
    dataset,
    batch_size=epochs.BATCH,
    shuffle=True,
    num_workers=epochs.PROCESSORS,
    persistent_workers=True,
    drop_last=True,
  )
  return lambda: loader


if __name__ == "__main__":
  epochs.serve(small=small, large=large)

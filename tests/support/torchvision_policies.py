"""Results of torchvision's policies for Pillow images, with given numbers instead of random ones.

Runs in a separate process, because torchvision crashes if TensorFlow was imported before it.
"""

import importlib.util
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest


def made(jobs):
  """The images that torchvision makes. The test is skipped without torchvision.

  A job is a transform's name and arguments, an image, the name of the chosen operation or None, the successive results
  of `torch.rand`, all of which must be used, and the result of `torch.randint`. For AugMix, whose operations are then
  applied to Pillow images, names and results of `torch.randint` are lists; the weights follow. Crops are stacked.
  In place of a transform, it may be a function of `v2.functional`, whose arguments include the image.
  """
  if not importlib.util.find_spec("torchvision"):
    pytest.skip("not installed: torchvision")
  return pickle.loads(
    subprocess.run([sys.executable, __file__], input=pickle.dumps(jobs), stdout=subprocess.PIPE, check=True).stdout
  )


def main():
  from PIL import Image
  import torch
  from torchvision.transforms import v2

  apply = v2.AugMix._apply_image_or_video_transform

  def by_pillow(transform, batch, name, *arguments, **options):
    # The bytes are the same, and Pillow refuses to keep no bits.
    if name == "Posterize":
      return apply(transform, batch, name, *arguments, **options)
    made = apply(transform, v2.functional.to_pil_image(batch[0]), name, *arguments, **options)
    return v2.functional.pil_to_tensor(made)[None]

  v2.AugMix._apply_image_or_video_transform = by_pillow
  results = []
  for (kind, *arguments), image, name, drawn, whole, *weights in pickle.load(sys.stdin.buffer):
    if kind.islower():
      tensors = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in arguments]
      results.append(getattr(v2.functional, kind)(*tensors).numpy())
      continue
    if kind == "AutoAugment":
      arguments = map(v2.AutoAugmentPolicy, arguments)
    transform, numbers = getattr(v2, kind)(*arguments), iter(drawn)
    torch.rand = lambda size, numbers=numbers: torch.tensor(next(numbers))
    wholes = iter(whole) if isinstance(whole, list) else itertools.repeat(whole)
    torch.randint = lambda *_, wholes=wholes, **__: torch.tensor(next(wholes))
    names = iter(name) if isinstance(name, list) else itertools.repeat(name)
    if name is not None:
      transform._get_random_item = lambda space, names=names: (lambda name: (name, space[name]))(next(names))
    if weights:
      rows = iter(weights[0])
      transform._sample_dirichlet = lambda _, rows=rows: torch.tensor([next(rows)])
    made = transform(Image.fromarray(image))
    results.append(np.stack([np.asarray(each) for each in made]) if isinstance(made, tuple) else np.asarray(made))
    assert not list(numbers) and not (weights and [*wholes, *names])
  sys.stdout.buffer.write(pickle.dumps(results))


if __name__ == "__main__":
  main()

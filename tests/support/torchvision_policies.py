"""Results of torchvision's policies for Pillow images, with given numbers instead of random ones.

Runs in a separate process, because torchvision crashes if TensorFlow was imported before it.
"""

import importlib.util
import pickle
import subprocess
import sys

import numpy as np
import pytest


def made(jobs):
  """The images that torchvision makes. The test is skipped without torchvision.

  A job is a transform's name and arguments, an image, the name of the chosen operation or None, the successive results
  of `torch.rand`, all of which must be used, and the result of `torch.randint`.
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

  results = []
  for (kind, *arguments), image, name, drawn, whole in pickle.load(sys.stdin.buffer):
    if kind == "AutoAugment":
      arguments = map(v2.AutoAugmentPolicy, arguments)
    transform, numbers = getattr(v2, kind)(*arguments), iter(drawn)
    torch.rand = lambda size, numbers=numbers: torch.tensor(next(numbers))
    torch.randint = lambda end, size, whole=whole: torch.tensor(whole)
    if name is not None:
      transform._get_random_item = lambda space, name=name: (name, space[name])
    results.append(np.asarray(transform(Image.fromarray(image))))
    assert not list(numbers)
  sys.stdout.buffer.write(pickle.dumps(results))


if __name__ == "__main__":
  main()

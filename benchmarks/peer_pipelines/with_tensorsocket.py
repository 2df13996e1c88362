"""A job with a DataLoader, alone or with TensorSocket, for `sharing`:
`with_tensorsocket.py ROLE JOBS FILES EPOCHS OUTPUT`.

The producer prepares each batch once, in two processes, and sends it as uint8 to all consumers, on CPUs by TCP. The
consumers start first. The producer sends two batches at a time: in version 0.0.5 one is an error, and with more, each
message has the memory of all of them.
"""

import json
import pathlib
import pickle
import sys
import time

import torch
from torch.utils import data
from torchvision.transforms import v2

import with_torch

BATCH = 32


class Photographs(with_torch.Images):
  def __getitem__(self, place):
    # TensorSocket accepts only tuples of several tensors, so `place` is returned as well.
    return super().__getitem__(place), place


def main(role, jobs, files, epochs, output):
  if role == "consumer":
    from tensorsocket import TensorConsumer

    loader = TensorConsumer(batch_size=BATCH)
  else:
    torch.set_num_threads(1)
    loader = data.DataLoader(
      Photographs(
        pickle.loads(pathlib.Path(files).read_bytes()),
        with_torch.decoded,
        [v2.RandomResizedCrop(224, antialias=True), v2.RandAugment(num_ops=2, magnitude=with_torch.MAGNITUDE)],
      ),
      BATCH,
      shuffle=True,
      drop_last=True,
      persistent_workers=True,
      num_workers=2 if role == "producer" else 1,
    )
  if role == "producer":
    from tensorsocket import TensorProducer

    producer = TensorProducer(loader, producer_batch_size=2)
    while len(producer.hb.consumers) < int(jobs):
      time.sleep(0.1)
    for _ in range(int(epochs)):
      for _ in producer:
        pass
    return
  began, batches = time.monotonic(), []
  for _ in range(int(epochs)):
    for images, _ in loader:
      batches.append((time.monotonic(), len(images)))
      # Written after each batch, because a consumer whose producer has ended never returns.
      pathlib.Path(output).write_text(
        json.dumps({"began": began if role == "alone" else batches[0][0], "batches": batches})
      )


if __name__ == "__main__":
  main(*sys.argv[1:])

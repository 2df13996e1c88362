"""A program: fits in forked processes that are killed, with the backend of Keras that the environment names.

Arguments: a directory, whether Keras reads a batch ahead of the step, as it does on an accelerator, and after which
steps of which epochs it is killed, as JSON; step 0 is the end of the epoch.
"""

import itertools
import json
import os
import pathlib
import signal
import sys

if os.environ["KERAS_BACKEND"] == "torch":
  import torch._dynamo  # noqa: F401  Before TensorFlow: see docs/torch_jax.md.
import keras
import numpy as np

import refurbish_tf as rtf
from support.fits import EPOCHS, N, Recorder, Steps, assert_epochs_whole, make_dataset, make_model

DIRECTORY, AHEAD, ENDS = pathlib.Path(sys.argv[1]), sys.argv[2] == "ahead", json.loads(sys.argv[3])


class Killed(Steps):
  """Writes the training data to a file, and kills its process at a step."""

  def __init__(self, epoch, step):
    super().__init__({})
    self.end = epoch, step

  def on_train_batch_end(self, batch, logs=None):
    super().on_train_batch_end(batch, logs)
    if (self.epoch, batch) in self.trained:
      with open(DIRECTORY / "trained", "a", encoding="utf-8") as file:
        file.write(json.dumps([self.epoch, batch, self.trained[self.epoch, batch]]) + "\n")
    self.kill_at(self.epoch, batch + 1)

  def on_epoch_end(self, epoch, logs=None):
    self.kill_at(epoch, 0)

  def kill_at(self, *where):
    if where == self.end:
      os.kill(os.getpid(), signal.SIGKILL)


def fit(name, *end):
  """Fits in a forked process. Writes the weights, and checks the history of the logger."""
  process = os.fork()
  if process:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
  if AHEAD:
    import jax

    jax.default_backend = lambda: "an accelerator"
  # A store on disk, which is warm after each kill.
  store = DIRECTORY / ("unbroken store" if name == "unbroken" else "store")
  model, dataset = make_model(), make_dataset(store=str(store))
  logger = rtf.keras.RefurbishLogger(dataset)
  history = model.fit(
    dataset,
    epochs=EPOCHS,
    verbose=0,
    shuffle=False,
    callbacks=[rtf.keras.BackupAndRestore(DIRECTORY / "backup", save_freq=2), logger, Killed(*end)],
  ).history
  buffers = []
  if keras.backend.backend() == "torch":
    (recorder,) = (layer for layer in model.layers if isinstance(layer, Recorder))
    buffers = [buffer.numpy() for buffer in recorder.buffers()]
    assert len(buffers) == 3  # Mean, variance and count.
  np.savez(DIRECTORY / name, *model.get_weights(), *buffers)
  counts = [
    fresh + cached for fresh, cached in zip(history["refurbish_fresh"], history["refurbish_cached"], strict=True)
  ]
  if name == "unbroken":
    # Keras reads a batch to build the model. This is an early stop, so some samples are cached in the next epoch.
    assert counts == [N] * EPOCHS and sorted(history["refurbish_fresh"][1:]) == [6, 7, 7], history
  assert min(history["input_wait_max"]) > 0 and 0 < min(history["input_wait_fraction"]) < 1, history
  assert "It runs on the CPU cores" in logger.verdict
  assert not (DIRECTORY / "backup").exists()
  os._exit(0)


def trained():
  lines = [json.loads(line) for line in (DIRECTORY / "trained").read_text(encoding="utf-8").splitlines()]
  (DIRECTORY / "trained").unlink()
  return lines


assert fit("unbroken", None, None) == 0
expected = {(epoch, batch): indices for epoch, batch, indices in trained()}
assert_epochs_whole(expected)
for end in ENDS:
  assert fit("killed", *end) == -signal.SIGKILL, end
assert fit("resumed", None, None) == 0
lines = trained()
assert {(epoch, batch): indices for epoch, batch, indices in lines} == expected
# Only steps since the last backup are repeated: fewer than two after each kill.
assert len(expected) <= len(lines) <= len(expected) + 2 * len(ENDS), lines
with np.load(DIRECTORY / "unbroken.npz") as unbroken, np.load(DIRECTORY / "resumed.npz") as resumed:
  for a, b in itertools.zip_longest(unbroken.values(), resumed.values()):
    np.testing.assert_array_equal(a, b)
print(f"With Keras {keras.__version__} of {keras.__file__} on {keras.backend.backend()}.")

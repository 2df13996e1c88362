"""A loader's state within the checkpoints of PyTorch, Lightning and orbax: exactly the rest of the epoch."""

import collections
import itertools
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import final_fn, partial_fn
from support.processes import run_forked

N = 10
EPOCHS = 3


def needs(*modules):
  # PyTorch for GPUs imports triton, whose library crashes if it is loaded after TensorFlow.
  sys.modules.setdefault("triton", None)
  return [pytest.importorskip(name, reason=f"{name} is not installed") for name in modules]


def make(n=N, batch_size=2):
  """Makes batches of (index, seed of partial_fn, seed of final_fn), each time from a new stage, as in a new process."""
  return tf.data.Dataset.range(n).refurbish(partial_fn, final_fn, r=2, seed=1).batch(batch_size).prefetch(2)


def read(loader, epochs):
  return [[np.asarray(batch).tolist() for batch in loader] for _ in range(epochs)]


def resume_in_torch(path, after):
  """Runs in its own process."""
  import torch

  checkpoint = torch.load(path, weights_only=True)
  torch.nn.Linear(2, 2).load_state_dict(checkpoint["model"])
  loader = rtf.torch_loader(make())
  loader.load_state_dict(checkpoint["data"])
  torch.save(read(loader, EPOCHS - loader.epoch), after)


@pytest.mark.parametrize("epoch, step", [(1, 2), pytest.param(0, 5, marks=cases.only_exhaustive)])
def test_torch_save_and_load_in_a_new_process(tmp_path, epoch, step):
  (torch,) = needs("torch")
  expected = read(rtf.torch_loader(make()), EPOCHS)
  loader = rtf.torch_loader(make())
  assert read(loader, epoch) == expected[:epoch]
  batches = iter(loader)
  for _ in range(step):
    next(batches)
  torch.save({"model": torch.nn.Linear(2, 2).state_dict(), "data": loader.state_dict()}, tmp_path / "checkpoint")
  assert run_forked(resume_in_torch, tmp_path / "checkpoint", tmp_path / "after") == 0
  rest = expected[epoch][step:]
  assert torch.load(tmp_path / "after") == [*([rest] if rest else []), *expected[epoch + 1 :]]


def lightning_module(lightning, torch):
  class Module(lightning.LightningModule):
    def __init__(self):
      super().__init__()
      self.weight = torch.nn.Parameter(torch.zeros(1))
      self.seen = collections.defaultdict(list)

    def training_step(self, batch, index):
      assert index == len(self.seen[self.current_epoch]) or self.trainer.ckpt_path
      self.seen[self.current_epoch].append(batch.tolist())
      return self.weight.sum()

    def validation_step(self, batch, index):
      pass

    def configure_optimizers(self):
      return torch.optim.SGD(self.parameters(), 0.1)

  return Module()


def data_module(lightning, loader):
  """At the end of an epoch, Lightning restores the state of a data module, but not that of a loader."""

  class Data(lightning.LightningDataModule):
    def train_dataloader(self):
      return loader

    def state_dict(self):
      return loader.state_dict()

    def load_state_dict(self, state_dict):
      loader.load_state_dict(state_dict)

  return Data()


def fit(loader, *, directory=None, checkpoint=None, validates=False, in_module=False, limit=None, **when):
  """Returns the batches of each epoch that training has seen. Saves checkpoints, named by step, to `directory`."""
  torch, lightning = needs("torch", "lightning")
  module = lightning_module(lightning, torch)
  callbacks = []
  if directory is not None:
    callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(directory, filename="{step}", save_top_k=-1, **when))
  trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=bool(callbacks),
    callbacks=callbacks,
    num_sanity_val_steps=0,
    limit_train_batches=limit,
  )
  data = {"datamodule": data_module(lightning, loader)} if in_module else {"train_dataloaders": loader}
  if validates:
    data["val_dataloaders"] = rtf.torch_loader(tf.data.Dataset.range(2))
  trainer.fit(module, **data, ckpt_path=checkpoint)
  return [module.seen.get(epoch, []) for epoch in range(EPOCHS)]


def steps_of(directory):
  return sorted((int(path.stem.removeprefix("step=")), path) for path in directory.iterdir())


def after(epochs, step):
  """Returns the batches of each epoch after `step`."""
  before = itertools.accumulate(map(len, epochs), initial=0)
  return [epoch[max(0, step - begin) :] for begin, epoch in zip(before, epochs)]


quiet = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore::FutureWarning")


@cases.only_exhaustive
@quiet
@pytest.mark.parametrize(
  "validates, when",
  [(False, {"every_n_train_steps": 1}), (True, {"every_n_train_steps": 1}), (True, {"save_on_train_epoch_end": False})],
)
def test_lightning_at_every_step(tmp_path, validates, when):
  """This includes steps after the last batch of an epoch, and after the validation that follows."""
  needs("torch", "lightning")
  expected = read(rtf.torch_loader(make()), EPOCHS)
  assert fit(rtf.torch_loader(make()), directory=tmp_path, validates=validates, **when) == expected
  saved = steps_of(tmp_path)
  assert [step for step, _ in saved] == list(range(1, 16) if "every_n_train_steps" in when else (5, 10, 15))
  for step, path in saved:
    assert fit(rtf.torch_loader(make()), checkpoint=path, validates=validates) == after(expected, step), step


@cases.only_exhaustive
@quiet
@pytest.mark.parametrize(
  "saved, more",
  [
    ([5, 10, 15], {}),
    ([5, 10, 15], {"validates": True}),
    ([5, 10, 15], {"in_module": True}),
    ([10], {"every_n_epochs": 2}),
    ([3, 6, 9], {"limit": 3}),
    ([2, 3, 4, 6, 8, 9], {"limit": 3, "every_n_train_steps": 1}),
  ],
)
def test_lightning_at_the_end_of_an_epoch(tmp_path, saved, more):
  """From these checkpoints Lightning loads no state of a loader, but it passes the number of the epoch."""
  needs("torch", "lightning")
  how = {key: value for key, value in more.items() if not key.startswith("every")}
  at_steps = "every_n_train_steps" in more
  whole = fit(rtf.torch_loader(make()), directory=tmp_path, save_on_train_epoch_end=not at_steps, **more)
  assert whole == [epoch[: more.get("limit")] for epoch in read(rtf.torch_loader(make()), EPOCHS)]
  paths = dict(steps_of(tmp_path))
  assert at_steps or list(paths) == saved
  for step in saved:
    assert fit(rtf.torch_loader(make()), checkpoint=paths[step], **how) == after(whole, step), step


@pytest.mark.parametrize("n, batch_size", [(N, 2), pytest.param(1_000_000, 1000, marks=cases.only_exhaustive)])
def test_orbax_in_mid_epoch(tmp_path, n, batch_size):
  """orbax restores into arrays with the shapes of an unread loader's state."""
  jax, checkpoints = needs("jax", "orbax.checkpoint")
  loader = rtf.jax_loader(make(n, batch_size))
  iterator = iter(loader)
  for _ in range(2):
    next(iterator)
  other = rtf.jax_loader(make(n, batch_size))
  with checkpoints.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "checkpoint", {"params": {"weight": jax.numpy.ones([2])}, "data": loader.state_dict()})
    checkpointer.wait_until_finished()
    target = jax.tree.map(
      lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
      {"params": {"weight": jax.numpy.zeros([2])}, "data": other.state_dict()},
    )
    restored = checkpointer.restore(tmp_path / "checkpoint", target)
  assert restored["params"]["weight"].tolist() == [1, 1]
  other.load_state_dict(restored["data"])
  if n == N:
    assert read(other, 2) == [[batch.tolist() for batch in iterator], *read(loader, 1)]
  else:
    for batch, expected in itertools.islice(zip(other, iterator), 5):
      np.testing.assert_array_equal(batch, expected)

"""Trainings that take turns: the missing ones of a table, each in a process of its own, epoch by epoch on a clock."""

import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import shutil
import time

from refurbish_tf.experiments import results

# What `by_epoch` returns, besides the figure of each epoch.
COLUMNS = ("steps", "parameters", "seconds_by_epoch", "cpu_seconds_by_epoch")


def complete(table, settings, seeds, row_of, train):
  """Adds to a `results.Table` the trainings that it lacks, seed by seed. The settings take turns in going first.

  Args:
    row_of: a function of a setting and a seed that returns the key of their row.
    train: a function of the key that returns the remaining columns.
  """
  for number, seed in enumerate(seeds):
    for place in range(len(settings)):
      row = row_of(settings[(number + place) % len(settings)], seed)
      if not table.has(row):
        table.add([{**row, **(made := train(row))}])
        print(f"{settings[(number + place) % len(settings)]}, seed {seed}: {made}", flush=True)


def in_own_process(function, *arguments):
  """Calls a function in a new process, which finds the same memory as all others, and no threads."""
  with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
    return process.submit(function, *arguments).result()


@contextlib.contextmanager
def new_folder(folder):
  """Yields an empty folder that gets its name when it is complete, so that a program can be stopped at any time."""
  new = folder.with_suffix(".new")
  shutil.rmtree(new, ignore_errors=True)
  new.mkdir(parents=True)
  yield new
  os.replace(new, folder)


def timed_epochs(model, batches, validate, epochs, target=math.inf):
  """Trains a compiled model. The clock pauses during the validation, and starts when all functions are traced.

  Args:
    batches: a function that returns a new pipeline: a function from the number of an epoch to its batches.
    validate: a function that returns the figure of an epoch.
    epochs: the largest number of epochs.
    target: a figure that ends the training.

  Returns:
    Three tuples: each epoch's figure, its seconds, and its CPU seconds, with those of child processes.
  """
  model.optimizer.build(model.trainable_variables)
  before = [(variable, variable.numpy()) for variable in [*model.variables, *model.optimizer.variables]]
  model.fit(batches()(0).take(1), verbose=0, shuffle=False)
  validate()
  for variable, value in before:
    variable.assign(value)
  epoch, measured = batches(), []
  while len(measured) < epochs and not (measured and measured[-1][0] >= target):
    began, cpu = time.perf_counter(), results.cpu_of_family()
    model.fit(epoch(len(measured)), verbose=0, shuffle=False)
    took = time.perf_counter() - began, results.cpu_of_family() - cpu
    measured.append((validate(), *took))
  return tuple(zip(*measured))


def by_epoch(model, name, measured):
  """The columns `COLUMNS` and `name` of a row, from what `timed_epochs` returns."""
  figures, *seconds = (" ".join(f"{value:.4g}" for value in values) for values in measured)
  steps = int(model.optimizer.iterations)
  return {**dict(zip(COLUMNS, (steps, model.count_params(), *seconds))), name: figures}

"""A job in TensorFlow, one in PyTorch and one in JAX on one store, beside three in TensorFlow, for `sharing`."""
import importlib.util

import common
import sharing_jobs
import sharing_simulation as simulation

TITLE = "TensorFlow, PyTorch and JAX on one store, paced"
LOADERS = {"torch_loader": "torch", "jax_loader": "jax"}
LIMIT = 1.05


def section(quick, stores, step):
  """Of calls and contents, for each store: `r` and the kept share."""
  n, laps = (512, 2) if quick else (10_000, 5)
  missing = [module for module in LOADERS.values() if not importlib.util.find_spec(module)]
  case = simulation.Case("3 together", (1,) * 3)
  rows = []
  for r, share in stores[-1:] if quick else stores:
    calls = {}
    for key, name, loaders in (("tensorflow", "three in TensorFlow", ("",) * 3),
                               ("each", "one in each framework", ("", *LOADERS))):
      name, key = f"r = {r}, {share:g} kept: {name}", f"frameworks_{key}_r{r}_{share:g}"
      if any(loaders) and missing:
        name, measured = f"{name}: {missing[0]} is not installed", None
      else:
        measured = sharing_jobs.measure(sharing_jobs.Cell(case, r, share, n, laps, step, loaders=loaders))
      values = [[]] * 5
      if measured is not None:
        calls[any(loaders)] = measured.calls
        values = [[getattr(measured, figure)] for figure in (
            "calls", "reads", "beyond", "in_common", "longest_wait")]
      rows += [
          common.Row(f"{key}_calls", name, "calls by all, of the fastest alone", values[0], LIMIT),
          common.Row(f"{key}_reads", name, "reads by all, of the fastest alone", values[1], LIMIT),
          common.Row(f"{key}_beyond", name, "beyond alone in 256 steps", values[2], 2),
          common.Row(f"{key}_in_common", name, "in another job, too", values[3]),
          common.Row(f"{key}_wait", name, "s, longest wait of a step", values[4])]
    if len(calls) == 2:
      rows.append(common.Row(f"frameworks_of_tensorflow_r{r}_{share:g}", f"r = {r}, {share:g} kept: one in each framework",
                             "of the calls of three in TensorFlow", [calls[True] / calls[False]]))
  return common.Section(
      TITLE,
      f"Three jobs, started together, on one store, {n:,} samples, steps of {sharing_jobs.BATCH}, {laps} epochs of the first "
      f"job. A step takes {1000 * step:.0f} ms. The first reads the pipeline itself, the others through torch_loader and "
      "jax_loader. Calls of partial_fn by all, and elements read, over what one alone would make; the most preparations of a "
      "job beyond those that it would make alone in 256 steps; of the samples of a generation that a job was handed, those that "
      "another one was, too, which all had the same contents.", rows)

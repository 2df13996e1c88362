"""The CPU time that the input saves when an accelerator finishes its batches."""

import common
import numpy as np
import samples
import tensorflow as tf

from refurbish_tf import augment

SIDE, BATCH, PADDING, MAGNITUDE = 224, 64, 4, 9
REUSE_FACTORS = (1, 3, 5)
MOST_OF_CPU = {3: 0.80, 5: 0.70}
WITHOUT = "without offload"


def measure(quick):
  """Yields the section."""
  files, whence = samples.photographs(2 * BATCH if quick else 1500)
  yield _cpu_time(quick, np.array(files, object), whence)


def _final_layers():
  return [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize()]


def _on_batches(dataset):
  """The final layers on whole batches, the fastest form on the CPU."""
  return dataset.batch(BATCH, drop_remainder=True).map(
    augment.compose(_final_layers(), clips=False), common.PARALLEL_CALLS
  )


def _cpu_time(quick, files, whence):
  """The input's CPU time"""
  decode, policies, final = (
    augment.decode_random_resized_crop(SIDE),
    augment.rand_augment(2, MAGNITUDE),
    _final_layers(),
  )
  source = tf.data.Dataset.from_tensor_slices(files)
  rows = []
  for r in REUSE_FACTORS:
    common.say(f"{_cpu_time.__doc__}, r = {r}")
    kept = lambda partial, function, r=r: source.refurbish(partial, function, r, seed=7)
    # Pairs with and without offload are compared. Some are nearly equal, so many rounds are needed.
    costs = common.per_element(
      len(files) // BATCH * BATCH,
      common.cpu_of_epochs(
        {
          "in partial_fn": kept([decode, *policies], None).offload(final, BATCH),
          "in partial_fn, without": _on_batches(kept([decode, *policies], None)),
          "share 0": kept([decode], None).offload([*policies, *final], BATCH, device_fraction=0),
          "share 1": kept([decode], None).offload([*policies, *final], BATCH, device_fraction=1),
          "fresh, without": _on_batches(kept([decode], policies)),
        },
        common.rounds(quick, 15),
      ),
    )
    rows += [
      common.Row(f"cpu_r{r}_without", f"r = {r}", f"µs an image {WITHOUT}", costs["in partial_fn, without"]),
      common.Row(f"cpu_r{r}_offload", f"r = {r}", "with offload", costs["in partial_fn"]),
    ]
    rows += [
      common.Row(
        f"cpu_r{r}_{key}", f"r = {r}", f"{name}: of that {WITHOUT}", common.quotients(costs[mine], costs[other]), limit
      )
      for key, name, mine, other, limit in (
        ("final", "policies in partial_fn", "in partial_fn", "in partial_fn, without", MOST_OF_CPU.get(r)),
        ("share_0", "policies fresh, share 0", "share 0", "fresh, without", None),
        ("share_1", "policies fresh, share 1", "share 1", "fresh, without", MOST_OF_CPU.get(r)),
      )
    ]
  return common.Section(
    _cpu_time.__doc__,
    f"{whence}, in memory, for a model that takes float32; no model runs. decode_random_resized_crop({SIDE}) in "
    f"partial_fn, rand_augment() there or after it, then random_crop(padding={PADDING}), random_flip() and "
    f"normalize(): by the accelerator, or, without offload, on whole batches of {BATCH}, the fastest form. Share: the "
    "fraction of policies on the accelerator. CPU time of all threads of an epoch after the first.",
    rows,
  )

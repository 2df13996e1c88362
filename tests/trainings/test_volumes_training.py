"""The experiment of volumes: the results of a training, and the table of trainings."""

import numpy as np
import volumes

from refurbish_tf import augment
from refurbish_tf.experiments import results, tables
from support import cases


@cases.slow
def test_a_training_ends_at_its_target():
  data = volumes.draw(4, 16, 1), volumes.draw(2, 16, 2)
  assert data[0][0].shape == (4, 16, 16, 16, 1) and 0.005 < data[0][1].mean() < 0.3
  calls, layer = (
    [],
    augment.numpy_layer(lambda image, mask, rng: calls.append(0) or {"image": image, "mask": mask}, processes=0),
  )
  row = dict(zip(volumes.KEY, ("", 4, 16, volumes.BATCH_SIZE, 2, 0.003, 2.0, 3, 0)))
  made = volumes.train(row, data, layer, width=1)
  assert made["steps"] == 6 and len(made["dice"].split()) == 3 and 0 < made["seconds"] and 0 < made["cpu_seconds"]
  # Two calls are for the first batches. One more comes because the first call is made twice.
  assert 4 + 2 + 2 <= len(calls) <= 4 + 2 + 2 + 5
  assert len(volumes.train({**row, "target": 1e-9}, data, layer, width=1)["dice"].split()) <= 3


def test_table():
  rows = [
    {
      "r": r,
      "seed": seed,
      "target": 0.8,
      "dice": "0.7 0.82" if (r, seed) != (3, 4) else "0.7 0.75",
      "seconds": (10 + seed) / r,
      "cpu_seconds": 20,
    }
    for r in (1, 2, 3)
    for seed in (*volumes.SEEDS, volumes.TUNING_SEED)
  ]
  lines = [line.replace("\N{NO-BREAK SPACE}", " ") for line in tables.volumes(rows).splitlines()[2:]]
  assert lines[0] == "| 1 | 5 of 5 | 2.0 ± 0.0 | 12.0 ± 2.0 | 20.0 ± 0.0 |  |"
  assert (
    lines[1].startswith("| 2 | 5 of 5 | 2.0 ± 0.0 | 6.0 ± 1.0 | 20.0 ± 0.0 | 2.00 (1.65 to 2.43) |")
    and "| 3 | 4 of 5 |" in lines[2]
  )
  assert np.isclose(results.mean_interval([10, 11, 12, 13, 14])[1], 1.963, atol=0.01)

"""The detector: mAP by hand, boxes and pixels of the composed images, what is trained, and the table."""

import detector
import numpy as np
import pytest

from refurbish_tf.experiments import results, tables, turns
from support import cases

A, B, NEAR_A, FAR = [0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 10, 6], [60, 60, 70, 70]


@pytest.mark.parametrize(
  "found, true, expected",  # near, too far, wrong, made to fall, twice, another class
  [
    ([(NEAR_A, 0.9, 0), (A, 0.8, 0)], [(A, 0)], 1),
    ([([0, 0, 10, 4.9], 0.9, 0)], [(A, 0)], 0),
    ([(A, 0.9, 0), (FAR, 0.8, 0), (B, 0.7, 0)], [(A, 0), (B, 0), ([50, 0, 60, 10], 0)], (1 + 2 / 3) / 3),
    ([(FAR, 0.9, 0), (B, 0.7, 0), (A, 0.8, 0)], [(A, 0), (B, 0), (FAR, -1)], 2 / 3),
    ([(NEAR_A, 0.8, 0), (A, 0.9, 0), (B, 0.7, 0)], [(A, 0), (B, 0)], (1 + 2 / 3) / 2),
    ([(A, 0.9, 0), (B, 0.8, 0)], [(A, 0), (B, 1)], 1 / 2),
  ],
)
def test_mean_average_precision(found, true, expected):
  column = lambda rows, place, *width: [np.array([row[place] for row in rows], float).reshape(-1, *width)]
  lists = column(found, 0, 4), column(found, 1), column(found, 2), column(true, 0, 4), column(true, 1)
  assert detector.mean_average_precision(*lists) == pytest.approx(expected)


def test_boxes_are_where_the_pixels_of_objects_are():
  photographs = np.zeros([4, 40, 30, 3], np.uint8) + np.uint8([200, 100, 0])
  for seed in range(5):
    image, boxes, labels = detector.compose(photographs, [0, 1, 1, 3], np.random.default_rng(seed))
    coloured = image[..., 0] != image[..., 2]
    assert np.array_equal(labels < 0, boxes[:, 0] < 0) and (labels >= 0).sum() >= 2 and {*labels} <= {-1, 0, 1, 3}
    for left, top, right, bottom in boxes[labels >= 0].astype(int):
      assert all(coloured[top:bottom, left:right].any(axis).all() for axis in (0, 1))
      coloured[top:bottom, left:right] = False
    assert not coloured.any()


def test_a_stopped_plan_continues_with_the_missing_trainings(tmp_path, monkeypatch, capsys):
  trained = []

  def stopped(_, row, folder):
    if len(trained) == 4:
      raise KeyboardInterrupt
    trained.append((row["seed"], row["strategy"]))
    assert len([*folder.glob("train/*.jpg")]) == 4
    return {"steps": 1, "parameters": 1, "maps": "0.1 0.9", **dict.fromkeys(detector.COLUMNS[3:], "2.0 2.0")}

  monkeypatch.setattr(turns, "in_own_process", stopped)
  arguments = [str(tmp_path), "--images", "4", "--photographs", "shapes", "--seed", "0", "1"]
  with pytest.raises(KeyboardInterrupt):
    detector.main(arguments)
  there = [trained.pop() for _ in range(4)]
  detector.main(arguments)
  assert sorted(there + trained) == sorted((seed, each) for seed in range(2) for each in detector.STRATEGIES)
  assert len(results.read(tmp_path / "detector.csv")) == 6 and "refurbish, r = 3 | 2 of 2" in capsys.readouterr().out


@cases.slow
@pytest.mark.parametrize("strategy", ["standard", "refurbish r=2"])
def test_a_training(strategy, tmp_path):
  """The last epochs have no mosaic, whose rows come after those of an image."""
  for name, data in zip(("train", "validation"), detector.load("shapes")):
    detector.write_images(tmp_path / name, data, 8, 0)
  row = {"strategy": strategy, "seed": 0, "images": 8, "batch_size": 4, "epochs": 3, "learning_rate": 0.01}
  batches = detector.Batches(detector.source(tmp_path / "train")[0], row)
  for epoch in range(3):
    rows = np.concatenate([rows for _, rows in batches.epoch(epoch).as_numpy_iterator()])
    assert len(rows) == 8 and (rows[:, detector.MOST_BOXES :, 4] >= 0).any() == (epoch < 3 - detector.LAST_EPOCHS)
  made = detector.train(row, tmp_path)
  assert made["steps"] == 6 and all(len(made[name].split()) == 3 for name in detector.COLUMNS[2:])


def test_table():
  """The first seconds are those until the target, the others all. The pilot is left out."""
  rows = [
    {"strategy": name, "seed": seed, "target": 0.5, "maps": f"0.1 0.{4 + seed % 2}9 0.{4 + bool(seed)}{seed}"}
    | dict.fromkeys(detector.COLUMNS[3:], f"{8 / faster} 4 4")
    for faster, name in enumerate(detector.STRATEGIES, 1)
    for seed in (*detector.SEEDS, detector.PILOT_SEED)
  ]
  first, _, last = tables.detector(rows).replace("\N{NO-BREAK SPACE}", " ").splitlines()[2:]
  assert first == "| standard | 4 of 5 | 2.5 ± 0.9 | 14.0 ± 3.7 |  | 16.0 ± 0.0 |  | 50.0 ± 7.1 % |  |  |"
  assert "| 8.7 ± 3.7 | 1.64 (1.09 to 2.48) | 10.7 ± 0.0 | 1.50 (1.50 to 1.50) |" in last
  assert "| +0.00 ± 8.31 | not significant |" in last

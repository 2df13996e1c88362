"""The trainings on all images: what is trained in which order, and that a killed training continues as if it had not
been killed."""

import all_images
import cifar10
import keras
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf.experiments import images as image_sets, results
from support import cases

IMAGES, EPOCHS = 60, 4
COLOURS = "resized crop, colours"


class Killed(BaseException):
  pass


@pytest.fixture
def trainings(monkeypatch):
  layers = keras.layers
  monkeypatch.setattr(
    all_images.networks,
    "small",
    lambda images, classes: keras.Sequential(
      [
        keras.Input(images.shape[1:], dtype="uint8"),
        layers.Rescaling(1 / 255),
        layers.AveragePooling2D(4),
        layers.Flatten(),
        layers.Dense(8),
        layers.BatchNormalization(),
        layers.Dense(classes),
      ]
    ),
    raising=False,
  )
  return all_images


@pytest.fixture
def followed(trainings, monkeypatch):
  """Returns a function that runs a tiny plan until it is complete, killed at the given places. That function returns
  weights and samples by epoch."""
  fit, evaluate, epoch = keras.Model.fit, keras.Model.evaluate, trainings.Samples.epoch

  def follow(state, setting, kills=()):
    kills, found, seen = set(kills), [], {}

    def kill_at(place):
      if place in kills:
        kills.remove(place)
        raise Killed

    def noted(self, number):
      seen[number] = []

      def note(image, label):
        told = tf.py_function(
          lambda image, label: seen[number].append((image.numpy().tobytes(), label.numpy().tobytes())),
          [image, label],
          [],
        )
        with tf.control_dependencies([told] if told is not None else []):
          return tf.identity(image), label

      return epoch(self, number).map(note)

    def partly(model, dataset, **how):
      number = max(seen)
      if ("within", number) in kills:
        fit(model, dataset.take(1), **how)
      kill_at(("within", number))
      return fit(model, dataset, **how)

    def evaluated(model, *args, **how):
      found.extend([*model.get_weights(), *(variable.numpy() for variable in model.optimizer.variables)])
      return evaluate(model, *args, **how)

    monkeypatch.setattr(trainings.Samples, "epoch", noted)
    monkeypatch.setattr(keras.Model, "fit", partly)
    monkeypatch.setattr(keras.Model, "evaluate", evaluated)
    monkeypatch.setattr(trainings, "say", lambda text: kill_at(("after", max(seen))))
    state.mkdir()
    load = lambda _: [image_sets.draw_shapes(IMAGES, seed) for seed in range(2)]
    part = trainings.Part(
      "comparison",
      (setting,),
      range(3, 4),
      images=IMAGES,
      network="small",
      policy="AutoAugment",
      epochs=EPOCHS,
      batch_size=20,
    )
    monkeypatch.setattr(trainings, "planned", part.keys)
    for _ in range(1 + len(kills)):
      try:
        trainings.run(state, load)
        break
      except Killed:
        pass
    assert not kills and sorted(seen) == list(range(EPOCHS))
    return found, seen

  return follow


@pytest.mark.parametrize(
  "setting",
  [
    "refurbish r=3",
    pytest.param("echo augmented e=3", marks=cases.slow),
    *(pytest.param(setting, marks=cases.only_exhaustive) for setting in ("standard", cifar10.ALL_PARTIAL)),
  ],
)
def test_a_killed_training_continues_as_if_nothing_had_happened(setting, followed, tmp_path):
  """The training is killed after an epoch, in the middle of the next one, and before the row is written. Weights,
  samples and their order stay the same."""
  weights, samples = followed(tmp_path / "unbroken", setting)
  again, same = followed(tmp_path / "killed", setting, [("after", 0), ("within", 1), ("within", 3), ("after", 3)])
  assert same == samples and len({batch for epoch in samples.values() for batch in epoch}) == EPOCHS * IMAGES / 20
  assert all(np.array_equal(*pair) for pair in zip(again, weights, strict=True))
  rows = [results.read(tmp_path / state / "all_images.csv") for state in ("unbroken", "killed")]
  assert [[row["steps"], row["setting"], row["accuracy"], row["train_accuracy"]] for (row,) in rows] == [
    [12, setting, *(rows[0][0][name] for name in ("accuracy", "train_accuracy"))]
  ] * 2
  # No checkpoint is left, and nothing is trained again.
  assert [path.name for path in (tmp_path / "killed").iterdir()] == ["all_images.csv"]


def test_a_row_is_added_whole_or_not_at_all(trainings, tmp_path, monkeypatch):
  table = tmp_path / "all_images.csv"
  trainings._add(table, {"seed": 0, "command": "some, with a comma", "commit": "1e12345"})
  before = table.read_bytes()
  with monkeypatch.context() as patched:
    patched.setattr(trainings.os, "replace", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
      trainings._add(table, {"seed": 1, "command": "", "commit": ""})
  assert table.read_bytes() == before
  trainings._add(table, {"seed": 2, "command": "", "commit": ""})
  assert [(row["seed"], row["commit"]) for row in results.read(table)] == [(0, "1e12345"), (2, "")]


@pytest.mark.parametrize(
  "accuracies, policy, epochs, pilots",
  [
    ({"RandAugment": 0.903}, "RandAugment", 12, 3),
    ({"RandAugment": 0.9029}, COLOURS, 12, 3),
    ({COLOURS: 0.899}, COLOURS, 18, 4),
    ({COLOURS: 0.898}, COLOURS, 24, 5),
  ],
)
@pytest.mark.parametrize("half, seeds", [(0.15, 8), (0.25, 10), (0.4, 12)])
def test_the_plan(accuracies, policy, epochs, pilots, half, seeds, trainings):
  """The pilot decides. Then settings take turns by seed, and none is added once the intervals are narrow enough."""
  rows = []
  for row in trainings.planned(lambda: rows):
    # Accuracy grows by 0.1 points per 6 epochs. Pairs alternate, so that their spread is known.
    found = accuracies.get(row["policy"], 0.9) + 0.001 * (row["epochs"] // 6 - 2)
    rows.append({**row, "accuracy": found + half * (-1) ** row["seed"] / 100 * (row["setting"] != "standard")})
  found = [(row["what"], row["setting"], row["seed"]) for row in rows]
  main = ("standard", "refurbish r=2", "refurbish r=3")
  in_turns = lambda what, number, settings=main: [
    (what, setting, seed) for seed in range(number) for setting in settings
  ]
  assert found == [
    *[("pilot", "standard", 100)] * pilots,
    *in_turns("comparison", seeds),
    *in_turns("comparison", 4, ("refurbish r=5", cifar10.ALL_PARTIAL, "echo augmented e=3")),
    *in_turns("network", 4),
    *in_turns("photographs", 4),
    *in_turns("policy", 4),
  ]
  assert {(row["policy"], row["epochs"]) for row in rows if row["what"] in ("comparison", "network")} == {
    (policy, epochs)
  }
  for row in rows:
    assert row["epochs"] % 2 == row["epochs"] % 3 == 0 and row["images"] % row["batch_size"] == 0
    # The pilot sees no test image.
    assert (row["validation"], row["images"]) == (
      ("train", 45_000) if row["what"] == "pilot" else ("test", 675 if row["what"] == "photographs" else 50_000)
    )


def test_a_pilot_that_fails_ends_the_program(trainings):
  rows = []
  with pytest.raises(SystemExit, match=r"did not reach 90%\. Change the network"):
    for row in trainings.planned(lambda: rows):
      rows.append({**row, "accuracy": 0.89})
  assert [row["what"] for row in rows] == ["pilot"] * 5


def test_the_packaged_table_is_of_the_plan(trainings):
  """Each row belongs to one of the plan's trainings, in the order of the plan."""
  if not (results.DIRECTORY / "all_images.csv").exists():
    pytest.skip("no training has been finished yet")
  rows = results.read("all_images")
  assert [{name: row[name] for name in trainings.KEY} for row in rows] == [
    key for _, key in zip(rows, trainings.planned(lambda: rows))
  ]

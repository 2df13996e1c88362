"""All of CIFAR-10 on a GPU: the order of the trainings, that the program stops in time and continues, and which policy
the pilot chooses."""

import dataclasses
import itertools

import cifar10
import keras
import numpy as np
import pytest

from refurbish_tf.experiments import images as image_sets, results, tables, training
from support import cases

pytestmark = cases.slow

PLAN = cifar10.Plan()


class Trainings:
  """A stand-in for the trainings: each takes `seconds`, and compiling a network takes `compiling`."""

  def __init__(self, seconds, compiling=0, gain=1.0):
    self.now, self.ran = 0.0, []
    self._seconds, self._compiling, self._gain, self._compiled = seconds, compiling, gain, set()

  def clock(self):
    return self.now

  def is_compiled(self, row):
    return row["images"] in self._compiled

  def compile(self, row):
    if not self.is_compiled(row):
      self.now += self._compiling
      self._compiled.add(row["images"])

  def run(self, row):
    self.ran.append((row["what"], row["seed"], row["setting"]))
    self.now += self._seconds
    accuracy = 0.94 + self._gain / 100 * {"RandAugment": 0.5, "TrivialAugment": 1.0}.get(row["policy"], 0)
    return {**dict.fromkeys(cifar10.COLUMNS, 1), "accuracy": round(accuracy, 4), "seconds": self._seconds}


def table_in(directory):
  return results.Table(directory / "cifar10.csv", cifar10.KEY, cifar10.COLUMNS)


def complete(directory, trainings, minutes):
  return cifar10.complete(table_in(directory), trainings, PLAN, minutes, trainings.clock)


def test_the_plan():
  """There are as many trainings as were planned before the first one: none is added once results are seen. Each sample
  is reused r times."""
  turns = PLAN.turns("RandAugment")
  assert [[(row["setting"], row["seed"]) for row in turn] for turn in turns] == [
    [
      (setting, seed)
      for setting in (
        "standard",
        "refurbish r=2",
        "refurbish r=3",
        *(("refurbish r=3 split 4", "echo augmented e=3", "simplified by 2") if seed < 5 else ()),
      )
    ]
    for seed in range(10)
  ]
  assert {row["policy"] for turn in turns for row in turn if row["setting"] != "simplified by 2"} == {"RandAugment"}
  assert all((row["images"], row["validation"]) == (50_000, "test") for turn in turns for row in turn)
  assert PLAN.epochs % 2 == PLAN.epochs % 3 == 0
  # The pilot does not see the test images, nor a seed of the comparison.
  assert [(row["policy"], row["setting"], row["seed"], row["images"], row["validation"]) for row in PLAN.pilot()] == [
    ("RandAugment", "standard", 100, 40_000, "train"),
    ("TrivialAugment", "standard", 100, 40_000, "train"),
    ("none", "simplified by 2", 100, 40_000, "train"),
  ]


@pytest.mark.parametrize(
  "rand, trivial, expected",
  [
    (0.9400, 0.9400, "RandAugment"),
    (0.9430, 0.9400, "RandAugment"),
    (0.9400, 0.9430, "TrivialAugment"),
    (0.9420, 0.9429, "RandAugment"),
    (0.9440, 0.9441, "TrivialAugment"),
    (0.9300, 0.9300, "RandAugment"),
  ],
)
def test_the_pilot_chooses_the_policy(rand, trivial, expected):
  rows = [
    {"what": "pilot", "policy": policy, "accuracy": accuracy}
    for policy, accuracy in (("RandAugment", rand), ("TrivialAugment", trivial), ("none", 0.94))
  ]
  assert cifar10.chosen_policy(rows) == expected
  assert cifar10.chosen_policy([]) is None


def test_visits_complete_the_table_and_no_turn_is_split(tmp_path, capsys):
  visits = 0
  while True:
    trainings = Trainings(20, compiling=30)
    done = complete(tmp_path, trainings, minutes=8)
    visits += 1
    assert trainings.now <= 8 * 60
    # Every training that was run is in the table.
    there = {(row["what"], row["seed"], row["setting"]) for row in results.read(tmp_path / "cifar10.csv")}
    assert there >= set(trainings.ran)
    if done:
      break
    assert "Run the same command again" in capsys.readouterr().out
  rows = results.read(tmp_path / "cifar10.csv")
  assert visits == 3
  assert [{name: row[name] for name in cifar10.KEY} for row in rows] == [
    *PLAN.pilot(),
    *itertools.chain(*PLAN.turns("TrivialAugment")),
  ]
  again = Trainings(20)
  assert complete(tmp_path, again, minutes=8) and not again.ran


def test_a_turn_that_turns_out_too_slow_leaves_no_row(tmp_path):
  """Otherwise the other trainings of the turn might have another commit."""
  assert not complete(tmp_path, Trainings(1000), minutes=8)
  assert not list(tmp_path.glob("*.csv"))
  assert not complete(tmp_path, (trainings := Trainings(1)), minutes=1) and not trainings.ran


def small_network(images, *width):
  return keras.Sequential(
    [
      keras.Input(images.shape, dtype="uint8"),
      keras.layers.Rescaling(1 / 255),
      keras.layers.Flatten(),
      keras.layers.Dense(images.classes),
    ]
  )


def test_every_setting_trains(tmp_path, monkeypatch, capsys):
  """Runs the whole program at a tiny size. Fresh samples and steps match the settings."""
  if not cases.exhaustive:
    monkeypatch.setattr(training, "resnet9", small_network)
  path = tmp_path / "cifar10.csv"
  cifar10.main(["--quick", "--minutes", "60", "--output", str(path)])
  rows = {(row["what"], row["policy"], row["setting"], row["seed"]): row for row in results.read(path)}
  assert len(rows) == 10 and "is complete" in capsys.readouterr().out
  images, policy = cifar10.QUICK.images, cifar10.chosen_policy(results.read(path))
  for setting, fresh in (
    ("standard", images),
    ("refurbish r=3", images),
    (cifar10.ALL_PARTIAL, images),
    ("echo augmented e=3", images // 3),
  ):
    row = rows["comparison", policy, setting, 0]
    assert (row["fresh"], row["steps"], row["validation_images"]) == (fresh, images // 32, images)
  assert rows["pilot", "none", cifar10.CROP_AND_FLIP, 100]["validation_images"] == cifar10.QUICK.held_out


def test_trainings_of_one_shape_begin_alike_and_compile_once(monkeypatch):
  """Each training begins with the weights of its seed, and nothing of the previous training is left."""
  made = []
  monkeypatch.setattr(training, "resnet9", lambda *how: made.append(how) or small_network(*how))
  plan = dataclasses.replace(cifar10.QUICK, epochs=2)
  trainings = cifar10.Trainings([image_sets.draw_shapes(plan.images, seed) for seed in range(2)])
  rows = [row for row in plan.turns("RandAugment")[0] if row["setting"] in ("standard", "refurbish r=3")]
  compiled, compile_with = [], training.compiled
  monkeypatch.setattr(training, "compiled", lambda *how: compiled.append(how[1:]) or compile_with(*how))
  first = [trainings.run(row) for row in (rows[0], *rows)][1:]
  assert compiled == [(12, 0.4, 0.2, 5e-3)] and len(made) == 1 + 3
  assert [found["steps"] for found in first] == [12, 12] and first[1]["fresh"] == plan.images + plan.images // 3
  start = {}
  fit = keras.Model.fit
  monkeypatch.setattr(
    keras.Model,
    "fit",
    lambda model, *args, **how: (
      start.setdefault(
        len(start),
        (
          [weight.copy() for weight in model.get_weights()],
          [float(np.abs(variable.numpy()).max()) for variable in model.optimizer.variables],
          next(args[0].as_numpy_iterator())[0],
        ),
      )
      and fit(model, *args, **how)
    ),
  )
  for row in (rows[0], {**rows[0], "seed": 1}, rows[1], rows[0]):
    trainings.run(row)
  # Plain tf.data draws its order from the seed as well, whatever was trained before.
  assert np.array_equal(start[0][2], start[3][2]) and not np.array_equal(start[0][2], start[1][2])
  assert all(np.array_equal(*pair) for pair in zip(start[0][0], start[2][0]))
  assert not np.array_equal(start[0][0][0], start[1][0][0])
  assert all(value == 0 for weights in start.values() for value in weights[1])


def test_the_data_of_another_machine(tmp_path):
  path = tmp_path / "cifar10.npz"
  arrays = {
    f"{part}_{what}": np.full(2, number)
    for number, part in enumerate(("train", "test"))
    for what in ("images", "labels")
  }
  np.savez(path, **arrays)
  (train, _), (test, _) = cifar10.load(path, PLAN)
  assert (train[0], test[0]) == (0, 1)
  np.savez(path, **{name: array for name, array in arrays.items() if "test" not in name})
  with pytest.raises(ValueError, match=r"lacks test_images, test_labels\."):
    cifar10.load(path, PLAN)


def test_the_packaged_table_is_as_planned():
  """Whole turns in the order of the plan, each of one commit and one machine."""
  if not (results.DIRECTORY / "cifar10.csv").exists():
    pytest.skip("no GPU has been at hand: there is no results/cifar10.csv yet")
  rows = results.read("cifar10")
  planned = [PLAN.pilot(), *PLAN.turns(cifar10.chosen_policy(rows))]
  for turn in planned:
    ours, rows = rows[: len(turn)], rows[len(turn) :]
    if ours:
      assert [{name: row[name] for name in cifar10.KEY} for row in ours] == turn
      assert len({(row["commit"], row["machine"]) for row in ours}) == 1 and "NVIDIA" in ours[0]["machine"]
      assert ours[0]["commit"] and not ours[0]["commit"].endswith("+")
  assert not rows


def test_the_table_of_all_ways():
  row = lambda what, policy, setting, accuracy, seed=0: {
    "what": what,
    "policy": policy,
    "setting": setting,
    "accuracy": accuracy,
    "seed": seed,
    "seconds": 20.0,
  }
  rows = [
    row("pilot", "RandAugment", "standard", 0.94),
    row("pilot", "TrivialAugment", "standard", 0.939),
    row("pilot", "none", "simplified by 2", 0.938),
    *(
      row("comparison", "RandAugment", setting, accuracy, seed)
      for seed in range(2)
      for setting, accuracy in (("standard", 0.95 + seed / 1000), ("refurbish r=3", 0.949 + seed / 1000))
    ),
  ]
  told = tables.all_on_gpu(rows).replace("\N{NO-BREAK SPACE}", " ")
  assert "| pilot: RandAugment | 94.00 % |" in told and "TrivialAugment | 93.90 % |" in told
  assert "| refurbish, r = 3 | 94.95 ± 0.07 % | 2 | -0.10 ± 0.30 | not significant | -0.05 |" in told
  assert "No policy gained" in tables.policy_taken([{**each, "accuracy": 0.9} for each in rows])
  taken = tables.policy_taken(rows)
  assert "RandAugment was the better policy" not in taken and "No policy gained 0.3" in taken


def test_the_pilot_is_validated_on_held_out_images():
  data = [(np.arange(192) + 1000 * number, np.arange(192)) for number in range(2)]
  trainings = cifar10.Trainings(data)
  (train, _), (test, _) = trainings._parts(cifar10.QUICK.pilot()[0])
  assert [*train, *test] == [*range(192)] and len(test) == 96
  (train, _), (test, _) = trainings._parts(cifar10.QUICK.turns("RandAugment")[0][0])
  assert [*train] == [*range(192)] and [*test] == [*range(1000, 1192)]


@pytest.mark.parametrize(
  "arguments, error",
  [
    (["--minutes", "nan"], "argument --minutes: must be a number above 0, got 'nan'"),
    ([], "it needs a GPU, and Keras on jax 0.1 finds none."),
    (
      ["--quick", "--output", "/proc/none/some.csv"],
      "--output must be a writable file, got /proc/none/some.csv (No such file or directory)",
    ),
  ],
  ids=str,
)
def test_the_script_refuses_bad_arguments(arguments, error, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(results, "backend", lambda: (" on jax 0.1", []))
  with pytest.raises(SystemExit) as exit:
    cifar10.main(arguments)
  assert exit.value.code == 2
  assert error in capsys.readouterr().err

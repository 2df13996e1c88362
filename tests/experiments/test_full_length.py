"""Accuracy at full length: what is trained, in which order, and what the intervals of the results say."""
import collections
import functools
import re
import subprocess
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal import machine
from refurbish_tf.experiments import accuracy, echoing, full_length, images, plots, results, tables, training
from support import ROOT, cases

pytestmark = cases.slow


def test_a_choice_is_validated_on_training_images_that_are_not_trained_on(monkeypatch):
  monkeypatch.setattr(accuracy, "HELD_OUT", 100)
  all_of_them = [record for record, _ in images.load_all("shapes", 868).train.as_numpy_iterator()]
  loaded = accuracy.load("shapes", 768, 0, "train")
  parts = [[record for record, _ in part.as_numpy_iterator()] for part in (loaded.train, loaded.validation)]
  assert parts == [all_of_them[:768], all_of_them[768:]]
  assert len(set(all_of_them)) == 868 and len(loaded.train) == 768


def small_network(images, *width):
  """For where only what is trained matters: Keras takes seconds to compile a residual network."""
  return keras.Sequential([
      keras.Input(images.shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
      keras.layers.Dense(images.classes)])


@pytest.fixture
def small_full_length(monkeypatch):
  """Experiments at full length, on a few images and, but for the exhaustive run, with a small network."""
  if not cases.exhaustive:
    monkeypatch.setitem(training.NETWORKS, "small_resnet", small_network)
  monkeypatch.setattr(accuracy, "HELD_OUT", 100)
  monkeypatch.setattr(full_length, "DATASET", "shapes")
  monkeypatch.setattr(full_length, "CHOICE", (
      (768, 2, 4, "float32", 0.1, 5, ("standard", full_length.CROP_AND_FLIP)),))
  monkeypatch.setattr(full_length, "CHOSEN", (768, 2, 4, "mixed_bfloat16", 0.1, 5))
  monkeypatch.setattr(full_length, "SEEDS", {"standard": 2, "refurbish r=3": 1})
  monkeypatch.setattr(full_length, "PAPER_ECHO_SEEDS", {"refurbish r=2 split 4": 1})


def test_full_length_goes_on_where_it_was(small_full_length, monkeypatch, tmp_path, capsys):
  path = tmp_path / "choice.csv"
  ran, found, train = [], [], full_length.train
  monkeypatch.setattr(full_length, "train", lambda row: ran.append(row["setting"]) or found.append(train(row)) or found[-1])
  # What the rows say is what is trained.
  built, layers, compiled = [], accuracy.layers, training.compiled
  monkeypatch.setattr(accuracy, "layers", lambda *how: built.append(how) or layers(*how))
  monkeypatch.setattr(training, "compiled", lambda model, *how: built.append(how) or compiled(model, *how))
  full_length.main(["choice", "--output", str(path)])
  assert built == [("RandAugment", 0, 5), (12, 0.1), ("RandAugment", 2, 5), (12, 0.1)]
  rows = results.read(path)
  assert ran == [row["setting"] for row in rows] == ["standard", "simplified by 2"]
  for row in rows:
    assert (row["validation"], row["validation_images"], row["magnitude"], row["steps"]) == ("train", 100, 5, 12)
    assert len(row["accuracies"].split()) == 2 and row["cpu_seconds"] > 0
  before = path.read_text(encoding="utf-8")
  path.write_text(before[:before.rindex("\n", 0, -1) + 1], encoding="utf-8")
  monkeypatch.setattr(full_length, "train", lambda row: ran.append(row["setting"]) or found[-1])
  full_length.main(["choice", "--output", str(path)])
  assert ran[2:] == ["simplified by 2"] and "1 of 2 trainings are in" in capsys.readouterr().out
  full_length.main(["choice", "--output", str(path)])
  assert len(ran) == 3


def test_the_price_of_a_training(monkeypatch):
  """CPU time of the training, and that of the same input alone."""
  clock, measured = iter([10.0, 17.5]), []
  monkeypatch.setattr(full_length, "time", types.SimpleNamespace(process_time=lambda: next(clock)))
  monkeypatch.setattr(accuracy, "load", lambda *how: how)
  monkeypatch.setattr(accuracy, "pipeline", lambda *how: how)
  monkeypatch.setattr(accuracy, "run", lambda augmentation, **row: {"seconds": 99.0, "trained": (augmentation, row)})
  monkeypatch.setattr(full_length, "measure_input", lambda pipelines, rounds, epochs: measured.append(
      (pipelines, rounds, epochs)) or {name: [(50.0, 3.1234)] for name in pipelines})
  row = dict(zip(full_length.KEY, ("some", "train", 7, 3, 4, "float32", 0.3, 5, "refurbish r=3", 2)))
  assert full_length.train_and_measure_input(row) == {
      "seconds": 99.0, "trained": ("RandAugment", row), "cpu_seconds": 7.5, "input_cpu_seconds": 3.123}
  assert measured == [({"refurbish r=3": (("some", 7, 2, "train"), "RandAugment", "refurbish r=3", 2, 5)}, 1, 3)]


def test_a_row_names_the_commit_of_its_code(tmp_path):
  """With a plus where the code was changed; a table that grows is no change."""
  package = tmp_path / "package"
  (package / "experiments").mkdir(parents=True)
  for path in ("__init__.py", "experiments/results.py", "experiments/some.csv"):
    (package / path).write_text("seed\n", encoding="utf-8")
  assert results.commit(package) == ""

  def git(*arguments):
    return subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@here", *arguments],
                          check=True, capture_output=True, text=True).stdout.strip()

  git("init", "-q")
  assert results.commit(package) == ""  # The checkout is another project's.
  git("add", ".")
  git("commit", "-qm", "first")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD")
  (package / "experiments" / "some.csv").write_text("seed\n1\n", encoding="utf-8")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD")
  (package / "experiments" / "results.py").write_text("other\n", encoding="utf-8")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD") + "+"


# In `.ci/run` the table that comes with the package has the order, test_the_price_of_a_training what is measured, and
# test_full_length_goes_on_where_it_was a training.
@cases.only_exhaustive
def test_the_comparison_takes_turns_and_measures_its_input(small_full_length, monkeypatch, tmp_path):
  path = tmp_path / "comparison.csv"
  measured, measure_input = [], full_length.measure_input
  monkeypatch.setattr(full_length, "measure_input", lambda *args, **how: measured.append(how) or measure_input(*args, **how))
  full_length.main(["comparison", "--output", str(path)])
  rows = results.read(path)
  assert [(row["seed"], row["setting"]) for row in rows] == [
      (0, "standard"), (0, "refurbish r=3"), (1, "standard"), (0, "refurbish r=2 split 4")]
  # As long as a training.
  assert measured == [{"rounds": 1, "epochs": 2}] * 4
  for row in rows:
    assert (row["validation"], row["steps"], row["magnitude"]) == ("test", 12, 5)
    assert 0 < row["input_cpu_seconds"] < row["cpu_seconds"]
    # Measuring the input has not used up any of it.
    assert row["fresh"] == {"standard": 2 * 768, "refurbish r=3": 768 + 256}.get(row["setting"], 768 + 384)


def test_what_a_gpu_would_run(small_full_length, monkeypatch, tmp_path):
  """ResNet-18 with bfloat16, and all that Figure 15 and echoes by 1 to 5 need."""
  built = []

  def small(images, *width, name):
    built.append((name, keras.config.dtype_policy().name, *width))
    return small_network(images)

  def fit(model, train, epochs, validation_freq=(), steps_per_epoch=None, **how):
    """As if trained: test_full_length_goes_on_where_it_was trains, and test_fresh_samples_to_the_target."""
    model.optimizer.iterations.assign(epochs * (steps_per_epoch or len(train)))
    return types.SimpleNamespace(history={"accuracy": [0.5], "val_accuracy": [0.5] * (len(validation_freq) or epochs)})

  if not cases.exhaustive:
    monkeypatch.setattr(keras.Model, "fit", fit)
  monkeypatch.setattr(training, "NETWORKS", {name: functools.partial(small, name=name) for name in training.NETWORKS})
  monkeypatch.setattr(full_length, "HYPERPARAMETERS", full_length.HYPERPARAMETERS[:1])
  monkeypatch.setattr(full_length, "HYPERPARAMETER_SETTINGS", ("refurbish r=2",))
  monkeypatch.setattr(full_length, "ECHOING_FACTORS", (5,))
  monkeypatch.setattr(full_length, "ECHOING_MOST_STEPS", 4)
  path = tmp_path / "hyperparameters.csv"
  full_length.main(["hyperparameters", "--images", "800", "--epochs", "1", "--output", str(path)])
  assert built == [("resnet18", "mixed_bfloat16", 64)] and keras.config.dtype_policy().name == "float32"
  assert [(row["setting"], row["learning_rate"], row["magnitude"], row["images"], row["steps"])
          for row in results.read(path)] == [("refurbish r=2", 0.1, 10, 768, 6)]
  path, built[:] = tmp_path / "echoing.csv", []
  full_length.main(["echoing", "--images", "800", "--target", "1", "--output", str(path)])
  assert built == [("resnet18", "mixed_bfloat16")] * 4
  # As many fresh samples for all: the baseline is validated once, and with e = 5 each five times.
  assert [(row["where"], row["e"], row["images"], len(str(row["accuracies"]).split())) for row in results.read(path)] == [
      ("baseline", 1, 768, 1), ("before_augment", 5, 768, 5), ("after_augment", 5, 768, 5), ("after_batch", 5, 768, 5)]
  monkeypatch.undo()
  rows = full_length.hyperparameters(50_000, 20)
  for column, number in (("learning_rate", 4), ("magnitude", 3)):
    for setting in ("standard", "refurbish r=2", "refurbish r=3"):
      assert len({row[column] for row in rows if row["setting"] == setting}) == number
  assert {(row["where"], row["e"]) for row in full_length.echoes(50_000, 0.8)} == {
      ("baseline", 1), *((where, e) for where in echoing.PLACES for e in (2, 3, 4, 5))}


def test_on_another_backend_than_tensorflow(monkeypatch):
  """Its models are compiled, as JAX is slow without, and a row says with what it was made."""
  monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
  assert results._provenance()["keras"] == keras.__version__
  for devices, compiled in (([], False), (["some GPU"], "auto")):
    with monkeypatch.context() as patched:
      patched.setattr(tf.config, "list_physical_devices", lambda kind, devices=devices: devices if kind == "GPU" else [])
      assert training.jit_compile() == compiled
  jax = pytest.importorskip("jax", reason="jax is not installed")
  monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
  monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="gpu", device_kind="Some GPU")])
  assert training.jit_compile() == "auto"
  provenance = results._provenance()
  assert provenance["keras"] == f"{keras.__version__} on jax {jax.__version__}" and provenance["machine"].endswith(", Some GPU")


@pytest.mark.parametrize("says, compiled", [
    ("flags\t\t: fpu avx2 avx512_bf16 clflush\n", False), ("Features\t: fp asimd bf16 dgh\n", False),
    ("flags\t\t: fpu avx2 avx512f clflush\n", True), (None, True)])
def test_bfloat16_on_a_cpu_without_it_is_compiled(says, compiled, monkeypatch, tmp_path):
  """TensorFlow takes ten times as long as XLA there. Float32 is compiled nowhere."""
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
  monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
  if says is not None:
    machine._CPU.write_text(says, encoding="utf-8")
  assert training.jit_compile() is False
  with training.computing_with("mixed_bfloat16"):
    assert training.jit_compile() is compiled
  # A row says with what it was made.
  assert results._provenance()["machine"].endswith("no bfloat16") == compiled


@pytest.mark.parametrize("name, planned", [
    ("hyperparameters", full_length.hyperparameters(49_920, 20)), ("echoing_resnet18", full_length.echoes(49_920, 0.8))])
def test_the_packaged_tables_of_a_gpu_are_as_planned(name, planned):
  rows = results.read(name)
  assert [{column: row[column] for column in planned[0]} for row in rows] == planned
  assert all(row["commit"] and not row["commit"].endswith("+") and "NVIDIA" in row["machine"] for row in rows)


@pytest.mark.parametrize("name, planned", [("choice", full_length.choice), ("comparison", full_length.comparison)])
def test_the_packaged_tables_of_full_length_are_as_planned(name, planned):
  """In the order of the plan: none was left out, and none made twice. Their code was committed."""
  rows = results.read(name)
  assert [{column: row[column] for column in full_length.KEY} for row in rows] == planned()
  for row in rows:
    assert row["commit"] and not row["commit"].endswith("+")


def test_the_plan_of_the_comparison():
  """As many trainings as were planned before the first: none is added once results have been seen."""
  found = collections.Counter(row["setting"] for row in full_length.comparison())
  assert found == {"standard": 16, "refurbish r=2": 16, "refurbish r=3": 16, "echo augmented e=3": 4,
                   "cache after augmentation": 4, "simplified by 2": 4, "refurbish r=2 split 4": 8, "refurbish r=3 split 4": 8}
  # Those that were planned later take turns behind all others, so that a table of the first plan is completed.
  assert [(row["seed"], row["setting"]) for row in full_length.comparison()[60:]] == [
      (seed, f"refurbish r={r} split 4") for seed in range(8) for r in (2, 3)]
  # All augmentation is partial, none final.
  for setting in full_length.PAPER_ECHO_SEEDS:
    _, at = accuracy.split_of(setting)
    assert augment.split([tf.identity, *accuracy.layers("RandAugment")], 1 + at)[1] is None


def test_what_was_chosen_is_the_best_of_the_choice():
  """Its learning rate is, for standard training on as many images, where RandAugment helps by a point or more."""
  rows = [{**row, "how": tuple(row[column] for column in full_length.KEY[2:8])} for row in results.read("choice")]
  chosen = full_length.CHOSEN
  best = max((row for row in rows if row["setting"] == "standard" and row["how"][:4] == chosen[:4]),
             key=lambda row: row["accuracy"])
  assert best["how"] == chosen
  # This was measured with float32.
  pair = {row["setting"]: row["accuracy"] for row in rows if row["how"] == (*chosen[:3], "float32", *chosen[4:])}
  assert pair["standard"] >= pair[full_length.CROP_AND_FLIP] + 0.01


@pytest.mark.parametrize("ones, others, expected", [
    # By scipy.stats.ttest_ind(ones, others, equal_var=False).
    ([0.52, 0.50, 0.51], [0.48, 0.49, 0.47], (0.03, 0.0226695)),
    ([5.0, 6.0, 7.0, 8.0], [1.0, 9.0], (1.5, 45.79106)),
    ([1.0, 1.0], [0.5, 0.5], (0.5, 0.0))])
def test_the_interval_of_a_difference(ones, others, expected):
  middle, half = results.difference(ones, others)
  assert middle == pytest.approx(expected[0]) and half == pytest.approx(expected[1], rel=1e-5)
  back, same = results.difference(others, ones)
  assert (back, same) == (pytest.approx(-middle), pytest.approx(half))
  assert results.difference(ones[:1], others) == (pytest.approx(ones[0] - np.mean(others)), None)


def test_the_interval_of_a_mean():
  # By scipy.stats.t.interval(0.95, 3, loc=2.5, scale=scipy.stats.sem([1, 2, 3, 4])).
  assert results.mean_interval([1, 2, 3, 4]) == (2.5, pytest.approx(2.0542602, rel=1e-6))
  assert results.mean_interval([7.0]) == (7.0, None)


def test_as_many_seeds_as_are_needed():
  for half, spread, expected in ((0.3, 0.35, 12), (0.3, 0.4, 15), (0.3, 0.45, 19), (1, 0.01, 2)):
    assert results.seeds_needed(half, spread) == expected


def test_student_t_is_that_of_the_tables():
  for confidence, freedom, expected in ((0.95, 1, 12.7062), (0.95, 6, 2.4469), (0.95, 22, 2.0739), (0.99, 10, 3.1693),
                                        (0.95, 1e6, 1.95997)):
    assert results.student_t(confidence, freedom) == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def compared():
  """Rows of a comparison, made up."""
  accuracies = {"standard": (0.70, 0.71, 0.72), "refurbish r=2": (0.705, 0.71, 0.72), "echo augmented e=3": (0.60, 0.61, 0.62),
                "cache after augmentation": (0.3, 0.31), "simplified by 2": (0.75,), "refurbish r=3": (0.78, 0.79, 0.8)}
  # The processor was half as fast behind the first seed, which only some have.
  return [
      {"setting": setting, "seed": seed, "accuracy": accuracy, "input_cpu_seconds": 10 * (1 + bool(seed)) * len(setting),
       "cpu_seconds": (1 + bool(seed)) * (1000 + 100 * seed * setting.startswith("refurbish")), "seconds": 100 * (1 + seed)}
      for setting, values in accuracies.items() for seed, accuracy in enumerate(values)]


def plain(table):
  """With spaces that may be broken at."""
  return table.replace("\N{NO-BREAK SPACE}", " ")


def cells(table):
  return [[cell.strip() for cell in line.split("|")[1:-1]] for line in plain(table).split("\n")[2:]]


def test_the_comparison_says_what_is_told_apart(compared):
  assert cells(tables.comparison(compared)) == [
      ["standard", "71.00 ± 1.00 %", "3", "", "", ""],
      ["refurbish, r = 2", "71.17 ± 0.76 %", "3", "+0.17 ± 2.07", "not told apart", "-0.01"],
      ["refurbish, r = 3", "79.00 ± 1.00 %", "3", "+8.00 ± 2.27", "**higher**", "-0.05"],
      ["echoing after augmentation, e = 3", "61.00 ± 1.00 %", "3", "-10.00 ± 2.27", "**lower**", ""],
      ["`cache()` after augmentation", "30.50 ± 0.71 %", "2", "-40.50 ± 2.49", "**lower**", ""],
      ["crop and flip only", "75.00 %", "1", "+4.00", "", ""]]
  assert cells(tables.pairs(compared)) == [
      ["refurbish, r = 3, minus r = 2", "+7.83 ± 2.07", "**higher**"],
      ["refurbish, r = 3, minus echoing after augmentation, e = 3", "+18.00 ± 2.27", "**higher**"],
      ["refurbish, r = 3, minus crop and flip only", "+4.00", ""]]
  assert cells(tables.reuse(compared)) == [
      ["r = 2", "+0.17 ± 2.07", "not told apart", "3", "162 ± 0 %"], ["r = 3", "+8.00 ± 2.27", "**higher**", "3", "162 ± 0 %"]]
  assert tables.precision_reached(compared, wanted=2.1) == (
      "The interval was to be ± 2.1 points or less. With r = 2 it is ± 2.07 points. With r = 3 it is ± 2.27 points, as seeds "
      "differ by 1.00: 4 seeds of each of the two would have made it ± 2.1.")
  assert tables.precision_reached(compared[:3]) == ""
  same = [{**row, "accuracy": 0.5} for row in compared if row["setting"] in ("standard", "refurbish r=2")]
  assert cells(tables.comparison(same))[1][3:5] == ["+0.00 ± 0.00", "not told apart"]


def test_the_papers_echoing_is_compared_where_it_is_there(compared):
  """In accuracy, with its own figures of the paper. Not in seconds, as it was trained later."""
  later = [{**row, "setting": f"refurbish r={r} split 4", "accuracy": row["accuracy"] - 0.1 * r}
           for r in (2, 3) for row in compared if row["setting"] == "standard"]
  both = [*compared, *later]
  assert [line for line in cells(tables.comparison(both)) if line not in cells(tables.comparison(compared))] == [
      ["refurbish, r = 2, nothing fresh", "51.00 ± 1.00 %", "3", "-20.00 ± 2.27", "**lower**", "-0.45"],
      ["refurbish, r = 3, nothing fresh", "41.00 ± 1.00 %", "3", "-30.00 ± 2.27", "**lower**", "-0.89"]]
  assert [line[:2] for line in cells(tables.pairs(both))[3:]] == [
      ["refurbish, r = 2, minus r = 2, nothing fresh", "+20.17 ± 2.07"],
      ["refurbish, r = 3, minus r = 3, nothing fresh", "+38.00 ± 2.27"],
      ["refurbish, r = 3, nothing fresh, minus echoing after augmentation, e = 3", "-20.00 ± 2.27"]]
  for table in (tables.prices, tables.reuse, tables.precision_reached):
    assert table(both) == table(compared)
  figure = plots.comparison(both)
  places, prices = figure.axes
  assert len(places.get_yticklabels()) == 7 and len(prices.patches) == 5
  plots.pyplot.close(figure)


def test_prices_are_compared_with_the_same_seeds(compared):
  # Of all CPU time refurbish takes 1, 1.1 and 1.2 times that of standard.
  refurbished = ["217", "162 ± 0 %", "1,867", "110 ± 25 %", "200", "100 ± 0 %"]
  assert cells(tables.prices(compared)) == [
      ["standard", "133", "", "1,667", "", "200", ""],
      ["refurbish, r = 2", *refurbished], ["refurbish, r = 3", *refurbished],
      ["echoing after augmentation, e = 3", "300", "225 ± 0 %", "1,667", "100 ± 0 %", "200", "100 ± 0 %"],
      ["`cache()` after augmentation", "360", "300 ± 0 %", "1,500", "100 ± 0 %", "150", "100 ± 0 %"],
      ["crop and flip only", "150", "188 %", "1,000", "100 %", "100", "100 %"]]


def test_the_figure_of_the_comparison(compared):
  """One place for each way, with another marker for those that are told apart. What is far away is at the margin."""
  # Another input's price at each seed, so that it has an interval.
  rows = [{**row, "input_cpu_seconds": row["input_cpu_seconds"] * (10 + row["seed"] * (row["setting"] == "refurbish r=2"))}
          for row in compared]
  figure = plots.comparison(rows)
  places, prices = figure.axes
  assert [tick.get_text() for tick in places.get_yticklabels()] == [
      "refurbish, r = 2", "refurbish, r = 3", "echoing after augmentation, e = 3", "cache() after augmentation",
      "crop and flip only"]
  marked = {(line.get_marker(), float(line.get_ydata()[0])): float(line.get_xdata()[0])
            for line in places.get_lines() if len(line.get_ydata()) == 1 and line.get_marker() != "|"}
  assert marked == {
      ("o", 0.0): pytest.approx(1 / 6), ("s", 1.0): pytest.approx(8), ("<", 2.0): 0.015, ("<", 3.0): 0.015, (".", 4.0): pytest.approx(4),
      ("D", -0.26): pytest.approx(-0.01), ("D", 0.74): pytest.approx(-0.05)}
  bars = [segment[:, 0].tolist() for lines in places.collections for segment in lines.get_segments()]
  middle, half = tables.differences(rows)["refurbish r=2"]
  assert bars == [pytest.approx([middle - half, middle + half]), pytest.approx([8 - 2.2672, 8 + 2.2672], abs=1e-3)]
  assert [text.get_text() for text in places.texts] == ["−10.0 ± 2.3, beyond the scale", "−40.5 ± 2.5, beyond the scale", "standard"]
  told = {text.get_text(): line.get_marker() for text, line in zip(figure.legends[0].get_texts(), figure.legends[0].get_lines())}
  assert told == {"not told apart from standard": "o", "told apart from standard": "s",
                  "a single training, without an interval": ".", "Lee et al., 2021: ResNet-50 on ImageNet": "D"}
  # 162.5 times 1, 1.1 and 1.2.
  assert [bar.get_width() for bar in prices.patches] == pytest.approx([178.75, 162.5, 225, 300, 187.5])
  assert [text.get_text() for text in prices.texts] == ["179 %", "162 %", "225 %", "300 %", "188 %", "standard"]
  lengths = [np.ptp(segment[:, 0]) / 2 for lines in prices.collections for segment in lines.get_segments()]
  assert lengths[0] == pytest.approx(4.30265 * 16.25 / 3**0.5, rel=1e-4) and max(lengths[1:]) == 0
  assert prices.get_xlim()[1] > 300
  plots.pyplot.close(figure)


def test_a_comparison_that_grows(compared):
  """Nothing is compared with standard where nothing is standard, or where no seed has both."""
  assert "79.00" in tables.comparison(compared[6:]) and not cells(tables.reuse(compared[6:]))
  plots.pyplot.close(plots.comparison(compared[6:]))
  for some in ([], compared[:1], compared[1:4], [compared[0], compared[-1]], [{**compared[0], "seed": 5}, compared[-1]]):
    settings = {row["setting"] for row in some}
    assert len(cells(tables.comparison(some))) == len(cells(tables.prices(some))) == len(settings)
    assert len(cells(tables.reuse(some))) == len([setting for setting in settings if setting.startswith("refurbish")])
    plots.pyplot.close(plots.comparison(some))


def test_what_the_pages_say_of_reuse():
  """Numbers in their sentences are those of the tables."""
  read = lambda page: " ".join((ROOT / page).read_text(encoding="utf-8").split())
  readme, choose, told = map(read, ("README.md", "docs/choose.md", "docs/results.md"))
  rows = results.read("comparison")
  two, three, simple = (tables.differences(rows)[setting] for setting in ("refurbish r=2", "refurbish r=3", "simplified by 2"))
  both = lambda middle, half: f"{abs(middle):.1f} ± {half:.1f}"
  of = lambda setting, column, some=rows: "{:.0f} ± {:.0f} %".format(*tables.parts(some, column)[setting])
  fresh = {setting: 100 * mean / (4_608 * 80) for setting, (mean, _, _) in results.summary(rows, "setting", "fresh").items()}
  assert f"r = 3 cost {both(*three)} points of accuracy on 4,608 images" in readme
  between = re.search("minus r = 2 [|] (.*?) [|]", plain(tables.pairs(rows)))[1]
  assert (f"r = 3 cost {both(*three)} points. r = 2 was told apart neither from standard ({both(*two)} below) nor from r = 3 "
          f"({both(*map(float, between.split(' ± ')))} above)") in choose
  assert f"allows a loss of up to {two[1] - two[0]:.1f} points" in told
  assert f"the interval allows {-three[0] - three[1]:.1f} to {three[1] - three[0]:.1f}" in told
  assert f"without RandAugment accuracy is {-simple[0]:.1f} points below standard" in told
  assert f"prepares {fresh['refurbish r=2']:.0f} % of the samples afresh with r = 2, {fresh['refurbish r=3']:.0f} % with r = 3" in told
  assert f"crop and flip only takes {of('simplified by 2', 'input_cpu_seconds')}" in told
  assert f"took {of('cache after augmentation', 'seconds')} of standard's time" in told
  later = [row for row in rows if row["seed"] >= 4]
  assert "{} with r = 2 and {} with r = 3".format(
      *(of(setting, "input_cpu_seconds", later) for setting in ("refurbish r=2", "refurbish r=3"))) in told
  accuracies = tables._points(rows)
  kept = [results.difference(accuracies[f"refurbish r={r}"], accuracies[f"refurbish r={r} split 4"]) for r in (2, 3)]
  lost = [tables.differences(rows)[f"refurbish r={r} split 4"] for r in (2, 3)]
  exact = lambda middle, half: f"{abs(middle):.2f} ± {half:.2f}"
  assert f"keeps {exact(*kept[1])} points**" in told and f"The difference is {exact(*kept[0])} points" in told
  assert f"its interval begins at {kept[0][0] - kept[0][1]:.3f} and allows refurbish to be up to {sum(kept[0]):.1f} point above" in told
  assert f"Nothing fresh is {exact(*lost[1])} points below standard, refurbish {exact(*three)}." in told
  assert f"From standard nothing fresh is told apart, {exact(*lost[0])} below" in told
  begins = (-lost[1][0] - lost[1][1], kept[1][0] - kept[1][1])
  assert "the intervals begin at {:.2f} and {:.2f}, the paper has {:.2f} and {:.2f}".format(
      *begins, *(tables.PAPER[better] - tables.PAPER["refurbish r=3 split 4"] for better in ("standard", "refurbish r=3"))) in told
  middle, half = results.difference(accuracies["refurbish r=3 split 4"], accuracies["echo augmented e=3"])
  assert f"from {half - middle:.1f} points below to {middle + half:.1f} above" in told
  assert f"r = 3 lost {exact(*lost[1])}, r = 2 {exact(*lost[0])}, not told apart from r = 2 above" in readme and abs(kept[0][0]) <= kept[0][1]
  assert f"r = 3 cost {both(*lost[1])} points and r = 2 {both(*lost[0])}," in choose
  small = {}
  for row in results.read("accuracy"):
    small.setdefault((row["augmentation"], row["setting"]), []).append(100 * row["accuracy"])
  for said, augmentation, one, other in (
      ("r = 3 minus standard", "RandAugment", "refurbish r=3", "standard"),
      ("r = 3 with nothing fresh minus echoing after augmentation", "RandAugment", "refurbish r=3 split 4", "echo augmented e=3"),
      ("r = 2", "AutoAugment", "refurbish r=2", "echo augmented e=2"), ("r = 3", "AutoAugment", "refurbish r=3", "echo augmented e=3")):
    middle, half = results.difference(small[augmentation, one], small[augmentation, other])
    assert f"{said} ({middle:+.1f} ± {half:.1f})" in told and abs(middle) <= half


def test_the_figure_of_fresh_samples():
  """Bars of thousands, the baseline over e as a line, and how many have reached the target."""
  rows = [{"where": where, "e": e, "fresh": fresh} for where, e, fresh in (
      ("baseline", 1, 8000), ("baseline", 1, 10000), ("before_augment", 2, 4000), ("before_augment", 2, 5000),
      ("after_augment", 2, 6000), ("after_batch", 2, -1), ("before_augment", 4, 2000), ("after_batch", 4, 7000),
      ("after_batch", 4, -1), ("after_batch", 4, -1))]
  figure, axes = plots.pyplot.subplots()
  plots.fresh_samples(axes, rows, "e")
  # The baseline is drawn beside each e.
  assert [round(bar.get_height(), 6) for bar in axes.patches] == [9, 9, 4.5, 2, 6]
  assert [line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"] == [4.5, 2.25]
  assert axes.get_legend_handles_labels()[1] == [
      "baseline", "baseline / e", "example echoing before augmentation", "example echoing after augmentation", "batch echoing"]
  assert [text.get_text() for text in axes.texts if text.get_text()] == ["0 of 1 reached it", "1 of 3 reached it"]
  assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "4"]
  spreads = [np.ptp(segment[:, 1]) / 2 for lines in axes.collections for segment in lines.get_segments()]
  assert spreads[0] == pytest.approx(2**0.5) and spreads[2] == pytest.approx(0.5**0.5)
  plots.pyplot.close(figure)


def test_the_tables_of_a_gpu():
  """Largest magnitude first, in whichever order they were trained. What did not reach the target has no share."""
  rows = [{"learning_rate": rate, "magnitude": magnitude, "setting": setting, "accuracy": accuracy}
          for rate, magnitude, setting, accuracy in (
              (0.1, 4, "standard", 0.8), (0.2, 10, "refurbish r=3", 0.76543), (0.2, 10, "standard", 0.5),
              (0.05, 10, "refurbish r=2", 0.71), (0.05, 10, "refurbish r=2", 0.69))]
  assert plain(tables.hyperparameters(rows)).split("\n") == [
      "| learning rate | magnitude | standard | refurbish, r = 2 | refurbish, r = 3 |", "| --- | ---: | ---: | ---: | ---: |",
      "| 0.05 | 10 |  | 70.0 % |  |", "| 0.2 | 10 | 50.0 % |  | 76.5 % |", "| 0.1 | 4 | 80.0 % |  |  |"]
  rows = [{"where": where, "e": e, "fresh": fresh} for where, e, fresh in (
      ("after_batch", 4, -1), ("baseline", 1, 2000), ("before_augment", 4, 501), ("before_augment", 2, 2400),
      ("before_augment", 2, 2600), ("after_batch", 4, 1500))]
  assert tables.echoes(rows).split("\n") == [
      "| of the baseline's 2,000 fresh samples | e = 2 | e = 4 |", "| --- | ---: | ---: |",
      "| example echoing before augmentation | 1.25 | 0.25 |", "| example echoing after augmentation |  |  |",
      "| batch echoing |  | not reached |"]
  for without in ([rows[0]], [*rows, {"where": "baseline", "e": 1, "fresh": -1}]):
    with pytest.raises(ValueError, match="the baseline must be among the rows and have reached the target"):
      tables.echoes(without)

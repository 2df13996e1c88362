"""The experiments run, resume where they were stopped, and count what they claim to count."""
import collections
import contextlib
import csv
import dataclasses
import re
import resource
import shutil
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import accuracy, echoing, full_length, images, pipelines, plots, results, speed, training
from support import ROOT, cases

pytestmark = cases.slow


@pytest.fixture(scope="module")
def shapes():
  return images.shapes(768)


@pytest.mark.parametrize("augmentation, setting", [
    (augmentation, setting) for augmentation in cases.some(reversed(accuracy.AUGMENTATIONS), 1)
    for setting in cases.some(accuracy.settings(augmentation), 4)])
def test_every_setting_has_the_same_steps(shapes, augmentation, setting):
  """All settings have equally many steps per epoch and whole batches, with each label as often as it should be."""
  pipeline = accuracy.pipeline(shapes, augmentation, setting, seed=1)
  assert pipeline.element_spec[0].shape.as_list() == [None, 32, 32, 3]
  labels = [batch.numpy() for _, batch in pipeline]
  assert [len(batch) for batch in labels] == [128] * 6
  if setting.startswith("echo"):
    e = int(setting[-1])
    # Only some of the samples, each a multiple of e times.
    assert all(count % e == 0 for count in np.bincount(np.concatenate(labels)))
  else:
    assert np.bincount(np.concatenate(labels)).tolist() == np.bincount(list(
        shapes.train.map(lambda _, label: label).as_numpy_iterator())).tolist()


def test_what_a_setting_is(shapes):
  """Which layers run again for each use of a sample, and which policy a setting has."""
  def ran(setting, epochs=4):
    """How often each of four layers ran, of 768 images."""
    counts = [tf.Variable(0, dtype=tf.int64) for _ in range(4)]
    layers = [lambda image, count=count: image + 0 * tf.cast(count.assign_add(1), tf.uint8) for count in counts]
    ways = pipelines.Pipelines(shapes, layers, accuracy.split_of(setting)[1], seed=1)
    pipeline = {**accuracy.SETTINGS, **accuracy.MORE_SETTINGS}[setting](ways)
    for _ in range(epochs):
      for _ in pipeline:
        pass
    return [int(count) for count in counts]

  every, kept = 4 * 768, 768 + 3 * 256
  assert ran("standard") == [every] * 4
  assert ran("refurbish r=2") == [768 + 3 * 384] * 2 + [every] * 2
  assert ran("refurbish r=3") == [kept] * 2 + [every] * 2
  for at in cases.some((4, 3, 1), 1):
    assert ran(f"refurbish r=3 split {at}") == [kept] * at + [every] * (4 - at)
  assert ran("refurbish r=3 balanced only") == ran("refurbish r=3")
  # All samples in the first and the fourth epoch.
  assert ran("refurbish r=3 naive") == [2 * 768] * 2 + [every] * 2
  for e in cases.some((2, 3), 1):
    assert ran(f"echo augmented e={e}") == ran(f"echo batches e={e}") == [every // e] * 4
  assert ran("cache after augmentation") == [768] * 4
  described = rtf.describe(accuracy.pipeline(shapes, "RandAugment", "refurbish r=3 balanced only", 1))
  assert "balanced eviction, uniform shuffle" in described


def test_seeds_are_other_trainings(shapes):
  orders = [np.concatenate([labels.numpy() for _, labels in accuracy.pipeline(shapes, "RandAugment", setting, seed)]).tobytes()
            for setting in ("standard", "refurbish r=3", "echo augmented e=3") for seed in (0, 1)]
  assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("module, arguments, error", [
    (accuracy, ["--epochs", "0"], "argument --epochs: "),
    (accuracy, ["--images", "767"], "argument --images: "),
    (accuracy, ["--seeds", "x"], "argument --seeds: "),
    (accuracy, ["--learning-rate", "nan"], "argument --learning-rate: "),
    (speed, ["--rounds", "0"], "argument --rounds: "),
    (accuracy, ["--dataset", "no_such_set"], "no_such_set"), (speed, ["--dataset", "no_such_set"], "no_such_set"),
    (echoing, ["--dataset", "no_such_set"], "no_such_set"), (echoing, ["--seeds", "-1"], "argument --seeds"),
    (echoing, ["--target", "40"], "argument --target: "),
    (full_length, ["hyperparameters", "--epochs", "0"], "argument --epochs: "),
    (full_length, ["echoing", "--target", "80"], "argument --target: "), (full_length, [], "required: what"),
    (full_length, ["comparison", "--output", "/proc/none/some.csv"],
     "--output must be a file that can be written, got /proc/none/some.csv (No such file or directory)"),
    (accuracy, ["--output", "/proc/none/accuracy.csv"], "got /proc/none/accuracy.csv (No such file")], ids=str)
def test_what_the_scripts_refuse(module, arguments, error, capsys, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as exit:
    module.main(arguments)
  assert exit.value.code == 2
  assert error in capsys.readouterr().err


def test_no_other_images_than_asked_for(monkeypatch, tmp_path):
  """A table of CIFAR-10 must not come from shapes, or from fewer images."""
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(images, "_prepare", lambda builder: "there is no network")
  with pytest.raises(images.DatasetError, match="cifar10 .*downloaded"):
    images.load_all("cifar10", 768)
  assert images.load("cifar10", 20).note


def test_echo_reads_all_parts(shapes):
  """In e epochs each image comes e times, as if the data were read without a break."""
  ids = {hash(record): number for number, (record, _) in enumerate(shapes.train.as_numpy_iterator())}
  numbered = dataclasses.replace(
      shapes, train=shapes.train.map(lambda record, _: (record, tf.strings.to_hash_bucket_fast(record, 2**31))))
  assert len(ids) == 768
  ways = pipelines.Pipelines(numbered, [lambda image: image, lambda image: image], 1, seed=1)
  # Where the echo is does not change what is read.
  for e, where in cases.some(((2, "after_batch"), (3, "before_augment"), (3, "after_augment")), 1):
    pipeline = ways.echoed(e, where)
    epochs = [np.concatenate([labels.numpy() for _, labels in pipeline]) for _ in range(3 * e)]
    assert all(len(epoch) == 768 and len(set(epoch)) == 768 // e for epoch in epochs)
    orders = set()
    for cycle in range(3):
      together = collections.Counter(np.concatenate(epochs[e * cycle:e * cycle + e]).tolist())
      assert len(together) == 768 and set(together.values()) == {e}
      orders.add(tuple(int(min(epoch)) for epoch in epochs[e * cycle:e * cycle + e]))
    assert len(orders) > 1 or e == 2


def test_measuring_takes_no_time_of_others():
  """A pipeline has as much ready when its turn begins as when the last one ended, however long the others take."""
  calls = tf.Variable(0)
  counting = tf.data.Dataset.range(64).map(lambda x: x + 0 * tf.cast(calls.assign_add(1), tf.int64)).batch(8).prefetch(2)
  seen = []

  def on_turn(number, name):
    time.sleep(0.1)
    seen.append((number, name, int(calls)))

  measured = pipelines.measure_input({"counting": counting, "idle": tf.data.Dataset.range(8).batch(2)}, 3, on_turn=on_turn)
  assert [number for number, *_ in seen] == [0, 0, 1, 1, 2, 2]
  assert all({name for _, name, _ in seen[k:k + 2]} == {"counting", "idle"} for k in (0, 2, 4))
  assert {name: len(epochs) for name, epochs in measured.items()} == {"counting": 3, "idle": 3}
  at_beginning = {number: count for number, name, count in seen if name == "counting"}
  # Only prefetch's buffer.
  assert all(count <= 64 * number + 3 * 8 for number, count in at_beginning.items())


def test_simplified_leaves_out_the_expensive_layers():
  image = tf.constant(np.random.default_rng(1).integers(256, size=[32, 32, 3]), tf.uint8)
  for augmentation in accuracy.AUGMENTATIONS:
    for simplified, expected in ((0, 4), (1, 3), (2, 2)):
      layers = accuracy.layers(augmentation, simplified)
      assert len(layers) == expected
      assert augment.compose(layers)(image, seed=[1, 2]).shape == [32, 32, 3]


def test_the_magnitude_is_that_of_rand_augment():
  image = tf.constant(np.random.default_rng(1).integers(256, size=[32, 32, 3]), tf.uint8)
  found = {magnitude: np.stack([
      augment.compose(accuracy.layers("RandAugment", magnitude=magnitude))(image, seed=[seed, 2]) for seed in range(8)])
           for magnitude in (1, 9)}
  assert (found[1] != found[9]).any()
  assert (found[9] == np.stack([
      augment.compose(accuracy.layers("RandAugment"))(image, seed=[seed, 2]) for seed in range(8)])).all()


def test_whole_batches():
  assert accuracy.whole_batches(10_000) == 9984
  assert accuracy.whole_batches(768) == accuracy.whole_batches(1535) == 768


@pytest.mark.parametrize("content", [
    b"seed,accuracy\n1,0.5\n", b"mine", b"mine\nlast", b"a,b\n", b"a,b\n1,2", b"seed,r\n1,2\n",
    b"\x89PNG\n\xff\x00" * 99, b"a\rb\n1", b"\xef\xbb\xbfseed,r,accuracy\n", b"\n"])
def test_a_file_that_is_no_table_or_one_of_other_columns_is_left_alone(tmp_path, content):
  """The error comes before anything is trained."""
  path = tmp_path / "notes.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError, match="--output .*notes.txt must be a table of this experiment.*lacks .*It was not changed"):
    results.Table(path, ("seed", "r"), ("accuracy",))
  assert path.read_bytes() == content
  for nowhere in (tmp_path, path / "some.csv", "/dev/null"):
    with pytest.raises(OSError, match="--output must be a file that can be written, got .*Give another"):
      results.Table(nowhere, ("seed", "r"), ())


def test_a_table_knows_its_rows(tmp_path):
  """In the next process, too, however a number was written."""
  path = tmp_path / "some.csv"
  table = results.Table(path, ("rate", "setting"), ("accuracies",))
  table._provenance = {**table._provenance, "commit": "1e12345", "python": "3.11"}  # Which are no numbers.
  table.add([{"rate": 1.0, "setting": "standard", "accuracies": "0.1 0.2"}])
  for rate in (1, 1.0):
    assert results.Table(path, ("rate", "setting"), ("accuracies",)).has({"rate": rate, "setting": "standard"})
  for other in ({"rate": 2, "setting": "standard"}, {"rate": 1, "setting": "echo"}):
    assert not results.Table(path, ("rate", "setting"), ("accuracies",)).has(other)
  row, = results.read(path)
  assert (row["rate"], row["accuracies"], row["commit"], row["python"]) == (1, "0.1 0.2", "1e12345", "3.11")
  # A row with other columns is an error before anything of it is written.
  before = path.read_bytes()
  for columns in ({"loss": 0.5}, {}, {"accuracies": "0.1", "loss": 0.5}):
    with pytest.raises(ValueError, match="must have the columns rate, setting, accuracies, command"):
      results.Table(path, ("rate", "setting"), ("accuracies",)).add([{"rate": 2, "setting": "standard", **columns}])
  # So is a table with one column more, or one less, before anything is trained.
  for columns, said in (((), "also has 'accuracies'. It"), (("accuracies", "loss"), "lacks 'loss'. It"),
                        (("more", "loss"), "lacks 'more', 'loss' and also has 'accuracies'. It")):
    with pytest.raises(ValueError, match=said):
      results.Table(path, ("rate", "setting"), columns)
  with pytest.raises(ValueError, match="columns in another order"):
    results.Table(path, ("setting", "rate"), ("accuracies",))
  assert path.read_bytes() == before
  # A line that was damaged is named.
  path.write_bytes(before + b"2,standard\n")
  with pytest.raises(ValueError, match=r"some.csv, line 3: there must be 10 values, as in the heading, got 2\. Correct the line"):
    results.Table(path, ("rate", "setting"), ("accuracies",))


def test_a_table_survives_a_kill(tmp_path, monkeypatch):
  """A line that was not completely written is no row, wherever it ends, and harms no other one."""
  provenance = results._provenance()
  monkeypatch.setattr(results, "_provenance", lambda: provenance)  # It asks git.
  rows = [{"seed": seed, "accuracy": 0.5} for seed in range(3)]
  results.Table(tmp_path / "some.csv", ("seed",), ("accuracy",)).add(rows[:2])
  content = (tmp_path / "some.csv").read_bytes()
  for end in range(len(content)):
    path = tmp_path / str(end) / "some.csv"
    path.parent.mkdir()
    path.write_bytes(content[:end])
    table = results.Table(path, ("seed",), ("accuracy",))
    known = max(0, content[:end].count(b"\n") - 1)
    assert [table.has(row) for row in rows] == [known > 0, known > 1, False]
    assert table.add(rows) == 3 - known
    assert [row["seed"] for row in results.read(path)] == [0, 1, 2]
    assert path.read_bytes() == content[:end]
  path.write_bytes(content.replace(b"\n", b"\r\n"))
  assert results.Table(path, ("seed",), ("accuracy",)).add(rows) == 0
  assert [row["seed"] for row in results.read(path)] == [0, 1, 2]


@contextlib.contextmanager
def room_for(size):
  """No file may become larger."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_row_that_cannot_be_written(tmp_path, capsys):  # In memory what is printed has room.
  """It is told, and the table is as it was."""
  path = tmp_path / "some.csv"
  table = results.Table(path, ("seed",), ("accuracy",))
  with room_for(9), pytest.raises(OSError, match="File too large"):
    table.add([{"seed": 0, "accuracy": 0.5}])
  assert table.add([{"seed": 0, "accuracy": 0.5}]) == 1
  before = path.read_bytes()
  with room_for(len(before) + 9):
    with pytest.raises(SystemExit, match=r"(?s)0.75\nThis was not written to .*some.csv \(File too large\).*goes on"):
      table.complete([{"seed": seed} for seed in range(2)], lambda row: {"accuracy": 0.75}, str, lambda row: f"{row['accuracy']}")
    assert path.read_bytes() == before
    with pytest.raises(OSError, match="File too large"):
      table.add([{"seed": seed, "accuracy": 0.5} for seed in range(1, 9)])
  assert path.read_bytes() == before
  assert table.add([{"seed": 1, "accuracy": 0.5}]) == 1 and [row["seed"] for row in results.read(path)] == [0, 1]


def test_a_table_of_several_processes(tmp_path):
  """None touches what another one writes, what a killed one has left harms none, and all see all rows."""
  path = tmp_path / "some.csv"
  first, second, third = (results.Table(path, ("seed",), ("accuracy",)) for _ in range(3))
  assert first.add([{"seed": 0, "accuracy": 0.5}]) == second.add([{"seed": 1, "accuracy": 0.5}]) == 1
  assert second.has({"seed": 0}) and first.has({"seed": 1}) and not first.has({"seed": 2})
  # One is killed while it writes.
  with path.open("ab") as file:
    file.write(b"2,0.")
  assert third.add([{"seed": seed, "accuracy": 0.25} for seed in (0, 1, 2, 3)]) == 2
  assert second.add([{"seed": 4, "accuracy": 0.5}]) == 1 and second.add([{"seed": 3, "accuracy": 0.5}]) == 0
  assert [(row["seed"], row["accuracy"]) for row in results.read(path)] == [(0, 0.5), (1, 0.5), (4, 0.5), (2, 0.25), (3, 0.25)]
  # Two have made the same row at the same time: the first counts.
  twin = tmp_path / "some.1-1.csv"
  twin.write_bytes(b"".join(path.read_bytes().splitlines(True)[:2]).replace(b"0,0.5", b"4,0.75"))
  assert [(row["seed"], row["accuracy"]) for row in results.read(path)] == [(0, 0.5), (4, 0.75), (1, 0.5), (2, 0.25), (3, 0.25)]
  # A file of another experiment is refused under each of the names; others are none of the table's.
  (tmp_path / "some.more.csv").write_text("mine\n", encoding="utf-8")
  results.Table(path, ("seed",), ("accuracy",))
  twin.write_text("mine\n", encoding="utf-8")
  with pytest.raises(ValueError, match="--output .*some.1-1.csv must be a table of this experiment"):
    results.Table(path, ("seed",), ("accuracy",))


def test_what_another_process_has_added_is_not_done_again(tmp_path):
  rows, ran = [{"seed": seed} for seed in range(3)], []

  def run(row):
    ran.append(row["seed"])
    # The first time one that was not begun, then the same.
    results.Table(tmp_path / "some.csv", ("seed",), ("accuracy",)).add([{"seed": row["seed"] or 1, "accuracy": 0.25}])
    return {"accuracy": 0.5}

  results.Table(tmp_path / "some.csv", ("seed",), ("accuracy",)).complete(rows, run, str, str)
  assert ran == [0, 2]
  assert [(row["seed"], row["accuracy"]) for row in results.read(tmp_path / "some.csv")] == [(1, 0.25), (0, 0.5), (2, 0.25)]


def test_a_table_that_is_stopped(tmp_path, capsys):
  """By Ctrl-C: it says what is there, and the next call does the rest."""
  rows = [{"seed": seed} for seed in range(3)]

  def run(row):
    if row["seed"] == 1 and not stopped:
      raise KeyboardInterrupt
    return {"accuracy": 0.5}

  for stopped in (False, True):
    table = results.Table(tmp_path / "some.csv", ("seed",), ("accuracy",))
    if stopped:
      table.complete(rows, run, lambda row: f"seed {row['seed']}", lambda row: f"{row['accuracy']}")
    else:
      with pytest.raises(SystemExit) as exit:
        table.complete(rows, run, lambda row: f"seed {row['seed']}", lambda row: f"{row['accuracy']}")
      assert exit.value.code == 130
  assert capsys.readouterr().out.replace(str(table.path), "PATH").splitlines() == [
      "0 of 3 trainings are in PATH", "1 of 3: seed 0: 0.5", "2 of 3: seed 1: ",
      "Stopped. The same command goes on with what PATH lacks.",
      "1 of 3 trainings are in PATH", "1 of 2: seed 1: 0.5", "2 of 2: seed 2: 0.5"]


@pytest.mark.parametrize("module, name, arguments", [
    (accuracy, "accuracy", []), (echoing, "echoing", []), (full_length, "choice", ["choice"]),
    (full_length, "comparison", ["comparison"]), (full_length, "hyperparameters", ["hyperparameters"]),
    (full_length, "echoing_resnet18", ["echoing"])])
def test_the_packaged_tables_are_whole_for_their_programs(module, name, arguments, tmp_path, monkeypatch, capsys):
  """What made them has nothing to add."""
  for loader in (accuracy, images):
    monkeypatch.setattr(loader, "load" if loader is accuracy else "load_all", lambda *how: None)
  path = tmp_path / "some.csv"
  shutil.copy(results.DIRECTORY / f"{name}.csv", path)
  module.main([*arguments, "--output", str(path)])
  told = capsys.readouterr().out
  number = len(results.read(path))
  assert told.startswith(f"{number} of {number} trainings are in ") and told.count("\n") == 1
  assert path.read_bytes() == (results.DIRECTORY / f"{name}.csv").read_bytes()


def test_fresh_samples_to_the_target(shapes, monkeypatch):
  monkeypatch.setitem(training.NETWORKS, "small_cnn", lambda images: keras.Sequential([
      keras.Input(images.shape, dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(images.classes)]))
  how = {"batch_size": 64, "shuffle_buffer_size": 100, "seed": 1, "samples_between": 256}
  made, optimizer = [], keras.optimizers.SGD
  monkeypatch.setattr(keras.optimizers, "SGD", lambda rate, **how: made.append(rate) or optimizer(rate, **how))
  # Whatever the batch size, the optimizer's steps are counted.
  found = echoing.fresh_samples_to_target(shapes, "before_augment", 2, 100, 100, 1, samples_between=1000, target=1e-9, learning_rate=0.125)
  assert (found["fresh"], found["steps"], made) == (400, 8, [0.125])
  found = echoing.fresh_samples_to_target(shapes, "baseline", 1, **how, target=1.0, most_steps=8)
  assert (found["fresh"], found["steps"]) == (-1, -1) and len(found["accuracies"].split()) == 2
  for target in (0, 40, float("nan")):
    with pytest.raises(ValueError, match="^target "):
      echoing.fresh_samples_to_target(shapes, "baseline", 1, **how, target=target)


def test_echoing_settings_and_figures():
  chosen = [{**setting, "e": setting["e"]} for setting in echoing.settings()]
  assert len({tuple(setting.items()) for setting in chosen}) == len(chosen)
  for by, values in (("e", {2, 4, 8}), ("batch_size", {128, 512}), ("shuffle_buffer_size", {1, 1_000, 10_000})):
    of_figure = echoing.of_figure(chosen, by)
    assert {setting[by] for setting in of_figure if setting["where"] == "after_batch"} == values
    # Every bar has its baseline.
    for setting in of_figure:
      assert any(other["where"] == "baseline" and all(
          other[column] == setting[column] for column in ("batch_size", "shuffle_buffer_size")) for other in of_figure)


def test_speed_measures_all_or_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(accuracy, "MORE_SETTINGS", {})
  monkeypatch.setattr(accuracy, "AUGMENTATIONS", cases.some(reversed(accuracy.AUGMENTATIONS), 1))
  monkeypatch.setattr(accuracy, "SETTINGS", dict(cases.some(accuracy.SETTINGS.items(), 3)))
  monkeypatch.setattr(speed, "LEAST_IMAGES", 768)
  path = tmp_path / "speed.csv"
  arguments = ["--dataset", "shapes", "--images", "768", "--rounds", "1", "--output", str(path)]
  speed.main(arguments)
  rows = results.read(path)
  assert [(row["augmentation"], row["setting"]) for row in rows] == [
      (augmentation, setting) for augmentation in accuracy.AUGMENTATIONS for setting in accuracy.SETTINGS]
  assert all(row["images_per_second"] > 0 and row["cpu_microseconds"] > 0 for row in rows)
  before = path.read_text(encoding="utf-8")
  speed.main(arguments)
  assert path.read_text(encoding="utf-8") == before
  # What is missing is measured.
  path.write_text(before[:before.rindex("\n", 0, -1) + 1], encoding="utf-8")
  speed.main(arguments)
  assert [row["setting"] for row in results.read(path)] == [row["setting"] for row in rows]


@pytest.mark.parametrize("name", ["accuracy", "echoing", "speed"])
def test_the_packaged_tables_are_whole(name):
  """They have three seeds of every setting, their origin, and everything that docs/results.md shows."""
  path = results.DIRECTORY / f"{name}.csv"
  rows = results.read(name)
  with path.open(newline="", encoding="utf-8") as file:
    assert all(None not in row and None not in row.values() for row in csv.DictReader(file))
  # All rows are comparable.
  for column in ("dataset", "images", "epochs", "width", "learning_rate", "target", "steps" if name == "accuracy" else ""):
    assert len({row.get(column) for row in rows}) == 1, column
  for row in rows:
    assert row["dataset"] == "cifar10" and not row["commit"].endswith("+")
    assert all(row[column] for column in ("command", "commit", "machine", "tensorflow", "python"))
  if name == "echoing":
    for setting in echoing.settings():
      seeds = sorted(row["seed"] for row in rows if all(row[column] == value for column, value in setting.items()))
      assert seeds == [0, 1, 2], setting
  else:
    for augmentation in accuracy.AUGMENTATIONS:
      for setting in accuracy.settings(augmentation):
        found = [row for row in rows if (row["augmentation"], row["setting"]) == (augmentation, setting)]
        if name == "speed":
          assert sorted(row["round"] for row in found) == [1, 2, 3, 4, 5], (augmentation, setting)
        else:
          seeds = sorted(row["seed"] for row in found)
          assert seeds == [0, 1, 2], (augmentation, setting)


def test_the_figures_are_drawn(tmp_path, monkeypatch, capsys):
  """By one command, from the tables, and the tables of the documentation are those of the package."""
  (tmp_path / "docs").mkdir()
  names = ("README.md", "docs/results.md")
  pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
  for name, page in pages.items():
    (tmp_path / name).write_text(re.sub("[0-9]", "0", page), encoding="utf-8")
  tables = lambda text: re.findall("<!-- ([a-z]+) -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL)
  written = lambda name: tables((tmp_path / name).read_text(encoding="utf-8"))
  plots.main(["--root", str(tmp_path)])
  for name, found in (("README.md", ["reuse"]),
                      ("docs/results.md", ["comparison", "pairs", "prices", "choice", "hyperparameters", "echoes", "small",
                                           "times", "budget", "tuned", "tunedbudget"])):
    assert written(name) == tables(pages[name]) and [place for place, _ in written(name)] == found
  for name in ("accuracy", "echoing", "echoing_time"):
    picture = tf.io.decode_png((tmp_path / "docs" / f"{name}.png").read_bytes(), channels=3).numpy()
    assert picture.shape[0] > 400 and picture.std() > 10
  # Of other tables, others.
  for path in results.DIRECTORY.glob("*.csv"):
    shutil.copy(path, tmp_path)
  monkeypatch.setattr(results, "DIRECTORY", tmp_path)
  head, *lines = (tmp_path / "comparison.csv").read_text(encoding="utf-8").splitlines()
  (tmp_path / "comparison.csv").write_text("\n".join([head, *lines[:2], ""]), encoding="utf-8")
  plots.main(["--root", str(tmp_path)])
  assert [text.split("\n\n")[0].count("\n") for _, text in (written("README.md")[0], written("docs/results.md")[0])] == [2, 3]
  # Where a page has lost a place for a table, all are left as they are.
  lost = pages["docs/results.md"].replace("<!-- small -->", "")
  (tmp_path / "docs" / "results.md").write_text(lost, encoding="utf-8")
  (tmp_path / "README.md").write_text(pages["README.md"], encoding="utf-8")
  with pytest.raises(SystemExit):
    plots.main(["--root", str(tmp_path)])
  assert "one table between <!-- small --> and <!-- end -->, got 0" in capsys.readouterr().err
  for name, text in (("README.md", pages["README.md"]), ("docs/results.md", lost)):
    assert (tmp_path / name).read_text(encoding="utf-8") == text
  with pytest.raises(SystemExit):
    plots.main(["--root", str(tmp_path / "README.md")])
  assert "--root must be a directory" in capsys.readouterr().err
  # A place without an end takes nothing of the next one.
  lost = pages["docs/results.md"].replace("<!-- end -->", "", 1)
  (tmp_path / "docs" / "results.md").write_text(lost, encoding="utf-8")
  with pytest.raises(SystemExit):
    plots.main(["--root", str(tmp_path)])
  assert "one table between <!-- comparison --> and <!-- end -->, got 0" in capsys.readouterr().err
  (tmp_path / "README.md").unlink()
  (tmp_path / "docs" / "results.md").unlink()
  plots.main(["--root", str(tmp_path)])
  assert "README.md is not there: its tables are not written" in capsys.readouterr().out


def test_networks(shapes):
  resnet, cnn = training.small_resnet(shapes), training.small_cnn(shapes)
  deep = training.resnet18(shapes)
  assert sum("conv" in layer.name for layer in deep.layers) == 17 + 3  # Three of them on short cuts.
  assert deep.output_shape == (None, 10)
  assert sum(int(np.prod(weight.shape)) for weight in deep.trainable_weights) == 11_173_962  # As commonly said of it.
  with training.computing_with("mixed_bfloat16"):
    mixed = training.small_resnet(shapes)
  # Weights, loss and what it is computed from stay float32.
  assert {variable.dtype for variable in mixed.variables} == {"float32"} and mixed.output.dtype == "float32"
  assert {layer.compute_dtype for layer in mixed.layers if "conv" in layer.name} == {"bfloat16"}
  assert {layer.compute_dtype for layer in resnet.layers} == {"float32"}
  assert sum("conv" in layer.name for layer in resnet.layers) == 9  # Two of them on short cuts.
  assert resnet.output_shape == cnn.output_shape == (None, 10)

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

from refurbish_tf.experiments import accuracy, echoing, images, pipelines, plots, results, training
from support import ROOT, cases

pytestmark = cases.slow


@pytest.fixture(scope="module")
def shapes():
  return images.shapes(768)


def of_setting(shapes, setting, seed=1, layers=None, at=2):
  return accuracy.SETTINGS[setting](pipelines.Pipelines(shapes, layers or accuracy.layers(), at, seed))


@pytest.mark.parametrize("setting", cases.some(accuracy.SETTINGS, 4))
def test_every_setting_has_the_same_steps(shapes, setting):
  """All settings have the same number of steps per epoch, whole batches, and the right number of each label."""
  pipeline = of_setting(shapes, setting)
  assert pipeline.element_spec[0].shape.as_list() == [None, 32, 32, 3]
  labels = [batch.numpy() for _, batch in pipeline]
  assert [len(batch) for batch in labels] == [128] * 6
  if setting.startswith("echo"):
    e = int(setting[-1])
    # Only some of the samples come. The number of times that each comes is a multiple of e.
    assert all(count % e == 0 for count in np.bincount(np.concatenate(labels)))
  else:
    assert (
      np.bincount(np.concatenate(labels)).tolist()
      == np.bincount(list(shapes.train.map(lambda _, label: label).as_numpy_iterator())).tolist()
    )


def test_a_setting_reruns_the_right_layers(shapes):
  """Checks which layers run again for each use of a sample."""

  def ran(setting, at=2, epochs=4):
    """Returns how often each of four layers ran for 768 images."""
    counts = [tf.Variable(0, dtype=tf.int64) for _ in range(4)]
    layers = [lambda image, count=count: image + 0 * tf.cast(count.assign_add(1), tf.uint8) for count in counts]
    pipeline = of_setting(shapes, setting, layers=layers, at=at)
    for _ in range(epochs):
      for _ in pipeline:
        pass
    return [int(count) for count in counts]

  every, kept = 4 * 768, 768 + 3 * 256
  assert ran("standard") == [every] * 4
  assert ran("refurbish r=2") == [768 + 3 * 384] * 2 + [every] * 2
  assert ran("refurbish r=3") == [kept] * 2 + [every] * 2
  for at in cases.some((4, 3, 1), 1):
    assert ran("refurbish r=3", at) == [kept] * at + [every] * (4 - at)
  for e in cases.some((2, 3), 1):
    assert ran(f"echo augmented e={e}") == ran(f"echo batches e={e}") == [every // e] * 4
  assert ran("cache after augmentation") == [768] * 4


def test_different_seeds_give_different_trainings(shapes):
  orders = [
    np.concatenate([labels.numpy() for _, labels in of_setting(shapes, setting, seed)]).tobytes()
    for setting in ("standard", "refurbish r=3", "echo augmented e=3")
    for seed in (0, 1)
  ]
  assert len(set(orders)) == len(orders)


def test_echo_reads_all_parts(shapes):
  """In e epochs each image comes e times, as if the data were read without a break."""
  ids = {hash(record): number for number, (record, _) in enumerate(shapes.train.as_numpy_iterator())}
  numbered = dataclasses.replace(
    shapes, train=shapes.train.map(lambda record, _: (record, tf.strings.to_hash_bucket_fast(record, 2**31)))
  )
  assert len(ids) == 768
  ways = pipelines.Pipelines(numbered, [lambda image: image, lambda image: image], 1, seed=1)
  # The place of the echo does not change what is read.
  for e, where in cases.some(((2, "after_batch"), (3, "before_augment"), (3, "after_augment")), 1):
    pipeline = ways.echoed(e, where)
    epochs = [np.concatenate([labels.numpy() for _, labels in pipeline]) for _ in range(3 * e)]
    assert all(len(epoch) == 768 and len(set(epoch)) == 768 // e for epoch in epochs)
    orders = set()
    for cycle in range(3):
      together = collections.Counter(np.concatenate(epochs[e * cycle : e * cycle + e]).tolist())
      assert len(together) == 768 and set(together.values()) == {e}
      orders.add(tuple(int(min(epoch)) for epoch in epochs[e * cycle : e * cycle + e]))
    assert len(orders) > 1 or e == 2


def test_a_measured_pipeline_prepares_nothing_between_its_turns():
  """A pipeline has as much ready when its turn begins as when its last turn ended, however long the others take."""
  calls = tf.Variable(0)
  counting = (
    tf.data.Dataset.range(64).map(lambda x: x + 0 * tf.cast(calls.assign_add(1), tf.int64)).batch(8).prefetch(2)
  )
  seen = []

  def on_turn(number, name):
    time.sleep(0.1)
    seen.append((number, name, int(calls)))

  measured = pipelines.measure_input(
    {"counting": counting, "idle": tf.data.Dataset.range(8).batch(2)}, 3, on_turn=on_turn
  )
  assert [number for number, *_ in seen] == [0, 0, 1, 1, 2, 2]
  assert all({name for _, name, _ in seen[k : k + 2]} == {"counting", "idle"} for k in (0, 2, 4))
  assert {name: len(epochs) for name, epochs in measured.items()} == {"counting": 3, "idle": 3}
  at_beginning = {number: count for number, name, count in seen if name == "counting"}
  # Only the buffer of `prefetch` is filled ahead.
  assert all(count <= 64 * number + 3 * 8 for number, count in at_beginning.items())


@pytest.mark.parametrize(
  "content",
  [
    b"seed,accuracy\n1,0.5\n",
    b"mine",
    b"\x89PNG\n\xff\x00" * 99,
    b"a\rb\n1",
    b"\xef\xbb\xbfseed,r,accuracy\n",
  ],
)
def test_a_file_that_is_not_a_matching_table_is_left_unchanged(tmp_path, content):
  """The error comes before anything is trained, and names the file."""
  path = tmp_path / "notes.txt"
  path.write_bytes(content)
  with pytest.raises(
    ValueError, match="--output .*notes.txt must be a table of this experiment.*lacks .*It was not changed"
  ):
    results.Table(path, ("seed", "r"), ("accuracy",))
  assert path.read_bytes() == content
  for nowhere in (tmp_path, path / "some.csv", "/dev/null"):
    with pytest.raises(OSError, match="--output must be a writable file, got .*Give another"):
      results.Table(nowhere, ("seed", "r"), ())


def test_a_table_knows_its_rows(tmp_path):
  """A table knows them even in another process, and however a number was written."""
  path = tmp_path / "some.csv"
  table = results.Table(path, ("rate", "setting"), ("accuracies",))
  table._provenance = {**table._provenance, "commit": "1e12345", "python": "3.11"}  # These must stay text.
  table.add([{"rate": 1.0, "setting": "standard", "accuracies": "0.1 0.2"}])
  for rate in (1, 1.0):
    assert results.Table(path, ("rate", "setting"), ("accuracies",)).has({"rate": rate, "setting": "standard"})
  for other in ({"rate": 2, "setting": "standard"}, {"rate": 1, "setting": "echo"}):
    assert not results.Table(path, ("rate", "setting"), ("accuracies",)).has(other)
  (row,) = results.read(path)
  assert (row["rate"], row["accuracies"], row["commit"], row["python"]) == (1, "0.1 0.2", "1e12345", "3.11")
  # A row with other columns is an error before any of it is written.
  before = path.read_bytes()
  for columns in ({"loss": 0.5}, {}, {"accuracies": "0.1", "loss": 0.5}):
    with pytest.raises(ValueError, match="must have the columns rate, setting, accuracies, command"):
      results.Table(path, ("rate", "setting"), ("accuracies",)).add([{"rate": 2, "setting": "standard", **columns}])
  # A table with one column more or less is also an error, before anything is trained.
  for columns, said in (
    ((), "also has 'accuracies'. It"),
    (("accuracies", "loss"), "lacks 'loss'. It"),
    (("more", "loss"), "lacks 'more', 'loss' and also has 'accuracies'. It"),
  ):
    with pytest.raises(ValueError, match=said):
      results.Table(path, ("rate", "setting"), columns)
  with pytest.raises(ValueError, match="columns in another order"):
    results.Table(path, ("setting", "rate"), ("accuracies",))
  assert path.read_bytes() == before
  # The error names the damaged line.
  path.write_bytes(before + b"2,standard\n")
  with pytest.raises(
    ValueError, match=r"some.csv, line 3: there must be 10 values, as in the heading, got 2\. Correct the line"
  ):
    results.Table(path, ("rate", "setting"), ("accuracies",))


def test_a_table_survives_a_kill(tmp_path, monkeypatch):
  """A line that was not completely written is not a row, wherever it ends, and no other row is lost."""
  provenance = results.provenance()
  monkeypatch.setattr(results, "provenance", lambda: provenance)  # `provenance` runs git each time.
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
  """Limits every file to `size` bytes in the `with` block."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_row_that_cannot_be_written(tmp_path):
  """After the error, the table is unchanged."""
  path = tmp_path / "some.csv"
  table = results.Table(path, ("seed",), ("accuracy",))
  with room_for(9), pytest.raises(OSError, match="File too large"):
    table.add([{"seed": 0, "accuracy": 0.5}])
  assert table.add([{"seed": 0, "accuracy": 0.5}]) == 1
  before = path.read_bytes()
  with room_for(len(before) + 9), pytest.raises(OSError, match="File too large"):
    table.add([{"seed": seed, "accuracy": 0.5} for seed in range(1, 9)])
  assert path.read_bytes() == before
  assert table.add([{"seed": 1, "accuracy": 0.5}]) == 1 and [row["seed"] for row in results.read(path)] == [0, 1]


def test_a_table_of_several_processes(tmp_path):
  """No process touches the file of another, the half line of a killed process does no harm, and all processes see all
  rows."""
  path = tmp_path / "some.csv"
  first, second, third = (results.Table(path, ("seed",), ("accuracy",)) for _ in range(3))
  assert first.add([{"seed": 0, "accuracy": 0.5}]) == second.add([{"seed": 1, "accuracy": 0.5}]) == 1
  assert second.has({"seed": 0}) and first.has({"seed": 1}) and not first.has({"seed": 2})
  # A process is killed while it writes.
  with path.open("ab") as file:
    file.write(b"2,0.")
  assert third.add([{"seed": seed, "accuracy": 0.25} for seed in (0, 1, 2, 3)]) == 2
  assert second.add([{"seed": 4, "accuracy": 0.5}]) == 1 and second.add([{"seed": 3, "accuracy": 0.5}]) == 0
  rows = lambda: [(row["seed"], row["accuracy"]) for row in results.read(path)]
  assert rows() == [(0, 0.5), (1, 0.5), (4, 0.5), (2, 0.25), (3, 0.25)]
  # If two processes have made the same row at the same time, the first one counts.
  twin = tmp_path / "some.1-1.csv"
  twin.write_bytes(b"".join(path.read_bytes().splitlines(True)[:2]).replace(b"0,0.5", b"4,0.75"))
  assert rows() == [(0, 0.5), (4, 0.75), (1, 0.5), (2, 0.25), (3, 0.25)]
  # A file of another experiment is refused under each of the table's names. Files with other names are ignored.
  (tmp_path / "some.more.csv").write_text("mine\n", encoding="utf-8")
  results.Table(path, ("seed",), ("accuracy",))
  twin.write_text("mine\n", encoding="utf-8")
  with pytest.raises(ValueError, match="--output .*some.1-1.csv must be a table of this experiment"):
    results.Table(path, ("seed",), ("accuracy",))


def test_fresh_samples_to_the_target(shapes, monkeypatch):
  monkeypatch.setattr(
    training,
    "small_cnn",
    lambda images: keras.Sequential(
      [keras.Input(images.shape, dtype="uint8"), keras.layers.Flatten(), keras.layers.Dense(images.classes)]
    ),
  )
  how = {"batch_size": 64, "shuffle_buffer_size": 100, "seed": 1, "samples_between": 256, "most_steps": 8}
  made, optimizer = [], keras.optimizers.SGD
  monkeypatch.setattr(keras.optimizers, "SGD", lambda rate, **how: made.append(rate) or optimizer(rate, **how))
  # Steps are those of the optimizer, whatever the batch size.
  found = echoing.fresh_samples_to_target(
    shapes, "before_augment", 2, 100, 100, 1, samples_between=1000, most_steps=8, target=1e-9, learning_rate=0.125
  )
  assert (found["fresh"], found["steps"], made) == (400, 8, [0.125])
  found = echoing.fresh_samples_to_target(shapes, "baseline", 1, **how, target=1.0)
  assert (found["fresh"], found["steps"]) == (-1, -1) and len(found["accuracies"].split()) == 2
  for target in (0, 40, float("nan")):
    with pytest.raises(ValueError, match="^target "):
      echoing.fresh_samples_to_target(shapes, "baseline", 1, **how, target=target)


def test_the_figure_of_fresh_samples():
  """Bars are in thousands, lines show the baseline divided by e, texts how many trainings have reached the target."""
  rows = [
    {"where": where, "e": e, "fresh": fresh}
    for where, e, several in (
      ("baseline", 1, (8000, 10000)),
      ("before_augment", 2, (4000, 5000)),
      ("after_augment", 2, (6000,)),
      ("after_batch", 2, (-1,)),
      ("before_augment", 4, (2000,)),
      ("after_batch", 4, (7000, -1, -1)),
    )
    for fresh in several
  ]
  figure, axes = plots.pyplot.subplots()
  plots.fresh_samples(axes, rows, "e")
  # There is a bar of the baseline for each e.
  assert [round(bar.get_height(), 6) for bar in axes.patches] == [9, 9, 4.5, 2, 6]
  assert [line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"] == [4.5, 2.25]
  assert [text.get_text() for text in axes.texts if text.get_text()] == ["0 of 1 reached it", "1 of 3 reached it"]
  plots.pyplot.close(figure)


@pytest.mark.parametrize("path", sorted(results.DIRECTORY.glob("*.csv")), ids=lambda path: path.stem)
def test_the_packaged_tables_are_whole(path):
  """Each row is there once, and names the commit of the program that made it."""
  with path.open(newline="", encoding="utf-8") as file:
    lines = [*csv.DictReader(file)]
  rows = results.read(path.stem)
  assert all(None not in line and None not in line.values() for line in lines) and len(rows) == len(lines) > 0
  for row in rows:
    assert row["dataset"] in ("cifar10", "drawn volumes", "composed groceries", "espeak-ng") and not row[
      "commit"
    ].endswith("+")
    assert all(row[column] for column in ("command", "commit", "machine", "tensorflow", "python"))


def test_the_figures_are_drawn(tmp_path, monkeypatch, capsys):
  """One command draws the figures from the packaged tables, and reproduces the tables in the documentation."""
  (tmp_path / "docs").mkdir()
  names = ("README.md", "docs/results.md")
  pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
  for name, page in pages.items():
    (tmp_path / name).write_text(re.sub("[0-9]", "0", page), encoding="utf-8")
  tables = lambda text: re.findall("<!-- ([a-z]+) -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL)
  written = lambda name: tables((tmp_path / name).read_text(encoding="utf-8"))

  def refused(root):
    with pytest.raises(SystemExit):
      plots.main(["--root", str(root)])
    return capsys.readouterr().err

  plots.main(["--root", str(tmp_path)])
  for name, found in (
    ("README.md", ["reuse"]),
    ("docs/results.md", ["comparison", "allimages", "echoes", "allongpu", "gains", "volumes", "detector"]),
  ):
    assert written(name) == tables(pages[name]) and [place for place, _ in written(name)] == found
  for name in ("accuracy", "echoing", "echoing_time"):
    picture = tf.io.decode_png((tmp_path / "docs" / f"{name}.png").read_bytes(), channels=3).numpy()
    assert picture.shape[0] > 400 and picture.std() > 10
  # Other results give other tables.
  for path in results.DIRECTORY.glob("*.csv"):
    shutil.copy(path, tmp_path)
  monkeypatch.setattr(results, "DIRECTORY", tmp_path)
  head, *lines = (tmp_path / "comparison.csv").read_text(encoding="utf-8").splitlines()
  (tmp_path / "comparison.csv").write_text("\n".join([head, *lines[:2], ""]), encoding="utf-8")
  plots.main(["--root", str(tmp_path)])
  assert [
    text.split("\n\n")[0].count("\n") for _, text in (written("README.md")[0], written("docs/results.md")[0])
  ] == [2, 3]
  # If a page has lost the place of a table, no page is changed.
  lost = pages["docs/results.md"].replace("<!-- gains -->", "")
  (tmp_path / "docs" / "results.md").write_text(lost, encoding="utf-8")
  (tmp_path / "README.md").write_text(pages["README.md"], encoding="utf-8")
  assert "one table between <!-- gains --> and <!-- end -->, got 0" in refused(tmp_path)
  for name, text in (("README.md", pages["README.md"]), ("docs/results.md", lost)):
    assert (tmp_path / name).read_text(encoding="utf-8") == text
  assert "--root must be a directory" in refused(tmp_path / "README.md")
  # A place without an end does not include the next place.
  lost = pages["docs/results.md"].replace("<!-- end -->", "", 1)
  (tmp_path / "docs" / "results.md").write_text(lost, encoding="utf-8")
  assert "one table between <!-- comparison --> and <!-- end -->, got 0" in refused(tmp_path)
  (tmp_path / "README.md").unlink()
  (tmp_path / "docs" / "results.md").unlink()
  plots.main(["--root", str(tmp_path)])
  assert "README.md is not there: its tables are not written" in capsys.readouterr().out

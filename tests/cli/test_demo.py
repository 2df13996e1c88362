"""`refurbish-tf demo`: what it measures, prints and draws, where its images come from, what it refuses."""
import dataclasses
import errno
import functools
import importlib.util
import io
import os
import re
import runpy
import sys
import threading
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from refurbish_tf.cli import demo, startup
from refurbish_tf.cli.demo import experiment, report
from refurbish_tf.experiments import images
from support import cases

NAMES = [
    "standard", "refurbish r=2", "refurbish r=3", "echo decoded", "echo augmented", "echo batches",
    "frozen cache"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """One small run on the shapes: exit status, output and figure. All rows train the same model, which is traced once."""
  figure = tmp_path_factory.mktemp("figures") / "new" / "demo.png"
  make, models = experiment._model, []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experiment, "_model", lambda *how: models[0] if models else models.append(make(*how)) or models[0])
    return *printed("--dataset", "shapes", "--images", "60", "--epochs", "2", "--seeds", "2", "--output", str(figure)), figure


def printed(*arguments):
  """Runs the demo as in a terminal of 80 columns. Returns its exit status and its output."""
  output = io.StringIO()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "stdout", output)
    patch.setenv("COLUMNS", "80")
    status = startup.main(["demo", *arguments])
  return status, output.getvalue()


def rows(output):
  """The cells of the table by the name of the row."""
  lines = output.splitlines()
  head = next(i for i, line in enumerate(lines) if re.fullmatch("-+", line))
  body = lines[head + 1:lines.index("", head)]
  return {line[:15].strip(): line[15:].split() for line in body}


def in_one_line(text):
  return " ".join(text.split())


def test_table_has_a_row_for_each_way_to_augment(run):
  status, output, _ = run
  assert status == 0
  assert list(rows(output)) == NAMES
  assert max(map(len, output.splitlines())) <= 80
  for name in ["standard", "refurbish", *NAMES[3:]]:
    assert len(re.findall(f"^{name}: ", output, re.MULTILINE)) == 1, name
  # The counts of fresh samples are exact.
  assert [cells[3] for cells in rows(output).values()] == [
      "60/60", "60/30", "60/20", "30/30", "30/30", "30/30", "60/0"]


def test_numbers_are_sensible(run):
  _, output, _ = run
  theories = []
  for name, (input_rate, train_rate, cpu, _, accuracy, _, spread, gain, theory) in rows(output).items():
    # 100,000 and more is printed as 100k.
    assert all(float(rate.replace(",", "").replace("k", "000")) > 0 for rate in (input_rate, train_rate)), name
    assert 0 < float(cpu) < 1000, name
    assert 0 <= float(accuracy) <= 100 and 0 <= float(spread) <= 100, name
    assert float(gain) > 0, name
    theories.append(theory)
  assert rows(output)["standard"][-2:] == ["1.00", "1.00"]
  standard, *reusing, frozen = theories
  assert standard == "1.00" and frozen == "-"
  r2, r3, before, after, batch = map(float, reusing)
  assert 1 <= r2 <= 2 and r2 <= r3 <= 3
  assert 1 <= before <= 2 and after == batch == 2


def test_says_what_ran_and_what_was_found(run):
  _, output, figure = run
  assert "2 epochs of 1 step of 128 images, Adam, with 2 seeds" in in_one_line(output)
  assert "With r=3 the input takes" in output
  assert "mean ± standard deviation of 2 seeds" in output
  assert "Two accuracies differ clearly if" in in_one_line(output)
  assert f"Figure: {figure}" in output
  picture = tf.io.decode_png(figure.read_bytes(), channels=3).numpy()
  assert picture.shape[0] > 400 and picture.shape[1] > 1000
  # The corner is blank, but something is drawn.
  assert picture[0, 0].tolist() == [255, 255, 255] and picture.std() > 10


def test_progress_is_plain_without_a_terminal(capfd):
  with report.Progress() as progress:
    progress.begin(3)
    for phase in ("input alone", "training", "training"):
      progress.step(1, phase, "an epoch")
      progress.within(0.5)
  captured = capfd.readouterr()
  assert captured.err == "input alone ...\ntraining ...\n"
  assert captured.out == ""


def test_progress_keeps_to_one_line_of_the_terminal(monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  terminal = Terminal()
  monkeypatch.setattr(sys, "stdout", Terminal())
  monkeypatch.setattr(sys, "stderr", terminal)
  monkeypatch.setenv("COLUMNS", "60")
  monkeypatch.setenv("TERM", "xterm")
  with report.Progress() as progress:
    progress.begin(2)
    progress.step(1, "input alone", "epoch 1 of 6, " + "a very long name " * 9)
    progress.step(1, "training", "epoch 1 of 6, standard")
  written = terminal.getvalue()
  assert "\n" not in written
  drawn = written.split("\r\x1b[K")
  assert max(map(len, drawn)) <= 59
  assert " 50%" in drawn[2] and drawn[-1] == ""


def result(epochs, seconds, accuracies=((0.5, 0.5),) * 3, train_images=60):
  """A possible result of a run: `seconds` per epoch of each row, and for each row an accuracy per seed."""
  return experiment.Result(
      rows=[
          experiment.Row(
              name, f"is {name}", kind, factor, None, cost, input_rate=2.0, input_cpu=1e-4, trainings=[
                  experiment.Training(
                      fresh=[60] * epochs, seconds=[1.0 * duration] * epochs, train_accuracy=[0.1] * epochs,
                      accuracy=[accuracy] * epochs) for accuracy in of_seeds])
          for name, kind, factor, cost, duration, of_seeds in zip(
              ["standard", "refurbish r=2", "frozen cache"], ["standard", "refurbish", "cache"], [1, 2, None],
              [lambda costs: costs.refurbished(1), lambda costs: costs.refurbished(2), None], seconds, accuracies)],
      costs=experiment.Costs(decode=1e-5, partial=8e-5, final=2e-5), train_images=train_images)


def test_table_is_80_columns_wide_with_large_numbers():
  wide = result(2, [1, 1, 0.1], accuracies=((1.0, 0.0),) * 3, train_images=99_999)
  for row in wide.rows:
    row.name, row.input_rate, row.trainings[0].fresh = "echo augmented", 950_000, [99_999] * 2
  lines = report.table(wide).splitlines()
  assert "950k" in lines[5] and "99,999/99,999" in lines[5] and "50.0 ± 70.7 " in lines[5]
  assert max(map(len, lines)) <= 80


def test_theory():
  measured = result(2, [1, 1, 1])
  assert [measured.theory(row) for row in measured.rows] == [1, pytest.approx((8 + 2) / (8 / 2 + 2)), None]
  costs = experiment.Costs(decode=6.0, partial=8.0, final=2.0)
  assert costs.echoed(4, "before_augment") == pytest.approx(6 / 4 + 2 + 2)
  assert costs.echoed(4, "after_augment") == costs.echoed(4, "after_batch") == pytest.approx(10 / 4)
  # Behind a cache of decoded images.
  assert costs.refurbished_decoded(1) == 2 + 2 and costs.refurbished_decoded(2) == 1 + 2


def test_one_epoch_claims_no_gain():
  assert "60/-" in report.table(result(1, [1, 2, 3]))
  assert "one epoch gains nothing" in in_one_line(report.findings(result(1, [1, 2, 3])))


@pytest.mark.parametrize("frozen, conclusion", [
    (1 / 1.05, "the model, not the input, is the bottleneck"), (0.5, "the rest of the time is the model's")])
def test_names_the_bottleneck(frozen, conclusion):
  findings = in_one_line(report.findings(result(2, [1, 1 / 1.02, frozen])))
  assert "Training runs 1.02 times as fast (1.02 to 1.02 with each seed)" in findings and conclusion in findings


def test_does_not_conclude_from_seeds_that_disagree():
  found = result(2, [1, 1, 0.5])
  for training, duration in zip(found.rows[1].trainings, (0.8, 1.3), strict=True):
    training.seconds = [duration] * 2
  findings = in_one_line(report.findings(found))
  assert "(0.77 to 1.25 with each seed)" in findings and "the seeds disagree" in findings


def test_accuracies_are_told_apart_by_the_spread_of_the_seeds():
  def findings(*accuracies):
    return in_one_line(report.findings(result(2, [1, 1, 1], accuracies)))

  # Means 50, 51 and 30 %, spreads 1.4 points each.
  spread = findings((0.49, 0.51), (0.5, 0.52), (0.29, 0.31))
  assert "50.0 ± 1.4 %: refurbish r=2. Clearly different: frozen cache by -20.0 points." in spread
  assert "Not clearly different from standard, 50.0 ± 14.1 %: refurbish r=2 and frozen cache. The" in findings(
      (0.4, 0.6), (0.4, 0.7), (0.3, 0.5))
  assert "Clearly different from standard, 50.0 ± 1.4 %: refurbish r=2 by +20.0 points and frozen" in findings(
      (0.49, 0.51), (0.69, 0.71), (0.29, 0.31))
  assert "One seed shows no spread" in findings((0.5,), (0.9,), (0.1,))


def test_a_full_disk_costs_the_figure_and_no_traceback(monkeypatch, capsys, tmp_path):
  """The measurements are printed before the figure is drawn."""
  def draw(*_):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(experiment, "run", lambda *_: result(2, [1, 1, 1]))
  monkeypatch.setattr(report, "draw", draw)
  assert startup.main(["demo", "--dataset", "shapes", "--images", "10", "--output", str(tmp_path)]) == 1
  captured = capsys.readouterr()
  assert "cannot write" in captured.err and "No space left on device" in captured.err
  assert "refurbish r=2" in captured.out and "Figure" not in captured.out


def test_says_how_to_get_what_draws(monkeypatch, capsys):
  find_spec = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name != "matplotlib" and find_spec(name) or None)
  with pytest.raises(SystemExit) as exit_:
    startup.main(["demo", "--dataset", "shapes"])
  assert exit_.value.code == 2
  assert "the figure needs Matplotlib: `pip install matplotlib`" in capsys.readouterr().err


# Photographs ------------------------------------------------------------------------------------------------------------


def test_photographs_of_a_directory(tmp_path, monkeypatch):
  """JPEG files of any size, also in subdirectories; files with only their suffix are skipped."""
  (tmp_path / "below").mkdir()
  for number, size in enumerate([(300, 260, 3), (240, 400, 3), (64, 64, 1)]):
    picture = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    name = ("a.jpg", "b.JPEG", "below/c.jpg")[number]
    (tmp_path / name).write_bytes(tf.io.encode_jpeg(picture).numpy())
  (tmp_path / "page.jpg").write_text("<html>")
  found = []
  measure = experiment.run_photographs
  monkeypatch.setattr(experiment, "run_photographs", lambda *settings: found.append(measure(*settings)) or found[0])
  status, output = printed("--photos", str(tmp_path), "--reuse", "2")
  assert status == 0
  assert f"3 JPEG files in {tmp_path}" in in_one_line(output)
  assert max(map(len, output.splitlines())) <= 80 + len(str(tmp_path))
  table = rows(output)
  assert list(table) == ["standard", "refurbish r=2", "cache decoded", "both, r=2"]
  assert all(float(cell.replace(",", "")) >= 0 for cells in table.values() for cell in cells)
  # The bytes are exact, which the megabytes in the table do not show.
  kept = [row.kept_bytes for row in found[0].rows]
  partially, pixels = 224 * 224 * 3, 3 * (300 * 260 + 240 * 400 + 64 * 64)
  assert kept[0] == 0 and kept[2] == pixels
  assert partially <= kept[1] <= 3 * partially and kept[3] == kept[1] + pixels


def test_generated_photographs():
  source = images.photographs(None, 2, seed=3)
  first, second = source.train.as_numpy_iterator()
  assert first[0] != second[0] and source.title.startswith("2 generated photographs, about 500 x 375 pixels")
  assert [record for record, _ in images.photographs(None, 2, seed=3).train.as_numpy_iterator()] == [first[0], second[0]]


@pytest.mark.parametrize("size", [20, 500])
def test_a_damaged_photograph_ends_it_with_one_line(tmp_path, capsys, size):
  picture = tf.io.encode_jpeg(np.zeros([50, 50, 3], np.uint8)).numpy()
  for name, content in (("a.jpg", picture), ("b.jpg", picture[:size])):
    (tmp_path / name).write_bytes(content)
  assert startup.main(["demo", "--photos", str(tmp_path), "--reuse", "2"]) == 1
  captured = capsys.readouterr()
  assert "refurbish-tf demo: " in captured.err and "Traceback" not in captured.err


# Where images come from -------------------------------------------------------------------------------------------------


def test_shapes_are_balanced_and_reproducible():
  pictures, labels = images.draw_shapes(40, seed=3)
  again, _ = images.draw_shapes(40, seed=3)
  assert pictures.shape == (40, 32, 32, 3) and pictures.dtype == np.uint8
  assert np.bincount(labels).tolist() == [4] * 10
  np.testing.assert_array_equal(pictures, again)
  assert (pictures != images.draw_shapes(40, seed=4)[0]).any()
  assert len(images.load("shapes", 100).validation) == 25
  assert len(images.load("shapes", 100, most_validation=20).validation) == 20


@cases.only_exhaustive
def test_standard_input_converges_on_the_shapes():
  """With the default settings; results far from convergence would be noise."""
  source = images.load("shapes", demo.IMAGES, most_validation=demo.VALIDATION_IMAGES)
  found = experiment.run(source, experiment.Settings(epochs=8, reuse=(3.0,), seeds=1), report.Progress())
  assert found.rows[0].final()[0] >= 0.85


@pytest.fixture
def absent(monkeypatch, tmp_path):
  """Makes every data set missing and every download fail."""
  def download(*_, **__):
    raise ConnectionError("the line is cut\nand more")

  monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path))
  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)


def test_falls_back_at_once_without_a_network(absent, monkeypatch, tmp_path):
  # A name look-up that hangs, which no socket timeout bounds.
  answered = threading.Event()

  def never(*_, **__):
    answered.wait()
    raise OSError

  monkeypatch.setattr(urllib.request, "urlopen", never)
  try:
    source = images.load("cifar10", 20)
  finally:
    answered.set()
  assert source.note.startswith("cifar10 is neither prepared on this machine")
  assert "www.cs.toronto.edu does not answer" in source.note and str(tmp_path) in source.note
  assert source.title.startswith("shapes (generated): 20 training")
  assert len(source.train) == 20 and source.classes == 10
  introduction = report.introduction(source, experiment.Settings(epochs=1, reuse=(2.0,), seeds=1))
  assert "using the built-in shapes instead" in in_one_line(introduction)
  assert "takes     less than a minute" in introduction


def test_says_how_long_it_takes():
  source = dataclasses.replace(images.shapes(20), train=tf.data.Dataset.range(5_000))
  assert "takes     about 4 minutes" in report.introduction(source, experiment.Settings(epochs=8, reuse=(2.0, 3.0), seeds=3))
  assert "takes     about 3 minutes" in report.introduction_to_photographs(
      dataclasses.replace(source, train=source.train.take(3_000)), (2.0, 3.0))


def test_falls_back_when_the_download_fails(absent, monkeypatch):
  monkeypatch.setattr(images, "_answers", lambda url: True)
  assert "(the line is cut): using the built-in shapes" in images.load("mnist", 20).note


def test_reads_grey_images_of_any_size_from_tfds(monkeypatch, tmp_path):
  """Including a data set without a validation split and without supervised keys."""
  rng = np.random.default_rng(0)

  def examples():
    for i in range(10):
      picture = rng.integers(0, 256, [40 + 10 * i, 70, 1], np.uint8)
      yield i, {"name": str(i), "photo": picture, "kind": i % 2}

  features = tfds.features.FeaturesDict({
      "name": tfds.features.Text(), "photo": tfds.features.Image(shape=(None, None, 1)),
      "kind": tfds.features.ClassLabel(names=["a", "b"])})
  tfds.dataset_builders.store_as_tfds_dataset(
      name="greys", version="1.0.0", features=features, split_datasets={"train": examples()}, data_dir=str(tmp_path),
      disable_shuffling=True)
  monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path))

  source = images.load("greys", 5)
  assert (source.shape, source.classes, source.note) == ((64, 64, 3), 2, "")
  assert "greys/1.0.0 (TFDS): 5 of 10 train images; validation on 2 train images" == source.title
  assert [label.numpy() for _, label in source.train] == [0, 1, 0, 1, 0]
  assert [label.numpy() for _, label in source.validation] == [0, 1]
  for record, _ in source.train:
    assert record.dtype == tf.string
    image = source.decode(record).numpy()
    assert image.shape == (64, 64, 3) and image.dtype == np.uint8
    # Still grey, and about as bright.
    assert (image[..., 0] == image[..., 2]).all() and 110 < image.mean() < 145


@pytest.mark.parametrize("arguments, message", [
    (["--epochs", "0"], "argument --epochs: must be a whole number of at least 1, got '0'"),
    (["--images", "many"], "argument --images: must be a whole number of at least 2, got 'many'"),
    (["--reuse", "2", "0.5"], "argument --reuse: must be a real number of at least 1, got '0.5'"),
    (["--reuse", "nan"], "argument --reuse: must be a real number of at least 1, got 'nan'"),
    (["--seeds", "0"], "argument --seeds: must be a whole number of at least 1, got '0'"),
    (["--photos", "/no/where"], "argument --photos: there is no directory '/no/where'"),
    (["--photos", os.path.dirname(__file__)], "argument --photos: there are no JPEG files in"),
    (["--output", "figure.pdf"], "argument --output: must end in .png or be a directory, got 'figure.pdf'"),
    (["--output", "/proc/nowhere/figure.png"], "argument --output: cannot write into '/proc/nowhere'"),
    (["--dataset", "cifer10"], "there is no data set 'cifer10' (did you mean cifar10"),
    (["--dataset", "cifar10:9.9.9"], "Dataset cifar10 cannot be loaded at version 9.9.9"),
    (["--dataset", "imdb_reviews"], "imdb_reviews is not an image classification set"),
])
def test_bad_arguments(arguments, message, capsys):
  with pytest.raises(SystemExit) as exit_:
    startup.main(["demo", *arguments])
  captured = capsys.readouterr()
  assert exit_.value.code == 2
  assert message in captured.err and "Traceback" not in captured.err
  assert captured.out == ""


def test_runs_as_a_module(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["refurbish-tf", "demo", "--help"])
  with pytest.raises(SystemExit):
    runpy.run_module("refurbish_tf.cli", run_name="__main__")
  usage = in_one_line(capsys.readouterr().out)
  assert "(default: 2 3)" in usage and "--output" in usage

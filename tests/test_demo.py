"""Checks `refurbish-tf demo`: what it measures, prints and draws, where its images come from, what it refuses."""
import functools
import io
import re
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from refurbish_tf.cli import startup
from refurbish_tf.cli.demo import experiment, report
from refurbish_tf.experiments import images

NAMES = [
    "standard", "refurbish r=2", "refurbish r=3", "echo decoded", "echo augmented", "echo batches",
    "frozen cache*"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """One small run on the shapes: its status, output and figure."""
  figure = tmp_path_factory.mktemp("figures") / "new" / "demo.png"
  output = io.StringIO()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "stdout", output)
    status = startup.main(["demo", "--dataset", "shapes", "--images", "60", "--epochs", "3", "--output", str(figure)])
  return status, output.getvalue(), figure


def rows(output):
  """The cells of the table by the name of the row."""
  lines = output.splitlines()
  head = next(i for i, line in enumerate(lines) if re.fullmatch("-+", line))
  body = lines[head + 1:lines.index("", head)]
  return {line[:15].strip(): line[15:].split() for line in body}


def test_table_has_a_row_for_each_way_to_augment(run):
  status, output, _ = run
  assert status == 0
  assert list(rows(output)) == NAMES
  assert max(map(len, output.splitlines())) <= 80


def test_fresh_samples_are_exact(run):
  _, output, _ = run
  assert [cells[3] for cells in rows(output).values()] == [
      "60/60", "60/30", "60/20", "30/30", "30/30", "30/30", "60/0"]


def test_numbers_are_sensible(run):
  _, output, _ = run
  limits = []
  for name, (input_rate, train_rate, cpu, _, accuracy, cpu_gain, input_gain, limit) in rows(output).items():
    # 100,000 and more is said as 100k.
    assert all(float(rate.replace(",", "").replace("k", "000")) > 0 for rate in (input_rate, train_rate)), name
    assert 0 < float(cpu) < 1000, name
    assert accuracy.endswith("%") and 0 <= float(accuracy[:-1]) <= 100, name
    assert float(cpu_gain) > 0 and float(input_gain) > 0, name
    limits.append(limit)
  assert rows(output)["standard"][-3:] == ["1.00", "1.00", "1.00"]
  standard, *reusing, frozen = limits
  assert standard == "1.00" and frozen == "-"
  r2, r3, before, after, batch = map(float, reusing)
  assert 1 <= r2 <= 2 and r2 <= r3 <= 3
  assert 1 <= before <= 2 and after == batch == 2


def test_says_what_ran_and_what_was_found(run):
  _, output, figure = run
  assert "3 epochs of 1 step of 128 images" in output
  assert "With r=3 the input takes" in output
  assert "with as many steps on 1/2 as many fresh images" in " ".join(output.split())
  assert "noise" in output
  assert f"Figure: {figure}" in output


def test_figure_is_a_picture(run):
  _, _, figure = run
  picture = tf.io.decode_png(figure.read_bytes(), channels=3).numpy()
  assert picture.shape[0] > 400 and picture.shape[1] > 1000
  # Blank where nothing is drawn, and something is drawn.
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


def result(epochs, train_rates, train_images=60):
  """What a run might measure."""
  return experiment.Result(
      rows=[
          experiment.Row(
              name, name.split()[0], factor, None, cost, input_rate=2.0, input_cpu=1e-4, train_rate=rate,
              fresh=[60] * epochs, seconds=[1.0] * epochs, train_accuracy=[0.1] * epochs, accuracy=[0.5] * epochs)
          for name, factor, cost, rate in zip(
              ["standard", "refurbish r=2", "frozen cache*"], [1, 2, None],
              [lambda costs: costs.refurbished(1), lambda costs: costs.refurbished(2), None], train_rates)],
      costs=experiment.Costs(decode=1e-5, partial=8e-5, final=2e-5), train_images=train_images, validation_images=15)


def test_table_is_80_columns_wide_with_large_numbers():
  wide = result(2, [80_000, 80_000, 950_000], train_images=99_999)
  for row in wide.rows:
    row.name, row.fresh, row.input_rate = "echo augmented", [99_999] * 2, row.train_rate
  lines = report.table(wide).splitlines()
  assert "950k" in lines[5] and "99,999/99,999" in lines[5]
  assert max(map(len, lines)) <= 80


def test_limit():
  measured = result(2, [1, 1, 1])
  assert [measured.limit(row) for row in measured.rows] == [1, pytest.approx((8 + 2) / (8 / 2 + 2)), None]


def test_cost_of_echo():
  costs = experiment.Costs(decode=1.0, partial=8.0, final=2.0)
  assert costs.echoed(4, "before_augment") == pytest.approx(1 / 4 + 7 + 2)
  assert costs.echoed(4, "after_augment") == costs.echoed(4, "after_batch") == pytest.approx(10 / 4)


def test_one_epoch_claims_no_gain():
  assert "60/-" in report.table(result(1, [1, 2, 3]))
  assert "one epoch gains nothing" in " ".join(report.findings(result(1, [1, 2, 3])).split())


@pytest.mark.parametrize("frozen_rate, conclusion", [
    (1.05, "the model, not the input, is the bottleneck"), (2.0, "the rest of the time is the model's")])
def test_names_the_bottleneck(frozen_rate, conclusion):
  findings = " ".join(report.findings(result(2, [1, 1.02, frozen_rate])).split())
  assert "training runs 1.02 times as fast" in findings and conclusion in findings


def test_shapes_are_balanced_and_reproducible():
  pictures, labels = images.draw_shapes(40, seed=3)
  again, _ = images.draw_shapes(40, seed=3)
  assert pictures.shape == (40, 32, 32, 3) and pictures.dtype == np.uint8
  assert np.bincount(labels).tolist() == [4] * 10
  np.testing.assert_array_equal(pictures, again)
  assert (pictures != images.draw_shapes(40, seed=4)[0]).any()


@pytest.fixture
def absent(monkeypatch, tmp_path):
  """No data set is prepared, and a download fails the test."""
  def download(builder, **_):
    pytest.fail(f"{builder.name} would be downloaded")

  monkeypatch.setattr(tfds, "builder", functools.partial(tfds.builder, data_dir=tmp_path))
  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)


def test_falls_back_at_once_without_a_network(absent, monkeypatch, tmp_path):
  # A look-up of a name that hangs, which no timeout of the socket bounds.
  def never(*_, **__):
    time.sleep(60)
    raise OSError

  monkeypatch.setattr(urllib.request, "urlopen", never)
  begin = time.monotonic()
  source = images.load("cifar10", 20)
  assert time.monotonic() - begin < images.PROBE_SECONDS + 5
  assert source.note.startswith("cifar10 is neither prepared on this machine")
  assert "www.cs.toronto.edu does not answer" in source.note and str(tmp_path) in source.note
  assert source.title.startswith("shapes (generated): 20 training")
  assert len(source.train) == 20 and source.classes == 10
  introduction = report.introduction(source, experiment.Settings(epochs=1, reuse=(2.0,), seed=0))
  assert "using the built-in shapes instead" in " ".join(introduction.split())


def test_falls_back_when_the_download_fails(absent, monkeypatch):
  def download(*_, **__):
    raise ConnectionError("the line is cut\nand more")

  monkeypatch.setattr(images, "_answers", lambda url: True)
  monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", download)
  assert "(the line is cut): using the built-in shapes" in images.load("mnist", 20).note


def test_reads_grey_images_of_any_size_from_tfds(monkeypatch, tmp_path):
  """Also one without a validation split and without supervised keys."""
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
    # Grey as before, and about as bright.
    assert (image[..., 0] == image[..., 2]).all() and 110 < image.mean() < 145


@pytest.mark.parametrize("arguments, message", [
    (["--epochs", "0"], "argument --epochs: must be a whole number of at least 1, got '0'"),
    (["--images", "many"], "argument --images: must be a whole number of at least 2, got 'many'"),
    (["--reuse", "2", "0.5"], "a reuse factor must be a real number of at least 1, such as 2 or 1.5, got '0.5'"),
    (["--reuse", "nan"], "a reuse factor must be a real number of at least 1"),
    (["--seed", "-1"], "argument --seed: must be a whole number from 0"),
    (["--output", "figure.pdf"], "argument --output: must end in .png or be a directory, got 'figure.pdf'"),
    (["--output", "/proc/nowhere/figure.png"], "argument --output: cannot write into '/proc/nowhere'"),
    (["--dataset", "cifer10"], "there is no data set 'cifer10' (did you mean cifar10"),
    (["--dataset", "cifar10:9.9.9"], "Dataset cifar10 cannot be loaded at version 9.9.9"),
    (["--dataset", "imdb_reviews"], "imdb_reviews is not an image classification set, its features are text, label"),
])
def test_bad_arguments(arguments, message, capsys):
  with pytest.raises(SystemExit) as exit_:
    startup.main(["demo", *arguments])
  captured = capsys.readouterr()
  assert exit_.value.code == 2
  assert message in captured.err and "Traceback" not in captured.err
  assert captured.out == ""


def test_runs_as_a_module_and_is_not_imported_with_the_package():
  code = (
      "import runpy, sys, refurbish_tf\n"
      "assert not {'refurbish_tf.cli', 'tensorflow_datasets'} & set(sys.modules)\n"
      "sys.argv = ['refurbish-tf', 'demo', '--help']\n"
      "runpy.run_module('refurbish_tf.cli', run_name='__main__')")
  usage = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
  assert "(default: 2 3)" in usage and "--output" in usage

"""`refurbish-tf demo`: its measurements, its output and bad input."""

import io
import os
import re
import runpy
import sys

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf.cli import demo, startup
from support import cases

pytestmark = cases.slow


def printed(*arguments):
  """Runs the demo as in a terminal of 80 columns. Returns its exit status and its output."""
  output = io.StringIO()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sys, "stdout", output)
    patch.setenv("COLUMNS", "80")
    status = startup.main(["demo", *arguments])
  return status, output.getvalue()


def cells(output):
  """Returns the cells of the table by the name of the row."""
  lines = output.splitlines()
  head = next(i for i, line in enumerate(lines) if re.fullmatch("-+", line))
  return {line[:15].strip(): line[15:].split() for line in lines[head + 1 : lines.index("", head)]}


def in_one_line(text):
  return " ".join(text.split())


def write_photographs(directory):
  (directory / "below").mkdir()
  for number, size in enumerate([(300, 260, 3), (240, 400, 3), (64, 64, 1)]):
    picture = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    name = ("a.jpg", "b.JPEG", "below/c.jpg")[number]
    (directory / name).write_bytes(tf.io.encode_jpeg(picture).numpy())


def test_photographs_of_a_directory(tmp_path, monkeypatch):
  """JPEG files of any size are found, also in subdirectories. Other files with their suffix are skipped."""
  write_photographs(tmp_path)
  (tmp_path / "page.jpg").write_text("<html>")
  found, measure = [], demo.measure
  monkeypatch.setattr(demo, "measure", lambda *settings: found.append(measure(*settings)) or found[0])
  status, output = printed("--photos", str(tmp_path), "-r", "2", "2", "1")
  assert status == 0
  assert f"3 JPEG files in {tmp_path}" in in_one_line(output)
  assert max(map(len, output.splitlines())) <= 80 + len(str(tmp_path))
  table = cells(output)
  assert list(table) == ["standard", "refurbish r=2", "refurbish r=1", "cache decoded", "both, r=2"]
  assert all(float(cell.replace(",", "")) >= 0 for row in table.values() for cell in row)
  assert table["standard"][-3:] == ["1.00", "1.00", "1.00"] and float(table["standard"][0].replace(",", "")) > 0
  for name in ("standard", "refurbish", "cache decoded", "both, r=2"):
    assert len(re.findall(f"^{name}: ", output, re.MULTILINE)) == 1, name
  assert "With r=2 the input takes" in output
  # The bytes are exact, which the megabytes in the table do not show.
  kept = [row.kept_bytes for row in found[0][0]]
  partially, pixels = 224 * 224 * 3, 3 * (300 * 260 + 240 * 400 + 64 * 64)
  assert kept[0] == 0 and kept[3] == pixels
  assert partially <= kept[1] <= 3 * partially and kept[4] == kept[1] + pixels


def test_theory():
  costs = demo.Costs(decode=6.0, partial=8.0, final=2.0)
  assert [row.least(costs) for row in demo._rows((2.0, 4.0))] == [8 + 2, 8 / 2 + 2, 8 / 4 + 2, 2 + 2, 2 / 4 + 2]


def test_progress_keeps_to_one_line_of_the_terminal(monkeypatch, capsys):
  demo._say(0, "standard")
  assert capsys.readouterr().err == ""
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
  monkeypatch.setenv("COLUMNS", "30")
  monkeypatch.setenv("TERM", "xterm")
  demo._say(0, "a very long name " * 9)
  demo._say()
  drawn = capsys.readouterr().err.split("\r\x1b[K")
  assert drawn == ["", "epoch 1 of 6: a very long nam", ""]


@pytest.mark.parametrize("size", [20, 500])
def test_a_damaged_photograph_ends_it_with_one_line(tmp_path, capsys, size):
  picture = tf.io.encode_jpeg(np.zeros([50, 50, 3], np.uint8)).numpy()
  for name, content in (("a.jpg", picture), ("b.jpg", picture[:size])):
    (tmp_path / name).write_bytes(content)
  assert startup.main(["demo", "--photos", str(tmp_path), "-r", "2"]) == 1
  captured = capsys.readouterr()
  assert "refurbish-tf demo: " in captured.err and "Traceback" not in captured.err


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["--images", "many"], "argument --images: must be a whole number of at least 2, got 'many'"),
    (["-r", "2", "0.5"], "argument -r: must be a real number of at least 1, got '0.5'"),
    (["-r", "nan"], "argument -r: must be a real number of at least 1, got 'nan'"),
    (["--photos", "/no/where"], "argument --photos: there is no directory '/no/where'"),
    (["--photos", os.path.dirname(__file__)], "argument --photos: there are no JPEG files in"),
  ],
)
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
  assert "(default: 2 3)" in usage and "--photos" in usage

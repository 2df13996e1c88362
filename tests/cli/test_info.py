"""`refurbish-tf info`: facts about the machine and about a folder of images."""

import importlib.metadata
import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine
from refurbish_tf.cli import info, startup

IMAGE = np.random.default_rng(7).integers(0, 256, [8, 12, 3], np.uint8)


def printed(capsys, *arguments):
  assert startup.main(["info", *map(str, arguments)]) == 0
  return capsys.readouterr().out


def test_the_machine(capsys, monkeypatch, tmp_path):
  text = printed(capsys)
  for part in (
    f"version    {rtf.__version__}",
    f"tensorflow {importlib.metadata.version('tensorflow')}",
    "library.so, in the package, for TensorFlow",
    f"CPU cores  {machine.processors()} of ",
    " free, room for ",
    "rtf.augment.decode",
  ):
    assert part in text
  for name, number in (
    ("memory.max", 5_000_000_000),
    ("memory/memory.limit_in_bytes", 6_000_000_000),
    ("memory.max", "max"),
  ):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"{number}\n")
    monkeypatch.setattr(machine, "_CONTROL_GROUPS", tmp_path)
    assert f"limited to {str(number)[0]} GB" in printed(capsys) or number == "max"
    (tmp_path / name).unlink()
  assert "without a limit" in printed(capsys)


def exif(orientation):
  """Returns the bytes of a JPEG file with this orientation in EXIF."""
  tiff = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0" + bytes([orientation]) + b"\0\0\0\0\0\0\0"
  block = b"Exif\0\0" + tiff
  file = tf.io.encode_jpeg(IMAGE, quality=95).numpy()
  return file[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + file[2:]


def test_a_folder(capsys, tmp_path):
  (tmp_path / "a").mkdir()
  files = {f"a/{number}.jpg": exif(number) for number in range(1, 9)} | {
    "a/small.PNG": tf.io.encode_png(IMAGE[:1, :2]).numpy(),
    "b.jpg": tf.io.encode_png(np.tile(IMAGE, [4, 4, 1])).numpy(),
    "a/cut.png": tf.io.encode_png(IMAGE).numpy()[:50],
    "text.gif": b"text",
    "notes.txt": b"",
    "README": b"",
  }
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)
  (tmp_path / "away.bmp").symlink_to("nowhere")
  text = printed(capsys, tmp_path)
  folder = text[text.index(str(tmp_path)) :]
  assert "13 images; others: " in folder and "1 .txt" in folder and "1 without an extension" in folder
  assert "8 JPEG, 3 PNG, 2 unknown" in folder and "smallest 2 x 1, median 12 x 8, largest 48 x 32" in folder
  assert "; ".join(f"orientation {number}: 1" for number in range(2, 9)) in folder
  broken = folder[folder.index("broken") :]
  assert re.findall(r"(\S+): ", broken)[0].endswith("cut.png") and "text.gif" in broken and "No such file" in broken
  assert "13 images, 2 of them examined" in printed(capsys, tmp_path, "--images", 2)


def test_many_broken_files(capsys, tmp_path):
  for number in range(info._MOST_SHOWN + 3):
    (tmp_path / f"{number}.jpg").write_bytes(b"")
  assert "and 3 more" in printed(capsys, tmp_path)


def test_no_folder(capsys):
  with pytest.raises(SystemExit) as end:
    startup.main(["info", "/nowhere"])
  assert end.value.code == 2 and "'/nowhere' is not a local directory" in capsys.readouterr().err

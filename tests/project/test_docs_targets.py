"""docs/targets.md: masks with a palette keep their classes; left, right and angles follow a flip."""

import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import ROOT
from test_docs import examples


def test_masks_of_a_palette_keep_their_classes(tmp_path, monkeypatch):
  """The masks keep their classes if the page's code is used. Alone, `decode_png` returns other values."""
  from PIL import Image

  page = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
  assert "turns the classes 0, 1 and 15 into 0, 38 and 147" in " ".join(page.split())
  colors = [
    [(index >> bit & 1) << 7 | (index >> bit + 3 & 1) << 6 for bit in range(3)] for index in range(256)
  ]  # The palette of Pascal VOC.
  mask = np.resize(np.uint8([0, 1, 15]), [24, 32])
  for name in ("photos", "masks"):
    (tmp_path / name / "a").mkdir(parents=True)
  image = Image.fromarray(mask)
  image.convert("RGB").save(tmp_path / "photos" / "a" / "1.jpg")
  image.putpalette(np.uint8(colors).tobytes())
  image.save(tmp_path / "masks" / "a" / "1.png")
  grey = tf.io.decode_png((tmp_path / "masks" / "a" / "1.png").read_bytes(), channels=1)
  assert np.unique(grey).tolist() == [0, 38, 147]
  monkeypatch.chdir(tmp_path)
  (program,) = [program for _, program, _ in examples(ROOT / "docs" / "targets.md") if "mask_files" in program]
  names = {"np": np, "tf": tf, "rtf": rtf, "final": [rtf.augment.random_flip()]}
  exec(program, names)
  pairs = tf.data.Dataset.from_tensor_slices((names["files"], names["mask_files"])).map(names["read"])
  assert [np.array_equal(each, mask) for _, each in pairs] == [True]
  assert [np.unique(masks).tolist() for _, masks in names["train"]] == [[0, 1, 15]]
  image.convert("RGB").save(tmp_path / "masks" / "a" / "1.png")
  with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)shape"):
    list(pairs)


@pytest.mark.parametrize(
  "layer, is_mirror, turn",
  [
    (lambda: rtf.augment.random_flip(p=1), True, 0),
    (lambda: rtf.augment.random_flip("vertical", p=1), True, np.pi),
    (lambda: rtf.augment.random_rotation((170, 170)), False, np.radians(-170)),
    (lambda: rtf.augment.resize((64, 64)), False, 0),
  ],
  ids=["mirrored", "upside down", "turned", "larger"],
)
def test_left_and_right_and_angles_follow(layer, is_mirror, turn):
  """As the guide says, a mirror image is not the same as an image that is upside down because of a rotation."""
  marks, boxes = [
    program
    for _, program, _ in examples(ROOT / "docs" / "targets.md")
    if re.search("mirrored_points|corners_of", program)
  ]
  names = {
    "np": np,
    "tf": tf,
    "rtf": rtf,
    "images": np.zeros([8, 32, 32, 3], np.uint8),
    "partial": [layer()],
    "final": [rtf.augment.normalize()],
  }

  def assert_turned(found, given):
    np.testing.assert_allclose(
      np.exp(1j * np.float64(found)), np.exp(1j * (np.pi - given if is_mirror else given) + 1j * turn), atol=1e-5
    )

  exec(marks, names)
  element = {name: value[5] for name, value in names["elements"].items()}
  (found,) = (
    tf.data.Dataset.from_tensors(element)
    .refurbish([layer()], targets={"points": "xy", "marks": "xy"})
    .map(names["follow"])
    .as_numpy_iterator()
  )
  assert_turned(found["angle"], element["angle"])
  assert found["is_left"] == (0 if is_mirror else 1) and "marks" not in found
  # Seen from the nose, the left eye is to the right of the right eye.
  left, right, nose = found["points"][:, :2]
  assert np.linalg.det([left - nose, right - nose]) < 0
  exec(boxes, names)
  ((_, (box,)),) = (
    tf.data.Dataset.from_tensors((element["image"], names["rotated"][5]))
    .map(names["corners_of"])
    .refurbish([layer()], targets={1: "xy"})
    .map(names["boxes_of"])
    .as_numpy_iterator()
  )
  assert_turned(box[4], 0.3)
  np.testing.assert_allclose(
    box[:4], np.float32([16, 16, 20, 8]) * (2 if layer().__name__ == "resize" else 1), atol=1e-4
  )

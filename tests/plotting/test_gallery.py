"""The gallery has all layers, and docs/draw_pictures.py draws them."""

import importlib.util
import pathlib

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("draw_pictures", DOCS / "draw_pictures.py")
SCRIPT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(SCRIPT)
NAMES = SCRIPT.layer_names()
IMAGES = np.random.default_rng(7).integers(0, 256, [2, 144, 144, 3], np.uint8)


def test_page():
  """The page is what the script writes: each layer with its code and a picture. Functions that are left out do not make
  images by themselves."""
  assert (DOCS / "gallery.md").read_text(encoding="utf-8") == SCRIPT.page()
  assert NAMES == sorted(path.stem for path in (DOCS / "gallery").iterdir())
  assert {*rtf.augment.__all__} - {*NAMES} == {*SCRIPT.NO_LAYERS}
  assert {*SCRIPT.ARGUMENTS, *SCRIPT.BOXES} <= {*NAMES}
  assert sum(path.stat().st_size for path in (DOCS / "gallery").iterdir()) < 450_000


@pytest.mark.parametrize("name", NAMES)
def test_layers(name):
  figure = SCRIPT.drawn(name, IMAGES, tf.io.encode_jpeg(IMAGES[0]), 1)
  assert any(place.images for place in figure.axes)

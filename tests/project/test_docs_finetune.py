"""docs/finetune.md: its programs train in two phases on one stage, and its table agrees with Keras."""

import importlib
import re

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import ROOT, cases
from test_docs import run_program_of

SMALLER = {
  'weights="imagenet"': "weights=None",
  "(weights=weights)": "(weights=None)",
  "EfficientNetV2B0": "MobileNetV3Small",
  "resnet50": "resnet18",
  "given.crop_size[0]": "32",
  "224": "32",
  ".batch(64)": ".batch(8)",
  "epochs=20, shuffle=False)": "epochs=8, shuffle=False); print(rtf.stats(train)[0])",
  "range(20)": "range(8)",
  'print(f"epoch': 'print(rtf.stats(train)[0], f"epoch',
}


@cases.slow
@pytest.mark.parametrize("name", ["finetune.py", "finetune_torch.py"])
def test_both_phases_read_one_stage(name, photographs):
  printed = run_program_of("finetune.md", name, smaller=SMALLER.items())
  epochs = re.findall(r"^ +\d +(\d+) +(\d+)", printed, re.MULTILINE)[-8:]
  assert epochs == [("16", "0")] + [("8", "8")] * 7


def test_last_layers_are_the_preprocessing_of_keras():
  page = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
  images, checked = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3) * 5, 0
  for names, last in re.findall(r"^([\w, ]+) \| [^|]+ \| `(.+)`$", page, re.MULTILINE):
    layer = eval(last, {"tf": tf, "normalize": rtf.augment.normalize})
    for name in names.split(", "):
      module = importlib.import_module(f"keras.applications.{name}")
      expected = module.preprocess_input(images.astype(np.float32))
      np.testing.assert_allclose(layer(tf.constant(images)), expected, atol=1e-5)
      checked += 1
  assert checked == 11

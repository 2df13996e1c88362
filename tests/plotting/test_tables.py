"""Notebooks show descriptions, counts and advice as HTML, with everything that would be printed. A terminal shows them
as plain text."""

import html
import re
import xml.etree.ElementTree

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases


def words(text):
  return re.sub(r"[\s-]+", " ", text).strip().split(" ")


def shown(value):
  """Returns the tree and the words of the HTML that a notebook shows. The HTML must be well-formed."""
  tree = xml.etree.ElementTree.fromstring(f"<div>{value._repr_html_()}</div>")
  return tree, words(" ".join(tree.itertext()))


@pytest.fixture
def train():
  dataset = tf.data.Dataset.range(600).refurbish(lambda x: 10 * x, r=3, seed=7, name="train").batch(2)
  for _ in range(3):
    list(dataset)
  return dataset


def test_descriptions(train):
  description = rtf.describe(train)
  assert isinstance(description, str) and str(description).startswith('refurbish "train", r = 3\n  epoch ')
  _, found = shown(description)
  assert found == words(description)
  assert shown(rtf.describe(tf.data.Dataset.range(3)))[1] == words("no reuse stages")


def test_counts(train):
  stages = rtf.stats(train)
  tree, found = shown(stages)
  assert set(words(str(stages[0]))) <= set(found)
  bars = [
    [float(re.search(r"width: ([\d.]+)%", part.get("style"))[1]) for part in bar.iterfind("span")]
    for bar in tree.iterfind(".//td/span")
  ]
  # Each epoch has a bar for its samples and one for its waits.
  assert bars[::2] == [[100, 0], [33.33, 66.67], [33.33, 66.67]] and max(map(sum, bars[1::2])) == pytest.approx(
    100, abs=0.1
  )
  assert "fresh 200" in html.unescape(stages._repr_html_())
  echoed = tf.data.Dataset.range(3).echo(rtf.AUTOTUNE)
  assert "no stages" in rtf.stats(tf.data.Dataset.range(3))._repr_html_() and shown(rtf.stats(echoed))


@cases.slow
def test_advice():
  source = tf.data.Dataset.from_tensor_slices(tf.zeros([64, 16, 16, 3], tf.uint8))
  advice = rtf.advise(source, [*rtf.augment.rand_augment(), rtf.augment.random_flip()], batch_size=8, max_seconds=0.2)
  assert set(words(str(advice))) - set(words("Nothing to change. Standard training is: Take:")) <= set(shown(advice)[1])

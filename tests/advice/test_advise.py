"""`rtf.advise`: measurements in clear cases, the code that it suggests, and bad input."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine
from refurbish_tf.advice import measure
from support import cases

pytestmark = cases.slow

# As an attribute, `refurbish_tf.advice.advise` is the function, which hides the module of the same name.
module = importlib.import_module("refurbish_tf.advice.advise")
AUGMENT = rtf.augment
IMAGES = tf.data.Dataset.from_tensor_slices(
  (np.random.default_rng(7).integers(0, 256, [12, 8, 8, 3], np.uint8), np.arange(12))
)
FILES = tf.data.Dataset.from_tensor_slices(
  (
    [
      tf.io.encode_jpeg(np.random.default_rng(i).integers(0, 256, [60, 80 + i, 3], np.uint8)).numpy() for i in range(12)
    ],
    np.arange(12),
  )
)
CHEAP = [AUGMENT.random_crop(padding=2), AUGMENT.random_flip()]
QUICK = {"batch_size": 4, "max_seconds": 0.2}


def busy(image, seed):
  """Takes milliseconds, and adds one of three numbers. Runs in one thread: if several threads shared the work, the time
  that they spend waiting for each other would be counted as well."""
  number = tf.random.stateless_uniform([], seed, 0, 3, tf.int32)
  noise = tf.random.stateless_uniform([256, 256, 3], seed, 0, 256, tf.int32)
  zero = tf.minimum(0, tf.strings.length(tf.io.encode_png(tf.cast(noise, tf.uint8))))
  return image // 2 + tf.cast(number + zero, tf.uint8)


def flip(image, seed):
  return AUGMENT.random_flip()(image, seed)


def labels(dataset):
  return sorted(int(label) for _, batch in dataset for label in batch)


@pytest.mark.alone
def test_measures_layers_and_advises_correctly_in_clear_cases():
  layers = [[busy], (AUGMENT.random_crop(padding=2), [AUGMENT.random_flip(), lambda image: image // 3])]
  advice = rtf.advise(IMAGES, layers, memory=1e9, batch_size=4, max_seconds=1)
  assert [layer.name for layer in advice.layers] == ["busy", "random_crop", "random_flip", "<lambda>"]
  assert [layer.num_outcomes for layer in advice.layers] == [3, 25, 2, 1]
  assert advice.layers[0].seconds > 5 * max(layer.seconds for layer in advice.layers[1:])
  # A stored sample has the image and the int64 label.
  assert [layer.sample_bytes for layer in advice.layers] == [8 * 8 * 3 + 8] * 4
  assert advice.best.split == 1 and advice.best.r == 2 and advice.input_waits is None
  text = str(advice)
  assert text.index(advice.best.name) < text.index("standard  ") and text.endswith(advice.code)
  assert "r = 2 is the most" in text and "step_seconds is not given" in text
  train = advice.apply(IMAGES)
  assert labels(train) == labels(train) == list(range(12))


def test_the_lines_of_every_strategy_are_run(tmp_path):
  layers = [AUGMENT.decode_random_resized_crop(8), [*CHEAP, AUGMENT.normalize()]]
  advice = rtf.advise(FILES, layers, memory=30_000, disk=tmp_path, epochs=3, min_diversity=0.5, **QUICK)
  kinds = {
    (strategy.kind, strategy.elements, strategy.elements_in, strategy.samples_in): strategy
    for strategy in advice.strategies
  }
  assert {kind for kind, *_ in kinds} == {"standard", "kept", "refurbish", "both"}
  assert {form for _, form, *_ in kinds} == {None, "encoded", "decoded"}
  for kind in cases.some(sorted(kinds, key=str), 6):
    strategy = kinds[kind]
    train = strategy.apply(FILES)
    assert train.element_spec[0] == tf.TensorSpec([None, 8, 8, 3], tf.float32)
    assert labels(train) == labels(train) == list(range(12)), strategy.code
  assert any(strategy.elements == "decoded" and strategy.elements_limit for strategy in advice.strategies)
  # No file of the measurements is left on the disk.
  assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_elements_are_kept_decoded_alone_or_after_their_first_layer():
  layers = [AUGMENT.decode(), lambda image: image[:40, :40], AUGMENT.random_flip()]
  advice = rtf.advise(FILES, layers, memory=1e9, **QUICK)
  kept = next(strategy for strategy in advice.strategies if strategy.kind == "kept" and strategy.elements == "decoded")
  assert "source.map(rtf.augment.compose(layers[:2])" in kept.code and "source.refurbish(layers[2:], r=1)" in kept.code
  # No elements are kept after a layer with stateful randomness.
  found = rtf.advise(
    IMAGES, [lambda image: tf.image.random_flip_left_right(image), AUGMENT.random_crop(padding=2)], memory=1e9, **QUICK
  )
  assert not [strategy for strategy in found.strategies if strategy.elements == "decoded"]


@pytest.mark.parametrize(
  "source, layers, more",
  [
    (IMAGES.map(lambda image, label: {"image": image, "label": label}), CHEAP, {}),
    (IMAGES.map(lambda image, label: image), CHEAP, {}),
    # A stream is kept completely or not at all.
    (IMAGES.filter(lambda image, label: True).apply(tf.data.experimental.assert_cardinality(12)), CHEAP, {}),
    pytest.param(
      IMAGES.map(lambda image, label: (image, image[..., :1])),
      CHEAP,
      {"targets": {1: "mask"}},
      marks=cases.only_exhaustive,
    ),
    pytest.param(
      IMAGES.batch(3).map(lambda images, labels: (images, labels[0])),
      [*CHEAP, *AUGMENT.auto_augment("cifar10")],
      {},
      marks=cases.only_exhaustive,
    ),
    pytest.param(FILES, [AUGMENT.decode(), AUGMENT.random_flip()], {}, marks=cases.only_exhaustive),
    pytest.param(IMAGES, [AUGMENT.resize((6, 6)), *CHEAP, AUGMENT.normalize()], {}, marks=cases.only_exhaustive),
    pytest.param(
      tf.data.Dataset.from_tensor_slices(["a small text", "another one"]),
      [tf.strings.lower],
      {},
      marks=cases.only_exhaustive,
    ),
  ],
)
def test_kinds_of_sources(source, layers, more):
  advice = rtf.advise(source, layers, memory=1e9, **QUICK, **more)
  number = int(source.cardinality())
  for strategy in {strategy.kind: strategy for strategy in advice.strategies}.values():
    train = strategy.apply(source)
    assert sum(1 for _ in train.unbatch()) == sum(1 for _ in train.unbatch()) == number, strategy.code


def test_no_change_is_advised_if_the_accelerator_does_not_wait(monkeypatch):
  monkeypatch.setattr(machine, "has_accelerator", lambda: True)
  advice = rtf.advise(IMAGES, CHEAP, step_seconds=2.0, **QUICK)
  assert advice.input_waits is False and advice.best.kind == "standard"
  assert str(advice).startswith("The input is not the bottleneck") and "Nothing to change" in str(advice)
  advice = rtf.advise(IMAGES, CHEAP, step_seconds=1e-9, **QUICK)
  assert advice.input_waits is True and "offload(layers)" in str(advice)
  # `offload` refuses user functions, so it is not suggested.
  assert "offload" not in str(rtf.advise(IMAGES, [*CHEAP, flip], step_seconds=1e-9, **QUICK))
  monkeypatch.setattr(machine, "has_accelerator", lambda: False)
  advice = rtf.advise(IMAGES, CHEAP, step_seconds=2.0, **QUICK)
  assert advice.input_waits is None and "The CPU also trains: standard training's input takes 0 %" in str(advice)


@pytest.mark.parametrize("number, most_read, in_place", [(8, 4096, False), (64, 16, True)])
def test_an_epoch_is_long_enough_to_be_measured(monkeypatch, number, most_read, in_place):
  """Few elements are measured several times. If there are many, more are measured than were read at first, and they
  come from the source itself."""
  found = {}
  pipelines = measure.Measurement._pipelines

  def spied(self):
    found.update(samples=self.num_samples, read=self.num_read, in_place="source" in self._held)
    return pipelines(self)

  monkeypatch.setattr(measure, "MOST_READ", most_read)
  monkeypatch.setattr(measure.Measurement, "_pipelines", spied)
  source = tf.data.Dataset.from_tensor_slices(np.zeros([number, 8, 8, 3], np.uint8))
  rtf.advise(source, [AUGMENT.random_flip()], batch_size=4, max_seconds=2)
  # An epoch is a whole number of passes over the elements that were read. A busy machine reads fewer of them.
  assert found["samples"] % found["read"] == 0 and found["samples"] + found["read"] > 16
  assert found["in_place"] == in_place and (not in_place or found["samples"] <= number)


def test_unknown_lengths_and_python_layers_are_reported(monkeypatch):
  monkeypatch.setattr(module, "LEAST_PYTHON", -1)
  source = IMAGES.filter(lambda image, label: True)
  layer = lambda image: tf.ensure_shape(tf.numpy_function(np.copy, [image], tf.uint8), [8, 8, 3])
  text = str(rtf.advise(source, [layer, AUGMENT.random_flip()], **QUICK))
  assert "assert_cardinality" in text and "rtf.augment.numpy_layer" in text


def test_sounds_are_not_called_images_and_lengths_that_vary_are_explained():
  sounds = tf.data.Dataset.range(12).map(lambda number: (tf.ones([100 + number]), number))
  text = str(rtf.advise(sounds, [lambda wave: wave / 2, AUGMENT.time_shift()], **QUICK))
  assert "image" not in text and "r = 2 is the most" in text
  assert ".ragged_batch(4)" in text and "padded_batch is faster" in text
  images = tf.data.Dataset.range(12).map(lambda number: tf.zeros([8, 8 + number, 3], tf.uint8))
  assert "resize at the end" in str(rtf.advise(images, [AUGMENT.random_flip()], **QUICK))
  with pytest.raises(ValueError, match="'label'.*Leave labels out"):
    rtf.advise(sounds, [lambda wave, label: wave], **QUICK)


def test_elements_of_a_random_source_are_not_kept():
  source = IMAGES.map(lambda image, label: (tf.image.random_flip_left_right(image), label))
  advice = rtf.advise(source, [AUGMENT.random_crop(padding=2)], memory=1e9, **QUICK)
  assert not [strategy for strategy in advice.strategies if strategy.elements] and "draws random numbers" in str(advice)


@pytest.mark.parametrize(
  "changes, error, message",
  [
    (dict(layers=[]), ValueError, "^layers of advise .*at least one"),
    (dict(layers=flip), TypeError, "^layers .*list or tuple"),
    (dict(source=IMAGES.take(0)), ValueError, "no elements"),
    (dict(source=IMAGES.filter(lambda image, label: False)), ValueError, "^source .*empty"),
    (dict(source=IMAGES.repeat()), ValueError, "^source .*finite"),
    (dict(source=IMAGES.shuffle(3)), ValueError, "changes its order"),
    (dict(source=IMAGES.batch(4)), ValueError, "^source .*batches"),
    (dict(source=IMAGES.batch(4).prefetch(1)), ValueError, "^source .*batches"),
    (dict(source=IMAGES.refurbish([flip])), ValueError, "^source .*got refurbish"),
    (dict(source=rtf.sources.cached(IMAGES)), ValueError, "^source .*got CachedDataset"),
    (
      dict(source=IMAGES.map(lambda image, label: {"picture": image})),
      ValueError,
      "layer 1 of 1, .*'image'.*'picture'",
    ),
    (dict(layers=[lambda image: (image, image), flip]), ValueError, "^layers: layer 1 of 2, <lambda>, .*structure"),
    (dict(layers=[flip, lambda image: None]), ValueError, "^layers: layer 2 of 2"),
    (dict(layers=[lambda image: image[0, 0, 0], flip]), ValueError, "^layers: layer 2 of 2, flip, fails.*.height, wid"),
    # This layer fails only when it runs.
    (
      dict(layers=[flip, lambda image: tf.strings.to_number(tf.strings.as_string(image) + "x")]),
      ValueError,
      "^layers: layer 2 of 2, <lambda>, fails.*StringToNumberOp could not",
    ),
    (dict(disk="/no/such/folder"), ValueError, "^disk .*exists"),
    (dict(min_diversity=0), ValueError, "^min_diversity .*got 0"),
    (dict(epochs=10_001), ValueError, "^epochs .*10,000, got 10001"),
    (dict(num_batched_outcomes=0.5), ValueError, "^num_batched_outcomes .*got 0.5"),
    (dict(num_outcomes=[0.5]), ValueError, "^num_outcomes .*got 0.5"),
    (dict(num_outcomes=[2, 3]), ValueError, "^num_outcomes .*got 2 for 1"),
  ],
)
def test_bad_input(changes, error, message):
  arguments = {"layers": [flip], "source": IMAGES, **QUICK, **changes}
  with pytest.raises(error, match=f"(?s){message}"):
    rtf.advise(arguments.pop("source"), arguments.pop("layers"), **arguments)

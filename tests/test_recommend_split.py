"""`rtf.recommend_split`: the ranking for given times, and measurements where the result is clear."""
import importlib
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.advice import measure_split
from support import cases

# The function of the same name hides it as an attribute of the package.
module = importlib.import_module("refurbish_tf.advice.recommend_split")

# Its warnings depend on how long the layers take here. Tests that need one check for it.
pytestmark = pytest.mark.filterwarnings("ignore:recommend_split:UserWarning")

IMAGES = tf.data.Dataset.from_tensor_slices(
    (np.random.default_rng(7).integers(0, 256, [12, 8, 8, 3], np.uint8), np.arange(12)))
QUICK = {"epochs": 90, "max_seconds": 0.2, "num_samples": 8}
STAGE = 10e-6
MEMORY = 1e-6


def layer_named(name):
  def layer(image, seed):
    del seed
    return image
  layer.__name__ = name
  return layer


def recommend(layers, *, read=0.0, reads_all=False, epochs=90, min_diversity=0.95, reuse_factors=(2, 3, 4), specs=None,
              num_samples=1000, batched_outcomes=1, final=None, functions=None):
  """The recommendation for layers of (name, microseconds, outcomes) and images of 100 bytes."""
  names, times, outcomes = zip(*layers)
  times = [1e-6 * microseconds for microseconds in times]
  costs = measure_split.Costs(
      read=read, memory=MEMORY, standard=STAGE + sum(times), stage=STAGE,
      partial=tuple(STAGE + sum(times[:at]) for at in range(1, len(times) + 1)),
      final=final or tuple(STAGE + sum(times[at:]) for at in range(1, len(times))))
  image = tf.TensorSpec([None, None, 3], tf.uint8)
  return module._recommend(
      functions or [layer_named(name) for name in names], costs, [(number, False, number) for number in outcomes], batched_outcomes,
      specs or [image] * (len(layers) + 1), [100] * len(layers), num_samples, reads_all, epochs, min_diversity,
      reuse_factors)


PAPER = [("rand_augment", 500, 14), ("rand_augment", 500, 14), ("crop", 20, 81), ("flip", 10, 2)]


def test_recommends_the_split_of_the_paper():
  found = recommend(PAPER, reuse_factors=(2, 3))
  assert (found.best.split, found.r) == (2, 3)
  assert found.best.t_p == pytest.approx(1010e-6) and found.best.t_f == pytest.approx(41e-6)
  assert found.best.time == pytest.approx(1010e-6 / 3 + 41e-6)
  assert found.best.gain == pytest.approx(1041 / (1010 / 3 + 41))
  assert found.best.diversity == rtf.diversity.normalized_unique_samples(14 * 14 * 162, 162, 90, 3)
  assert [layer.time for layer in found.layers] == pytest.approx([500e-6, 500e-6, 20e-6, 10e-6])
  assert not found.warnings


def test_every_pair_is_ranked_by_its_time():
  found = recommend(PAPER)
  assert {(row.split, row.r) for row in found.predictions} == {(4, 1), *itertools.product([1, 2, 3, 4], [2, 3, 4])}
  assert sorted(found.predictions, key=lambda row: row.time) == list(found.predictions)
  standard, = (row for row in found.predictions if row.r == 1)
  assert standard.gain == 1 and standard.diversity == 1 and standard.time == pytest.approx(1041e-6)
  for row in found.predictions:
    assert row.time == pytest.approx(row.t_p / row.r + row.t_f) and row.gain == pytest.approx(standard.time / row.time)


def test_the_floor_decides():
  for floor, split in ((0.5, 4), (0.95, 2), (0.9985, 1)):
    found = recommend(PAPER, min_diversity=floor, epochs=3, reuse_factors=[2])
    assert found.best.diversity >= floor
    assert found.best.time == min(row.time for row in found.predictions if row.diversity >= floor)
    assert found.best.split == split
  # Only standard training has full diversity.
  assert recommend(PAPER, min_diversity=1).r == 1


def test_unbounded_outcomes():
  found = recommend([("blur", 500, math.inf), ("noise", 20, math.inf), ("flip", 10, 2)])
  assert all(row.diversity == pytest.approx(1) for row in found.predictions if row.split == 1)
  assert found.best.split == 1
  flip, = (row.diversity for row in found.predictions if (row.split, row.r) == (2, 3))
  assert flip == pytest.approx(rtf.diversity.normalized_unique_samples(1e15, 2, 90, 3))
  alone = recommend([("noise", 500, math.inf)])
  assert alone.r == 1 and alone.final_fn is None and alone.warnings


def test_reading():
  all_read, part_read = (recommend(PAPER, read=100e-6, reads_all=reads_all) for reads_all in (True, False))
  for found, share in ((all_read, 1), (part_read, 1 / 4)):
    assert found.r == 4
    assert found.best.time == pytest.approx(found.best.t_p / 4 + found.best.t_f + share * 100e-6)
    assert found.best.gain == pytest.approx(1141e-6 / found.best.time)


def test_expensive_last_layers_and_the_order_that_would_help():
  found = recommend(
      [("crop", 20, 81), ("flip", 10, 2), ("rand_augment", 500, 14), ("rand_augment", 500, 14)], min_diversity=0.98)
  assert found.best.gain < 1.1
  expensive, order = found.warnings
  assert "the last layers are the expensive ones" in expensive and "behind layer 2" in expensive
  assert "1,000 of the 1,030 µs" in expensive
  assert "2 flip, 3 rand_augment, 4 rand_augment, 1 crop, split behind rand_augment (4), r = 4" in order
  assert "change places" in order
  assert expensive in str(found) and order in str(found)
  # Nothing is reordered: the functions keep the order given.
  assert found.best.split <= 4 and found.layers[0].name == "crop"


def test_another_order_is_another_one():
  """The layers after a split were measured together; the sum of their times may be less."""
  layers = [("blur", 1000, 14), ("crop", 20, 81), ("flip", 10, 2)]
  found = recommend(layers, final=(2e-3, 2e-3), reuse_factors=[4])
  assert not any("Another order" in warning for warning in found.warnings)


def test_layers_that_change_the_type_keep_their_place():
  image, floats = tf.TensorSpec([8, 8, 3], tf.uint8), tf.TensorSpec([8, 8, 3], tf.float32)
  layers = [("crop", 20, 81), ("convert", 5, 1), ("blur", 1000, 14)]
  assert any("Another order" in warning for warning in recommend(layers).warnings)
  found = recommend(layers, specs=[image, image, floats, floats])
  assert found.warnings and not any("Another order" in warning for warning in found.warnings)


def test_no_split_keeps_enough_diversity():
  found = recommend([("blur", 1000, 1000), ("flip", 10, 2)])
  assert found.r == 1 and found.best.gain == 1
  assert found.final_fn is None
  warning = found.warnings[0]
  assert "No split keeps a normalised diversity of 0.95; the most is 0.7" in warning
  assert "behind layer 1 with r = 2" in warning
  assert "Standard training, r = 1" in str(found)


def test_what_is_cheap_gains_little():
  found = recommend([("crop", 2, 81), ("shift", 2, 81)])
  assert found.r == 1 or found.best.gain < 1.1
  assert "its own work" in found.warnings[0]


def test_prints_as_tables():
  text = str(recommend(PAPER, reuse_factors=[3], num_samples=50_000))
  assert text.splitlines() == [
      "Split behind layer 2 of 4, r = 3: 378 µs of CPU time per sample, standard 1,041 µs: 2.76x, "
      "normalised diversity 0.994",
      "",
      "   layer          µs  outcomes  bytes of a sample behind it  of 50,000",
      "1  rand_augment  500        14                          100       5 MB",
      "2  rand_augment  500        14                          100       5 MB",
      "3  crop           20        81                          100       5 MB",
      "4  flip           10         2                          100       5 MB",
      "",
      "split  r  t_p µs  t_f µs  predicted µs   gain  normalised diversity",
      "    4  3   1,040     1.0           348  2.99x                 0.341  below 0.95",
      "    3  3   1,030      21           364  2.86x                 0.589  below 0.95",
      "    2  3   1,010      41           378  2.76x                 0.994  <- recommended",
      "    1  3     510     541           711  1.46x                 1.000",
      "    -  1   1,040     1.0         1,041  1.00x                 1.000  standard",
      "Predicted: t_p / r + t_f, and 0.0 µs for reading (only what is prepared).",
  ]


def test_refurbish_takes_it():
  for layers in (PAPER, PAPER[2:]):
    found = recommend(layers)
    assert set(found.keys()) == {"partial_fn", "final_fn", "r"}
    assert len(list(IMAGES.refurbish(**found))) == 12
    with pytest.raises(KeyError):
      found["store"]


def test_noise_does_not_make_negative_times():
  costs = measure_split.Costs(read=0.0, memory=1.0, standard=29.0, stage=10.0, partial=(9.0, 30.0, 29.0), final=(31.0, 8.0))
  assert all(seconds >= 0 for seconds in costs.layers())
  # For a cheap layer beside an expensive one, the difference without the expensive one counts.
  costs = measure_split.Costs(read=0.0, memory=1.0, standard=1027.0, stage=10.0,
                              partial=(1000.0, 1015.0, 1027.0), final=(25.0, 15.0))
  assert costs.layers() == (990.0, 10.0, 5.0)


@pytest.mark.parametrize("draws, expected", [
    (itertools.cycle([1]), (1, False, 1)),
    (itertools.cycle(range(20)), (20, False, 20)),
    (itertools.cycle(range(1000)), (1000, False, 1000)),
    (itertools.count(), (math.inf, False, math.inf)),
    # Every second draw is a different one: two are the same in a quarter of the cases.
    ((i // 2 * (i % 2) for i in itertools.count()), (measure_split.MOST_DRAWS // 2, True, pytest.approx(4, rel=0.01))),
    # Two outcomes, one of which comes once in ten draws.
    ((i % 10 == 0 for i in itertools.count()), (2, False, pytest.approx(1 / (0.9**2 + 0.1**2), rel=0.05))),
])
def test_count_distinct(draws, expected):
  assert measure_split.count_distinct(draws, measure_split.FEWEST_DRAWS, lambda: False) == expected


def test_counting_ends_when_the_time_is_up():
  drawn = []
  draws = (drawn.append(i) or i % 50 for i in itertools.count())
  assert measure_split.count_distinct(draws, 64, lambda: True)[:2] == (50, True)
  assert len(drawn) == 64
  assert measure_split.count_distinct(itertools.count(), 64, lambda: True)[:2] == (math.inf, False)
  # Too few draws to tell.
  assert measure_split.count_distinct(itertools.count(), 8, lambda: True)[:2] == (8, True)


def busy(image, seed):
  """Takes milliseconds, and adds one of three numbers."""
  number = tf.random.stateless_uniform([], seed, 0, 3, tf.int32)
  busy_matrix = tf.random.stateless_normal([150, 150], seed)
  for _ in range(4):
    busy_matrix = tf.tanh(busy_matrix @ busy_matrix)
  zero = tf.cast(tf.clip_by_value(tf.abs(busy_matrix[0, 0]), 0, 0.5), tf.uint8)
  return image // 2 + tf.cast(number, tf.uint8) + zero


def noise(image, seed):
  return image + tf.cast(tf.random.stateless_uniform(tf.shape(image), seed, 0, 9, tf.int32), tf.uint8)


@pytest.mark.alone
def test_measures_and_counts():
  layers = [[busy, lambda image: image // 3], (rtf.augment.random_flip(), [noise])]
  found = rtf.recommend_split(layers, IMAGES, **QUICK)
  assert [layer.name for layer in found.layers] == ["busy", "<lambda>", "random_flip", "noise"]
  assert [layer.num_outcomes for layer in found.layers] == [3, 1, 2, math.inf]
  assert not any(layer.is_lower_bound for layer in found.layers)
  assert found.layers[0].time > 5 * max(layer.time for layer in found.layers[1:])
  assert found.best.split in (1, 2, 3) and found.r == 4 and found.best.gain > 1.5
  # The label is in the cache store, too.
  assert [layer.sample_bytes for layer in found.layers] == [8 * 8 * 3 + 8] * 4
  assert found.num_samples == 12 and not found.reads_all
  labels = [int(label) for _, label in IMAGES.refurbish(**found)]
  assert sorted(labels) == list(range(12))


def mostly_nothing(image, seed):
  """One of 59 outcomes, the same one in 96 of 100 cases."""
  number = tf.random.stateless_uniform([], seed, 0, 1500, tf.int32)
  return image + tf.cast(tf.minimum(number, 58), tf.uint8)


@pytest.fixture
def all_draws(monkeypatch):
  """Outcomes are counted to the end, however long that takes, but for one image and a limited number of draws."""
  monkeypatch.setattr(measure_split, "MOST_DRAWS", 1024)
  monkeypatch.setattr(measure_split, "COUNTED_SAMPLES", 1)
  count = measure_split.count_distinct
  monkeypatch.setattr(measure_split, "count_distinct", lambda draws, fewest, _: count(draws, fewest, lambda: False))


def test_rare_outcomes_are_no_diversity(all_draws):
  """Theorem 1, for equally likely outcomes, promises far too much here: r uses of a sample hardly differ."""
  with pytest.warns(UserWarning, match="recommend_split: "):
    found = rtf.recommend_split(
        [lambda image, seed: busy(noise(image, seed), seed), mostly_nothing], IMAGES, num_outcomes=[math.inf, None], **QUICK)
  assert "as if equally likely" in str(found)
  layer = found.layers[1]
  assert layer.num_outcomes > 10 and layer.effective_outcomes == pytest.approx(1 / 0.9616**2, rel=0.05)
  predicted = {row.r: row.diversity for row in found.predictions if row.split == 1}
  draws = [list(tf.data.Dataset.range(300).map(
      lambda i: mostly_nothing(tf.zeros([], tf.uint8), tf.stack([tf.cast(i, tf.int32), use]))).as_numpy_iterator())
           for use in range(3)]
  # With a continuous partial augmentation: how many of a cached sample's uses differ.
  real = sum(len(set(uses)) for uses in zip(*draws)) / (3 * 300)
  assert predicted[3] < real + 0.1 and found.r == 1


@cases.only_exhaustive
def test_rare_outcomes_are_no_diversity_wherever_they_are(all_draws):
  """If it is cached, a layer that mostly does nothing does not hide the loss by the layers after it."""
  def rare(image, seed):
    applied = tf.random.stateless_uniform([], seed, 0, 10, tf.int32) == 0
    drawn = tf.random.stateless_uniform([], seed + 1, 1, 120, tf.int32)
    return image + tf.cast(tf.where(applied, drawn, 0), tf.uint8)

  with pytest.warns(UserWarning, match="recommend_split: "):
    found = rtf.recommend_split([rare, rtf.augment.random_flip()], IMAGES, **QUICK)
  predicted = {(row.split, row.r): row.diversity for row in found.predictions}
  # Counted behind `refurbish`: 0.82, 0.69 and 0.57, and with nothing fresh 0.61 and 0.39.
  for (split, r), most in {(1, 2): 0.85, (1, 3): 0.72, (1, 4): 0.6, (2, 2): 0.64, (2, 4): 0.42}.items():
    assert predicted[split, r] < most, (split, r)
  assert found.r == 1


def test_what_is_behind_a_split_costs_what_it_adds():
  """Separately measured times do not add up; a gain larger than the cached layer's time does not count."""
  found = recommend([("crop", 1, 81), ("rand_augment", 1000, 14)], batched_outcomes=162, min_diversity=0.1,
                    final=(STAGE + 700e-6,), reuse_factors=(2,))
  assert next(row for row in found.predictions if row.split == 1).t_f >= 1000e-6


def test_layers_that_stay_together_change_places_together():
  """AutoAugment's two layers pass on more than an image."""
  image, half = tf.TensorSpec([None, None, 3], tf.uint8), tf.TensorSpec([2], tf.uint8)
  found = recommend(
      [("crop", 20, 81), ("flip", 10, 2), ("first", 500, 200), ("second", 500, 20)], specs=[image, image, image, half, image],
      functions=[rtf.augment.random_crop(4), rtf.augment.random_flip(), *rtf.augment.auto_augment("cifar10")],
      reuse_factors=(2, 3))
  order = found.warnings[-1]
  assert "3 auto_augment_first, 4 auto_augment_second, 1 random_crop, split behind auto_augment_second (4)" in order


def test_outcomes_behind_the_stage_count():
  """Crop and flip of whole batches: with them both layers of the paper may be cached, without them one."""
  rand_augment = PAPER[:2]
  assert recommend(rand_augment).best.split == 1
  found = recommend(rand_augment, batched_outcomes=162, reuse_factors=(2, 3))
  assert (found.best.split, found.r) == (2, 3) and found.final_fn is None
  assert found.best.diversity == rtf.diversity.normalized_unique_samples(14 * 14 * 162, 162, 90, 3)


@cases.only_exhaustive
def test_bytes_are_those_of_the_store():
  """Also for samples of different size and strings, and for a stream of unknown length."""
  source = tf.data.Dataset.range(1, 7).filter(lambda i: i > 0).map(
      lambda i: {"image": tf.fill([i, 1, 3], tf.constant(3, tf.uint8)), "id": tf.strings.as_string(i)})
  found = rtf.recommend_split(
      [lambda image: tf.repeat(image, 4, axis=1), rtf.augment.random_flip()], source, epochs=90, max_seconds=0.2,
      num_samples=4)
  assert found.num_samples is None and found.reads_all
  assert "of " not in str(found).splitlines()[2].replace("bytes of a sample", "")
  store = rtf.CacheStore()
  samples = source.take(4).refurbish(
      lambda element: {**element, "image": tf.repeat(element["image"], 4, 1)}, store=store)
  assert len(list(samples)) == 4
  assert found.layers[0].sample_bytes == store.stats().bytes / 4


@cases.only_exhaustive
def test_text_and_ragged():
  texts = tf.data.Dataset.from_tensor_slices(["a small text", "another one"])

  def drop_words(text, seed):
    words = tf.strings.split(text)
    return tf.strings.reduce_join(
        tf.boolean_mask(words, tf.random.stateless_uniform(tf.shape(words), seed) < 0.7), separator=" ")

  found = rtf.recommend_split([tf.strings.lower, drop_words], texts, **{**QUICK, "epochs": 1})
  assert {row.r for row in found.predictions} == {1}
  found = rtf.recommend_split([tf.strings.lower, drop_words], texts, **QUICK)
  assert found.layers[0].num_outcomes == 1 and 2 <= found.layers[1].num_outcomes <= 8
  assert len(list(texts.refurbish(**found))) == 2
  rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3]]))
  found = rtf.recommend_split([lambda row: row + 1, lambda row: row * 2], rows, **QUICK)
  assert len(list(rows.refurbish(**found))) == 2


def flip(image, seed):
  return rtf.augment.random_flip()(image, seed)


@pytest.mark.parametrize("changes, error, message", [
    (dict(layers=[]), ValueError, "^layers of recommend_split .*at least one"),
    (dict(layers=flip), TypeError, "^layers .*list or tuple"),
    (dict(layers=[flip, 3]), TypeError, "^layers .*3 at position 1"),
    (dict(dataset=[1, 2]), TypeError, r"^dataset .*got \[1, 2\]"),
    (dict(dataset=IMAGES.take(0)), ValueError, "has no elements"),
    (dict(dataset=IMAGES.filter(lambda image, label: False)), ValueError, "^dataset .*empty"),
    (dict(dataset=IMAGES.repeat()), ValueError, r"infinite.*Put .repeat\(\) behind refurbish"),
    (dict(dataset=IMAGES.shuffle(3)), ValueError, "changes its order"),
    (dict(dataset=IMAGES.map(lambda image, label: {"picture": image})), ValueError, "layer 1 of 1, .*'image'.*'picture'"),
    (dict(layers=[lambda image: (image, image), flip]), ValueError, "^layers: layer 1 of 2, <lambda>, .*structure"),
    # In a dataset without labels the second component is not taken for one.
    *((dict(dataset=IMAGES.map(lambda image, label: image), layers=[layer, *behind]), ValueError,
       "^layers: layer 1 of ., <lambda>, .*structure")
      for layer in (lambda image: (image, image), lambda image: [image, image]) for behind in ([], [flip])),
    (dict(layers=[flip, lambda image: None]), ValueError, "^layers: layer 2 of 2"),
    (dict(layers=[lambda image: image[0, 0, 0], flip]), ValueError, "^layers: layer 2 of 2, flip, fails.*.height, wid"),
    # Fails only when it runs.
    (dict(layers=[flip, lambda image: tf.strings.to_number(tf.strings.as_string(image) + "x")]), ValueError,
     "^layers: layer 2 of 2, <lambda>, fails.*StringToNumberOp could not"),
    (dict(min_diversity=0), ValueError, "^min_diversity .*got 0"),
    (dict(min_diversity=1.01), ValueError, "^min_diversity .*got 1.01"),
    (dict(min_diversity=math.nan), ValueError, "^min_diversity .*got nan"),
    (dict(min_diversity="much"), TypeError, "^min_diversity .*got 'much'"), (dict(epochs=0), ValueError, "^epochs .*got 0"),
    (dict(epochs=2.5), TypeError, "^epochs .*got 2.5"),
    (dict(epochs=10_001), ValueError, "^epochs .*10,000, got 10001"),
    (dict(epochs=2, reuse_factors=[2, 3]), ValueError, "^reuse_factors .*epochs=2.*got 3"),
    (dict(reuse_factors=[0.5]), ValueError, "^reuse_factors .*got 0.5"), (dict(reuse_factors=[]), ValueError, "^reuse_factors .*empty"),
    (dict(reuse_factors=3), TypeError, r"^reuse_factors .*list.*got 3"),
    (dict(num_batched_outcomes=0.5), ValueError, "^num_batched_outcomes .*got 0.5"),
    (dict(num_batched_outcomes="162"), TypeError, "^num_batched_outcomes .*got '162'"),
    (dict(num_outcomes=[0.5]), ValueError, "^num_outcomes .*got 0.5"),
    (dict(num_outcomes=[math.nan]), ValueError, "^num_outcomes .*got nan"), (dict(num_outcomes=["2"]), TypeError, "^num_outcomes .*got '2'"),
    (dict(num_outcomes=[2, 3]), ValueError, "^num_outcomes .*got 2 for 1 layers"),
    (dict(num_outcomes=2), TypeError, "^num_outcomes .*list"),
    (dict(num_outcomes={2, 3}), TypeError, "^num_outcomes .*list"), (dict(num_samples=0), ValueError, "num_samples"),
    (dict(max_seconds=0), ValueError, "^max_seconds .*got 0")])
def test_bad_input(changes, error, message):
  given = {"layers": [flip], "dataset": IMAGES, **QUICK, **changes}
  with pytest.raises(error, match=f"(?s){message}"):
    rtf.recommend_split(given.pop("layers"), given.pop("dataset"), **given)

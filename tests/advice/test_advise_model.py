"""`rtf.advise`: predictions for given costs, the choice of a strategy, its code, and how outcomes are counted."""

import itertools
import math
import re

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal.dataset_graph import PLAIN_MAP_CALLS
from refurbish_tf.advice import advise, measure, order, outcomes, plan, report, samples, strategies
from refurbish_tf.augment import composition

LAYERS = ("decode", "policy", "crop")
# CPU seconds of a sample: with all layers, from its decoded element, for its part of a batch, and in standard training.
FRESH, DECODED, BATCH, STANDARD = 1000e-6, 300e-6, 20e-6, 1100e-6
# CPU seconds of a sample whose decoded element does not fit into the store, so that it is decoded again.
MISSED = 1200e-6
HIT = {1: 300e-6, 2: 60e-6, 3: 40e-6}
BYTES, ENCODED, WHOLE = {1: 150.0, 2: 150.0, 3: 600.0}, 50.0, 400.0


def costs(**changes):
  return measure.Costs(
    **{
      **dict(
        standard=STANDARD,
        fresh={"encoded": FRESH, "decoded": DECODED},
        hit=dict(HIT),
        missed={"encoded": FRESH, "decoded": MISSED},
        first=dict.fromkeys(HIT, FRESH + 10e-6),
        batch=BATCH,
        sample_bytes=dict(BYTES),
        element_bytes={"encoded": ENCODED, "decoded": WHOLE},
      ),
      **changes,
    }
  )


def given(measured=None, **changes):
  forms = (measure.Form("encoded", LAYERS, 0), measure.Form("decoded", LAYERS, 1))
  return strategies.Settings(
    **{
      **dict(
        costs=measured or costs(),
        forms=forms,
        splits=(1, 2, 3),
        num_samples=20_000,
        is_by_index=True,
        epochs=10,
        batch_size=10,
        processors=2,
        step_seconds=None,
        trains_on_cpu=False,
        memory=1e9,
        disk=0.0,
        free_memory=2e9,
        serial=(0.0, 0.0, 0.0),
        outcomes=(math.inf, 19, 81),
        effective=(math.inf, 17, 81, 1),
      ),
      **changes,
    }
  )


def all_strategies(measured=None, **changes):
  return strategies.Model(given(measured, **changes), None).strategies()


def the(found, **wanted):
  (strategy,) = (
    strategy for strategy in found if all(getattr(strategy, name) == value for name, value in wanted.items())
  )
  return strategy


def test_times_add_and_the_first_epoch_counts():
  strategy = the(all_strategies(), kind="refurbish", split=2, r=3)
  first, later = FRESH + 10e-6 + BATCH, HIT[2] + (FRESH + 10e-6 - HIT[2]) / 3 + BATCH
  assert (strategy.first_cpu_seconds, strategy.later_cpu_seconds) == pytest.approx((first, later))
  assert strategy.cpu_seconds == pytest.approx((first + 9 * later) / 10)
  # The rate follows from the time of all epochs. It is not the mean of their rates.
  assert strategy.samples_per_second == pytest.approx(2 / strategy.cpu_seconds)
  assert strategy.kept_bytes == pytest.approx(20_000 * 150 * 2 / 3)
  assert strategy.read_bytes == pytest.approx(50 * (1 + 9 / 3) / 10)


def test_combined_strategy_saves_as_much_as_its_parts():
  found = all_strategies()
  both = the(found, kind="both", elements="decoded", split=2, r=3)
  alone = the(found, kind="refurbish", split=2, r=3)
  assert alone.later_cpu_seconds - both.later_cpu_seconds == pytest.approx((FRESH - DECODED) / 3)
  assert both.kept_bytes == pytest.approx(alone.kept_bytes + 20_000 * WHOLE)
  # Decoded elements are not combined with a split after decoding, because both would hold the same data.
  assert not [
    strategy for strategy in found if strategy.kind == "both" and strategy.elements == "decoded" and strategy.split == 1
  ]


def test_limited_memory_keeps_a_fraction_of_the_elements():
  room = 20_000 * WHOLE / 4
  found = all_strategies(memory=room)
  kept = the(found, kind="kept", elements="decoded")
  assert kept.elements_fraction == pytest.approx(1 / 4) and kept.elements_limit == int(room)
  assert kept.first_cpu_seconds == pytest.approx(MISSED + BATCH)
  assert kept.later_cpu_seconds == pytest.approx(BATCH + DECODED / 4 + MISSED * 3 / 4)
  assert max(strategy.kept_bytes for strategy in found) <= room + 1
  # Memory goes to the samples of a stage first. Elements get the rest.
  both = the(found, kind="both", elements="encoded", split=2, r=2)
  assert both.fits and both.elements_fraction == pytest.approx((room - 20_000 * 150 / 2) / (20_000 * ENCODED))
  tight = the(all_strategies(memory=1e6), kind="refurbish", split=2, r=3)
  # There is room for a third of the samples, so two of three are fresh.
  assert tight.samples_limit == 1_000_000 and not tight.fits
  assert tight.later_cpu_seconds == pytest.approx(HIT[2] + (FRESH + 10e-6 - HIT[2]) * 2 / 3 + BATCH)


def test_stores_have_a_limit_where_larger_samples_would_not_fit():
  need = 20_000 * BYTES[2] * 2 / 3
  limits = {
    room: the(all_strategies(memory=room * need), kind="refurbish", split=2, r=3).samples_limit for room in (1.5, 2.5)
  }
  assert limits == {1.5: int(1.5 * need), 2.5: None}
  # Not a single sample fits.
  assert not [strategy for strategy in all_strategies(memory=BYTES[2] - 1, num_samples=10) if strategy.split == 2]


def test_a_stream_is_kept_completely_or_not_at_all():
  found = all_strategies(is_by_index=False, memory=20_000 * WHOLE / 2, measured=costs(read=5e-6))
  assert not [strategy for strategy in found if strategy.elements == "decoded"]
  # All elements of a stream are read in every epoch.
  assert the(found, kind="refurbish", split=2, r=2).read_bytes == ENCODED


def test_nothing_is_kept_if_the_number_of_samples_is_unknown():
  assert {strategy.kind for strategy in all_strategies(num_samples=None)} == {"standard"}


@pytest.mark.parametrize("number, factors", [(9_999, {2}), (10_000, {2, 3})])
def test_few_samples_are_used_twice_at_most(number, factors):
  assert {strategy.r for strategy in all_strategies(num_samples=number) if strategy.split} == factors


def test_the_slowest_resource_limits_the_throughput():
  measured = costs(read_cold=2e-3, read_warm=1e-3)
  standard = the(all_strategies(measured), kind="standard")
  # The first epoch reads from the disk, the others from the page cache.
  assert standard.samples_per_second == pytest.approx(10 / (2e-3 + 9 * 1e-3))
  assert the(all_strategies(measured, free_memory=1e6), kind="standard").samples_per_second == pytest.approx(1 / 2e-3)
  assert the(all_strategies(measured), kind="kept", elements="encoded").samples_per_second == pytest.approx(
    10 / (2e-3 + 9 * (FRESH + BATCH) / 2)
  )
  # Python functions run one at a time, regardless of the number of cores.
  slow = all_strategies(serial=(0.0, 5e-3, 0.0))
  assert the(slow, kind="standard").samples_per_second == pytest.approx(1 / 5e-3)
  assert the(slow, kind="refurbish", split=2, r=2).samples_per_second == pytest.approx(10 / (5e-3 + 9 * 2.5e-3))
  stepping = all_strategies(step_seconds=0.1)
  assert the(stepping, kind="refurbish", split=2, r=3).samples_per_second == pytest.approx(10 / 0.1)
  # The CPU does both the training and the input.
  assert the(
    all_strategies(step_seconds=0.01, trains_on_cpu=True), kind="standard"
  ).samples_per_second == pytest.approx(1 / (0.01 / 10 + STANDARD / 2))


def test_a_disk_costs_its_calls_and_its_bytes():
  measured = costs(disk_hit=(2e-6, 1e-7), disk_put=(3e-6, 2e-7), disk_rate=1e6)
  found = all_strategies(measured, disk=1e9, memory=1e9)
  memory, disk = (the(found, kind="refurbish", split=2, r=2, samples_in=place) for place in ("memory", "disk"))
  assert disk.later_cpu_seconds - memory.later_cpu_seconds == pytest.approx((2e-6 + 15e-6 + 3e-6 + 30e-6) / 2)
  assert (disk.kept_bytes, disk.disk_bytes) == (0, memory.kept_bytes)
  # The part that does not fit into the page cache comes from the disk: 75 bytes per sample.
  slow = the(
    all_strategies(costs(disk_rate=1e4), disk=1e9, free_memory=1e6), kind="refurbish", split=2, r=2, samples_in="disk"
  )
  assert slow.samples_per_second == pytest.approx(10 / (1030e-6 / 2 + 9 * 75 / 1e4))


@pytest.mark.parametrize(
  "sizes, seconds, expected",
  [
    ({1: 100.0, 3: 1100.0}, {1: 3e-6, 3: 5e-6}, (2.8e-6, 2e-9)),  # a cost per sample and one per byte
    ({1: 100.0, 3: 110.0}, {1: 3e-6, 3: 5e-6}, (0, 5e-6 / 110)),  # sizes too similar to separate the two costs
    ({2: 400.0}, {2: 4e-6}, (0, 1e-8)),
    ({1: 100.0, 3: 1100.0}, {1: 5e-6, 3: 3e-6}, (5e-6, 0)),
    ({2: 400.0}, {2: -1e-6}, (0, 0)),
  ],
)
def test_disk_time_is_split_into_costs_per_sample_and_per_byte(sizes, seconds, expected):
  measured = object.__new__(measure.Measurement)
  measured.costs = costs(sample_bytes=sizes)
  assert measured._by_size(seconds) == pytest.approx(expected, abs=1e-12)


def test_diversity_is_that_of_the_theory():
  found = all_strategies()
  expected = rtf.diversity.normalized_unique_samples(1e12 * 81, 81, 10, 3)
  assert the(found, kind="refurbish", split=2, r=3).diversity == pytest.approx(expected)
  assert the(found, kind="kept", elements="decoded").diversity == 1
  # Random layers on batches, after all other layers, count as well.
  assert the(all_strategies(effective=(math.inf, 17, 81, 100)), kind="refurbish", split=3, r=3).diversity > 0.9
  assert the(found, kind="refurbish", split=3, r=3).diversity < 0.5


def test_the_picked_strategy_is_fast_and_diverse_enough():
  found = all_strategies()
  best = strategies.picked(found, 0.95)
  assert best.kind == "both" and best.diversity >= 0.95
  assert best.samples_per_second >= 0.97 * max(
    strategy.samples_per_second for strategy in found if strategy.diversity >= 0.95
  )
  # The least diversity is respected, even if other strategies are faster.
  assert all(strategies.picked(found, floor).diversity >= floor for floor in (0.9, 0.97, 1.0))
  # Ties in speed go to the most diverse strategy, and further ties to the one with the fewest bytes.
  limited = all_strategies(step_seconds=10.0)
  assert strategies.picked(limited, 0.95).kind == "standard"
  equal = all_strategies(step_seconds=0.004)
  chosen = strategies.picked(equal, 0.5)
  assert chosen.diversity > 0.999 and chosen.kept_bytes == min(
    strategy.kept_bytes
    for strategy in equal
    if strategy.diversity > 0.9995 and strategy.samples_per_second > 0.97 * equal[0].samples_per_second
  )


def test_names_say_what_is_kept_where():
  found = all_strategies(memory=20_000 * WHOLE / 4, disk=1e9)
  names = {strategy.name for strategy in found}
  assert {
    "standard",
    "25 % of decoded elements in memory",
    "encoded elements on disk",
    "r = 3 after layer 2, on disk",
  } <= names
  assert len(names) == len(found)


BATCHES = ".batch(128).prefetch(tf.data.AUTOTUNE)"


@pytest.mark.parametrize(
  "layers, apart, options, strategy, code",
  [
    (LAYERS, (), {}, {"split": 2}, f"train = source.refurbish(layers[:2], layers[2:], r=3){BATCHES}"),
    (
      LAYERS,
      (),
      {},
      {"kind": "standard"},
      f"""\
augment = rtf.augment.compose(layers)
seeds = tf.data.Dataset.random(rerandomize_each_iteration=True).batch(2)
train = tf.data.Dataset.zip(source.shuffle(1000), seeds)
train = train.map(lambda sample, seed: augment(*sample, seed=seed), num_parallel_calls={PLAIN_MAP_CALLS}){BATCHES}""",
    ),
    # A stream, and a split within the layers of a policy.
    (
      ["decode", ["policy", "policy"], "crop", "flip"],
      (),
      {"is_by_index": False, "targets": {1: "mask"}},
      {"split": 2, "elements": "decoded"},
      f"""\
source = source.map(rtf.augment.compose(layers[:1], targets=targets), tf.data.AUTOTUNE)
source = source.cache()
train = source.refurbish(layers[1][:1], [layers[1][1], *layers[2:]], r=3, targets=targets){BATCHES}""",
    ),
    (
      LAYERS,
      rtf.augment.decode_random_resized_crop(8).apart(),
      {},
      {"split": 2, "samples_in": "disk", "samples_limit": 5_000, "elements": "decoded", "elements_limit": 70_000},
      f"""\
source = source.map(rtf.augment.compose([rtf.augment.decode()]), tf.data.AUTOTUNE)
source = rtf.sources.cached(source, rtf.CacheStore(max_bytes=70_000))
crop = rtf.augment.random_resized_crop((8, 8), antialias=True)
store = rtf.CacheStore('/ssd/samples-ffec6b81', max_bytes=5_000)
train = source.refurbish([crop, layers[1]], layers[2:], r=3, store=store){BATCHES}""",
    ),
  ],
)
def test_the_lines_are_what_a_person_would_write(layers, apart, options, strategy, code):
  flat = composition.flattened(layers)
  form = measure.Form("decoded", (*apart, *flat[len(apart) > 0 :]), 1, apart=bool(apart))
  lines = plan.Plan(
    tf.data.Dataset.from_tensors(("file", 1)),
    layers,
    flat,
    [form],
    [tf.TensorSpec([8, 8, 3])],
    [samples.Traced(True, True, False)],
    **{"is_by_index": True, "batch_size": 128, "targets": None, "disk": "/ssd", **options},
  )
  assert lines.code(strategies.Strategy(**{"kind": "refurbish", "r": 3, **strategy})) == code


def test_parts_of_nested_lists():
  lines = object.__new__(plan.Plan)
  lines._given = layers = ["decode", ["policy", ("color", "rotate"), []], "crop", [["flip"], "cutout"], "normalize"]
  flat = composition.flattened(layers)
  for start, stop in itertools.combinations(range(len(flat) + 1), 2):
    assert composition.flattened(eval(lines._part(start, stop), {"layers": layers})) == flat[start:stop]


def row(name, seconds, number, sample_bytes=100.0):
  return report.AdviceLayer(name, seconds, number, False, number, sample_bytes)


def better(layers, specs=None, best=None):
  """The hint about another order, for layers of (name, microseconds, outcomes)."""
  rows = [row(name, 1e-6 * time, number) for name, time, number in layers]
  specs = specs or [tf.TensorSpec([None, None, 3], tf.uint8)] * (len(rows) + 1)
  whole = sum(each.seconds for each in rows)
  numbers = tuple(each.num_outcomes for each in rows)
  setting = given(splits=tuple(range(1, len(rows) + 1)), epochs=90, outcomes=numbers, effective=(*numbers, 1))
  return order.better_order(rows, specs, setting, best or whole, 0.95, 10e-6)


def test_an_order_that_would_help():
  expensive_last = [("crop", 20, 81), ("flip", 10, 2), ("rand_augment", 500, 14), ("rand_augment", 500, 14)]
  assert better(expensive_last).startswith(
    "Another order would help: 2 flip, 3 rand_augment, 4 rand_augment, 1 crop, split after rand_augment (4), r = 3: "
    "about 367"
  )
  # There is no hint, because the same formula predicts that the present order is just as good.
  assert not better([*expensive_last[2:], *expensive_last[:2]])
  # A layer that changes the type of the image keeps its place.
  image, decoded = tf.TensorSpec([], tf.string), tf.TensorSpec([None, None, 3], tf.uint8)
  assert not better([("decode", 20, 81), ("expensive", 500, 2)], [image, decoded, decoded])


@pytest.mark.parametrize(
  "size, milliseconds, network, processors, expected",
  [
    (151e3, 0.5, 1.25e9, 64, "151 kB, which takes 0.12 ms .* saves 0.41 ms .* replace 3.4 of the 64 .* not pay"),
    (151e3, 0.5, 1.25e9, 16, "can replace up to 3.4 of the 16 CPU cores"),
    (151e3, 0.5, 1.25e8, 16, "takes 1.2 ms .* replace 0.34 of the 16 .* not pay"),
    (4.4e6, 170, 1.25e8, 16, "takes 35 ms .* can replace up to 4.8 of the 16"),
    (3e3, 0.01, 1.25e9, 16, "saves 0 ms .* not pay"),
  ],
)
def test_when_a_shared_level_pays(size, milliseconds, network, processors, expected):
  measured = costs(hit=dict.fromkeys(HIT, 0.0), first=dict.fromkeys(HIT, milliseconds / 1e3))
  measured.sample_bytes = dict.fromkeys(HIT, size)
  setting = given(measured, processors=processors)
  sentence = advise._about_level(strategies.Strategy("standard"), setting, network)
  assert re.search(expected, sentence), sentence
  # Decoded elements that are kept need not be decoded again.
  kept = strategies.Strategy("kept", "decoded", elements_fraction=1.0)
  assert "saves 0.22 ms" in advise._about_level(kept, given(processors=processors), network)


@pytest.mark.parametrize(
  "draws, expected",
  [
    (itertools.repeat(1), (1, False, 1)),
    (itertools.cycle(range(20)), (20, False, 20)),
    (itertools.count(), (math.inf, False, math.inf)),
    # Every second draw is new, the others are all 0. So two draws are the same in a quarter of the cases.
    ((i // 2 * (i % 2) for i in itertools.count()), (outcomes.MOST_DRAWS // 2, True, pytest.approx(4, rel=0.01))),
    # Two outcomes, one of which comes once in ten draws.
    ((i % 10 == 0 for i in itertools.count()), (2, False, pytest.approx(1 / (0.9**2 + 0.1**2), rel=0.05))),
  ],
)
def test_count_distinct(draws, expected):
  assert outcomes.count_distinct(draws, outcomes.FEWEST_DRAWS, lambda: False) == expected


def test_counting_ends_when_the_time_is_up():
  drawn = []
  draws = (drawn.append(i) or i % 50 for i in itertools.count())
  assert outcomes.count_distinct(draws, 64, lambda: True)[:2] == (50, True)
  assert len(drawn) == 64
  # After so few draws the number stays unknown.
  assert outcomes.count_distinct(itertools.count(), 8, lambda: True)[:2] == (8, True)


@pytest.mark.parametrize(
  "layers, expected",
  [
    (rtf.augment.rand_augment(1, magnitude=9), (19, 17.04)),
    (rtf.augment.auto_augment("cifar10"), (56 * 2.12, 68.0)),
    ([rtf.augment.random_crop(padding=4), rtf.augment.random_flip()], (162, 162)),
    ([rtf.augment.random_grayscale(0.1)], (2, 1 / 0.82)),
    ([rtf.augment.random_grayscale(0)], (1, 1)),
    ([rtf.augment.decode_random_resized_crop(8)], (math.inf, math.inf)),
    ([rtf.augment.normalize(), rtf.augment.decode()], (1, 1)),
  ],
)
def test_layers_of_the_package_know_their_outcomes(layers, expected):
  numbers, effective = zip(*(layer.outcomes for layer in layers))
  assert (math.prod(numbers), math.prod(effective)) == pytest.approx(expected, rel=1e-3)

"""`offload` yields every element once, with draws from which the host and the accelerator make the same images."""

import collections
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.augment import device_layers
from support import cases
from support.datasets import read
from support.offloading import failing_at, finished_by_host, images, labels_of, layers, policies, source, unfinished

N = 23
SHARES = [0, 1 / 8, 1 / 4, 1 / 2, 1, rtf.AUTOTUNE]


def epochs(dataset, made_of=None, num_policy_layers=2, number=3):
  """Returns the finished images of each epoch, by label."""
  made_of = made_of or layers()
  return [
    {
      int(label): image.tobytes()
      for batch, labels in dataset
      for label, image in zip(labels, finished_by_host(batch, made_of, num_policy_layers))
    }
    for _ in range(number)
  ]


@pytest.mark.parametrize("fraction", SHARES)
def test_images_after_refurbish_equal_its_final_augmentation(fraction):
  """This holds for every fraction in every epoch. The positions of the final layers begin after the partial ones."""
  first = [lambda image: tf.identity(image), augment.random_flip()]
  expected = source(N).refurbish(first, layers(), r=2, seed=3)
  expected = [{int(label): image.numpy().tobytes() for image, label in expected} for _ in range(3)]
  stage = source(N).refurbish(first, None, r=2, seed=3)
  assert epochs(stage.offload(layers(), 8, device_fraction=fraction, drop_remainder=False)) == expected


def test_layers_after_refurbish_with_functions_equal_compose():
  refurbished = source(N).refurbish(lambda *element: element, augment.compose(layers()), r=2, seed=3)
  expected = [{int(label): image.numpy().tobytes() for image, label in refurbished} for _ in range(2)]
  stage = source(N).refurbish(lambda *element: element, r=2, seed=3).with_options(tf.data.Options())
  assert epochs(stage.offload(layers(), 8, drop_remainder=False), number=2) == expected


@pytest.mark.parametrize("fraction", [0, 1 / 2, 1])
def test_other_sources_keep_their_order_and_each_epoch_has_new_draws(fraction):
  def make():
    return source(N).offload(layers(), 8, device_fraction=fraction, seed=5, drop_remainder=False)

  dataset = make()
  for _ in range(2):
    assert labels_of(dataset) == list(range(N))
  found = epochs(make())
  assert found == epochs(make())
  assert all(sorted(epoch) == list(range(N)) for epoch in found)
  assert found[0] != found[1] != found[2]
  assert epochs(source(N).offload(layers(), 8, seed=6, drop_remainder=False), number=1) != found[:1]
  shuffled = source(N).shuffle(N, seed=2)
  assert sorted(labels_of(shuffled.offload(layers(), 4, drop_remainder=False))) == list(range(N))


def test_draws_are_those_of_compose():
  batch, _ = next(iter(source(8).offload(layers(), 8, seed=5)))
  drawn = batch["draws"].numpy()[:, 1:]
  assert drawn.shape == (8, augment.compose(layers()).draws([0, 0]).shape[0])
  assert len({tuple(draws) for draws in drawn}) == 8  # Each image has its own.
  expected = source(8).refurbish(
    lambda *element: element, lambda image, label, seed: augment.compose(layers()).draws(seed), seed=3
  )
  stage = source(8).refurbish(lambda *element: element, seed=3).offload(layers(), 8)
  assert sorted(map(tuple, next(iter(stage))[0]["draws"].numpy()[:, 1:])) == sorted(tuple(d.numpy()) for d in expected)


@pytest.mark.parametrize("fraction, number", [(0, 0), (1 / 8, 1), (1 / 4, 2), (1 / 2, 4), (1, 8)])
def test_device_fraction_applies_to_each_replica(fraction, number):
  """Images that need a table, as for equalize, are not checked: the host finishes those that find no table left."""
  plain = [augment.rand_augment(1, 0)[0]]
  for batch, _ in source(32).offload(plain, 16, device_fraction=fraction, num_replicas=2, seed=1):
    names = ["equalize" if draw % 9 in (1, 2) and draw < 18 else "" for draw in batch["draws"].numpy()[:, 1]]
    for part in range(2):
      flags = unfinished(batch)[8 * part : 8 * part + 8]
      chosen = [number > 0 and (i + 1) % (8 // number) == 0 for i in range(8)]
      assert sum(chosen) == number
      assert all(flag == each for i, (flag, each) in enumerate(zip(flags, chosen)) if not names[8 * part + i])


def test_replicas_are_those_of_the_strategy(monkeypatch):
  monkeypatch.setattr(tf.distribute, "get_strategy", lambda: types.SimpleNamespace(num_replicas_in_sync=2))
  with pytest.raises(ValueError, match="multiple of the number of replicas, 2, got 5. Pass 4"):
    source(N).offload(layers(), 5)
  plain = [augment.rand_augment(1, 0)[0]]
  assert (
    sum(sum(unfinished(batch)[:8]) for batch, _ in source(32).offload(plain, 16, device_fraction=1 / 2, seed=1)) > 0
  )


@pytest.mark.parametrize("batch, replicas", [(24, 1), (24, 2), (20, 1), (36, 3)])
def test_no_group_needs_more_tables_than_it_has(batch, replicas):
  """This holds however batch and groups are divided. The host finishes images that come too late for a table."""
  made_of = augment.rand_augment(2, 9)
  num_tables = device_layers.DeviceLayers.of(made_of, "offload").num_tables
  assert num_tables == 3
  late = 0
  for each, labels in source(40 * batch).offload(made_of, batch, device_fraction=1, num_replicas=replicas, seed=1):
    drawn = each["draws"].numpy()
    needs = [(drawn[:, 0] == 1) & (drawn[:, 1 + k] < 18) & np.isin(drawn[:, 1 + k] % 9, (1, 2)) for k in range(2)]
    assert all(needs[k][first : first + 8].sum() <= num_tables for k in range(2) for first in range(batch))
    late += (drawn[:, 0] == 0).sum()
    assert len(labels) == batch
  assert 0 < late < 0.03 * 40 * batch


def test_a_batch_begins_with_all_its_tables():
  """Only one image of each batch is left to the accelerator, so it never comes too late for a table."""
  flags = [
    unfinished(batch) for batch, _ in source(400).offload(augment.rand_augment(2, 9), 8, device_fraction=1 / 8, seed=1)
  ]
  assert flags == [[0] * 7 + [1]] * 50


def test_a_smaller_last_batch_is_done_by_the_host():
  batches = list(source(N).offload(layers(), 8, device_fraction=1, seed=1, drop_remainder=False))
  assert [len(labels) for _, labels in batches] == [8, 8, 7]
  assert unfinished(batches[2][0]) == [0] * 7 and sum(unfinished(batches[0][0])) > 4
  assert [len(labels) for _, labels in source(N).offload(layers(), 8, seed=1)] == [8, 8]
  for remainder, expected in ((True, 2), (False, 3)):
    dataset = source(N).offload(layers(), 8, drop_remainder=remainder)
    assert len(dataset) == expected
    assert dataset.element_spec[1].shape == ([8] if remainder else [None])


Pair = collections.namedtuple("Pair", ["image", "label"])


@pytest.mark.parametrize(
  "element, component, place",
  [
    (lambda image, label: image, None, lambda batch: batch),
    (lambda image, label: (image, label), 0, lambda batch: batch[0]),
    (lambda image, label: (label, image), 1, lambda batch: batch[1]),
    (lambda image, label: {"image": image, "label": label}, None, lambda batch: batch),
    (lambda image, label: ({"photo": image, "a": "text"}, label), "photo", lambda batch: batch[0]),
    (lambda image, label: ({"image": image, "z": {"deep": label}}, label), None, lambda batch: batch[0]),
    (lambda image, label: Pair(image, label), None, lambda batch: batch.image),
  ],
)
def test_the_image_is_replaced_wherever_it_is(element, component, place):
  dataset = source(8).map(element)
  offloaded = dataset.offload(layers(), 4, component=component)
  first = next(iter(offloaded))
  tf.nest.map_structure(
    lambda spec, value: spec.shape.assert_is_compatible_with(value.shape), offloaded.element_spec, first
  )
  plain = tf.nest.flatten(next(iter(dataset.batch(4))))
  entries = place(first)
  assert {"unfinished_image", "draws", "layers"} <= set(entries)
  others = [value for value in tf.nest.flatten(first) if not any(value is each for each in entries.values())]
  others += [value for name, value in entries.items() if name not in ("unfinished_image", "draws", "layers")]
  assert {str(value.numpy().tolist()) for value in tf.nest.flatten(others)} == {
    str(value.numpy().tolist()) for value in plain if value.shape.rank != 4
  }


def test_a_failing_element_loses_no_other():
  fail = failing_at(5)
  for dataset in (
    source(N).map(fail).offload(layers(), 4, drop_remainder=False),
    source(N).refurbish(fail, seed=1).offload(layers(), 4, drop_remainder=False),
  ):
    batches, (error,) = read(dataset)
    assert isinstance(error, tf.errors.InvalidArgumentError) and "bad label" in str(error)
    assert sorted(labels_of(batches)) == [i for i in range(N) if i != 5]


def test_elements_of_other_shapes_are_an_error():
  varied = source(8).map(lambda image, label: (image, tf.range(label)))
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"one shape, but component 1 has shape \[1\] after \[0\]"):
    list(varied.offload(layers(), 4))
  sizes = tf.data.Dataset.from_generator(
    lambda: iter([images(1)[0], images(1, 9, 8)[0]]), output_signature=tf.TensorSpec([9, None, 3], tf.uint8)
  )
  lied = sizes.map(lambda image: tf.raw_ops.EnsureShape(input=image, shape=[9, None, 3]))
  with pytest.raises(ValueError, match="one known size"):
    lied.offload(layers(), 2)


@pytest.mark.parametrize(
  "change, error, message",
  [
    ({"layers": []}, ValueError, "at least one layer"),
    ({"layers": [augment.random_resized_crop(8)]}, ValueError, "stay on the host"),
    ({"layers": [augment.random_crop(padding=2, padding_mode="reflect")]}, ValueError, "padding_mode='constant'"),
    ({"layers": [tf.image.random_flip_left_right]}, TypeError, "must be layers of rtf.augment"),
    ({"layers": augment.auto_augment("cifar10")[:1]}, ValueError, "must have both layers"),
    ({"batch_size": 2**40}, ValueError, "batch_size of offload must be at most .* fit into memory, got 1,099,"),
    ({"device_fraction": 1 / 3}, ValueError, "device_fraction must be 0, 1/8, 1/4, 1/2 or 1"),
    ({"num_replicas": 3}, ValueError, "multiple of the number of replicas, 3, got 8. Pass 6"),
    ({"component": "photo"}, ValueError, "looks for the image as 'photo'"),
    ({"component": 2}, ValueError, "looks for the image as 2"),
    ({"component": 1}, TypeError, "uint8 images, got TensorSpec.*int64"),
  ],
)
def test_bad_arguments_are_refused(change, error, message):
  with pytest.raises(error, match=message):
    source(N).offload(**{"layers": layers(), "batch_size": 8, **change})


@pytest.mark.parametrize(
  "element, error, message",
  [
    (lambda image, label: tf.cast(image, tf.float32), TypeError, "uint8 images"),
    (lambda image, label: image[..., :1], ValueError, r"\[height, width, 3\]"),
    (lambda image, label: tf.zeros([2049, 1, 3], tf.uint8), ValueError, "at most 2,048 pixels"),
    (lambda image, label: (image, image[..., 0]), ValueError, "`targets` does not name it"),
    (lambda image, label: (image, tf.sparse.from_dense([label])), TypeError, "dense tensors of known rank"),
    (lambda image, label: {"image": image, "draws": label}, ValueError, r"already have \['draws'\]"),
    (lambda image, label: {"photo": image}, ValueError, "or an entry 'image'"),
  ],
  ids=["float", "grey", "large", "mask", "sparse", "taken", "no image"],
)
def test_unsupported_elements_are_refused(element, error, message):
  with pytest.raises(error, match=message):
    source(N).map(element).offload(layers(), 8)


def test_a_seed_after_refurbish_is_refused():
  with pytest.raises(ValueError, match="whose seed fixes the draws, got 3. Give it to refurbish"):
    source(N).refurbish(lambda *element: element).offload(layers(), 8, seed=3)


def test_layers_without_policies_run_only_on_the_accelerator():
  made_of = [augment.random_crop(padding=2), augment.normalize()]
  short = list(source(N).offload(made_of, 8, seed=1, drop_remainder=False))[-1][0]
  assert unfinished(short) == [0] * 7
  dataset = source(N).offload(made_of, 8, device_fraction=0, seed=1)
  assert all(unfinished(batch) == [1] * 8 for batch, _ in dataset)
  found = epochs(dataset, made_of, 0, 1)[0]
  assert len(found) == 16


def test_counts():
  dataset = source(32).offload(policies(), 8, device_fraction=1 / 2, seed=1, name="mine")
  done = [flag for _ in range(2) for batch, _ in dataset for flag in unfinished(batch)]
  (stage,) = rtf.stats(dataset.prefetch(1))
  assert stage.name == "mine" and stage.total.device_fraction == done.count(1) / 64
  assert [epoch.batches for epoch in stage.epochs] == [4, 4]
  assert (stage.total.host_images, stage.total.device_images) == (done.count(0), done.count(1))
  assert "host_wait [s]" in str(stage)
  assert (
    "  batch   8 images\n  policy  rand_augment, rand_augment; device fraction 0.5\n  device  none"
    in rtf.describe(dataset)
  )


def test_the_time_between_two_iterators_does_not_change_the_share():
  dataset = source(4).offload(policies(), 4, seed=1)
  for _ in range(40):
    assert len(list(dataset)) == 1
  assert rtf.stats(dataset)[-1].total.device_images == 0


def test_two_iterators_and_left_epochs():
  dataset = (
    source(N).refurbish(lambda *element: element, r=2, seed=3).offload(layers(), 4, drop_remainder=False).prefetch(1)
  )
  one, other = iter(dataset), iter(dataset)
  found = [sorted(label for each in pairs for label in each[1].numpy()) for pairs in zip(*zip(one, other))]
  assert found == [list(range(N))] * 2
  next(iter(dataset))
  assert sorted(labels_of(dataset)) == list(range(N))


@pytest.mark.parametrize("batched", [False, True])
def test_finished_batches_need_no_more_layers(batched):
  plain = source(8).batch(4, drop_remainder=True) if batched else source(8)
  dataset = rtf.as_offloaded(plain)
  dataset = dataset if batched else dataset.batch(4, drop_remainder=True)
  batch, labels = next(iter(dataset))
  assert dataset.element_spec[0] == {
    "unfinished_image": tf.TensorSpec([4, 9, 21], tf.uint8),
    "draws": tf.TensorSpec([4, 0], tf.int32),
    "layers": tf.TensorSpec([4, 0, 0], tf.uint8),
  }
  assert (batch["unfinished_image"].numpy().reshape(4, 9, 7, 3) == images(8)[:4]).all()
  assert {name: value.shape for name, value in batch.items()} == {
    name: spec.shape for name, spec in dataset.element_spec[0].items()
  }
  assert labels.numpy().tolist() == [0, 1, 2, 3]


def test_finished_refuses_other_images():
  with pytest.raises(TypeError, match="as_offloaded takes uint8 images"):
    rtf.as_offloaded(source(4).map(lambda image, label: tf.cast(image, tf.float32)))
  with pytest.raises(TypeError, match="clips must be True or False, got 2"):
    rtf.as_offloaded(source(N).batch(4), clips=2)
  with pytest.raises(TypeError, match="must be a tf.data.Dataset"):
    rtf.as_offloaded(images(4))


@pytest.mark.parametrize("fraction", cases.some([0, rtf.AUTOTUNE], 1))
def test_a_rewritten_or_saved_graph_finds_the_same_stage(fraction):
  dataset = source(N).refurbish(lambda *element: element, r=2, seed=3).offload(layers(), 8, device_fraction=fraction)
  graph = dataset._as_serialized_graph()
  copied = dataset_ops._VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph), dataset.element_spec)
  list(copied)
  refurbish, stage = rtf.stats(dataset)
  assert stage.total.batches == 2 and refurbish.total.fresh >= 16

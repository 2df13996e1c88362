"""`batch` directly after `refurbish`: the stage's workers make the same batches as tf.data's own `batch`."""

import itertools
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import restore, save, with_checkpoints
from support.datasets import outcomes, plain, stats, stream, with_options

Dataset = tf.data.Dataset
N = 23
IMAGES = np.random.default_rng(1).integers(0, 256, [N, 12, 12, 3], np.uint8)
NATIVE = [rtf.augment.random_crop(padding=2), rtf.augment.random_flip()]


def of_tf_data(dataset, *args, **kwargs):
  return Dataset.batch(dataset, *args, **kwargs)


def of_stage(dataset, *args, **kwargs):
  batches = dataset.batch(*args, **kwargs)
  assert "BatchDataset" not in graph_of(batches)
  return batches


def graph_of(dataset):
  return dataset._as_serialized_graph().numpy().decode(errors="replace")


def pair(number):
  return {"image": tf.gather(IMAGES, number), "label": number}


def of_bytes():
  return Dataset.from_tensor_slices((IMAGES, np.arange(N))).refurbish([*rtf.augment.rand_augment()], NATIVE, 2, seed=1)


def of_floats():
  layers = [*NATIVE, rtf.augment.normalize()]
  return Dataset.range(N).map(pair).refurbish([lambda image: image], layers, 3, seed=2)


def of_a_list_in_parts():
  layers = [
    rtf.augment.random_flip(),
    lambda image: tf.cast(image, tf.float32) / 255,
    rtf.augment.random_crop(padding=1),
  ]
  return Dataset.range(N).map(pair).refurbish([rtf.augment.rand_augment()], layers, 3, seed=2)


def with_seeds():
  flip = rtf.augment.random_flip()
  return Dataset.from_tensor_slices(IMAGES).refurbish(
    lambda image, seed: (flip(image, seed), seed),
    lambda image, first, seed: (seed, flip(image, seed), first),
    2,
    seed=3,
  )


def of_masks():
  source = Dataset.from_tensor_slices((IMAGES, IMAGES[..., 0], np.arange(N)))
  return source.refurbish([rtf.augment.random_flip()], NATIVE, 2, targets={1: "mask"}, seed=3)


def without_final():
  return Dataset.from_tensor_slices(IMAGES).refurbish([rtf.augment.rand_augment()], None, 2, seed=3)


def of_functions():
  source = Dataset.range(N)
  return source.refurbish(lambda x, seed: (x, seed), lambda x, first, seed: {"x": x, "seeds": [first, seed]}, 3, seed=4)


def of_strings():
  return Dataset.range(N).refurbish(tf.strings.as_string, lambda text: (text, tf.strings.length(text)), 2, seed=5)


def of_a_stream():
  return stream(N).refurbish(lambda x: x, lambda x, seed: (x, seed), 2, seed=6, shuffle_buffer_size=5)


STATIC = [of_bytes, of_floats, of_a_list_in_parts, with_seeds, of_masks, without_final]
STATIC += [of_functions, of_strings, of_a_stream]


def ragged():
  return Dataset.range(N).refurbish(lambda x: tf.RaggedTensor.from_tensor([[x, x]]), lambda x: (x, 2), 2, seed=7)


def sparse():
  return Dataset.range(N).refurbish(lambda x: tf.sparse.from_dense([x, 0]), lambda x: (x, 2), 2, seed=7)


def of_unknown_shape():
  return Dataset.range(N).refurbish(
    lambda x: tf.numpy_function(lambda x: x, [x], tf.int64), lambda x: tf.repeat(x, 3), 2, seed=8
  )


def epochs(dataset, number=3):
  return [[plain_of(element) for element in dataset] for _ in range(number)]


def plain_of(element):
  return [plain(value) for value in tf.nest.flatten(element)]


@cases.each_value
@pytest.mark.parametrize("make", STATIC)
@pytest.mark.parametrize("size", [1, 4, N, N + 5])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_yields_the_same_batches_as_tf_data(make, size, drop_remainder):
  ours, theirs = of_stage(make(), size, drop_remainder), of_tf_data(make(), size, drop_remainder)
  assert ours.element_spec == theirs.element_spec
  assert ours.cardinality() == theirs.cardinality()
  assert epochs(ours) == epochs(theirs)
  assert ours.cardinality() == theirs.cardinality()


@pytest.mark.parametrize("make", [ragged, sparse, of_unknown_shape])
def test_components_without_a_shape_are_batched_as_usual(make):
  assert epochs(make().batch(4)) == epochs(of_tf_data(make(), 4))


@pytest.mark.parametrize("parallel", [None, 1, 3, 40])
@pytest.mark.parametrize("on_disk", [False, True])
def test_yields_the_same_batches_for_any_num_parallel_calls(tmp_path, parallel, on_disk):
  def make(name):
    store = tmp_path / name if on_disk else None
    return Dataset.range(100).refurbish(
      lambda x, seed: (x, seed),
      lambda *given, seed: (*given, seed),
      3,
      seed=1,
      num_parallel_calls=parallel,
      store=store,
    )

  assert epochs(of_stage(make("a"), 8)) == epochs(of_tf_data(make("b"), 8))


def test_accepts_the_arguments_of_tf_data():
  stage = of_functions()
  size = tf.constant(4, tf.int64)
  assert of_stage(stage, size, drop_remainder=tf.constant(True)).element_spec["x"].shape == [4]
  batches = of_stage(stage, 4, num_parallel_calls=2, deterministic=False, name="batches")
  assert batches.element_spec["x"].shape == [None]
  assert "batch(4)" in rtf.describe(batches)
  for wrong in (0, -1):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Batch size must be greater than zero"):
      stage.batch(wrong)


def test_after_options_but_after_no_other_dataset():
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
  batches = of_stage(with_options(of_floats(), experimental_symbolic_checkpoint=True).with_options(options), 4)
  assert batches.options().experimental_symbolic_checkpoint
  assert batches.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
  assert epochs(batches) == epochs(of_tf_data(of_floats(), 4))
  for after in (of_floats().ignore_errors(), of_floats().repeat(2), of_floats().take(5)):
    assert "BatchDataset" in graph_of(after.batch(4))


def failing(fails, where="final", **options):
  def check(x):
    with tf.control_dependencies([tf.debugging.assert_equal(tf.reduce_any(tf.equal(x, fails)), False)]):
      return tf.identity(x)

  functions = (check, lambda x: x) if where == "partial" else (lambda x: x, check)
  return Dataset.range(N).refurbish(*functions, 2, seed=9, **options)


def outcomes_of(dataset):
  """Returns the elements of two epochs and, for each error, the number of its sample, in order."""
  return [
    str(each).split("sample ")[1].split()[0] if isinstance(each, tf.errors.InvalidArgumentError) else plain_of(each)
    for _ in range(2)
    for each in outcomes(iter(dataset))
  ]


@cases.each_value
@pytest.mark.parametrize("where", ["partial", "final"])
@pytest.mark.parametrize("fails", [[3], [0, 1, 2, 3, 22], [5, 14]])
@pytest.mark.parametrize("parallel", [None, 3])
def test_a_failing_sample_drops_the_current_batch(where, fails, parallel):
  how = {"where": where, "num_parallel_calls": parallel}
  ours, theirs = of_stage(failing(fails, **how), 4), of_tf_data(failing(fails, **how), 4)
  assert outcomes_of(ours) == outcomes_of(theirs)
  assert epochs(of_stage(failing(fails, **how), 4).ignore_errors()) == epochs(
    of_tf_data(failing(fails, **how), 4).ignore_errors()
  )
  assert epochs(failing(fails, **how).ignore_errors().batch(4)) == epochs(
    of_tf_data(failing(fails, **how).ignore_errors(), 4)
  )


def test_a_result_of_another_shape_than_its_row_is_an_error():
  def lies(x):
    y = tf.zeros(tf.cast(x, tf.int32) % 2 + 1)
    y.set_shape([1])
    return y

  batches = Dataset.range(4).refurbish(lambda x: x, lies, 2, seed=1).batch(2)
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match=r"sample [13] of refurbish failed: .* float\[2\], but a row of its batch is float\[1\]",
  ):
    list(batches)


@pytest.mark.parametrize("size", [7, 100])
def test_lost_samples_leave_no_gap(tmp_path, size):
  """Samples found damaged when read come last. They had claimed rows, and a batch of all samples has no spare rows."""

  def make(name):
    return Dataset.range(60).refurbish(
      lambda x: tf.repeat(x, 50), lambda x, seed: (x, seed), 3, seed=1, store=tmp_path / name, num_parallel_calls=1
    )

  list(make("a"))
  for file in (tmp_path / "a").glob("small-*"):
    content = np.frombuffer(file.read_bytes(), np.uint8).copy()
    content[np.arange(len(content)) % 4000 < 400] ^= 1
    file.write_bytes(content.tobytes())
  shutil.copytree(tmp_path / "a", tmp_path / "b")
  ours, theirs = of_stage(make("a"), size), of_tf_data(make("b"), size)
  assert epochs(ours) == epochs(theirs)
  assert stats(ours).total.missing == stats(theirs).total.missing > 2


def test_other_operations_of_a_function_still_run():
  def check(image):
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_max(image), tf.constant(0, tf.uint8))]):
      return tf.identity(image)

  for lists in (([check, *NATIVE], None), ([rtf.augment.rand_augment()], [check, *NATIVE])):
    with pytest.raises(tf.errors.InvalidArgumentError, match="sample [0-9]+ of"):
      next(iter(Dataset.from_tensor_slices(IMAGES).refurbish(*lists, 2, seed=1).batch(4)))


# Functions of the label and the augmented image. With the first, layers are called directly; with the second,
# TensorFlow runs what precedes the layers; with the last, it runs the whole function.
BESIDE = [
  lambda label, image: label,
  lambda label, image: label + 0,
  lambda label, image: label + 0 * tf.size(image, tf.int64),
]


@pytest.mark.parametrize("own_seed", [False, True])
@pytest.mark.parametrize("frames", [0, 3])
def test_layers_called_directly_do_what_their_function_does(own_seed, frames):
  images = np.stack([np.roll(IMAGES, frame, 0) for frame in range(frames)], 1) if frames else IMAGES
  layers = rtf.augment.compose([*NATIVE, rtf.augment.normalize()], clips=True)

  def make(beside):
    def final_fn(image, own, label, seed):
      image = layers(image, seed=own if own_seed else seed)
      return image, beside(label, image), own

    source = Dataset.from_tensor_slices((images, np.arange(N)))
    return source.refurbish(lambda image, label, seed: (image, seed, label), final_fn, 2, seed=3)

  for batch in (lambda stage: stage, lambda stage: of_stage(stage, 4)):
    direct, in_part, whole = (epochs(batch(make(beside))) for beside in BESIDE)
    assert direct == in_part == whole


def test_layers_called_directly_for_a_new_generation():
  """Here the layers are in partial_fn, which runs for each new generation of samples."""
  layers = rtf.augment.compose(NATIVE)

  def make(beside):
    def partial_fn(image, label, seed):
      image = layers(image, seed=seed)
      return image, beside(label, image)

    return Dataset.from_tensor_slices((IMAGES, np.arange(N))).refurbish(partial_fn, None, 2, seed=3)

  direct, in_part, whole = (epochs(make(beside), 5) for beside in BESIDE)
  assert direct == in_part == whole


def test_layers_called_directly_on_batches():
  """Each sample is a batch of images, sometimes empty. Each image has its own draws."""
  layers = rtf.augment.compose(NATIVE, clips=False)

  def make(beside):
    def final_fn(images, number, seed):
      images = layers(images[: number % 3], seed=seed)
      return images, beside(number, images)

    source = Dataset.from_tensor_slices((np.stack([IMAGES] * 3, 1), np.arange(N)))
    return source.refurbish(lambda images, number: (images, number), final_fn, 2, seed=3)

  direct, in_part, whole = (epochs(make(beside)) for beside in BESIDE)
  assert direct == in_part == whole


def test_functions_before_layers_called_directly_run_once():
  """The function before the layers is in Python and has its own seed."""
  calls = []

  def flipped(image, seed):
    calls.append(int(seed))
    return np.flip(image, seed % 2)

  def before(image, seed):
    return tf.ensure_shape(tf.numpy_function(flipped, [image, seed[0]], tf.uint8), IMAGES[0].shape)

  def make(*after):
    return of_stage(
      Dataset.from_tensor_slices(IMAGES).refurbish([lambda image: image], [before, *NATIVE, *after], 2, seed=1),
      4,
    )

  in_part = epochs(make(), 2)
  assert len(set(calls)) == len(calls) == 2 * N
  assert in_part == epochs(make(lambda image: image + 0), 2)


def test_functions_before_images_without_pixels_run_once():
  """The function before the layers may have a state, so it must not run twice."""
  calls = []

  def counted(number):
    calls.append(int(number))
    return np.zeros([0, 4, 4, 3], np.uint8)

  layers = rtf.augment.compose(NATIVE, clips=False)
  stage = Dataset.range(N).refurbish(
    lambda number, seed: layers(tf.numpy_function(counted, [number], tf.uint8), seed=seed), None, 1, seed=1
  )
  for _ in range(2):
    assert all(tf.size(images) == 0 for images in stage)
    assert len(set(calls)) == len(calls) > 0
    calls.clear()


def test_at_completion_each_sample_comes_once():
  stage = Dataset.range(100).refurbish(lambda x: x, lambda x: x, 2, seed=1, num_parallel_calls=4, deterministic=False)
  batches = of_stage(stage, 8)
  for _ in range(3):
    found = [batch.numpy() for batch in batches]
    assert [len(batch) for batch in found] == [8] * 12 + [4]
    assert sorted(np.concatenate(found)) == list(range(100))
  assert stats(batches).total.fresh + stats(batches).total.cached == 300


def test_at_completion_a_checkpoint_is_of_the_batches_handed_out(tmp_path):
  def make():
    return of_stage(
      Dataset.range(50).refurbish(lambda x: x, lambda x: x, 2, seed=1, num_parallel_calls=4, deterministic=False),
      8,
    )

  for step in range(7):
    iterator = iter(make())
    found = [batch.numpy() for batch in itertools.islice(iterator, step)]
    found += [batch.numpy() for batch in restore(make(), save(iterator, tmp_path))]
    assert sorted(np.concatenate(found)) == list(range(50))


@cases.each_value
@pytest.mark.parametrize("make", [of_floats, of_functions, of_a_stream])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_restores_at_every_step(tmp_path, make, symbolic, drop_remainder):
  """The position is kept at the end of an epoch, where tf.data's own `batch` loses it."""

  def pipeline():
    return with_checkpoints(of_stage(make(), 5, drop_remainder).repeat(3), symbolic)

  size = len(epochs(pipeline(), 1)[0])
  for step in range(size + 1):
    iterator = iter(pipeline())
    found = [plain_of(batch) for batch in itertools.islice(iterator, step)]
    path = save(iterator, tmp_path)
    del iterator
    found += [plain_of(batch) for batch in restore(pipeline(), path)]
    assert len(found) == size
    if make is not of_a_stream:
      assert found == epochs(pipeline(), 1)[0]


def test_a_checkpoint_has_no_samples_in_it(tmp_path):
  iterator = iter(of_stage(of_bytes(), 4).repeat())
  for _ in range(3):
    next(iterator)
    save(iterator, tmp_path)
    assert sum(os.path.getsize(file) for file in tmp_path.glob("checkpoint*")) < IMAGES[0].nbytes + 2000

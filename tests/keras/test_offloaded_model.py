"""`rtf.keras.with_offloaded`: models that finish their batches train, are saved and raise errors as plain Keras models
do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from support import cases
from support import unfinished

pytestmark = cases.slow

N, SIDE = 32, 8
# There is no policy, because tracing one takes seconds.
LAYERS = [augment.random_crop(padding=2), augment.random_flip(), augment.normalize(0.5, 0.25)]
POLICIES = [*augment.rand_augment(1, 9), *LAYERS]
IMAGES = unfinished.images_like(np.random.default_rng(0), N, SIDE, SIDE)
LABELS = np.arange(N) % 3


def make_dataset(todo=1, layers=POLICIES):
  entries, _ = unfinished.batch(layers, IMAGES, todo=todo)
  return tf.data.Dataset.from_tensor_slices((entries, LABELS)).batch(8, drop_remainder=True)


def sequential(*begin):
  return keras.Sequential(
    [*begin, keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
  )


def functional():
  images = keras.Input([SIDE, SIDE, 3], name="image")
  return keras.Model(images, sequential()(images))


class Classifier(keras.Model):
  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.conv, self.dense = keras.layers.Conv2D(4, 3), keras.layers.Dense(3)

  def call(self, inputs):
    return self.dense(keras.ops.mean(self.conv(inputs), axis=(1, 2)))


def compiled(model, layers=LAYERS, **how):
  model = rtf.keras.with_offloaded(layers, model)
  model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], **how)
  return model


MODELS = {
  "sequential": lambda: sequential(keras.Input([SIDE, SIDE, 3])),
  "not built": sequential,
  "functional": functional,
  "a class": Classifier,
  "keras.applications": lambda: keras.applications.MobileNetV2([32, 32, 3], 0.35, weights=None, classes=3),
}


@pytest.mark.parametrize(
  "kind",
  [pytest.param(kind, marks=() if kind in ("not built", "functional") else cases.only_exhaustive) for kind in MODELS],
)
def test_any_model_trains_and_is_saved(kind, tmp_path):
  inner = MODELS[kind]()
  model = compiled(inner)
  images = tf.image.resize(IMAGES, [32, 32]).numpy().astype(np.uint8) if kind == "keras.applications" else IMAGES
  entries, expected = unfinished.batch(LAYERS, images)
  before = [np.copy(weight) for weight in inner.get_weights()]
  model.fit(entries, LABELS, batch_size=8, epochs=1, verbose=0)
  assert before == [] or not np.array_equal(before[0], inner.get_weights()[0])
  predicted = inner.predict(expected, verbose=0)
  np.testing.assert_array_equal(model.predict(entries, verbose=0), predicted)
  finished = unfinished.finished(images)
  normalized = LAYERS[-1](images).numpy()
  np.testing.assert_array_equal(model.predict(finished, verbose=0), inner.predict(normalized, verbose=0))
  assert model.evaluate(finished, LABELS, verbose=0, return_dict=True).keys() == {"loss", "accuracy"}
  if kind == "a class":
    return  # Keras cannot save a class that it does not know.
  model.save(tmp_path / "model.keras")
  loaded = keras.models.load_model(tmp_path / "model.keras")
  np.testing.assert_array_equal(loaded.predict(entries, verbose=0), predicted)
  assert loaded.optimizer.iterations == N // 8
  inner.save(tmp_path / "inner.keras")
  np.testing.assert_array_equal(
    keras.models.load_model(tmp_path / "inner.keras").predict(expected, verbose=0), predicted
  )


@pytest.mark.parametrize(
  "how",
  [
    pytest.param(how, marks=marks)
    for how, marks in (
      ({"jit_compile": "auto"}, cases.only_exhaustive),
      ({"run_eagerly": True}, cases.only_exhaustive),
      ({"jit_compile": True, "steps_per_execution": 4}, cases.only_exhaustive),
      ({"jit_compile": False, "steps_per_execution": 3}, ()),
    )
  ],
  ids=str,
)
@pytest.mark.parametrize("policy", ["float32", pytest.param("mixed_float16", marks=cases.only_exhaustive)])
def test_fit_with_finished_validation_data(how, policy):
  before = keras.config.dtype_policy()
  keras.config.set_dtype_policy(policy)
  try:
    layers = POLICIES if cases.exhaustive else LAYERS
    model = compiled(functional(), layers, **how)
    finished = tf.data.Dataset.from_tensor_slices((unfinished.finished(IMAGES), LABELS)).batch(8)
    history = model.fit(make_dataset(layers=layers), epochs=2, validation_data=finished, verbose=0).history
  finally:
    keras.config.set_dtype_policy(before)
  assert len(history["val_loss"]) == 2 and np.isfinite(history["loss"]).all()


def test_other_entries_are_passed_on():
  image, number = keras.Input([SIDE, SIDE, 3], name="image"), keras.Input([2], name="number")
  pooled = keras.layers.GlobalAveragePooling2D()(image)
  inner = keras.Model({"image": image, "number": number}, keras.layers.Concatenate()([pooled, number]))
  entries, expected = unfinished.batch(LAYERS, IMAGES)
  number = np.ones([N, 2], np.float32)
  made = rtf.keras.with_offloaded(LAYERS, inner).predict({**entries, "number": number}, verbose=0)
  np.testing.assert_array_equal(made, inner.predict({"image": expected, "number": number}, verbose=0))


def test_finish_in_a_functional_model_and_its_config():
  entries, expected = unfinished.batch(LAYERS, IMAGES)
  inputs = {name: keras.Input(array.shape[1:], name=name, dtype=array.dtype.name) for name, array in entries.items()}
  finish = rtf.keras.Offloaded.from_config(rtf.keras.Offloaded(LAYERS, name="first").get_config())
  outputs = finish(inputs)
  assert finish.name == "first" and outputs.shape == (None, SIDE, SIDE, 3) and outputs.dtype == "float32"
  assert not finish.weights
  np.testing.assert_array_equal(keras.Model(inputs, outputs).predict(entries, verbose=0), expected)
  uint8 = rtf.keras.Offloaded(LAYERS[:-1]).compute_output_spec(
    {**inputs, "layers": keras.Input(unfinished.batch(LAYERS[:-1], IMAGES)[0]["layers"].shape[1:], dtype="int32")}
  )
  assert uint8.dtype == "uint8"


def test_the_callbacks_for_keras_work(tmp_path):
  def batch_of(images, labels):
    n = tf.shape(images)[0]
    entries = {
      "unfinished_image": tf.reshape(images, [-1, SIDE, 3 * SIDE]),
      "draws": tf.zeros([n, 0], tf.int32),
      "layers": tf.zeros([n, 0, 0], tf.int32),
    }
    return entries, labels

  def fit(stop=None):
    keras.utils.set_random_seed(1)
    source = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).refurbish(lambda *element: element, r=2, seed=1)
    train, model = source.batch(8, drop_remainder=True).map(batch_of), compiled(functional())
    callbacks = [rtf.keras.BackupAndRestore(tmp_path, save_freq=1), rtf.keras.RefurbishLogger(train)]
    callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: 1 / (stop != batch)))
    history = model.fit(train, epochs=2, verbose=0, callbacks=callbacks).history
    return model.get_weights(), history

  whole, history = fit()
  assert history["refurbish_fresh"] == [N, N // 2]
  with pytest.raises(ZeroDivisionError):
    fit(stop=2)
  for one, other in zip(fit()[0], whole, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5)


def entries_with(**changed):
  entries, _ = unfinished.batch(LAYERS, IMAGES)
  return {name: value for name, value in {**entries, **changed}.items() if value is not None}


OTHER = np.zeros([N, 0, rtf.augment.device_layers.DeviceLayers.of(LAYERS[1:], "a test").fingerprint], np.int32)
BAD = {
  "plain images": (
    IMAGES,
    TypeError,
    r"must be called on a dict with .*, got an array of shape .*For plain images and for export, use the model",
  ),
  "no draws": (entries_with(draws=None), TypeError, r"got one with \['layers', 'unfinished_image'\]"),
  "floats": (
    entries_with(unfinished_image=np.zeros([N, SIDE, 3 * SIDE], np.float32)),
    TypeError,
    "unfinished_image of Offloaded must be uint8, got float32",
  ),
  "draws as floats": (
    entries_with(draws=np.zeros([N, 4], np.float32)),
    TypeError,
    "draws of Offloaded must be int32, got float32",
  ),
  "images": (
    entries_with(unfinished_image=IMAGES),
    ValueError,
    r"must be \[batch, height, 3 \* width\], .*, got shape \(\d+, 8, 8, 3\)",
  ),
  "no pixels": (
    entries_with(unfinished_image=np.zeros([N, 0, 24], np.uint8)),
    ValueError,
    r"sides of 1 to 2,048 pixels, got",
  ),
  "grey images": (entries_with(unfinished_image=IMAGES[..., 0]), ValueError, r"got shape \(\d+, 8, 8\)"),
  "too many draws": (entries_with(draws=np.zeros([N, 5], np.int32)), ValueError, "must have 4 columns, got 5"),
  "other layers": (
    entries_with(layers=OTHER),
    ValueError,
    r"has the layers \[random_crop.*random_flip.*normalize.*\], but .* for \[random_flip.*normalize",
  ),
  "layers of another process": (
    entries_with(layers=np.zeros([N, 0, 5], np.int32)),
    ValueError,
    "made for layers that this process does not know",
  ),
}


@pytest.mark.parametrize("what", BAD)
def test_batches_not_made_by_offload_are_refused_at_the_first_step(what):
  given, error, message = BAD[what]
  with pytest.raises(error, match=message):
    rtf.keras.Offloaded(LAYERS)(given)
  model = compiled(functional())
  weights = model.get_weights()
  with pytest.raises(error, match=message):
    model.fit(given, LABELS, verbose=0)
  for before, after in zip(weights, model.get_weights(), strict=True):
    np.testing.assert_array_equal(before, after)


def test_an_unknown_size_is_refused():
  sizes = (
    tf.data.Dataset.from_tensor_slices((entries_with(), LABELS))
    .batch(8, drop_remainder=True)
    .map(
      lambda entries, label: (
        {
          **entries,
          "unfinished_image": tf.ensure_shape(
            tf.py_function(lambda x: x, [entries["unfinished_image"]], tf.uint8), [8, None, None]
          ),
        },
        label,
      )
    )
  )
  with pytest.raises(ValueError, match="known at tracing, got shape .*compile it again"):
    compiled(functional()).fit(sizes, verbose=0)


@pytest.mark.parametrize(
  "layers, model, error, message",
  [
    ([augment.random_resized_crop(8)], None, ValueError, "layers of Offloaded cannot have random_resized_crop"),
    (
      [augment.random_crop(padding=4, padding_mode="reflect")],
      None,
      ValueError,
      "resizing and reflecting stay on the host",
    ),
    ([augment.normalize([0.5] * 4, 1)], None, ValueError, "have 3 channels"),
    (LAYERS, keras.layers.Dense(1), TypeError, "model of with_offloaded must be a keras.Model"),
  ],
)
def test_bad_arguments(layers, model, error, message):
  with pytest.raises(error, match=message):
    rtf.keras.with_offloaded(layers, functional() if model is None else model)


PLAIN = {
  "functional": lambda image: keras.Model(image, sequential()(image)),
  "from a dict": lambda image: keras.Model({image.name: image}, sequential()(image)),
  "sequential": sequential,
  "sequential, not built": lambda _: sequential(),
}


@pytest.mark.parametrize(
  "kind", ["functional", *(pytest.param(kind, marks=cases.only_exhaustive) for kind in PLAIN if kind != "functional")]
)
@pytest.mark.parametrize("side", [SIDE, pytest.param(None, marks=cases.only_exhaustive)])
@pytest.mark.parametrize(
  "name",
  [
    "unfinished_image",
    *(pytest.param(name, marks=cases.only_exhaustive) for name in (None, "image", "draws", "layers")),
  ],
)
def test_a_plain_keras_model_refuses_unfinished_batches(name, side, kind):
  """Keras refuses them; refurbish_tf is not involved. Keras may select an entry by its name, but refuses another
  rank."""
  model = PLAIN[kind](keras.Input([side, side, 3], name=name))
  model.compile("sgd", "sparse_categorical_crossentropy")
  with pytest.raises(ValueError):
    model.fit(make_dataset(layers=LAYERS), verbose=0)

"""What `gpu` measures, each in a process of its own: `python gpu_training.py SETTINGS`, a line of JSON for each result.

SETTINGS is JSON: the name of a function here, as "part", the number of "processors", and what the function takes. Processors
are chosen before TensorFlow and JAX are imported, which make as many threads. Keras' backend is that of `KERAS_BACKEND`.
"""
import functools
import itertools
import json
import os
import pathlib
import pickle
import sys
import time

PADDING, MAGNITUDE, CLASSES = 4, 9, 10
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHARES = {0: "0", 1 / 4: "1/4", 1: "1"}
# Steps until AUTOTUNE has found its share, and until the others have filled what is queued and kept.
FOUND, SETTLED = 120, 30


def fit(model, side, batch, images, steps, rounds, is_quick):
  """Yields what Keras' `fit` takes for each way to feed it: seconds a step by the clock, of each round."""
  import keras
  import tensorflow as tf
  from refurbish_tf._internal import dataset_graph

  if device() != "cpu":
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
  model_behind = functools.cache(lambda layers: _compiled(model, side, layers))
  for name, layers, dataset in _ways(side, batch, images):
    network = model_behind(layers)
    result = {"way": name, "batch": batch}
    if layers or name == "standard":  # The step by itself: with one batch over and over.
      alone = tf.data.Dataset.from_tensors(next(iter(dataset))).repeat().prefetch(2)
      result["alone"] = _seconds(network, alone, -(-steps // 2), 1, rounds)
    began, cpu = time.perf_counter(), time.process_time()
    settling = 1 if is_quick else -(-(FOUND if "AUTOTUNE" in name else SETTLED) // steps)
    result["steps"] = _seconds(network, dataset_graph.without_autotuner(dataset.prefetch(2)), steps, settling, rounds)
    result["processors"] = (time.process_time() - cpu) / (time.perf_counter() - began)
    result["peak"] = _peak_bytes()
    yield result


def fit_from_dali(model, side, batch, images, steps, rounds, is_quick):
  """Yields the same of NVIDIA DALI's pipeline for GPUs, which decodes there: with Keras on JAX."""
  import keras
  import numpy as np
  from nvidia.dali import fn, pipeline_def, types
  from nvidia.dali.auto_aug import rand_augment
  from nvidia.dali.plugin.jax import DALIGenericIterator

  keras.mixed_precision.set_global_policy("mixed_bfloat16")
  files = [np.frombuffer(file, np.uint8) for file in pickle.loads(pathlib.Path(images).read_bytes())]
  generator = np.random.default_rng(7)

  def batches():
    while True:
      places = generator.integers(0, len(files), batch)
      yield [files[place] for place in places], [np.array(place % CLASSES, np.int32) for place in places]

  @pipeline_def(enable_conditionals=True, batch_size=batch, num_threads=len(os.sched_getaffinity(0)), device_id=0)
  def pipeline():
    file, label = fn.external_source(source=batches(), num_outputs=2)
    decoded = fn.decoders.image_random_crop(file, device="mixed", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
    augmented = rand_augment.rand_augment(
        fn.resize(decoded, size=[side, side]), n=2, m=3 * MAGNITUDE, shape=[side, side], fill_value=0)
    finished = fn.crop_mirror_normalize(
        augmented, mirror=fn.random.coin_flip(), mean=[255 * mean for mean in MEAN], std=[255 * std for std in STD],
        dtype=types.FLOAT, output_layout="HWC")
    return finished, label.gpu()

  built = DALIGenericIterator([pipeline()], ["images", "labels"])
  by_turns = lambda: ((each["images"], each["labels"]) for each in built)
  for _ in itertools.islice(by_turns(), 1 if is_quick else SETTLED):
    pass
  took = []
  for _ in range(rounds):
    began = time.perf_counter()
    for images_of_one, _ in itertools.islice(by_turns(), steps):
      images_of_one.block_until_ready()
    took.append((time.perf_counter() - began) / steps)
  yield {"way": "DALI without a model", "batch": batch, "steps": took}
  network = _compiled(model, side, None)
  yield {"way": "DALI", "batch": batch, "steps": _seconds(network, by_turns(), steps, 1, rounds)}


def finish(side, batch, calls, rounds):
  """Yields what `Finish` takes by itself, jitted, of batches that lie on the device."""
  import keras
  import numpy as np
  import tensorflow as tf

  import refurbish_tf as rtf
  images = np.random.default_rng(7).integers(0, 256, [batch, side, side, 3], np.uint8)
  final = _final(rtf.augment)
  given = lambda layers, share: next(
      tf.data.Dataset.from_tensor_slices(images).fuse(layers, batch, on_device=share, seed=7).as_numpy_iterator())
  policies = [*rtf.augment.rand_augment(2, MAGNITUDE), *final]
  cases = [("crop, flip and normalize", final, 0)]
  cases += [(f"the same behind RandAugment, share {name}", policies, share) for share, name in SHARES.items()]
  for name, layers, share in cases:
    layer = rtf.keras.Finish(layers)
    yield {"case": name, "side": side, "batch": batch, "calls": _seconds_a_call(layer, given(layers, share), calls, rounds)}
  theirs = keras.layers.RandAugment((0, 255), 2, MAGNITUDE / 10)
  yield {"case": "Keras' RandAugment, one draw a batch", "side": side, "batch": batch,
         "calls": _seconds_a_call(
             lambda images: theirs(images, training=True), images.astype(np.float32), calls, rounds, with_xla=False)}


def _ways(side, batch, images):
  """Yields triples without end: a name, the layers that the model begins with as a tuple or None, and batches."""
  import numpy as np
  import tensorflow as tf

  import common
  import refurbish_tf as rtf
  augment = rtf.augment
  images = pickle.loads(pathlib.Path(images).read_bytes())
  is_encoded = isinstance(images, list)
  labels = np.arange(len(images), dtype=np.int32) % CLASSES
  source = tf.data.Dataset.from_tensor_slices((np.array(images, object) if is_encoded else images, labels))
  decode = [augment.decode_and_crop(side)] if is_encoded else []
  policies = augment.rand_augment(2, MAGNITUDE)
  final = tuple(_final(augment))
  on_batches = augment.random_crop_and_flip_batch(PADDING, MEAN, STD)
  finished = lambda samples: samples.repeat().batch(batch, drop_remainder=True).map(on_batches, common.PARALLEL_CALLS)
  seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)

  def plain(samples, layers):
    """Without this package but for its native layers: shuffled whole."""
    function = augment.compose(layers)
    drawn = tf.data.Dataset.zip(samples.shuffle(len(images)), seeds)
    return drawn.map(lambda sample, seed: function(*sample, seed=seed), common.PARALLEL_CALLS)

  yield "standard", None, finished(plain(source, [*decode, *policies]))
  if is_encoded:
    kept = source.map(augment.compose([augment.decode()]), common.PARALLEL_CALLS).cache()
    yield "cache() of decoded images", None, finished(plain(kept, [augment.random_resized_crop(side), *policies]))
  for r in (2, 3):
    yield f"r = {r}", None, finished(source.refurbish([*decode, *policies], None, r, seed=7))
  yield "echo(2) of batches", None, finished(plain(source, [*decode, *policies])).echo(2)
  yield "r = 3, fuse", final, source.refurbish([*decode, *policies], None, 3, seed=7).fuse(final, batch).repeat()
  # Policies drawn anew at every use, which only some side can do: the CPU, or the accelerator.
  fresh = source.refurbish(decode, policies, 3, seed=7) if decode else source.refurbish(policies, None, 1, seed=7)
  reused = "r = 3, policies fresh" if decode else "r = 1"
  yield reused, None, finished(fresh)
  kept = source.refurbish(decode, None, 3, seed=7) if decode else source
  layers = (*policies, *final)
  for share, name in (*SHARES.items(), (rtf.AUTOTUNE, "AUTOTUNE")):
    yield f"{reused}, fuse, share {name}", layers, kept.fuse(layers, batch, on_device=share).repeat()


def _final(augment):
  return [augment.random_crop(PADDING), augment.random_flip(), augment.normalize(MEAN, STD)]


def _compiled(model, side, layers):
  """A model for finished images, or behind `layers`."""
  import keras
  import refurbish_tf as rtf
  if model == "small":
    network = keras.Sequential([
        keras.Input([side, side, 3]),
        *(layer for filters in (32, 64, 128) for layer in (
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False), keras.layers.BatchNormalization(),
            keras.layers.ReLU(), keras.layers.MaxPooling2D())),
        keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES, "softmax", dtype="float32")])
  else:
    network = getattr(keras.applications, model)(weights=None, input_shape=(side, side, 3), classes=CLASSES)
  trained = rtf.keras.finish_first(layers, network) if layers else network
  trained.compile("sgd", "sparse_categorical_crossentropy", jit_compile=device() != "cpu" or keras.backend.backend() == "jax")
  return trained


def _seconds(network, batches, steps, settling, rounds):
  """Seconds a step by the clock, of each round of as many steps; `batches` have no end."""
  import keras
  marks = []
  clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: marks.append(time.perf_counter()))
  network.fit(batches, steps_per_epoch=steps, epochs=settling + rounds, shuffle=False, verbose=0, callbacks=[clock])
  # From the end of one epoch, for whose loss the host has waited, to the end of the next.
  return [(after - before) / steps for before, after in itertools.pairwise(marks[settling - 1:])]


def _seconds_a_call(function, given, calls, rounds, with_xla=True):
  """Of `function`, jitted, with what lies on the device: `calls` in a row, and then the host waits. JAX has no way but XLA."""
  import keras
  if keras.backend.backend() == "jax":
    import jax
    given, jitted = jax.device_put(given), jax.jit(function)
    wait = lambda result: result.block_until_ready()
  else:
    import tensorflow as tf
    given, jitted = tf.nest.map_structure(tf.identity, given), tf.function(function, jit_compile=with_xla)
    wait = lambda result: result.numpy()
  took = []
  for _ in range(1 + rounds):
    began = time.perf_counter()
    for _ in range(calls):
      result = jitted(given)
    wait(result)
    took.append((time.perf_counter() - began) / calls)
  return took[1:]


def _peak_bytes():
  """The most that was allocated on the GPU so far, None without one."""
  import keras
  if keras.backend.backend() == "jax":
    import jax
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
  import tensorflow as tf
  return tf.config.experimental.get_memory_info("GPU:0")["peak"] if device() != "cpu" else None


@functools.cache
def device():
  """The accelerator in words, or "cpu"."""
  import keras
  if keras.backend.backend() == "jax":
    import jax
    first = jax.devices()[0]
    return "cpu" if first.platform == "cpu" else first.device_kind
  import tensorflow as tf
  gpus = tf.config.list_physical_devices("GPU")
  return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "cpu"


def main():
  settings = json.loads(sys.argv[1])
  allowed = sorted(os.sched_getaffinity(0))
  os.sched_setaffinity(0, allowed[:settings.pop("processors")])
  part = {function.__name__: function for function in (fit, fit_from_dali, finish)}[settings.pop("part")]
  # So that what libraries print does not come between.
  results, sys.stdout = sys.stdout, sys.stderr
  import keras
  print(json.dumps({"device": device(), "backend": f"{keras.backend.backend()}, Keras {keras.__version__}"}), file=results, flush=True)
  for result in part(**settings):
    print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
  main()

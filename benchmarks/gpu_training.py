"""The measurements of `gpu`, each in its own process. `python gpu_training.py SETTINGS` prints a line of JSON for
each result.

SETTINGS is JSON: the name of a function here, as "part", the number of cores, as "processors", and the function's
arguments. Cores are chosen before TensorFlow and JAX are imported, because these start a thread for each core.
`KERAS_BACKEND` selects the backend.
"""

import collections
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
# Epochs until buffers and stores are full and AUTOTUNE's fraction has settled, for ways that need more than one.
SETTLING = {"r = 3, policies fresh, offload, share AUTOTUNE": 3, "r = 1, offload, share AUTOTUNE": 3}


def fit(model, side, batch, images, steps, rounds, ways, alone):
  """Yields the wall-clock seconds per step of Keras' `fit`, for each way to feed it and each epoch but the first.

  Args:
    alone: whether a step by itself is also measured.
    ways: "reuse", or "policies": RandAugment with new draws at every use, on the CPU or on the accelerator.
  """
  import keras
  import tensorflow as tf
  from refurbish_tf._internal import dataset_graph

  if device() != "cpu":
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
  model_behind = functools.cache(lambda layers: _compiled(model, side, layers))
  for name, layers, dataset in _ways(side, batch, images, steps, ways):
    network = model_behind(layers)
    began, cpu = time.perf_counter(), time.process_time()
    result = {
      "way": name,
      "steps": _seconds(
        network, dataset_graph.without_autotuner(dataset.prefetch(2)), steps, SETTLING.get(name, 1), rounds
      ),
    }
    result["processors"] = (time.process_time() - cpu) / (time.perf_counter() - began)
    result["peak"] = _peak_bytes()
    if alone and (layers or name == "plain"):  # The step by itself, always with the same batch.
      same = tf.data.Dataset.from_tensors(next(iter(dataset))).repeat().prefetch(2)
      result["alone"] = _seconds(network, same, -(-steps // 2), 1, rounds)
    yield result


def load(framework, model, side, batch, images, steps, rounds):
  """Yields the time of a framework's loader to bring batches to the device, and whether they equal the CPU's bytes."""
  import numpy as np
  import tensorflow as tf

  import refurbish_tf as rtf

  augment = rtf.augment
  tf.config.set_visible_devices([], "GPU")
  source, decode, _ = _source(side, batch, images, steps)

  def batches():
    return (
      source.refurbish(
        [*decode, *augment.rand_augment(2, MAGNITUDE)],
        [augment.random_crop(padding=PADDING), augment.random_flip()],
        3,
        seed=7,
      )
      .batch(batch, drop_remainder=True)
      .prefetch(2)
    )

  if framework == "torch":
    import torch

    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader, to_host = rtf.torch_loader(batches(), where), lambda images: images.cpu().numpy()
    wait = lambda images: where.type == "cpu" or torch.cuda.synchronize()
  else:
    loader, to_host, wait = rtf.jax_loader(batches()), np.asarray, lambda images: images.block_until_ready()
  same = sum(
    np.array_equal(to_host(ours), theirs)
    for (ours, _), (theirs, _) in zip(loader, batches().as_numpy_iterator(), strict=True)
  )
  took = []
  for _ in range(rounds):
    began = time.perf_counter()
    ((last, _),) = collections.deque(loader, maxlen=1)
    wait(last)
    took.append((time.perf_counter() - began) / steps)
  yield {"way": "r = 3", "steps": took, "same": same}


def finish(side, batch, calls, rounds):
  """Yields the time of `Offloaded` by itself, jitted, for batches that are on the device."""
  import keras
  import numpy as np
  import tensorflow as tf

  import refurbish_tf as rtf

  images = np.random.default_rng(7).integers(0, 256, [batch, side, side, 3], np.uint8)
  final = _final(rtf.augment)
  given = lambda layers, share: next(
    tf.data.Dataset.from_tensor_slices(images).offload(layers, batch, device_fraction=share, seed=7).as_numpy_iterator()
  )
  policies = [*rtf.augment.rand_augment(2, MAGNITUDE), *final]
  cases = [("crop, flip and normalize", final, 0)]
  cases += [(f"the same after RandAugment, share {name}", policies, share) for share, name in SHARES.items()]
  for name, layers, share in cases:
    layer = rtf.keras.Offloaded(layers)
    yield {"way": name, "steps": _seconds_a_call(layer, given(layers, share), calls, rounds)}
  theirs = keras.layers.RandAugment((0, 255), 2, MAGNITUDE / 10)
  yield {
    "way": "Keras' RandAugment, one draw a batch",
    "steps": _seconds_a_call(
      lambda images: theirs(images, training=True), images.astype(np.float32), calls, rounds, with_xla=False
    ),
  }


def _source(side, batch, images, steps):
  """The images, repeated to `steps` batches: a dataset, the layers that decode them, and whether they are encoded."""
  import numpy as np
  import tensorflow as tf

  from refurbish_tf import augment

  images = pickle.loads(pathlib.Path(images).read_bytes())
  is_encoded = isinstance(images, list)
  array = np.array(images, object) if is_encoded else images
  array = array[np.arange(steps * batch) % len(array)]
  labels = np.arange(len(array), dtype=np.int32) % CLASSES
  return (
    tf.data.Dataset.from_tensor_slices((array, labels)),
    [augment.decode_random_resized_crop(side)] if is_encoded else [],
    is_encoded,
  )


def _ways(side, batch, images, steps, ways):
  """Yields each way to feed the model: its name, the layers that the model begins with (a tuple or None), and endless
  batches."""
  import tensorflow as tf

  import common
  import refurbish_tf as rtf

  augment = rtf.augment
  source, decode, is_encoded = _source(side, batch, images, steps)
  policies = augment.rand_augment(2, MAGNITUDE)
  final = tuple(_final(augment))
  on_batches = augment.compose(
    [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize(MEAN, STD)], clips=False
  )
  finished = lambda samples: samples.repeat().batch(batch, drop_remainder=True).map(on_batches, common.PARALLEL_CALLS)
  seeds = tf.data.Dataset.random(seed=7, rerandomize_each_iteration=True).batch(2)

  def plain(samples, layers):
    """The pipeline without this package, except for its native layers; all samples are shuffled."""
    function = augment.compose(layers)
    drawn = tf.data.Dataset.zip(samples.shuffle(len(source)), seeds)
    return drawn.map(lambda sample, seed: function(*sample, seed=seed), common.PARALLEL_CALLS)

  if ways == "reuse":
    yield "plain", None, finished(plain(source, [*decode, *policies]))
    yield "r = 3", None, finished(source.refurbish([*decode, *policies], None, 3, seed=7))
    yield (
      "r = 3, offload",
      final,
      source.refurbish([*decode, *policies], None, 3, seed=7).offload(final, batch).repeat(),
    )
    if is_encoded:
      kept = source.map(augment.compose([augment.decode()]), common.PARALLEL_CALLS).cache()
      yield "cache() of decoded images", None, finished(plain(kept, [augment.random_resized_crop(side), *policies]))
    return
  fresh = source.refurbish(decode, policies, 3, seed=7) if decode else source.refurbish(policies, None, 1, seed=7)
  reused = "r = 3, policies fresh" if decode else "r = 1"
  yield reused, None, finished(fresh)
  kept = source.refurbish(decode, None, 3, seed=7) if decode else source
  layers = (*policies, *final)
  for share, name in (*SHARES.items(), (rtf.AUTOTUNE, "AUTOTUNE")):
    yield f"{reused}, offload, share {name}", layers, kept.offload(layers, batch, device_fraction=share).repeat()


def _final(augment):
  return [augment.random_crop(padding=PADDING), augment.random_flip(), augment.normalize(MEAN, STD)]


def _compiled(model, side, layers):
  """A model for finished images, or one that begins with `layers`."""
  import keras
  import refurbish_tf as rtf

  if model == "small":
    network = keras.Sequential(
      [
        keras.Input([side, side, 3]),
        *(
          layer
          for filters in (32, 64, 128)
          for layer in (
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
          )
        ),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES, "softmax", dtype="float32"),
      ]
    )
  else:
    network = getattr(keras.applications, model)(weights=None, input_shape=(side, side, 3), classes=CLASSES)
  trained = rtf.keras.with_offloaded(layers, network) if layers else network
  trained.compile(
    "sgd", "sparse_categorical_crossentropy", jit_compile=device() != "cpu" or keras.backend.backend() == "jax"
  )
  return trained


def _seconds(network, batches, steps, settling, rounds):
  """Wall-clock seconds per step, for each round of `steps` steps. `batches` are endless."""
  import keras

  marks = []
  clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: marks.append(time.perf_counter()))
  network.fit(batches, steps_per_epoch=steps, epochs=settling + rounds, shuffle=False, verbose=0, callbacks=[clock])
  # An epoch lasts from the end of the previous one, when the host has waited for its loss, to its own end.
  return [(after - before) / steps for before, after in itertools.pairwise(marks[settling - 1 :])]


def _seconds_a_call(function, given, calls, rounds, with_xla=True):
  """Seconds per call of the jitted `function` on data on the device: the host waits after `calls` calls. JAX always
  uses XLA."""
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
  """The most bytes that were allocated on the GPU so far; None without a GPU."""
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
  os.sched_setaffinity(0, allowed[: settings.pop("processors")])
  part = {function.__name__: function for function in (fit, load, finish)}[settings.pop("part")]
  # The output of libraries must not mix with the results.
  results, sys.stdout = sys.stdout, sys.stderr
  import keras

  print(
    json.dumps({"device": device(), "backend": f"{keras.backend.backend()}, Keras {keras.__version__}"}),
    file=results,
    flush=True,
  )
  for result in part(**settings):
    print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
  main()

"""Fresh samples to a target accuracy with data echoing (Choi et al., 2019, Figures 3 and 5 to 7).

Trains a small network until it reaches the target on the validation images, and counts the fresh samples used: steps
times batch size divided by e. Only the echo differs; each pipeline has one shuffle buffer of the same size.
"""

import time

import keras
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf.experiments import training
from refurbish_tf.experiments.pipelines import decoded

PADDING = 4
PLACES = ("before_augment", "after_augment", "after_batch")
SHUFFLE_BUFFER_SIZE = 10_000
VALIDATION_IMAGES = 5_000
STEPS_PER_EXECUTION = 4


def of_figure(rows, by):
  """The rows in which only `by` ("e", "batch_size" or "shuffle_buffer_size") differs from the usual values."""
  usual = {"batch_size": 128, "shuffle_buffer_size": SHUFFLE_BUFFER_SIZE}
  return [
    row
    for row in rows
    if (by == "e" or row["e"] <= 2) and all(row[column] == value for column, value in usual.items() if column != by)
  ]


def pipeline(images, where, e, batch_size, shuffle_buffer_size, seed):
  """Endless batches; "baseline" is an echo with e = 1."""
  augment_fn = augment.compose([augment.random_crop(padding=PADDING), augment.random_flip()])
  how = {"batch_size": batch_size, "shuffle_buffer_size": shuffle_buffer_size, "seed": seed}
  where = "before_augment" if where == "baseline" else where
  echoed = decoded(images.train, images).repeat().echo(e, where, augment_fn=augment_fn, **how)
  return echoed.prefetch(tf.data.AUTOTUNE)


def fresh_samples_to_target(
  images,
  where,
  e,
  batch_size,
  shuffle_buffer_size,
  seed,
  *,
  target,
  most_steps,
  samples_between,
  learning_rate=training.ECHOING_LEARNING_RATE,
):
  """Trains until the target is reached, or for `most_steps`.

  Args:
    images: `Images`, or an object with its attributes.
    where, e, batch_size, shuffle_buffer_size, seed: as in `pipeline`.
    target: accuracy on the validation images, from 0 to 1.
    most_steps: optimizer steps after which the training ends.
    samples_between: training samples between two validations.
    learning_rate: the constant learning rate of SGD with Nesterov momentum.

  Returns:
    A dict: "fresh", the fresh samples on which the network was trained until it reached the target, without those left
    in the shuffle buffer; "steps", the optimizer's steps; both are -1 if the target was not reached. "accuracies", one
    for each validation. "seconds", the duration.

  Raises:
    ValueError: the target is not above 0 and at most 1, or an argument is one that `Dataset.echo` does not allow.
  """
  if not 0 < target <= 1:
    raise ValueError(
      f"target of fresh_samples_to_target must be an accuracy above 0 and at most 1, got {target!r}. Pass one that the "
      "baseline reaches, such as 0.6 for CIFAR-10."
    )
  keras.utils.set_random_seed(seed)
  validation = decoded(images.validation.take(VALIDATION_IMAGES), images).batch(500).cache()
  model = training.small_cnn(images)
  model.compile(
    keras.optimizers.SGD(learning_rate, momentum=training.MOMENTUM, nesterov=True),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=training.jit_compile(),
    # Keras takes a millisecond per call, a large part of a step of this network.
    steps_per_execution=STEPS_PER_EXECUTION,
  )

  def stop_at_target(_, logs):
    model.stop_training = logs["val_accuracy"] >= target

  # A multiple of STEPS_PER_EXECUTION, because Keras would round up.
  steps = max(1, samples_between // batch_size // STEPS_PER_EXECUTION) * STEPS_PER_EXECUTION
  began = time.perf_counter()
  accuracies = model.fit(
    pipeline(images, where, e, batch_size, shuffle_buffer_size, seed),
    steps_per_epoch=steps,
    epochs=max(1, most_steps // steps),
    validation_data=validation,
    shuffle=False,
    verbose=0,
    callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=stop_at_target)],
  ).history["val_accuracy"]
  seconds = time.perf_counter() - began
  reached = accuracies[-1] >= target
  taken = int(model.optimizer.iterations)
  keras.backend.clear_session()
  return {
    "fresh": taken * batch_size // e if reached else -1,
    "steps": taken if reached else -1,
    "accuracies": " ".join(f"{accuracy:.4f}" for accuracy in accuracies),
    "seconds": round(seconds, 1),
  }

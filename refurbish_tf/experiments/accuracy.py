"""Accuracy and speed: standard, refurbished, echoed, cached and simplified (Lee et al., 2021, Figures 9 to 12, 14)."""

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments.pipelines import Pipelines

MAGNITUDE = 9
PADDING = 4
# The keys of the dict that `found` returns.
COLUMNS = ("steps", "fresh", "accuracy", "train_accuracy", "accuracies", "validation_images", "parameters", "seconds")
# The augmentations in the package's table "accuracy".
AUGMENTATIONS = ("RandAugment", "AutoAugment")
# The settings of the paper's comparison.
SETTINGS = {
  "standard": Pipelines.standard,
  "refurbish r=2": lambda ways: ways.refurbished(2),
  "refurbish r=3": lambda ways: ways.refurbished(3),
  "echo augmented e=2": lambda ways: ways.echoed(2, "after_augment"),
  "echo augmented e=3": lambda ways: ways.echoed(3, "after_augment"),
  "echo batches e=2": lambda ways: ways.echoed(2, "after_batch"),
  "echo batches e=3": lambda ways: ways.echoed(3, "after_batch"),
  "cache after augmentation": Pipelines.cached,
  "simplified by 1": Pipelines.standard,
  "simplified by 2": Pipelines.standard,
}


def layers():
  """The two expensive layers of RandAugment, a random crop and a random flip."""
  return [*augment.rand_augment(2, MAGNITUDE), augment.random_crop(padding=PADDING), augment.random_flip()]


def found(model, history, train, setting, samples, validation_images, seconds):
  """The results of a training in `setting` that has used `samples` images, as a dict with `COLUMNS`."""
  stages = rtf.stats(train)
  if stages:
    fresh = stages[0].total.fresh
  else:
    # Only `refurbish` counts fresh samples, so their number is computed for other settings.
    factor = int(setting[-1]) if setting.startswith("echo") else 1
    fresh = samples // len(history["accuracy"]) if setting.startswith("cache") else samples // factor
  return {
    "steps": int(model.optimizer.iterations),
    "fresh": fresh,
    "accuracy": round(history["val_accuracy"][-1], 4),
    "train_accuracy": round(history["accuracy"][-1], 4),
    "accuracies": " ".join(f"{accuracy:.4f}" for accuracy in history["val_accuracy"]),
    "validation_images": validation_images,
    "parameters": model.count_params(),
    "seconds": round(seconds, 1),
  }

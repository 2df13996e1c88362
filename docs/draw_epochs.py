"""Draws epochs.jpg: one photograph over six epochs, as three pipelines hand it out. `python docs/draw_epochs.py`

It needs scikit-image, which ships the photograph, and matplotlib.
"""
import pathlib

import matplotlib
from matplotlib import pyplot
import skimage.data
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.experiments import plots

SIDE, EPOCHS, SEED = 192, 6, 23
EXPENSIVE = [rtf.augment.random_resized_crop(SIDE, scale=(0.5, 1)), *rtf.augment.rand_augment(2, 9)]
CHEAP = [rtf.augment.random_crop(padding=24), rtf.augment.random_flip()]
PREPARED, REUSED = plots.ORANGE, plots.BLUE


def main():
  # CC0, by the photographer (Stéfan van der Walt).
  source = tf.data.Dataset.from_tensors(skimage.data.chelsea())
  # What each pipeline hands out, and the epochs in which it computes the expensive layers.
  rows = [
      ("standard", "prepared in each epoch, six different images", source.refurbish(EXPENSIVE, CHEAP, r=1, seed=SEED), range(EPOCHS)),
      ("refurbish, r = 3", "prepared twice, shifted and flipped again each time, six different images", source.refurbish(EXPENSIVE, CHEAP, r=3, seed=SEED), (0, 3)),
      ("cache() after the augmentation", "prepared once, the same image in every epoch", source.refurbish([*EXPENSIVE, *CHEAP], None, r=1, seed=SEED)
       .take(1).cache(), (0,))]
  matplotlib.use("Agg")
  with pyplot.rc_context(plots.STYLE):
    figure = pyplot.figure(figsize=(12, 7.3), layout="constrained")
    *parts, last = figure.subfigures(len(rows) + 1, 1, height_ratios=[1] * len(rows) + [0.12])
    for part, (name, explained, dataset, prepared) in zip(parts, rows):
      part.suptitle(f"{name}: {explained}", x=0.008, ha="left", fontweight="bold", fontsize=14)
      for epoch, (place, image) in enumerate(zip(part.subplots(1, EPOCHS), dataset.repeat(EPOCHS))):
        place.imshow(image)
        place.set(xticks=[], yticks=[], xlabel=f"epoch {epoch + 1}")
        for spine in place.spines.values():
          spine.set(visible=True, linewidth=5, color=PREPARED if epoch in prepared else REUSED)
    last.legend(
        handles=[pyplot.Rectangle((0, 0), 1, 1, color=PREPARED, label="cut out and distorted again: expensive"),
                 pyplot.Rectangle((0, 0), 1, 1, color=REUSED, label="from the cache")],
        loc="center", ncols=2, frameon=False)
    figure.savefig(pathlib.Path(__file__).parent / "epochs.jpg", dpi=80, pil_kwargs={"quality": 85})


if __name__ == "__main__":
  main()

"""Draws the pictures of README.md and of gallery.md with `rtf.show`, and writes gallery.md:
`python docs/draw_pictures.py`

It needs matplotlib, and scikit-image for the photographs. A layer is called with the arguments in its heading of
gallery.md, and a new one without any: add its heading if it needs some.
"""

import pathlib
import re
import shutil

import matplotlib
from matplotlib import patches, pyplot
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.plotting import figure as figures

DOCS = pathlib.Path(__file__).parent
SIDE, EPOCHS, SEED = 192, 6, 23
# How many outcomes of a layer are drawn, dots per inch, and WebP's quality. All pictures together stay below 450 kB.
OUTCOMES, DPI, QUALITY = 5, 72, 55
# Dots per inch of pictures that would exceed this limit.
SMALLER = {"augmix": 42, "mosaic": 42, "random_elastic": 42}
# Layers, by name, and the arguments with which they are drawn.
ARGUMENTS = dict(re.findall(r"^## `(\w+)\((.*)\)`$", (DOCS / "gallery.md").read_text(encoding="utf-8"), re.MULTILINE))
# Names that are not layers, and layers whose changes are not visible in a photograph without a volume or objects.
NO_LAYERS = (
  "compose copy_paste decode_wav five_crop frequency_mask numpy_layer random_depth_crop random_depth_flip "
  "random_intensity sanitize_boxes seed_at split ten_crop time_mask time_shift"
).split()
# The cat's face in the square photograph, for layers that need boxes.
BOXES = {"random_iou_crop": [[32.0, 14, 110, 110]]}


def main():
  import skimage.data

  matplotlib.use("Agg")
  # CC0, by the photographers: Stéfan van der Walt, Rachel Michetti.
  cat, cup = skimage.data.chelsea(), skimage.data.coffee()
  draw_epochs(tf.data.Dataset.from_tensors(cat))
  images = np.stack(
    [rtf.augment.resize((144, 144), crop_to_aspect_ratio=True)(photograph) for photograph in (cat, cup)]
  )
  folder = DOCS / "gallery"
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir()
  for name in layer_names():
    drawn(name, images, tf.io.encode_jpeg(cat), OUTCOMES).savefig(
      folder / f"{name}.webp", dpi=SMALLER.get(name, DPI), pil_kwargs={"quality": QUALITY}
    )
  (DOCS / "gallery.md").write_text(page(), encoding="utf-8")


def page():
  """The text of gallery.md: a heading of code and a picture for each layer."""
  head = (
    "# Gallery\n\nLayers of [`rtf.augment`](reference.md), drawn by [`rtf.show`](observe.md). Each picture in a "
    "row has a different seed.\n"
  )
  return head + "".join(
    f"\n## `{name}({ARGUMENTS.get(name, '')})`\n\n![{name}](gallery/{name}.webp)\n" for name in layer_names()
  )


def layer_names():
  return sorted({*rtf.augment.__all__} - {*NO_LAYERS})


def drawn(name, images, file, num_outcomes):
  """A figure of a layer's results for the first of two images, or for a file."""
  layer = eval(f"rtf.augment.{name}({ARGUMENTS.get(name, '')})", {"rtf": rtf})
  if getattr(layer, "needs_labels", False):
    batches = tf.data.Dataset.from_tensor_slices((images, np.arange(2))).batch(2)
    figure = rtf.show(batches.map(layer), num_samples=1, num_epochs=num_outcomes, class_names=["cat", "cup"])
    # The columns are outcomes, like those of other layers, and not epochs.
    figure.legends[0].remove()
    for place in figure.axes:
      place.set_xlabel("")
      place.spines[:].set_visible(False)
    return figure
  if name in BOXES:
    return rtf.show([layer], (images[0], BOXES[name]), targets={1: "xyxy"}, num_epochs=num_outcomes)
  return rtf.show([layer], file if name.startswith("decode") else images[0], num_epochs=num_outcomes)


def draw_epochs(source):
  """README's figure: one photograph over six epochs, as three pipelines yield it."""
  expensive = [rtf.augment.random_resized_crop(SIDE, scale=(0.5, 1)), *rtf.augment.rand_augment(2, 9)]
  cheap = [rtf.augment.random_crop(padding=24), rtf.augment.random_flip()]
  parts = {
    "standard: prepared in each epoch, six different images": source.refurbish(expensive, cheap, r=1, seed=SEED),
    "refurbish, r = 3: prepared twice, shifted and flipped again each time, six different images": source.refurbish(
      expensive, cheap, r=3, seed=SEED
    ),
    "cache() after the augmentation: prepared once, the same image in every epoch": source.refurbish(
      [*expensive, *cheap], None, r=1, seed=SEED
    )
    .take(1)
    .cache(),
  }
  figure = pyplot.figure(figsize=(12, 7.3), layout="constrained")
  *rows, last = figure.subfigures(len(parts) + 1, 1, height_ratios=[1] * len(parts) + [0.12])
  for row, (title, dataset) in zip(rows, parts.items()):
    rtf.show(dataset, num_samples=1, num_epochs=EPOCHS, figure=row).suptitle(
      title, x=0.008, ha="left", fontweight="bold", fontsize=14
    )
    row.legends[0].remove()
  labels = {figures.FRESH: "cut out and distorted again: expensive", figures.CACHED: "from the cache"}
  handles = [patches.Patch(color=color, label=label) for color, label in labels.items()]
  last.legend(handles=handles, loc="center", ncols=2, frameon=False)
  figure.savefig(DOCS / "epochs.jpg", dpi=80, pil_kwargs={"quality": 85})


if __name__ == "__main__":
  main()

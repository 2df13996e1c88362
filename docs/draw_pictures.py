"""Draws the pictures of README.md and of gallery.md with `rtf.show`, and writes gallery.md:
`python docs/draw_pictures.py`

It needs matplotlib, and scikit-image for the photographs. New layers appear in the gallery; a layer that cannot be
called without arguments needs an entry in `ARGUMENTS`.
"""

import pathlib
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
ARGUMENTS = {
  "augmix": "10",
  "auto_augment": '"imagenet"',
  "center_crop": "96",
  "color_jitter": "0.4, 0.4, 0.4, 0.1",
  "cutmix": "1.0, num_classes=2",
  "cutout": "48",
  "decode": "96",
  "decode_random_resized_crop": "128",
  "deep_auto_augment": '"imagenet"',
  "mixup": "1.0, num_classes=2",
  "mixup_or_cutmix": "1.0, 1.0, num_classes=2",
  "mosaic": "num_classes=2",
  "pad": '24, padding_mode="reflect"',
  "random_adjust_sharpness": "(0, 10), p=1",
  "random_affine": "20, (0.1, 0.1), (0.8, 1.2), 10",
  "random_apply": "[rtf.augment.random_rotation(30)], p=0.5",
  "random_choice": "[rtf.augment.random_flip(p=1), rtf.augment.random_invert(p=1), rtf.augment.cutout(48)]",
  "random_crop": "padding=24",
  "random_elastic": "400, 9",
  "random_erasing": "p=1",
  "random_grayscale": "p=0.5",
  "random_order": "[rtf.augment.random_erasing(p=1), rtf.augment.random_rotation((45, 45))]",
  "random_perspective": "p=1",
  "random_posterize": "(1, 4), p=1",
  "random_resize": "12, 144",
  "random_resized_crop": "128, scale=(0.2, 1)",
  "random_rotation": "45",
  "random_zoom_out": "p=1",
  "resize": "(96, 160)",
}
# Names that are not layers, and layers whose changes are not visible in a photograph without a volume or objects.
NO_LAYERS = (
  "compose",
  "copy_paste",
  "five_crop",
  "frequency_mask",
  "numpy_layer",
  "random_depth_crop",
  "random_depth_flip",
  "random_intensity",
  "sanitize_boxes",
  "seed_at",
  "split",
  "ten_crop",
  "time_mask",
  "time_shift",
)
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
    "# Gallery\n\nLayers of [`rtf.augment`](reference.md), drawn by [`rtf.show`](observe.md). Each picture of a row "
    "has another seed.\n"
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
    return rtf.show(batches.map(layer), num_samples=1, num_epochs=num_outcomes, class_names=["cat", "cup"])
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
  last.legend(
    handles=[
      patches.Patch(color=figures.FRESH, label="cut out and distorted again: expensive"),
      patches.Patch(color=figures.CACHED, label="from the cache"),
    ],
    loc="center",
    ncols=2,
    frameon=False,
  )
  figure.savefig(DOCS / "epochs.jpg", dpi=80, pil_kwargs={"quality": 85})


if __name__ == "__main__":
  main()

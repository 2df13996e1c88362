"""Draws samples: `rtf.show`."""

from typing import Any, Sequence

import tensorflow as tf

from refurbish_tf._internal import checks, dataset_graph, tracing
from refurbish_tf.augment import composition, decode
from refurbish_tf.augment.layers import layer_name
from refurbish_tf.augment.target_kinds import checked_targets
from refurbish_tf.plotting import copies, figure as figures, panels

# How many frames a row of clips shows at most; but each clip may show two, even if that makes more.
_MOST_FRAMES = 12


def show(
  dataset: tf.data.Dataset[Any] | Sequence[Any],
  image: Any = None,
  *,
  num_samples: int = 4,
  num_epochs: int = 4,
  targets: dict[str | int, Any] | None = None,
  class_names: Sequence[str] | None = None,
  figure: Any = None,
) -> Any:
  """A figure of the samples of a dataset, a row for each, in its first epochs, a column for each; or of what layers do.

  >>> images = tf.data.Dataset.from_tensor_slices((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)))
  >>> final = [rtf.augment.random_crop(padding=4), rtf.augment.normalize()]
  >>> train = images.refurbish([rtf.augment.rand_augment()], final, r=3, seed=7).batch(4)
  >>> rtf.show(train, num_samples=2).savefig("samples.png")  # doctest: +SKIP
  >>> layers = [rtf.augment.random_flip(), rtf.augment.rand_augment()]
  >>> rtf.show(layers, tf.zeros([32, 32, 3], tf.uint8))  # doctest: +SKIP

  It shows what training will see: the samples that `refurbish` yields first, in the versions of its first epochs. A
  frame says whether an epoch prepares the sample or takes it from the cache. No epoch of yours begins and nothing is
  put into your store. For other `tf.data` pipelines it shows the first samples, before any `shuffle`. A function that
  draws random numbers without a seed draws others here.

  Masks, boxes and key points are drawn over their image, and so is a flow, by the hue of its direction. The frames of a
  clip, several views and second images are side by side. Normalised images are made visible, in the same way for all
  samples. It needs matplotlib.

  Args:
    dataset: a `tf.data.Dataset` of samples or batches. Or a list of layers, as for `rtf.augment.compose`: then `image`
      is given to each of them, with other seeds in each column. A list within the list is one row.
    image: for layers, an image, a clip, a file, or a tuple or dict with what follows it.
    num_samples: how many rows, a whole number.
    num_epochs: how many columns, a whole number.
    targets: what follows the image, as for `rtf.augment.compose`. None: what the lists of layers of `refurbish` were
      told.
    class_names: a name for each label, a sequence of strings. None for those of `rtf.sources.image_folder`.
    figure: a matplotlib `Figure` or `SubFigure` to draw into. None makes one.

  Returns:
    The matplotlib `Figure`, or `figure`.

  Raises:
    ImportError: matplotlib is not there.
    TypeError, ValueError: an argument is not allowed; the dataset yields no images; there are several stages side by
      side; or something after the stage changes the number of samples, is an `offload` stage, or cannot be followed.
    tf.errors.OpError: as when the dataset is read.
  """
  figures.matplotlib()
  for name, value in (("num_samples", num_samples), ("num_epochs", num_epochs)):
    checks.check_whole_number(name, value, 1, bits=7)
  is_list = isinstance(class_names, (list, tuple)) or getattr(class_names, "ndim", 0) == 1
  if class_names is not None and not (is_list and all(isinstance(each, str) for each in class_names)):
    raise TypeError(f"class_names must be a sequence of strings, a name for each label, got {class_names!r}.")
  if figure is not None and not hasattr(figure, "subplots"):
    raise TypeError(f"figure must be a matplotlib Figure or SubFigure, or None to make one, got {figure!r}.")
  kinds = checked_targets(targets, "show")
  if composition.is_list(dataset):
    if not dataset:
      raise ValueError(
        f"dataset must have at least one layer if it is a list, such as [rtf.augment.random_flip()], got {dataset!r}."
      )
    if image is None:
      raise TypeError("image must be given with layers, such as a uint8 array [height, width, 3], got None.")
    rows, columns, normalization = _of_layers(list(dataset), image, targets, num_epochs), [""] * num_epochs, None
  elif image is not None:
    if isinstance(dataset, tf.data.Dataset):
      raise TypeError(
        f"image is for a list of layers, got {type(image).__name__} and a dataset. Pass num_samples by its name."
      )
    raise TypeError(
      f"dataset must be a list of layers if image is given, got {layer_name(dataset)}. Put a layer into a list: "
      "[layer]."
    )
  else:
    rows, normalization = _of_dataset(dataset, kinds, num_samples, num_epochs)
    columns = [f"epoch {number}" for number in range(num_epochs)]
    class_names = class_names or next(
      (each.class_names for each in dataset_graph.upstream_first(dataset) if hasattr(each, "class_names")), None
    )
  return _drawn(rows, columns, normalization, class_names, figure)


def _of_dataset(dataset, targets, num_samples, num_epochs):
  """Rows of a title, or None, and cells: a sample, the kinds in it, and whether it is fresh."""
  samples = copies.samples_of(dataset, num_samples, num_epochs)
  if not samples.epochs[0]:
    raise ValueError("dataset must yield samples, got none. Pass one that is not empty.")
  functions, of_stage = getattr(samples.stage, "given_functions", [None]), None
  if targets is None:
    targets = next((each._targets for each in functions if getattr(each, "_targets", None)), None)
    of_stage = samples.of_stage
  kinds = panels.kinds_of(targets, samples.epochs[0][0], of_stage)
  normalization = composition.normalization_of(functions[-1])
  return [
    (None, [(epoch[number], kinds, fresh[number]) for epoch, fresh in zip(samples.epochs, samples.fresh)])
    for number in range(min(map(len, samples.epochs)))
  ], normalization


def _of_layers(layers, given, targets, num_outcomes):
  """Rows like those of `_of_dataset`, for layers: what each layer makes of an image."""
  rows, element = [], given if type(given) is tuple else (given,)
  image = tf.convert_to_tensor(composition.image_of(element[0]))
  # `compose` expects True for a clip, and None for a single image.
  clips = image.shape.rank == (1 if image.dtype == tf.string else 4) or None
  groups = []
  for layer in map(composition.flattened, ([each] for each in layers)):
    # The two layers of AutoAugment stay together.
    if groups and getattr(groups[-1][-1], "hands_on", None) and getattr(layer[0], "takes_over", None):
      groups[-1] += layer
    else:
      groups.append(layer)
  for group in groups:
    is_undecoded = image.dtype == tf.string and not hasattr(group[0], "check_targets")
    first = [decode(apply_exif_orientation=True)] if is_undecoded else []
    function = composition.compose([*first, *group], targets, clips=clips)
    draws = tracing.signature_with("seed", function) is not None
    seeds = [{"seed": [number, 0]} for number in range(num_outcomes)] if draws else [{}]
    made = [function(*element, **seed) for seed in seeds]
    title = ", ".join(repr(each) if hasattr(each, "outcomes") else layer_name(each) for each in group)
    rows.append((title, [(each, panels.kinds_of(checked_targets(targets, "show"), each), None) for each in made]))
  return rows


def _drawn(rows, columns, normalization, class_names, figure):
  most_frames = max(2, _MOST_FRAMES // len(columns))
  drawn, views = [], {}
  for number, (title, cells) in enumerate(rows):
    cells = [(*panels.panels_of(sample, kinds, class_names, most_frames), fresh) for sample, kinds, fresh in cells]
    for panel in (panel for found, *_ in cells for panel in found):
      # Each layer may make a different range of values. All samples of a dataset have the same range.
      panel.view = panel.view if title is None else (number, panel.view)
      views.setdefault(panel.view, []).append(panel.image)
    texts = {text for _, text, _ in cells}
    drawn.append((title or (texts.pop() if len(texts) == 1 else None), cells))
  visible = {view: panels.visible(images, normalization) for view, images in views.items()}
  return figures.draw(figures.new_figure() if figure is None else figure, drawn, columns, visible)

"""Draws panels with matplotlib."""

import textwrap

import numpy as np

FRESH, CACHED = "#e69f00", "#0072b2"
_LEGEND = {True: "prepared in this epoch", False: "from the cache"}
# A notebook's width in inches; a column's least width, so that texts do not overlap; dots per inch; font size in pt.
_WIDTH, _LEAST_COLUMN, _DPI, _FONT = 9.6, 0.9, 100, 9
# The gap between panels of a cell, which are 1 high, and the most panels in a line.
_GAP, _MOST_IN_LINE = 0.03, 4
# Colours of classes and boxes: Okabe and Ito's, without those of the frames, and others.
_COLOURS = ("#009e73", "#cc79a7", "#f0e442", "#56b4e9", "#d55e00", "#8c564b", "#9467bd", "#17becf")
# By custom, the class of mask pixels that do not count.
_VOID = 255


def matplotlib():
  """The package, with the modules that are used."""
  try:
    import matplotlib.patches
    import matplotlib.pyplot
  except ImportError as error:
    raise ImportError("rtf.show needs matplotlib, which draws: pip install 'refurbish_tf[show]'.") from error
  return matplotlib


def new_figure():
  """A figure that a notebook shows once. Elsewhere, `pyplot.show` shows it."""
  plot = matplotlib()
  figure = plot.pyplot.figure(figsize=(_WIDTH, _WIDTH), dpi=_DPI, layout="constrained")
  if plot.get_backend().lower() in ("agg", "inline", "module://matplotlib_inline.backend_inline"):
    # Otherwise it would be shown twice: at the end of the cell, and as the value of the cell.
    plot.pyplot.close(figure)
  return figure


def draw(figure, rows, columns, visible):
  """Draws rows of cells. `visible`: a dict from views to functions that scale their images to 0 to 1.

  A row is a title, or None if each cell has its own, and cells: panels, a text, and whether they are fresh, or None.
  """
  arranged = [[_arranged(panels) for panels, *_ in cells] for _, cells in rows]
  heights = [max(height / width for _, width, height in row) for row in arranged]
  filled = lambda text: textwrap.fill(text, max(12, 120 // len(columns)), max_lines=3, placeholder=" …")
  texts = [[filled(text) if title is None else " " * (title != "") for _, text, _ in cells] for title, cells in rows]
  if hasattr(figure, "set_size_inches"):
    inches = max(_WIDTH, _LEAST_COLUMN * len(columns))
    above = sum(0.07 + 0.17 * max(len(text.splitlines()) for text in row) for row in texts)
    figure.set_size_inches(inches, inches / len(columns) * sum(heights) + above + (0.55 if any(columns) else 0.05))
  places = figure.subplots(len(rows), len(columns), squeeze=False, gridspec_kw={"height_ratios": heights})
  for (title, cells), row, made, line in zip(rows, arranged, texts, places):
    for place in line[len(cells) :]:
      place.axis("off")
    for place, (panels, _, fresh), (boxes, width, height), text in zip(line, cells, row, made):
      for panel, box in zip(panels, boxes):
        _draw_panel(place, panel, visible[panel.view](panel.image), *box)
      place.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[])
      for spine in place.spines.values():
        spine.set(visible=fresh is not None, linewidth=3, color=FRESH if fresh else CACHED)
      place.set_title(text, fontsize=_FONT, parse_math=False)
    if title:
      # The title spans all columns. It must not widen the first one, and is above the tallest image of the row.
      tallest = max(zip(line, row), key=lambda pair: pair[1][2] / pair[1][1])[0]
      title, axes = textwrap.shorten(title, 120, placeholder=" …"), (line[0].transAxes, tallest.transAxes)
      _annotate(line[0], title, (0, 1), (0, 5), xycoords=axes, fontsize=_FONT, fontweight="bold")
  for place, name in zip(places[-1], columns):
    place.set_xlabel(name, fontsize=_FONT)
  found = {fresh for _, cells in rows for *_, fresh in cells} - {None}
  if found:
    patch = lambda fresh: matplotlib().patches.Patch(color=FRESH if fresh else CACHED, label=_LEGEND[fresh])
    handles = list(map(patch, sorted(found, reverse=True)))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=_FONT)
  return figure


def _arranged(panels):
  """The left, top and width of each panel of a cell, and the width and height of the cell."""
  length = -(-len(panels) // -(-len(panels) // _MOST_IN_LINE))
  made, left = [], 0
  for number, panel in enumerate(panels):
    height, width = panel.image.shape[:2]
    left = 0 if number % length == 0 else left
    made.append((left, number // length * (1 + _GAP), min(max(width / height, 0.1), 10)))
    left += made[-1][2] + _GAP
  return made, max(left + width for left, _, width in made), made[-1][1] + 1


def _draw_panel(place, panel, image, left, top, panel_width):
  height, width = image.shape[:2]
  extent = (left, left + panel_width, top + 1, top)
  scale, corner = np.array([panel_width / width, 1 / height]), (left, top)
  place.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent)
  for kind, values in panel.maps:
    place.imshow(_overlay(kind, values), extent=extent, interpolation="nearest")
  for number, corners, text in panel.boxes:
    colour = _COLOURS[number % len(_COLOURS)]
    first, second = corners[:2] * scale + corner, corners[2:] * scale + corner
    place.add_patch(matplotlib().patches.Rectangle(first, *(second - first), fill=False, linewidth=1.5, color=colour))
    if text:
      text = textwrap.shorten(text, 20, placeholder="…")
      box = {"facecolor": colour, "linewidth": 0, "pad": 1, "alpha": 0.8}
      _annotate(place, text, first, (2, -2), va="top", fontsize=_FONT - 2, clip_on=True, bbox=box)
  for number, point in panel.points:
    # Moves the point to the middle of its pixel.
    x, y = (point + 0.5) * scale + corner
    place.scatter(x, y, s=14, color=_COLOURS[number % len(_COLOURS)], linewidths=0.6, edgecolors="white")


def _annotate(place, text, point, offset, **style):
  place.annotate(text, point, offset, textcoords="offset points", parse_math=False, **style).set_in_layout(False)


def _overlay(kind, values):
  """The colours of a mask or a map [height, width, channels], transparent where it is 0 or unknown."""
  if kind != "mask" or values.dtype.kind == "f" and (values != np.round(values)).any():
    values = np.where(np.isfinite(values), values, 0).astype(np.float64)
    size = np.sqrt((values**2).sum(axis=-1))
    size /= max(size.max(), 1e-9)
    # The hue is the direction in which a pixel moves, or vectors point: red right, green down, cyan left, violet up.
    x, y = (values[..., begin : values.shape[-1] // 2 * 2 : 2].sum(axis=-1) for begin in (0, 1))
    colours, at = ("hsv", np.arctan2(y, x) / (2 * np.pi) % 1) if kind in ("flow", "vectors") else ("magma", size)
    made = matplotlib().colormaps[colours](at)
    made[..., 3] = 0.7 * size
    return made
  made = np.zeros((*values.shape[:2], 4))
  for channel in range(values.shape[-1]):
    classes = values[..., channel].astype(np.int64)
    # If there are several channels, each has its own colour.
    for found in set(np.unique(classes)) - {0}:
      number = found - 1 if values.shape[-1] == 1 else channel
      colour = "white" if found == _VOID else _COLOURS[number % len(_COLOURS)]
      made[classes == found] = matplotlib().colors.to_rgba(colour, 0.45)
  return made

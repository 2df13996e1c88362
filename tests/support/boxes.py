"""Draws boxes and key points into masks and finds them there again. Keras' box formats in NumPy."""

import numpy as np

FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh")


def in_format(boxes, name, size):
  """Converts boxes `[n, 4]` (left, top, right, bottom, in pixels) to another format. `size`: height and width of the
  image."""
  boxes = np.array(boxes, np.float64)
  if name.startswith("rel_"):
    boxes = boxes / [size[1], size[0], size[1], size[0]]
  if "center" in name:
    boxes = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
  elif name.endswith("xywh"):
    boxes = np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], -1)
  return boxes[..., [1, 0, 3, 2]] if name.endswith(("yxyx", "yxhw")) else boxes


def drawn_boxes(boxes, size):
  """Returns a mask with one channel per box. Boxes have whole numbers."""
  mask = np.zeros([*size, len(boxes)], np.uint8)
  for number, (left, top, right, bottom) in enumerate(np.asarray(boxes, np.int64)):
    mask[top:bottom, left:right, number] = 1
  return mask


def found_boxes(mask):
  """Returns left, top, right and bottom of the pixels set in each channel; zeros for an empty channel."""
  found = []
  for number in range(mask.shape[-1]):
    rows, columns = np.nonzero(mask[..., number])
    found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else [0] * 4)
  return np.array(found)


def drawn_points(points, size):
  """A mask with one channel per point: a block of 3 x 3 pixels around it. Points have whole numbers."""
  return drawn_boxes([[x - 1, y - 1, x + 2, y + 2] for x, y in np.asarray(points)[:, :2]], size)


def found_points(mask):
  """Returns the middle of the pixels set in each channel, or None if they are fewer than 2 x 2."""
  found = found_boxes(mask)
  return [(box[:2] + box[2:] - 1) / 2 if np.all(box[2:] - box[:2] >= 2) else None for box in found]

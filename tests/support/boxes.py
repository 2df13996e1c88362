"""Boxes and key points as pixels: drawn into masks, and found there again. Keras' formats in NumPy."""
import numpy as np

FORMATS = (
    "xyxy", "yxyx", "xywh", "center_xywh", "center_yxhw", "rel_xyxy", "rel_yxyx", "rel_xywh", "rel_center_xywh")


def in_format(boxes, name, size):
  """`[n, 4]` in pixels, left, top, right, bottom, in another format. `size`: height and width of the image."""
  boxes = np.array(boxes, np.float64)
  if name.startswith("rel_"):
    boxes = boxes / [size[1], size[0], size[1], size[0]]
  if "center" in name:
    boxes = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
  elif name.endswith("xywh"):
    boxes = np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], -1)
  return boxes[..., [1, 0, 3, 2]] if name.endswith(("yxyx", "yxhw")) else boxes


def drawn_boxes(boxes, size):
  """A mask with one channel for each box of whole numbers."""
  mask = np.zeros([*size, len(boxes)], np.uint8)
  for number, (left, top, right, bottom) in enumerate(np.asarray(boxes, np.int64)):
    mask[top:bottom, left:right, number] = 1
  return mask


def found_boxes(mask):
  """Left, top, right and bottom of what is in each channel; zeros of an empty one."""
  found = []
  for number in range(mask.shape[-1]):
    rows, columns = np.nonzero(mask[..., number])
    found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else [0] * 4)
  return np.array(found)


def drawn_points(points, size):
  """A mask with one channel for each point of whole numbers: a block of 3 x 3 pixels around it."""
  return drawn_boxes([[x - 1, y - 1, x + 2, y + 2] for x, y in np.asarray(points)[:, :2]], size)


def found_points(mask):
  """The middle of what is in each channel, or None where that is not as large as it should be."""
  found = found_boxes(mask)
  return [(box[:2] + box[2:] - 1) / 2 if np.all(box[2:] - box[:2] >= 2) else None for box in found]

"""The state of a loader, as bytes: the position of its stages, and, in mid-epoch, the checkpoint of its iterator."""

import collections
import json
from typing import NamedTuple
import zlib

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import joined_positions, positions

_MAGIC = b"rtf loader state"
_FORMAT = 5  # Raise this number for a change that other versions cannot read.
_LEAST_BYTES = 1 << 16


class Saved(NamedTuple):
  """The contents of a state."""

  position: dict
  iterator: list | None  # Parts of the iterator's checkpoint.
  described: dict
  epoch: int
  told: int | None


def of(stages, iterator, described, epoch, told):
  """The state as a vector of uint8, in the epoch with the number `epoch`, or before it, if `iterator` is None.

  `told` is the number by which the program knows the epoch, None if it gave none.

  `described`, for JSON, must be equal when the state is loaded. The length is a power of two that does not depend on
  the position in a pipeline: some libraries restore arrays only into arrays of the same shape.
  """
  position, parts = positions.of(stages), []
  if iterator is not None:
    tensors = iterator._serialize_to_tensors()
    # Serialized one by one, because a protocol buffer cannot be larger than 2 GiB.
    parts = [tf.io.serialize_tensor(part).numpy() for part in tf.unstack(tensors["_STATE"])]
    if stages:
      position = json.loads(tensors["_STAGES"].numpy())
  header = {"format": _FORMAT, "described": described, "epoch": epoch, "told": told, "position": position}
  header = json.dumps(header | {"iterator": None if iterator is None else list(map(len, parts))}).encode()
  body = b"".join([len(header).to_bytes(8, "little"), header, *parts])
  content = b"".join([_MAGIC, len(body).to_bytes(8, "little"), zlib.crc32(body).to_bytes(4, "little"), body])
  # One bit per sample is most of a state. `num_samples` is -1 while it is unknown, and missing for `offload`.
  samples = sum(max(0, each.get("num_samples", 0)) for each in position["stages"])
  least = max(_LEAST_BYTES, samples // 4, len(content))
  state = np.zeros(1 << (least - 1).bit_length(), np.uint8)  # The next power of two.
  state[: len(content)] = np.frombuffer(content, np.uint8)
  return state


def read(function, state):
  """The contents of the state; ValueError if they cannot be used."""
  content = state.tobytes()
  size = len(_MAGIC) + 12
  body = content[size : size + int.from_bytes(content[size - 12 : size - 4], "little")]
  if content[: len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(4, "little") != content[size - 4 : size]:
    raise ValueError(
      f'{function}: "state" is damaged, or not what state_dict() has returned. Load another checkpoint, or leave out '
      "load_state_dict() to start over."
    )
  begin = 8 + int.from_bytes(body[:8], "little")
  header = json.loads(body[8:begin])
  if header["format"] != _FORMAT:
    raise ValueError(
      f"{function}: the state has format {header['format']}, but this refurbish_tf reads format {_FORMAT}. Use the "
      "version that saved it."
    )
  parts = None
  if header["iterator"] is not None:
    parts = []
    for length in header["iterator"]:
      parts.append(body[begin : begin + length])
      begin += length
  return Saved(header["position"], parts, header["described"], header["epoch"], header["told"])


def as_array(function, state_dict):
  """What `state_dict()` has returned, as a vector of uint8."""
  state = state_dict.get("state") if isinstance(state_dict, collections.abc.Mapping) else None
  if hasattr(state, "cpu"):
    state = state.cpu()  # A tensor of PyTorch, perhaps on a device.
  try:
    array = None if state is None else np.asarray(state)
  except (TypeError, ValueError, RuntimeError):
    array = None
  if array is None or array.dtype != np.uint8 or array.ndim != 1:
    raise TypeError(
      f'{function} takes the result of state_dict(), {{"state": a vector of uint8}}, got {_described(state_dict)}.'
    )
  return array


def position_of(state_dict):
  """The position that a loader has saved, with the number of its epoch; None if it was not a loader that saved it."""
  if not isinstance(state_dict, collections.abc.Mapping):
    return None
  function = "rtf.EpochPosition.joined"
  saved = read(function, as_array(function, state_dict))
  position = saved.position
  if saved.iterator is not None:
    position = positions.in_epoch(position, _checkpoint(saved.iterator))
  return {**position, "epoch": saved.epoch, "between": saved.iterator is None}


joined_positions.READERS.append(position_of)


def restore(iterator, saved):
  tensors = {"_STATE": _checkpoint(saved.iterator), "_STAGES": tf.constant(json.dumps(saved.position))}
  iterator._restore_from_tensors(tensors)


def _checkpoint(parts):
  return tf.stack([tf.io.parse_tensor(part, tf.variant) for part in parts])


def _described(state_dict):
  if not isinstance(state_dict, collections.abc.Mapping):
    return type(state_dict).__name__
  return "{" + ", ".join(f"{key!r}: {type(value).__name__}" for key, value in state_dict.items()) + "}"

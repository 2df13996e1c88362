"""The state of a loader, as bytes: the state of each `refurbish` stage, and, in mid-epoch, of the iterator."""
from __future__ import annotations

import json
from typing import NamedTuple
import zlib

import numpy as np
import tensorflow as tf

_MAGIC = b"rtf loader state"
_FORMAT = 4  # Raise it for a change that another package cannot read.
_LEAST_BYTES = 1 << 16


class Saved(NamedTuple):
  """What a state says."""
  stages: list  # The state of each.
  iterator: list | None
  epoch: int
  told: int | None


def of(stages, iterator, described, epoch, told):
  """The state as a vector of uint8, in the epoch with the number `epoch`, or before it: then `iterator` is None.

  `told` is the number by which the program knows the epoch, None if it told none.

  `described`, for JSON, must be equal where the state is loaded. The length is a power of two that, for a pipeline, does
  not depend on the position: some libraries restore arrays only into arrays of the same shape.
  """
  # The iterator may be reading ahead, and a stage whose epoch has been read to its end is missing from its state: the same
  # stage must not have begun an epoch in the meantime.
  before, saved = None, [stage.saved_state() for stage in stages]
  while before is None or any(one["next_epoch"] != other["next_epoch"] for one, other in zip(before, saved)):
    parts = [] if iterator is None else _saved(iterator)
    before, saved = saved, [stage.saved_state() for stage in stages]
  header = json.dumps({
      "format": _FORMAT, "described": described, "epoch": epoch, "told": told, "kinds": _kinds(stages), "stages": saved,
      "iterator": None if iterator is None else list(map(len, parts))})
  body = b"".join([len(header.encode()).to_bytes(8, "little"), header.encode(), *parts])
  content = b"".join([_MAGIC, len(body).to_bytes(8, "little"), zlib.crc32(body).to_bytes(4, "little"), body])
  # A bit for each sample is most of it: -1 while their number is unknown, and `offload` has none.
  samples = sum(max(0, each.get("num_samples", 0)) for each in saved)
  state = np.zeros(_power_of_two(max(_LEAST_BYTES, samples // 4, len(content))), np.uint8)
  state[:len(content)] = np.frombuffer(content, np.uint8)
  return state


def read(function, state, described, stages):
  """What the state says; ValueError if it is unfit."""
  content = state.tobytes()
  size = len(_MAGIC) + 12
  body = content[size:size + int.from_bytes(content[size - 12:size - 4], "little")]
  if content[:len(_MAGIC)] != _MAGIC or zlib.crc32(body).to_bytes(4, "little") != content[size - 4:size]:
    raise ValueError(
        f'{function}: "state" is damaged, or not what state_dict() has returned. Load another checkpoint, or leave out '
        "load_state_dict() to start over.")
  begin = 8 + int.from_bytes(body[:8], "little")
  header = json.loads(body[8:begin])
  if header["format"] != _FORMAT:
    raise ValueError(
        f"{function}: the state has format {header['format']}, but this refurbish_tf reads format {_FORMAT}. Use the one that "
        "saved it.")
  if (header["described"], header["kinds"]) != (described, _kinds(stages)):
    raise ValueError(
        f"{function}: the state is of another pipeline, with {header['described']} and the stages {header['kinds']}, but this "
        f"one has {described} and {_kinds(stages)}. Build the same pipeline.")
  parts = None
  if header["iterator"] is not None:
    parts = []
    for length in header["iterator"]:
      parts.append(body[begin:begin + length])
      begin += length
  return Saved(header["stages"], parts, header["epoch"], header["told"])


def _kinds(stages):
  return [type(stage).__name__ for stage in stages]


def restore(iterator, parts):
  saved = tf.stack([tf.io.parse_tensor(part, tf.variant) for part in parts])
  iterator._restore_from_tensors({"_STATE": saved})


def _saved(iterator):
  saved = iterator._serialize_to_tensors()["_STATE"]
  # One by one, as a message of more than 2 GiB cannot be made.
  return [tf.io.serialize_tensor(part).numpy() for part in tf.unstack(saved)]


def _power_of_two(least):
  return 1 << (least - 1).bit_length()

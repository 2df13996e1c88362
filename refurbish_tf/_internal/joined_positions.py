"""Joins the positions of several workers into one, which any number of workers can restore."""

import base64
import os
import zlib

import numpy as np
import tensorflow as tf

from refurbish_tf._internal import pipeline_warnings, positions

# Each function returns the position in one form of saved state, and None for other forms. Other modules append to it.
READERS = []
# The entries of a stage's state that must be the same for all workers.
_SAME = ("seed", "reuse_factor", "eviction", "shuffle", "num_shards", "whole", "schedule_shards")


def joined(saved):
  """The value of the position that `rtf.EpochPosition.joined` returns."""
  found = [read(each) for each in saved]
  value, lost = join(found)
  if lost:
    told = "The others have finished the last epoch, so its samples that the missing workers had left are skipped."
    if value["stages"][0]["begun"]:
      told = "All samples of the missing workers are prepared and yielded again in this epoch."
    pipeline_warnings.warn(
      f"rtf.EpochPosition.joined: the position of {len(lost)} of {len(found)} workers is missing (shards "
      f"{', '.join(map(str, lost))}). {told}"
    )
  return value


def read(saved):
  """The position that a worker has saved, in any form; None if it was lost."""
  if saved is None:
    return None
  for reader in READERS:
    if (position := reader(saved)) is not None:
      return position
  if not isinstance(saved, (str, os.PathLike)):
    raise TypeError(
      "saved of rtf.EpochPosition.joined must have, for each worker, the path of a checkpoint or of a backup, the "
      f"state_dict() of a loader, an EpochPosition, or None, got {type(saved).__name__}."
    )
  return read_checkpoint(saved)


def read_checkpoint(path):
  """The position in a `tf.train.Checkpoint`; ValueError unless it has one."""
  try:
    found = positions.saved_in(os.fspath(path))
  except tf.errors.OpError as error:
    raise ValueError(
      f"saved of rtf.EpochPosition.joined: {path} cannot be read as a checkpoint ({type(error).__name__}). Pass None "
      "for a worker whose checkpoint was lost."
    ) from error
  if len(found) != 1:
    raise ValueError(
      f"saved of rtf.EpochPosition.joined: {path} has {len(found)} positions, but must have exactly one. Save one "
      "iterator, or one rtf.EpochPosition, with tf.train.Checkpoint."
    )
  return found[0]


def join(found):
  """The joined position, and the numbers of the shards whose position is missing."""
  present = [position for position in found if position is not None]
  if not present:
    _refuse("no position was given, or all are None. Begin with the first epoch")
  blockers = sorted({position["not_movable"] for position in present if position.get("not_movable")})
  if blockers:
    _refuse(
      f"{', '.join(blockers)} after refurbish has its own position, which cannot be divided among workers. Save "
      "between two epochs, or finish the epoch with the former number of workers; for prefetch and parallel map set "
      "options.experimental_symbolic_checkpoint"
    )
  if not all(position["stages"] for position in present):
    _refuse("the pipelines have no refurbish stage. Add refurbish to them")
  if len({(position["format"], *position["kinds"]) for position in present}) > 1:
    _refuse("they are of different pipelines. Pass what the workers of one run have saved")
  at_end = not all(position["between"] for position in present)
  by_stage = zip(*(position["stages"] for position in present), strict=True)
  joined = [_join_stage(list(states), len(found), at_end) for states in by_stage]
  # A worker that has left the epoch already counts the next one, though the joined position is in the epoch before.
  is_done = lambda own, all_: all_["begun"] and not own["begun"] and own["next_epoch"] > all_["number"]
  is_ahead = lambda position: bool(position["between"] and is_done(position["stages"][0], joined[0]))
  epochs = [position["epoch"] - is_ahead(position) for position in present if "epoch" in position]
  value = {key: present[0][key] for key in ("format", "kinds")}
  if epochs:
    value["epoch"] = min(epochs)
  lost = set(range(len(found))).difference(position["stages"][0]["shard"] for position in present)
  return {**value, "between": not joined[0]["begun"], "stages": joined}, sorted(lost)


def _join_stage(states, num_workers, at_end):
  """Joins the states of one stage. `at_end`: whether a worker may be at the end of its part, still in the loop."""
  if "num_shards" not in states[0]:
    _refuse(
      "only refurbish can continue in the middle of an epoch with another number of workers. Remove the offload stage "
      "that does not follow refurbish"
    )
  for name in _SAME:
    if len({state[name] for state in states}) > 1:
      _refuse(
        f"their {name} differs: {', '.join(str(state[name]) for state in states)}. Pass what the workers of one run "
        "have saved"
      )
  count, shards = states[0]["num_shards"], [state["shard"] for state in states]
  if count != num_workers or len(set(shards)) != len(shards):
    _refuse(
      f"the number of shards was {count}, but {num_workers} positions were given (of shards "
      f"{', '.join(map(str, shards))}). Pass one position per worker, and None for a lost one; shard by "
      "source.shard(n, i) before refurbish"
    )
  if count > 1 and states[0]["schedule_shards"] == 0:
    _refuse(
      "it is not known which samples a shard has. Shard directly before refurbish, source.shard(n, i).refurbish(...), "
      "not the file names"
    )
  numbers = [state["number"] if state["begun"] else state["next_epoch"] for state in states]
  number, is_begun = min(numbers), any(state["begun"] for state in states)
  if at_end and len(states) < count and number > 0 and not is_begun and max(numbers) == number:
    number -= 1  # A lost worker may not have ended this epoch.
  done = [not state["begun"] and state["next_epoch"] == number + 1 for state in states]
  if numbers != [number + ended for ended in done]:
    _refuse(
      "they are of different epochs. Pass positions that were saved at the same time; with repeat, shards of "
      "different lengths drift apart, so end each epoch together, or take an equal number of samples for each worker"
    )
  begun = any(done) or is_begun
  sizes = [_size(state) for state in states]
  known = states[0]["whole"] >= 0 or min(sizes) >= 0 and len(sizes) == count
  whole = states[0]["whole"] if states[0]["whole"] >= 0 else sum(sizes) if known else -1
  yielded = [np.ones(size, bool) if ended else _bits(state) for state, ended, size in zip(states, done, sizes)]
  bits = np.zeros(whole if known else max(shard + count * len(each) for shard, each in zip(shards, yielded)), bool)
  for shard, each in zip(shards, yielded):
    bits[shard::count][: len(each)] = each
  scheduled = all(state["scheduled"] for state in states)
  if scheduled and len({state["origin"] for state in states}) > 1:
    _refuse("their schedules began in different epochs. Finish the epoch with the former number of workers")
  keeps_all = all(state["num_kept"] == state["num_samples"] for state in states)
  packed = np.packbits(bits if begun else bits[:0], bitorder="little").tobytes()
  return {
    **states[0],
    **dict.fromkeys(("store_id", "ring_head", "shard"), 0),
    "joined": 1,
    "begun": int(begun),
    "number": number,
    "next_epoch": number + begun,
    "scheduled": int(scheduled and known),
    "num_samples": whole,
    "num_kept": 0 if not (scheduled and known) else whole if keeps_all else whole - 1,
    "yielded": base64.b64encode(zlib.compress(packed)).decode(),
    "lost_shards": sorted(set(range(count)) - set(shards)) if begun else [],
  }


def _size(state):
  """How many samples the worker has, -1 if that is not known."""
  if state["whole"] >= 0:
    return (state["whole"] + state["num_shards"] - 1 - state["shard"]) // state["num_shards"]
  return state["num_samples"]


def _bits(state):
  packed = np.frombuffer(zlib.decompress(base64.b64decode(state["yielded"])), np.uint8)
  bits = np.unpackbits(packed, bitorder="little").astype(bool)
  size = _size(state)
  return bits if size < 0 else np.resize(bits, size) if len(bits) >= size else np.pad(bits, (0, size - len(bits)))


def _refuse(why):
  raise ValueError(f"rtf.EpochPosition.joined cannot join the positions: {why}.")

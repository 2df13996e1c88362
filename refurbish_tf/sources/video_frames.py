"""Frames of video files, decoded by PyAV: what the processes of `video_clips` run.

A process loads this file alone, so it imports nothing else of the package.
"""

import array
import bisect
import collections
import fractions
import json
import os

import av
import numpy as np

# Files that a process keeps open. A decoder for 4K holds hundreds of megabytes.
_MOST_OPEN = 2
# Where to start decoding, in this order: the last key frame; the one before it, because after some key frames the next
# frames are incomplete; the beginning, because some formats do not seek correctly.
_KEYS_BACK = (0, 1, None)
# How many frame times a process remembers for all files, 8 bytes each.
_MOST_TIMES = 1 << 22

_videos = collections.OrderedDict()
_indices = collections.OrderedDict()

# Times are in units of the file. `key_starts` are the times to seek to for each key frame. Without `key_times` only the
# order of the frames is known.
_Index = collections.namedtuple("_Index", "times key_times key_starts")


class _Refused(Exception):
  """Something is wrong with the file: the message goes after its name."""


class _Lost(Exception):
  """A frame was not decoded where it should have been."""


def call(request, rng):
  """Counts frames or returns a clip, as the JSON `request` specifies. For a faulty file, returns a message as bytes."""
  wanted = json.loads(request)
  path, rate = wanted["path"], wanted["rate"] and fractions.Fraction(wanted["rate"])
  try:
    if "numbers" in wanted:
      return _opened(path).clip(wanted["numbers"], rate, wanted["count"])
    video = _Video(path)
    try:
      return np.int64(video.count(rate))
    finally:
      video.close()
  except (_Refused, av.error.FFmpegError, OSError) as error:
    for key in [key for key in _videos if key[0] == path]:
      _videos.pop(key).close()
    return (str(error) if isinstance(error, _Refused) else f"cannot be read: {_told(error)}").encode(
      "utf-8", "backslashreplace"
    )


def _opened(path):
  key = _key_of(path)
  if key not in _videos:
    while len(_videos) >= _MOST_OPEN:
      _videos.popitem(last=False)[1].close()
    _videos[key] = _Video(path)
  _videos.move_to_end(key)
  return _videos[key]


def _key_of(path):
  """A key that changes if the file is replaced."""
  status = os.stat(path)
  return path, status.st_ino, status.st_size, status.st_mtime_ns


def _told(error):
  return getattr(error, "strerror", None) or error


def _nearest(times, time):
  """The position in `times` of the one nearest to `time`."""
  after = min(bisect.bisect_left(times, time), len(times) - 1)
  return after - (after > 0 and time - times[after - 1] <= abs(times[after] - time))


class _Video:
  """An open file. Its frames are numbered as they are shown, from 0."""

  def __init__(self, path):
    self._path, self._key, self._container = path, _key_of(path), None
    if not os.path.getsize(path):
      raise _Refused("is empty")
    self._open()

  def close(self):
    self._decoded = None
    self._container.close()

  def _open(self):
    if self._container:
      self.close()
    # A playlist in place of a video must not lead to other machines.
    self._container = av.open(self._path, metadata_errors="ignore", options={"protocol_whitelist": "file"})
    # Leaves out the cover picture of an audio file, which is also a video stream.
    streams = [
      each for each in self._container.streams.video if not each.disposition & av.stream.Disposition.attached_pic
    ]
    if not streams:
      raise _Refused("has no video, only audio or other streams")
    self._stream = streams[0]
    codec = self._stream.codec_context
    codec.thread_type, codec.thread_count = "NONE", 1
    # Otherwise FFmpeg conceals the pixels that it cannot decode.
    codec.options = {"err_detect": "explode"}
    # An iterator of the next frames, and the time of the last one.
    self._decoded = self._at = None

  def count(self, rate):
    """The number of frames, or of those at `rate` frames a second."""
    listed = None if rate else self._num_listed()
    return self._num_at(self._index(), rate) if listed is None else listed

  def _num_listed(self):
    """The number of frames that the header lists; None if it lists none. Refuses a file that ends before them."""
    entries = list(self._stream.index_entries)
    if not entries or not self._container.format.name.startswith("mov") or self._stream.frames <= 0:
      return None
    if max(each.pos + each.size for each in entries) > os.path.getsize(self._path):
      raise _Refused("is cut off: its header lists frames after its end")
    # An edit list may leave frames out.
    return sum(not each.is_discard for each in entries)

  def _index(self):
    """The `_Index`. To make it, the whole file is read, but nothing is decoded."""
    if self._key not in _indices:
      _indices[self._key] = self._read_index()
      while len(_indices) > 1 and sum(len(each.times) for each in _indices.values()) > _MOST_TIMES:
        _indices.popitem(last=False)
    _indices.move_to_end(self._key)
    return _indices[self._key]

  def _read_index(self):
    listed = self._num_listed()
    # VP8 has packets of frames that are never shown; a bit at their beginning says so.
    is_vp8 = self._stream.codec_context.name == "vp8"
    packets = []
    for packet in self._container.demux(self._stream):
      if packet.is_corrupt:
        raise _Refused(f"is damaged: bytes are missing after frame {len(packets):,}")
      if packet.size and not (is_vp8 and not bytes(packet)[0] & 16):
        packets.append((packet.pts, packet.dts, packet.is_keyframe, packet.is_discard))
    shown = [pts for pts, _, _, is_discard in packets if not is_discard]
    if not shown:
      raise _Refused("has a video without frames")
    if listed is not None and len(shown) != listed:
      raise _Refused(f"is damaged: its header lists {listed:,} frames, but {len(shown):,} can be read")
    if None in shown or len(set(shown)) < len(shown):
      return _Index(range(len(shown)), [], [])
    # Formats seek by the order of the file, where a key frame comes before the time at which it is shown.
    keys = sorted((pts, pts if dts is None else dts) for pts, dts, is_key, _ in packets if is_key and pts is not None)
    return _Index(array.array("q", sorted(shown)), [pts for pts, _ in keys], [start for _, start in keys])

  def _num_at(self, index, rate):
    times = index.times
    if not rate:
      return len(times)
    if not index.key_times:
      raise _Refused(
        "has frames without a time of their own, so frame_rate cannot choose among them; leave frame_rate out"
      )
    # One unit is added, because formats round times.
    return int((times[-1] - times[0] + 1) * self._stream.time_base * rate) + 1

  def clip(self, numbers, rate, count):
    """The frames with these numbers, uint8 `[frames, height, width, 3]`. `count`: of all frames, or None."""
    index = self._index()
    times, found = index.times, self._num_at(index, rate)
    if count not in (None, found) or max(numbers) >= found:
      raise _Refused(
        f"has {found:,} frames, but {count or max(numbers) + 1:,} are expected: it has changed, is damaged, or a "
        "window reaches beyond its end"
      )
    if rate:
      numbers = [_nearest(times, times[0] + number / rate / self._stream.time_base) for number in numbers]
    wanted = sorted(set(numbers))
    for keys_back in _KEYS_BACK:
      try:
        frames = [self._frame(times[number], keys_back) for number in wanted]
        break
      except (_Lost, av.error.FFmpegError) as error:
        self._at, reason = None, _told(error)
    else:
      raise _Refused(f"is damaged near frame {wanted[0]:,}: {reason}")
    made = np.empty([len(numbers), *frames[0].shape], np.uint8)
    for place, number in enumerate(numbers):
      frame = frames[wanted.index(number)]
      if frame.shape != made.shape[1:]:
        raise _Refused(
          f"has frames of several sizes: {made.shape[1]} x {made.shape[2]} and {frame.shape[0]} x {frame.shape[1]}"
        )
      made[place] = frame
    return made

  def _frame(self, time, keys_back):
    """The pixels of the frame at this time, decoded from a key frame before it. Raises `_Lost` if it is not found."""
    index = self._index()
    place = bisect.bisect_right(index.key_times, time) - 1
    may_seek = keys_back is not None and place >= keys_back
    if self._at is None or self._at >= time or may_seek and self._at < index.key_times[place]:
      if may_seek:
        self._container.seek(index.key_starts[place - keys_back], stream=self._stream)
      else:
        self._open()
      frames = self._decode(index.key_times[place - keys_back] if may_seek else None)
      self._decoded = (
        ((frame.pts, frame) for frame in frames if frame.pts is not None) if index.key_times else enumerate(frames)
      )
    for at, frame in self._decoded:
      self._at = at
      if at == time and not frame.is_corrupt:
        return _pixels(frame)
      if at >= time:
        break
    raise _Lost("a frame cannot be decoded")

  def _decode(self, key_time):
    for packet in self._container.demux(self._stream):
      try:
        yield from packet.decode()
      except av.error.InvalidDataError:
        # Frames stored after a key frame but shown before it may need frames stored before it, which were not read.
        if key_time is None or packet.pts is None or packet.pts >= key_time:
          raise


def _pixels(frame):
  """The frame in RGB, by its own colour tags, turned as the file says."""
  pixels = frame.to_ndarray(format="rgb24")
  matrix = next((bytes(each) for each in frame.side_data if each.type.name == "DISPLAYMATRIX"), None)
  if matrix is None:
    return pixels
  # A point x, y is shown at a x + c y, b x + d y.
  a, b, _, c, d = np.sign(np.frombuffer(matrix, np.int32)[:5])
  if abs(a) != abs(d) or abs(b) != abs(c) or abs(a) == abs(b):
    raise _Refused("must be turned by an angle that is not a multiple of 90 degrees")
  if b:
    pixels = pixels.transpose(1, 0, 2)
  return pixels[:: -1 if b + d < 0 else 1, :: -1 if a + c < 0 else 1]

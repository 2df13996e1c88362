"""Writes video files with PyAV, and decodes them."""

import contextlib
import fractions
import pathlib
import struct

import numpy as np

RATE = 30
X264 = {"bf": "2", "x264-params": "scenecut=0:log-level=none"}
OPEN = {"x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0:keyint=12:min-keyint=12:log-level=none"}
# By ending of the file name: codec, its options, pixel layout.
FORMATS = {
  "closed.mp4": ("libx264", X264, "yuv420p"),
  "open.mkv": ("libx264", OPEN, "yuv420p"),
  "open.ts": ("libx264", OPEN, "yuv420p"),
  "no_times.h264": ("libx264", X264, "yuv420p"),
  "open.mp4": ("libx264", OPEN, "yuv420p"),
  "refresh.mp4": ("libx264", {"x264-params": "intra-refresh=1:keyint=12:bframes=0:log-level=none"}, "yuv420p"),
  "short.mp4": (
    "libx264",
    {"x264-params": "open-gop=1:bframes=2:b-adapt=0:keyint=3:min-keyint=1:log-level=none"},
    "yuv420p",
  ),
  "vp9.webm": ("libvpx-vp9", {"cpu-used": "8"}, "yuv420p"),
  "vp8.webm": ("libvpx", {"cpu-used": "8"}, "yuv420p"),
  "b_frames.avi": ("mpeg4", {"bf": "2"}, "yuv420p"),
  "mpeg2.mpg": ("mpeg2video", {"bf": "2"}, "yuv420p"),
  "hevc.mp4": ("libx265", {"x265-params": "keyint=12:min-keyint=12:bframes=3:open-gop=1:log-level=none"}, "yuv420p"),
}


def write(path, number=60, size=(48, 64), kind="closed.mp4", times=None, seed=0, **container):
  """Writes frames of moving noise. `times`: the time of each frame in milliseconds, instead of a regular rate."""
  import av

  codec, options, layout = FORMATS[kind]
  noise = np.random.default_rng(seed).integers(0, 256, [8 + number, 10 + number, 3], np.uint8).repeat(8, 0).repeat(8, 1)
  with av.open(str(path), "w", **container) as file:
    stream = file.add_stream(codec, rate=RATE, options=options, width=size[1], height=size[0], pix_fmt=layout)
    stream.codec_context.gop_size = 12
    if times is not None:
      stream.codec_context.time_base = fractions.Fraction(1, 1000)
    for place in range(number):
      frame = av.VideoFrame.from_ndarray(
        np.ascontiguousarray(noise[place : place + size[0], 2 * place : 2 * place + size[1]]), "rgb24"
      )
      frame.pts, frame.time_base = (
        (place, fractions.Fraction(1, RATE)) if times is None else (times[place], fractions.Fraction(1, 1000))
      )
      file.mux(stream.encode(frame.reformat(format=layout)))
    file.mux(stream.encode(None))
  return str(path)


def write_audio(path):
  import av

  with av.open(str(path), "w") as file:
    stream = file.add_stream("aac", rate=44100)
    frame = av.AudioFrame.from_ndarray(np.zeros([1, 4410], np.float32), format="fltp", layout="mono")
    frame.rate = 44100
    file.mux(stream.encode(frame))
    file.mux(stream.encode(None))
  return str(path)


def decoded(path):
  """All frames, decoded sequentially, and their times in seconds."""
  import av

  with contextlib.closing(av.open(str(path))) as file:
    file.streams.video[0].thread_type = "NONE"
    frames = list(file.decode(video=0))
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), [frame.time for frame in frames]


def turned(path, matrix):
  """Writes the display matrix (a, b, c, d) into the header of an .mp4."""
  content = bytearray(pathlib.Path(path).read_bytes())
  begin = content.index(b"tkhd") + 44
  a, b, c, d = (int(each) << 16 for each in matrix)
  content[begin : begin + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
  pathlib.Path(path).write_bytes(content)


def trimmed(path, first, milliseconds):
  """Writes into the header of an .mp4 where playing begins and ends."""
  content = bytearray(pathlib.Path(path).read_bytes())
  begin = content.index(b"elst") + 12
  (time,) = struct.unpack(">i", content[begin + 4 : begin + 8])
  content[begin : begin + 8] = struct.pack(">Ii", milliseconds, time + first * 512)
  pathlib.Path(path).write_bytes(content)

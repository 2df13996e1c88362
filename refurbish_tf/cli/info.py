"""The command `refurbish-tf info [FOLDER]`: facts for a bug report about the machine and a folder of images."""

import collections
import os
import pathlib
import platform
from concurrent import futures
from importlib import metadata

import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import checks, machine, native
from refurbish_tf.augment import native_layers
from refurbish_tf.cache_store import DECODERS_VERSION
from refurbish_tf.cli.startup import stderr_held_back
from refurbish_tf.sources.image_folder import FORMATS

_PACKAGES = "tensorflow keras numpy matplotlib cloudpickle jax torch tensorflow-datasets av obstore redis".split()
_BEGINNINGS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP", b"BM": "BMP"}
# How stored pixels are rotated or mirrored, by the orientation in EXIF.
_TURNS = {
  2: lambda image: image[:, ::-1],
  3: lambda image: image[::-1, ::-1],
  4: lambda image: image[::-1],
  5: lambda image: image.swapaxes(0, 1),
  6: lambda image: np.rot90(image, -1),
  7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
  8: np.rot90,
}
_MOST_SHOWN = 10


def run(args):
  """Runs the subcommand. Returns its exit status."""
  if args.folder is not None and not os.path.isdir(args.folder):
    args.parser.error(f"argument FOLDER: {args.folder!r} is not a local directory")
  with stderr_held_back():
    devices = [
      tf.config.experimental.get_device_details(each).get("device_name", each.name)
      for each in tf.config.list_physical_devices()
      if each.device_type != "CPU"
    ]
  versions = {each.name.lower(): each.version for each in metadata.distributions()}
  library = native.library(tf.__version__)
  place = "in the package" if native.PACKAGE in library.parents else "rebuilt in the cache"
  limit = machine.memory_limit()
  limit = "without a limit" if limit is None else f"limited to {machine.size_of(limit)}"
  size = machine.size_of(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
  free, room = machine.size_of(machine.free_memory()), machine.size_of(machine.room_for_samples())
  _print(
    "refurbish_tf",
    {
      "version": rtf.__version__,
      "python": f"{platform.python_version()}, {platform.platform()}",
      "packages": ", ".join(f"{name} {versions[name]}" for name in _PACKAGES if name in versions),
      "library": f"{library}, {place}, for TensorFlow {native._read_record(library.parent)['tensorflow']}",
      "layers": f"version {native_layers.draws_version()}; {DECODERS_VERSION}",
      "CPU cores": f"{machine.processors()} of {os.cpu_count()}, {machine.processor()}",
      "memory": f"{size}, {limit}; {free} free, room for {room} of samples",
      "devices": ", ".join(devices) or "no accelerator",
    },
  )
  if args.folder is not None:
    _print(args.folder, _facts(args.folder, args.images))
  return 0


def _facts(folder, most):
  """Facts about the files in and below a folder."""
  paths = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file() or path.is_symlink())
  images = [path for path in paths if path.name.lower().endswith(FORMATS)]
  left_out = collections.Counter(
    path.suffix.lower() or "without an extension" for path in paths if path not in set(images)
  )
  looked_at = [images[number * len(images) // most] for number in range(most)] if len(images) > most else images
  with futures.ThreadPoolExecutor(machine.processors()) as pool:
    found = list(pool.map(_look_at, looked_at))
  sizes = sorted((size for _, size, _, error in found if error is None), key=lambda size: size[0] * size[1])
  turns = collections.Counter(turn for *_, turn, error in found if turn and error is None)
  errors = zip(looked_at, (error for *_, error in found))
  broken = [f"{checks.printable_path(path)}: {error}" for path, error in errors if error is not None]
  files = f"{len(images):,} images"
  files += f", {len(looked_at):,} of them examined" if len(looked_at) < len(images) else ""
  files += f"; others: {_counts(left_out)}" if left_out else ""
  facts = {"files": files, "formats": _counts(collections.Counter(name for name, *_ in found)) or "none"}
  if sizes:
    shown = (f"{width} x {height}" for height, width in (sizes[0], sizes[len(sizes) // 2], sizes[-1]))
    facts["sizes"] = "smallest {}, median {}, largest {}".format(*shown)
  facts["EXIF"] = "; ".join(f"orientation {turn}: {number:,}" for turn, number in sorted(turns.items())) or "turns none"
  more = [f"and {len(broken) - _MOST_SHOWN:,} more"] * (len(broken) > _MOST_SHOWN)
  facts["broken"] = "\n".join(broken[:_MOST_SHOWN] + more) or "none"
  return facts


def _look_at(path):
  """An image's format, its stored height and width, how EXIF turns it, and why it cannot be decoded, or None."""
  name = "unknown"
  try:
    file = path.read_bytes()
    name = next((name for beginning, name in _BEGINNINGS.items() if file.startswith(beginning)), "unknown")
    stored = rtf.augment.decode(apply_exif_orientation=False)(file).numpy()
    turn = 0
    if b"exif" in file.lower():
      turned = rtf.augment.decode(apply_exif_orientation=True)(file).numpy()
      if not np.array_equal(stored, turned):
        turn = next(number for number, of in _TURNS.items() if np.array_equal(of(stored), turned))
    return name, stored.shape[:2], turn, None
  except OSError as error:
    return name, None, 0, error.strerror
  except tf.errors.OpError as error:
    return name, None, 0, checks.message_of(error)


def _counts(counter):
  return ", ".join(f"{number:,} {name}" for name, number in counter.most_common())


def _print(title, facts):
  print(title)
  for name, fact in facts.items():
    print(f"  {name:11}" + fact.replace("\n", "\n" + " " * 13))

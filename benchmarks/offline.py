"""Carries this package to a machine without a network.

    python benchmarks/offline.py pack --python 3.12 --there jax jaxlib numpy ml_dtypes    # here: parts of at most 48 MB
    python3 offline/offline.py unpack offline /tmp/refurbish                    # there: in less than a minute
    . /tmp/refurbish/env.sh                                                     # sets the path

`pack` collects TensorFlow for the CPU, Keras, the packages that they require, this package with its built library, its
benchmarks, CIFAR-10, and the JPEG photographs that TFDS has here. It compresses them with xz and splits the archive
into parts, for connections that limit the size of a file. `unpack` needs only Python's standard library, and checks
each part. To leave out packages that the machine already has, name them after `--there`. `visit.py` unpacks the parts
and measures everything that landed/ still lacks.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import lzma
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"
PART_BYTES = 48_000_000
# xz's preset 2 is three times as fast as preset 6, and the TensorFlow wheel becomes only a twelfth larger.
PRESET = 2
# Large dependencies of TensorFlow that nothing here imports.
UNUSED = ("libclang", "tensorboard", "tensorboard-data-server")
# TensorFlow's headers, which are only needed to compile.
LEFT_OUT = re.compile(r"tensorflow/include/|.*/__pycache__/")
# pip matches these names exactly, so every allowed name is listed.
PLATFORMS = tuple(
  f"{platform}_x86_64"
  for platform in ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 36)))
)


def main(argv=None):
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  commands = parser.add_subparsers(dest="command", required=True)
  packing = commands.add_parser(
    "pack", help="collect everything into parts", formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  packing.add_argument("--python", default="3.12", help="version of Python on the other machine")
  packing.add_argument("--there", nargs="*", default=[], metavar="NAME", help="packages that the other machine has")
  packing.add_argument("--output", type=pathlib.Path, default=pathlib.Path("offline"), help="an empty or new folder")
  packing.add_argument("--without-data", action="store_true", help="leave out CIFAR-10 and the photographs")
  unpacking = commands.add_parser("unpack", help="put the parts together")
  unpacking.add_argument("parts", type=pathlib.Path, help="the folder with the parts")
  unpacking.add_argument("output", type=pathlib.Path, help="an empty or new folder")
  arguments = parser.parse_args(argv)
  if arguments.output.exists() and any(arguments.output.iterdir()):
    parser.error(f"{arguments.output} must be an empty or new folder. Give another one, or delete it.")
  began = time.perf_counter()
  try:
    if arguments.command == "pack":
      pack(arguments.output, arguments.python, arguments.there, not arguments.without_data)
    else:
      unpack(arguments.parts, arguments.output)
  except Refused as error:
    parser.error(str(error))
  print(f"{arguments.command}: {time.perf_counter() - began:.0f} s")


class Refused(Exception):
  """Something is missing or does not fit. The message says what, and how to fix it."""


def pack(output, python, there, with_data=True):
  """Writes the parts, `MANIFEST`, the results of earlier visits, and the programs for the other machine into
  `output`."""
  # Imported here, so that `unpack` runs on a machine without these packages.
  from refurbish_tf.experiments import results

  commit = results.commit(ROOT)
  if not commit or commit.endswith("+"):
    raise Refused(
      f"each row names the commit of its code, and {ROOT} has changes that are not committed. Commit them first."
    )
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    # Both the programs and the wheel's sources are copied first, because the checkout may move to another commit.
    programs = _copy_programs(scratch)
    wheels = [_package(scratch / "package"), *_download(scratch / "wheels", python)]
    kept = [wheel for wheel in wheels if _name(wheel) not in {_canonical(each) for each in there}]
    _check_tags(kept, python)
    data = _write_data(scratch / "data") if with_data else []
    output.mkdir(parents=True, exist_ok=True)
    with (
      _Parts(output) as parts,
      lzma.open(parts, "wb", preset=PRESET) as compressed,
      tarfile.open(fileobj=compressed, mode="w|") as tar,
    ):
      for wheel in kept:
        _add_wheel(tar, wheel)
      for path in [*programs, *data]:
        tar.add(path, path.relative_to(scratch))
  manifest = {
    "python": python,
    "commit": commit,
    "wheels": [wheel.name for wheel in kept],
    "there": sorted(there),
    "parts": parts.written,
  }
  (output / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
  for program in (__file__, ROOT / "benchmarks" / "visit.py"):
    shutil.copy(program, output)
  (output / "landed").mkdir()
  for table in (results.DIRECTORY / "cifar10.csv", *(ROOT / "benchmarks" / "results").glob("*.json")):
    if table.exists():
      shutil.copy(table, output / "landed")
  for part in parts.written:
    print(f"{part['name']}: {part['bytes']:,} bytes")


def unpack(parts, output):
  """Puts the parts together in `output`, and writes env.sh, which sets the path."""
  manifest = json.loads(_read(parts / MANIFEST))
  here = f"{sys.version_info.major}.{sys.version_info.minor}"
  if manifest["python"] != here:
    raise Refused(f"the parts are for Python {manifest['python']}, and this is {here}. Use `pack --python {here}`.")
  lacking = [name for name in manifest["there"] if not _is_installed(name)]
  if lacking:
    raise Refused(
      f"this machine must have {', '.join(lacking)}, which `pack --there` left out. Pack again without naming them."
    )
  for part in manifest["parts"]:
    content = _read(parts / part["name"])
    if len(content) != part["bytes"] or hashlib.sha256(content).hexdigest() != part["sha256"]:
      raise Refused(
        f"{part['name']} is damaged or cut off: it has {len(content):,} of {part['bytes']:,} bytes. Copy it again."
      )
  output.mkdir(parents=True, exist_ok=True)
  whole = io.BufferedReader(_Joined([parts / part["name"] for part in manifest["parts"]]))
  with lzma.open(whole) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
    for member in tar:
      # The parts match the manifest. Even so, the filter keeps all files inside `output`.
      tar.extract(member, output, filter="data")
  lines = [f"export {name}={shlex.quote(value)}" for name, value in environment(parts, output).items()]
  (output / "env.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
  print(f"Now set the path: . {shlex.quote(str(output / 'env.sh'))}")


def environment(parts, output):
  """Environment variables with which Python finds the packages unpacked into `output`, and knows their commit."""
  path = [str(output.resolve() / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
  return {"PYTHONPATH": os.pathsep.join(path), "REFURBISH_TF_COMMIT": json.loads(_read(parts / MANIFEST))["commit"]}


def _copy_programs(directory):
  """Copies the benchmarks and the trainings. Returns the paths of the copies."""
  for name in ("benchmarks", "trainings"):
    shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
  return sorted(path for path in directory.rglob("*") if path.suffix == ".py")


def _package(directory):
  """The wheel of this package, with its library for the TensorFlow that is installed here."""
  sys.path.insert(0, str(ROOT))
  import build_wheel

  directory.mkdir()
  build_wheel.copy_sources(directory / "sources")
  _run("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, directory / "sources")
  (wheel,) = directory.glob("*.whl")
  return wheel


def _download(directory, python):
  """The wheels of TensorFlow for the CPU, Keras, and their dependencies, in the versions that are installed here."""
  platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
  directory.mkdir(exist_ok=True)
  installed = {_canonical(each.metadata["Name"]): each.version for each in importlib.metadata.distributions()}
  constraints = directory / "constraints.txt"
  constraints.write_text(
    "".join(f"{name}=={version}\n" for name, version in installed.items() if name != "refurbish-tf"), encoding="utf-8"
  )
  _run(
    "download",
    "--only-binary=:all:",
    "--python-version",
    python,
    "--implementation",
    "cp",
    *platforms,
    "--dest",
    directory,
    "--constraint",
    constraints,
    f"tensorflow-cpu=={installed['tensorflow']}",
    "keras",
  )
  return sorted(wheel for wheel in directory.glob("*.whl") if _name(wheel) not in UNUSED)


def _check_tags(wheels, python):
  """Refuses wheels that another Python, or another kind of machine, could not import."""
  from packaging import tags, utils

  version = tuple(map(int, python.split(".")))
  platforms = ["linux_x86_64", *PLATFORMS]
  supported = {*tags.cpython_tags(version, platforms=platforms), *tags.compatible_tags(version, platforms=platforms)}
  if others := [wheel.name for wheel in wheels if supported.isdisjoint(utils.parse_wheel_filename(wheel.name)[3])]:
    raise Refused(f"Python {python} on x86-64 cannot import {', '.join(others)}.")


def _run(*arguments):
  done = subprocess.run(
    [sys.executable, "-m", "pip", *map(str, arguments)], capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise Refused(f"pip {arguments[0]} failed: {(done.stderr.strip() or done.stdout.strip())[-500:]}")


def _write_data(directory):
  """Writes CIFAR-10 and the photographs, as `cifar10.load` and `samples.of_folder` read them. Returns the paths."""
  import numpy as np
  import samples

  sys.path.insert(0, str(ROOT / "trainings"))
  import cifar10

  directory.mkdir()
  train, test = cifar10.load(None, cifar10.Plan())
  arrays = {
    f"{part}_{what}": array
    for part, pair in (("train", train), ("test", test))
    for what, array in zip(("images", "labels"), pair)
  }
  # Saved uncompressed, because the xz archive that includes this file compresses better.
  np.savez(directory / "cifar10.npz", **arrays)
  files, whence = samples.photographs(10**6)
  print(f"CIFAR-10 and {whence}")
  paths = [directory / "photographs" / f"{number:05}.jpg" for number in range(len(files))]
  paths[0].parent.mkdir()
  for path, content in zip(paths, files):
    path.write_bytes(content)
  return [directory / "cifar10.npz", *paths]


def _add_wheel(tar, wheel):
  """Adds the files of a wheel that pip would install, except TensorFlow's headers and bytecode."""
  with zipfile.ZipFile(wheel) as archive:
    for info in archive.infolist():
      # A wheel's `.data` directory has scripts and data files, which do not belong on Python's path.
      if info.is_dir() or LEFT_OUT.match(info.filename) or ".data/" in info.filename:
        continue
      entry = tarfile.TarInfo(f"site/{info.filename}")
      entry.size, entry.mode = info.file_size, 0o644
      with archive.open(info) as content:
        tar.addfile(entry, content)


def _name(wheel):
  return _canonical(wheel.name.split("-")[0])


def _canonical(name):
  return re.sub("[-_.]+", "-", name).lower()


def _is_installed(name):
  try:
    importlib.metadata.version(name)
    return True
  except importlib.metadata.PackageNotFoundError:
    return False


def _read(path):
  try:
    return path.read_bytes()
  except OSError as error:
    raise Refused(f"{path} cannot be read ({error.strerror}). Copy the whole folder that `pack` wrote.") from error


class _Parts(io.RawIOBase):
  """A file that is written as parts of at most `PART_BYTES`, which are listed in `written`."""

  def __init__(self, directory):
    super().__init__()
    self._directory = directory
    self._pending = bytearray()
    self.written = []

  def writable(self):
    return True

  def write(self, content):
    self._pending += content
    while len(self._pending) >= PART_BYTES:
      self._flush_part()
    return len(content)

  def close(self):
    if not self.closed and self._pending:
      self._flush_part()
    super().close()

  def _flush_part(self):
    part, self._pending = bytes(self._pending[:PART_BYTES]), self._pending[PART_BYTES:]
    name = f"part-{len(self.written):02}"
    (self._directory / name).write_bytes(part)
    self.written.append({"name": name, "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()})


class _Joined(io.RawIOBase):
  """Several files read as one."""

  def __init__(self, paths):
    super().__init__()
    self._paths = list(paths)
    self._file = None

  def readable(self):
    return True

  def readinto(self, buffer):
    while True:
      if self._file is None:
        if not self._paths:
          return 0
        self._file = self._paths.pop(0).open("rb")
      if count := self._file.readinto(buffer):
        return count
      self._file.close()
      self._file = None


if __name__ == "__main__":
  sys.exit(main())

"""Finds, checks, builds and loads the C++ library. No other module does.

tf.data's C++ binary interface changes between TensorFlow minors, so a library built against one of them fails on
another with an "undefined symbol", or worse, loads. Hence the package has one library for each minor, in
`_native/<minor>/`: a wheel (`build_wheel.py`) has the libraries of all supported minors, and `pip install .` builds the
one for the installed TensorFlow. A record next to each library says for which machine, against which TensorFlow and
from which sources it was built. `library` compares the record with what is installed *before* it loads anything. If no
library fits, it builds the packaged sources again, into a per-version directory of the user's cache.

Many .cc files are compiled together, so names in unnamed namespaces must differ across all files.

setup.py loads this file by path, before TensorFlow and the package can be imported: import neither at the top.
"""

import contextlib
import fcntl
import fnmatch
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent import futures

LIBRARY = "library.so"
RECORD = "record.json"
PACKAGE = pathlib.Path(__file__).resolve().parent.parent

# -DNDEBUG: TensorFlow's wheel was built with it, and it changes the layout of classes in the headers.
# -ffp-contract=off: a fused multiply-add rounds only once, so its results would differ from TensorFlow's.
# -fvisibility=hidden: kernels register themselves when the library is loaded, so our symbols need not be visible.
COMPILE_FLAGS = ("-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra")
# -z defs: a function that TensorFlow's headers declare and its libraries lack fails the build, not the user's import.
LINK_FLAGS = ("-shared", "-Wl,-z,defs")

# Groups of files that are compiled together: patterns of file names, in any folder; a file belongs to the first match.
# Each group reads TensorFlow's headers once: all take two minutes of CPU time, single files over ten. Two keep two
# cores busy. With CXX="ccache g++" files are compiled one by one, because ccache then compiles only what has changed.
GROUPS = ("[a-o]*", "*")
# GCC 12 does not suppress the second warning for functions inlined from TensorFlow's headers. TensorFlow 2.22
# deprecates a lock's constructor that takes a pointer; earlier versions have no other.
GROUP_HEAD = """\
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
"""


class BuildError(Exception):
  """The compiler failed. The message is the compiler's output."""


class NoCompilerError(Exception):
  """There is no compiler. The message, part of a sentence, says why and what to do."""


@functools.cache
def ops():
  """The Python functions of this package's C++ ops. Raises ImportError, which says what to do, if no library fits."""
  import tensorflow as tf

  path = library(tf.__version__)
  try:
    loaded = tf.load_op_library(str(path))
  except tf.errors.NotFoundError as error:
    raise ImportError(
      f"refurbish_tf's library {path} was recorded as built for TensorFlow {tf.__version__} but cannot be loaded "
      f"({error.message}). Delete it and import refurbish_tf again to rebuild it."
    ) from error
  loaded.path = str(path)
  return loaded


def rows(output):
  """A dict for each row of numbers that one of our ops returns together with their names."""
  names, numbers = output
  if not hasattr(numbers, "numpy"):
    raise RuntimeError("Counts are read at once and cannot be part of a tf.function. Call this outside.")
  names = [name.decode() for name in names.numpy()]
  return [dict(zip(names, row)) for row in numbers.numpy().tolist()]


def numbers_of(saved, names):
  """The values of a dict that was read from a file, in the order of `names`. ValueError if its keys differ."""
  if saved.keys() != names.keys():
    raise ValueError(f"it has {', '.join(saved) or 'nothing'}, but must have {', '.join(names)}")
  return [saved[name] for name in names]


def library(version):
  """The path of a library that fits TensorFlow `version`. Builds it if there is none, but does not load it."""
  sources = fingerprint()
  directory = packaged_directory(version)
  if is_built(directory, version, sources):
    return directory / LIBRARY
  root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "refurbish_tf"
  directory = root / f"{_interface(version)}-{sources[:16]}"
  # A finished directory only appears by rename, so only processes that find none need the lock.
  if is_built(directory, version, sources):
    return directory / LIBRARY
  try:
    root.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(directory.name + ".lock")):
      if not is_built(directory, version, sources):
        _rebuild(directory, version)
  except OSError as error:
    raise ImportError(
      f"refurbish_tf {_mismatch(version)} and cannot be rebuilt in its cache {root} ({error}): "
      "set XDG_CACHE_HOME to a writable directory and import again."
    ) from error
  return directory / LIBRARY


def packaged_directory(version, package=PACKAGE):
  """The directory for `package`'s library for TensorFlow `version`, whether or not there is one."""
  return pathlib.Path(package) / "_native" / _interface(version)


def is_built(directory, version, sources):
  """Whether there is a library of these `sources`, a fingerprint, for TensorFlow `version` in `directory`."""
  record = _read_record(directory)
  return record is not None and record["sources"] == sources and _interface(record["tensorflow"]) == _interface(version)


def build(directory):
  """Compiles the packaged sources into `directory`: the library, then its record. Returns the compiler's warnings.

  Each file appears complete or not at all, the record last. setup.py and `_rebuild` call this.
  """
  import tensorflow as tf

  command = [*compiler(), *compile_flags()]
  # No rpath: importing TensorFlow has loaded both libraries by the time ours is loaded.
  framework = tf.sysconfig.get_link_flags()
  link_flags = [*LINK_FLAGS, *framework, framework[-1].replace("_framework", "_cc")]
  # Computed first: a source that is edited during the compilation must not pass for the compiled one.
  record = {"machine": machine(), "tensorflow": tf.__version__, "sources": fingerprint()}
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as scratch:
    built = pathlib.Path(scratch)
    units = _units(built)
    objects = [str(built / f"{i}.o") for i in range(len(units))]
    # Threads suffice, because they wait for processes. The first failure cancels the compilations not yet begun.
    with futures.ThreadPoolExecutor(min(len(units), os.cpu_count() or 1)) as pool:
      compiled = lambda source, target: _run([*command, "-c", str(source), "-o", target])
      warnings = list(pool.map(compiled, units, objects))
    warnings.append(_run([*compiler(), *objects, *link_flags, "-o", str(built / LIBRARY)]))
    (built / RECORD).write_text(json.dumps(record) + "\n")
    # A library without a record does not count, so a crash between these lines only costs a rebuild.
    with contextlib.suppress(FileNotFoundError):
      (directory / RECORD).unlink()
    os.replace(built / LIBRARY, directory / LIBRARY)
    os.replace(built / RECORD, directory / RECORD)
  return "".join(warnings)


def compile_flags():
  """The flags to compile a source of ours for the installed TensorFlow."""
  import tensorflow as tf

  # -isystem: warnings only for our own files. -iquote and not -I: in an installed copy the root is site-packages, where
  # other packages' directories must not come before TensorFlow's headers.
  framework = [re.sub("^-I", "-isystem", flag) for flag in tf.sysconfig.get_compile_flags()]
  # TensorFlow's header for JPEG files includes libjpeg's, by a name that the system may also have.
  jpeg = [f"{flag}/external/libjpeg_turbo" for flag in framework if flag.startswith("-isystem")]
  return [*framework, *jpeg, *COMPILE_FLAGS, f"-iquote{PACKAGE.parent}"]


def compiler():
  """The command of a C++ compiler: $CXX (possibly several words, such as "ccache g++"), or else g++ or clang++."""
  chosen = shlex.split(os.environ.get("CXX", ""))
  for command in [chosen] if chosen else [["g++"], ["clang++"]]:
    if shutil.which(command[0]):
      return command
  raise NoCompilerError(
    f"CXX names {chosen[0]}, which does not exist: unset it or set it to a C++ compiler"
    if chosen
    else "there is no C++ compiler: install one (`apt-get install g++`)"
  )


def machine():
  """The architecture to build for, such as "aarch64". Python's _PYTHON_HOST_PLATFORM sets it for a cross build."""
  return sysconfig.get_platform().removeprefix("linux-")


def fingerprint(architecture=None):
  """A hash of the build's inputs except TensorFlow: sources, our flags, the architecture (default: `machine()`)."""
  digest = hashlib.sha256(repr((COMPILE_FLAGS, LINK_FLAGS, architecture or machine())).encode())
  for path in _sources():
    content = path.read_bytes()
    digest.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
  return digest.hexdigest()


def _sources():
  return sorted(path for path in (PACKAGE / "cc").rglob("*") if path.suffix in (".cc", ".h"))


def groups():
  """The groups of .cc files that are compiled together, the longest first."""
  files = [path for path in _sources() if path.suffix == ".cc"]
  if pathlib.Path(compiler()[0]).name == "ccache":
    result = [[path] for path in files]
  else:
    result = [[] for _ in GROUPS]
    for path in files:
      result[next(i for i, names in enumerate(GROUPS) if fnmatch.fnmatchcase(path.name, names))].append(path)
  return sorted(filter(None, result), key=lambda group: sum(path.stat().st_size for path in group), reverse=True)


def _units(directory):
  """The file to compile for each group: its only file, or one written into `directory` that includes them all."""
  units = []
  for i, group in enumerate(groups()):
    unit = group[0] if len(group) == 1 else directory / f"{i}.cc"
    if len(group) > 1:
      names = (path.relative_to(PACKAGE.parent).as_posix() for path in group)
      unit.write_text(GROUP_HEAD + "".join(f'#include "{name}"\n' for name in names), encoding="utf-8")
    units.append(unit)
  return units


def _run(command):
  result = subprocess.run(
    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
  )
  if result.returncode:
    raise BuildError(f"$ {shlex.join(command)}\n{result.stdout}\nexit status {result.returncode}\n")
  return result.stdout


def _interface(version):
  """A string that is equal for two TensorFlow versions if a library built against one works with the other.

  Patch releases keep the binary interface; release candidates, nightlies and vendors' builds promise nothing.
  """
  release = re.fullmatch(r"(\d+\.\d+)\.\d+", version)
  return release[1] if release else version


def _read_record(directory):
  """The record of the library in `directory`, or None if the library or its record is missing or broken."""
  try:
    record = json.loads((directory / RECORD).read_text())
    if (directory / LIBRARY).is_file() and record.keys() >= {"machine", "tensorflow", "sources"}:
      return record
  except (OSError, ValueError, AttributeError):
    pass
  return None


def _packaged_versions():
  """The versions of TensorFlow for which the package has libraries, the newest last, and their machines."""
  records = list(filter(None, map(_read_record, (PACKAGE / "_native").glob("*"))))
  numbers = lambda version: [int(number) for number in re.findall(r"\d+", version)]  # 2.9 comes before 2.20.
  return sorted((record["tensorflow"] for record in records), key=numbers), {record["machine"] for record in records}


def _mismatch(version):
  """Why no packaged library fits, as the middle of a sentence that begins with the package's name."""
  record, (versions, machines) = _read_record(packaged_directory(version)), _packaged_versions()
  if not versions:
    return f"has no library built yet (TensorFlow {version} is installed)"
  if machine() not in machines:
    return (
      f"was built for {' and '.join(sorted(machines))} but this machine is {machine()} (TensorFlow {version} is "
      "installed)"
    )
  if record is not None and _interface(record["tensorflow"]) == _interface(version):
    return f"was built against TensorFlow {record['tensorflow']} from other C++ sources ({version} is installed)"
  return f"was built against TensorFlow {' and '.join(versions)} but {version} is installed"


def _way_back(version):
  """Another way out, without a compiler, as the end of a sentence; empty if there is none."""
  versions, machines = _packaged_versions()
  if versions and machine() not in machines:
    has_wheel = machine() in ("x86_64", "aarch64")
    return f", or install the wheel for this machine, refurbish_tf-*_{machine()}.whl" if has_wheel else ""
  if not versions or _interface(version) in map(_interface, versions):
    return ""
  return f", or install another TensorFlow with `pip install tensorflow=={versions[-1]}`"


def _rebuild(directory, version):
  """Builds into `directory` under a provisional name, then renames. The caller holds the lock."""
  provisional = directory.with_name(directory.name + ".part")
  log = directory.with_name(directory.name + ".log")
  # These remain if a process was killed, or if somebody deleted the library alone.
  for leftover in (provisional, directory):
    shutil.rmtree(leftover, ignore_errors=True)
  try:
    compiler()
    told = f"refurbish_tf {_mismatch(version)}: building it for {version} in {directory} ..."
    print(told, end=" ", file=sys.stderr, flush=True)
    began, outcome, warnings = time.monotonic(), "failed", ""
    try:
      warnings = build(provisional)
      provisional.rename(directory)
      outcome = "done"
    finally:
      print(f"{outcome} after {time.monotonic() - began:.0f} s.\n{warnings}", end="", file=sys.stderr)
    log.unlink(missing_ok=True)
  except NoCompilerError as error:
    raise ImportError(
      f"refurbish_tf {_mismatch(version)} and cannot be rebuilt because {error} and import again{_way_back(version)}."
    ) from None
  except BuildError as error:
    log.write_text(str(error))
    raise ImportError(
      f"refurbish_tf {_mismatch(version)} and rebuilding it failed: read the compiler's output in {log}"
      f"{_way_back(version)}."
    ) from None
  finally:
    shutil.rmtree(provisional, ignore_errors=True)


@contextlib.contextmanager
def _locked(path):
  """Holds the lock on `path`. The kernel releases it when the process ends for any reason."""
  with open(path, "w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print("refurbish_tf: another process is building the C++ library; waiting for it.", file=sys.stderr)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield

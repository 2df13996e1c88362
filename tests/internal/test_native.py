"""The library is checked before it is loaded. If it does not fit, it is rebuilt once and completely.

Each test has its own package: a copy of native.py and one C++ source that needs no TensorFlow header, so that a build
takes a second.
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf

from refurbish_tf._internal import native
from support import ROOT, cases

VERSION = tf.__version__
OTHER = "1.99.0"  # A release that does not exist.

try:
  COMPILER = native.compiler()
except native.NoCompilerError:
  COMPILER = None
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler: `apt-get install g++` and run again")


class Package:
  """An installed copy of a package with one C++ source, and a compiler that counts its calls."""

  def __init__(self, root, cache):
    self.directory = root / "refurbish_tf"
    self.cache = cache / "refurbish_tf"
    self.calls = root / "calls"
    self.compiler = root / "counting-compiler"
    self.source = self.directory / "cc" / "kernels" / "answer.cc"
    self.source.parent.mkdir(parents=True)
    self.source.with_suffix(".h").write_text("int Answer();\n")
    self.source.write_text('#include "refurbish_tf/cc/kernels/answer.h"\nint Answer() { return 42; }\n')
    (self.directory / "_internal").mkdir()
    shutil.copy(native.__file__, self.directory / "_internal")
    # The linker would spend most of its time on TensorFlow's libraries, which nothing here needs.
    self.compiler.write_text(
      f'#!/bin/sh\necho >> "{self.calls}"\n'
      'for argument do shift; case $argument in -l*) ;; *) set -- "$@" "$argument";; esac; done\n'
      f'exec {" ".join(COMPILER or ["false"])} "$@"\n'
    )
    self.compiler.chmod(0o755)

  def native(self):
    """Loads this package's native.py again, as a new process would."""
    spec = importlib.util.spec_from_file_location("native_of_a_test", self.directory / "_internal" / "native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

  def pretend_built(self, version, directory_of=None, machine=None):
    """Puts a library that would fail to load into the package, with a record, and returns its directory."""
    directory = native.packaged_directory(directory_of or version, self.directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / native.LIBRARY).write_bytes(b"no library at all")
    (directory / native.RECORD).write_text(
      json.dumps(
        {"machine": machine or native.machine(), "tensorflow": version, "sources": self.native().fingerprint(machine)}
      )
    )
    return directory

  def compilations(self):
    return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

  def cached(self):
    return sorted(path.name for path in self.cache.iterdir() if path.suffix != ".lock") if self.cache.exists() else []


@pytest.fixture
def package(tmp_path, monkeypatch):
  result = Package(tmp_path / "site", tmp_path / "cache")
  monkeypatch.setenv("XDG_CACHE_HOME", str(result.cache.parent))
  monkeypatch.setenv("CXX", str(result.compiler))
  return result


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  monkeypatch.delenv("CXX", raising=False)


def said(capfd):
  """Returns this package's lines on stderr."""
  return [line for line in capfd.readouterr().err.splitlines() if "refurbish_tf" in line]


def the_one_sentence(error):
  message = str(error.value)
  assert "\n" not in message and ". " not in message and message.endswith("."), message
  return message


def test_a_matching_library_is_used_in_place(package):
  package.pretend_built(OTHER)
  directory = package.pretend_built(VERSION)
  assert package.native().library(VERSION) == directory / native.LIBRARY
  assert package.compilations() == 0 and not package.cache.exists()


def test_an_existing_build_is_recognized(package):
  directory, module = package.pretend_built(VERSION), package.native()
  assert [module.is_built(directory, version, module.fingerprint()) for version in (VERSION, OTHER)] == [True, False]
  package.source.write_text("int Answer() { return 43; }\n")
  assert not module.is_built(directory, VERSION, module.fingerprint())


def test_no_compiler_fuses_a_product_and_a_sum():
  """A fused product and sum is rounded once, so pixels would differ between machines. Some compilers fuse by
  default."""
  assert "-ffp-contract=off" in native.COMPILE_FLAGS


def test_each_minor_has_a_directory():
  """The directories are those in the wheel. A pre-release or nightly has a directory for that version only."""
  for version, name in (("2.20.0", "2.20"), ("2.21.3", "2.21"), ("2.21.0-rc1", "2.21.0-rc1")):
    assert native.packaged_directory(version, "somewhere") == pathlib.Path("somewhere", "_native", name)
  assert native.packaged_directory(VERSION).parent.parent == ROOT / "refurbish_tf"
  # This session's library fits.
  assert json.loads(native.library(VERSION).with_name(native.RECORD).read_text())["sources"] == native.fingerprint()


@pytest.mark.parametrize(
  "built, installed, fits",
  [
    ("2.21.0", "2.21.0", True),
    ("2.21.0", "2.21.3", True),
    ("2.21.0-rc1", "2.21.0-rc1", True),
    ("2.21.0", "2.20.0", False),
    ("2.21.0", "3.21.0", False),
    ("2.21.0", "2.2.0", False),
    ("2.21.0-rc1", "2.21.0", False),
    ("2.21.0-rc0", "2.21.0-rc1", False),
    ("2.22.0-dev20260301", "2.22.0-dev20260302", False),
    ("2.21.0+vendor", "2.21.0", False),
  ],
)
def test_which_versions_share_a_library(package, no_compiler, built, installed, fits):
  directory = package.pretend_built(built)
  if fits:
    assert package.native().library(installed).parent == directory
  else:
    with pytest.raises(ImportError):
      package.native().library(installed)


@pytest.mark.parametrize("directory_of", [OTHER, VERSION])
def test_mismatch_is_found_before_loading(package, no_compiler, monkeypatch, directory_of):
  """The record next to the library decides, not the name of the directory."""
  package.pretend_built(OTHER, directory_of)
  monkeypatch.setattr(tf, "load_op_library", lambda path: pytest.fail(f"{path} was loaded"))
  with pytest.raises(ImportError):
    package.native().ops()


@pytest.mark.parametrize(
  "built, said",
  [
    ([], "no library built yet"),
    ([OTHER], f"built against TensorFlow {OTHER} but {VERSION} is installed"),
    (["1.9.0", OTHER], f"built against TensorFlow 1.9.0 and {OTHER} but {VERSION} is installed"),
  ],
)
def test_without_compiler_one_sentence_names_all_versions_and_the_remedy(package, no_compiler, built, said):
  for version in built:
    package.pretend_built(version)
  with pytest.raises(ImportError) as error:
    package.native().ops()
  message = the_one_sentence(error)
  assert said in message and VERSION in message and "`apt-get install g++`" in message
  assert (f"`pip install tensorflow=={OTHER}`" in message) == bool(built)
  assert package.cached() == []


def test_a_library_for_another_machine_is_named_and_not_loaded(package, no_compiler, monkeypatch):
  """A wheel that was copied from one machine to another has such a library."""
  monkeypatch.setattr(tf, "load_op_library", lambda path: pytest.fail(f"{path} was loaded"))
  package.pretend_built(VERSION, machine="riscv64")
  with pytest.raises(ImportError) as error:
    package.native().ops()
  message = the_one_sentence(error)
  assert (
    f"was built for riscv64 but this machine is {native.machine()}" in message and "`apt-get install g++`" in message
  )
  assert message.endswith(f"or install the wheel for this machine, refurbish_tf-*_{native.machine()}.whl.")


def test_compiler_that_is_not_there(package, monkeypatch):
  monkeypatch.setenv("CXX", "/no/such/compiler -O3")
  with pytest.raises(ImportError, match="CXX names /no/such/compiler") as error:
    package.native().ops()
  the_one_sentence(error)


@needs_compiler
def test_rebuilds_once_and_reuses(package, capfd):
  package.pretend_built(OTHER)
  package.native().ops()
  [message] = said(capfd)
  assert f"built against TensorFlow {OTHER} but {VERSION} is installed: building" in message
  assert re.search(r"done after \d+ s\.$", message)
  assert package.compilations() == 2  # One compilation, one link.
  [directory] = package.cached()
  assert sorted(os.listdir(package.cache / directory)) == [native.LIBRARY, native.RECORD]
  assert json.loads((package.cache / directory / native.RECORD).read_text())["tensorflow"] == VERSION
  module = package.native()
  assert module.ops() is module.ops()
  assert package.compilations() == 2 and said(capfd) == []


@needs_compiler
def test_edited_sources_are_rebuilt(package):
  module = package.native()
  module.build(module.packaged_directory(VERSION))
  assert module.library(VERSION).parent == module.packaged_directory(VERSION)
  package.source.write_text(package.source.read_text().replace("42", "43"))
  first = package.native().library(VERSION)
  package.source.with_suffix(".h").write_text("int Answer();  // A header counts, too.\n")
  second = package.native().library(VERSION)
  assert len({module.packaged_directory(VERSION), first.parent, second.parent}) == 3


@needs_compiler
@pytest.mark.parametrize(
  "record", ["", *(pytest.param(record, marks=cases.only_exhaustive) for record in ("{", "[]")), "{}"]
)
def test_a_library_without_a_whole_record_counts_as_none(package, record):
  (package.pretend_built(VERSION) / native.RECORD).write_text(record)
  assert package.native().library(VERSION).parent.parent == package.cache


@needs_compiler
def test_concurrent_processes_compile_once(package):
  program = (
    "import sys, types; sys.modules['tensorflow'] = types.SimpleNamespace("  # A stand-in: the import takes seconds.
    f"__version__={VERSION!r}, sysconfig=types.SimpleNamespace(get_compile_flags=list, get_link_flags=lambda: "
    f"['-l:x']))\nsys.path.insert(0, {str(package.directory / '_internal')!r}); import native; "
    f"print(native.library({VERSION!r}))"
  )
  package.compiler.write_text(package.compiler.read_text().replace("exec", "sleep 1; exec"))
  processes = [
    subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(3)
  ]
  outcomes = [process.communicate(timeout=120) for process in processes]
  assert [process.returncode for process in processes] == [0, 0, 0], outcomes
  paths = {out for out, _ in outcomes}
  assert len(paths) == 1 and pathlib.Path(paths.pop().strip()).is_file()
  assert package.compilations() == 2
  assert sum("waiting for it" in err for _, err in outcomes) >= 1


@needs_compiler
def test_leftovers_of_a_killed_build_are_removed(package):
  path = package.native().library(VERSION)
  shutil.rmtree(path.parent)
  left = path.parent.with_name(path.parent.name + ".part")
  left.mkdir()
  (left / native.LIBRARY).write_bytes(b"half a libr")
  # A directory without a complete record is treated like an empty one.
  path.parent.mkdir()
  assert package.native().library(VERSION) == path
  assert package.cached() == [path.parent.name]
  package.native().ops()


@needs_compiler
def test_failed_compilation_names_its_log_and_leaves_nothing_else(package, monkeypatch):
  package.source.write_text("#ifndef MENDED\n#error on purpose\n#endif\n")
  package.pretend_built(OTHER)
  with pytest.raises(ImportError) as error:
    package.native().ops()
  message = the_one_sentence(error)
  assert OTHER in message and VERSION in message and f"`pip install tensorflow=={OTHER}`" in message
  [log] = package.cached()
  assert str(package.cache / log) in message
  assert "#error on purpose" in (package.cache / log).read_text()
  # A successful build also removes the log.
  monkeypatch.setenv("CXX", f"{package.compiler} -DMENDED")
  path = package.native().library(VERSION)
  assert package.cached() == [path.parent.name]


@needs_compiler
@pytest.mark.parametrize("single_files", [False, True])
def test_files_are_compiled_together_or_each_by_itself(package, monkeypatch, single_files):
  """A missing file would cause an undefined symbol."""
  names = ["Zebra.cc", "0.cc", "kernels/answers.cc"]
  for i, name in enumerate(names):
    (package.directory / "cc" / name).write_text(f"int Answer(); int Answer{i}() {{ return Answer(); }}\n")
  numbers = range(len(names))
  package.source.write_text(
    "\n".join(
      [
        "int Answer() { return 42; }",
        *(f"int Answer{i}();" for i in numbers),
        f"int Sum() {{ return {' + '.join(f'Answer{i}()' for i in numbers)}; }}",
      ]
    )
  )
  if single_files:
    package.compiler = package.compiler.rename(package.compiler.with_name("ccache"))
    monkeypatch.setenv("CXX", str(package.compiler))
  module = package.native()
  before = module.fingerprint()
  module.build(module.packaged_directory(VERSION))
  # The two files that begin with "a" are one group, the others another one; plus the link.
  assert package.compilations() == (len(names) + 2 if single_files else 3)
  assert module.library(VERSION).parent == module.packaged_directory(VERSION) and module.fingerprint() == before


def test_each_source_is_in_one_group_and_none_takes_much_longer(monkeypatch):
  monkeypatch.setattr(native, "compiler", lambda: ["g++"])
  groups = native.groups()
  assert sorted(path for group in groups for path in group) == sorted((native.PACKAGE / "cc").rglob("*.cc"))
  sizes = [sum(path.stat().st_size for path in group) for group in groups]
  assert sizes == sorted(sizes, reverse=True) and sizes[0] < 2 * sizes[-1]


def test_file_local_names_do_not_clash():
  """Files are compiled in groups, so file-local names must differ. For the compiler, equal function names are
  overloads."""
  first = {}
  for path in sorted((native.PACKAGE / "cc").rglob("*.cc")):
    text = path.read_text(encoding="utf-8")
    own = "".join(re.findall(r"^namespace refurbish_tf \{\nnamespace \{\n(.*?)^\}  // namespace$", text, re.M | re.S))
    names = re.findall(r"^(?:class|struct|enum class) (\w+)|^ *# *define (\w+)", text, re.M)
    names += re.findall(r"^(?!class|struct|enum|using|static_assert)\w.*?[ *&](\w+)(?:[([{;]| =)()", own, re.M)
    for name in {"".join(found) for found in names}:
      assert first.setdefault(name, path) == path, f"{name} is in {first[name]} and in {path}: rename one of them"
  assert len(first) > 200  # The expressions above must still find such names.


@needs_compiler
def test_undefined_symbol_is_found_when_building(package):
  package.source.write_text("int Missing(); int Answer() { return Missing(); }\n")
  module = package.native()
  with pytest.raises(module.BuildError, match="undefined reference to `Missing"):
    module.build(module.packaged_directory(VERSION))
  assert list(module.packaged_directory(VERSION).iterdir()) == []


@needs_compiler
def test_cache_that_cannot_be_written(package):
  package.pretend_built(OTHER)
  package.cache.parent.write_text("A file where the directory should be.")
  with pytest.raises(ImportError, match="set XDG_CACHE_HOME to a writable directory") as error:
    package.native().ops()
  message = the_one_sentence(error)
  assert OTHER in message and VERSION in message and str(package.cache) in message


def test_installed_copy_has_all_sources(tmp_path):
  # If a copy lacked a file, its fingerprint would differ from that of the library shipped with it.
  options = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path)]
  subprocess.run([sys.executable, "setup.py", "-q", *options], cwd=ROOT, check=True)
  spec = importlib.util.spec_from_file_location("installed", tmp_path / "refurbish_tf" / "_internal" / "native.py")
  installed = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(installed)
  assert installed.fingerprint() == native.fingerprint()

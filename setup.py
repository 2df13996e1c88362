"""Builds the C++ part, with the function that also rebuilds it for another TensorFlow. Metadata is in setup.cfg."""

import configparser
import importlib.util
import json
import pathlib
import re
import runpy
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).parent
# Loaded by path, because importing the package would load the library that is still to be built.
INTERNAL = ROOT / "refurbish_tf" / "_internal"
runpy.run_path(str(INTERNAL / "linux_only.py"))
spec = importlib.util.spec_from_file_location("native", INTERNAL / "native.py")
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)


class BuildNative(build_ext):
  """Builds the library for the installed TensorFlow in the wheel's tree or, for an editable install, in the sources."""

  def run(self):
    import fcntl

    import tensorflow as tf

    directory = self._directory("refurbish_tf" if self.inplace else f"{self.build_lib}/refurbish_tf")
    try:
      if self.inplace:
        self._write_commands()
      # A second process waits here, then finds the library built. An install after a build in place also finds it.
      with open(__file__, encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if self.force or not native.is_built(directory, tf.__version__, native.fingerprint()):
          print(native.build(directory), end="")
    except native.NoCompilerError as error:
      sys.exit(
        f"refurbish_tf was not built: {error} and install again, or install its wheel refurbish_tf-*.whl, which needs "
        "none (README.md says where it is)."
      )
    except native.BuildError as error:
      sys.exit(f"refurbish_tf was not built: its C++ part does not compile.\n{error}")

  @staticmethod
  def _write_commands():
    """Writes what clangd and clang-tidy read: how each file is compiled."""
    command = [*(part for part in native.compiler() if part != "ccache"), *native.compile_flags(), "-c"]
    files = sorted(str(path.resolve()) for path in ROOT.glob("refurbish_tf/cc/**/*.cc"))
    commands = [{"directory": str(ROOT.resolve()), "file": file, "arguments": [*command, file]} for file in files]
    (ROOT / "compile_commands.json").write_text(json.dumps(commands, indent=1) + "\n", encoding="utf-8")

  def get_outputs(self):
    return list(self._outputs())

  def get_output_mapping(self):
    return self._outputs() if self.inplace else {}

  def _outputs(self):
    """Files in the wheel's tree -> files in the sources' tree. setuptools would expect a Python module here."""
    trees = [self._directory(package) for package in (f"{self.build_lib}/refurbish_tf", "refurbish_tf")]
    return {str(trees[0] / name): str(trees[1] / name) for name in (native.LIBRARY, native.RECORD)}

  @staticmethod
  def _directory(package):
    import tensorflow as tf

    return native.packaged_directory(tf.__version__, package)


class PlatformWheel(bdist_wheel):
  """A wheel for one platform and any version of Python. native.py checks the version of TensorFlow."""

  def get_tag(self):
    return ("py3", "none", super().get_tag()[2])


def long_description():
  """README.md for the package index, where relative links lead nowhere.

  They become links to the release's tag at `url` of setup.cfg. Without a `url` only their texts remain: set it before
  an upload.
  """
  config = configparser.ConfigParser()
  config.read(ROOT / "setup.cfg", encoding="utf-8")
  url, version = config.get("metadata", "url", fallback=None), runpy.run_path(str(INTERNAL / "version.py"))["VERSION"]

  def absolute(link):
    picture, text, target = link.groups()
    return f"{picture}[{text}]({url}/{'raw' if picture else 'blob'}/v{version}/{target})" if url else text

  # Code blocks stay unchanged, because nothing in them looks like a link.
  return re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


setup(
  long_description=long_description(),
  # A placeholder for the library, so that build_ext runs and the wheel depends on the platform.
  ext_modules=[Extension("refurbish_tf._native", sources=[])],
  cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)

"""Builds the C++ part with the very function that rebuilds it after a change of TensorFlow; the rest is in setup.cfg."""
import fcntl
import importlib.util
import pathlib
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# By path: importing the package would load the very library that is to be built.
spec = importlib.util.spec_from_file_location(
    "native", pathlib.Path(__file__).parent / "refurbish_tf" / "_internal" / "native.py")
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)


class BuildNative(build_ext):
  """The library for the TensorFlow that is here: in the wheel's tree or, for an editable install, beside the sources."""

  def run(self):
    import tensorflow as tf

    directory = self._directory("refurbish_tf" if self.inplace else f"{self.build_lib}/refurbish_tf")
    try:
      # Who comes second waits, and finds it built; so does who works on the sources and installs then.
      with open(__file__, encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if self.force or not native.is_built(directory, tf.__version__, native.fingerprint()):
          print(native.build(directory), end="")
    except native.NoCompilerError as error:
      sys.exit(f"refurbish_tf cannot be built because {error}.")
    except native.BuildError as error:
      sys.exit(f"refurbish_tf's C++ part does not compile:\n{error}")

  def get_outputs(self):
    return list(self._outputs())

  def get_output_mapping(self):
    return self._outputs() if self.inplace else {}

  def _outputs(self):
    """Each file of the wheel's tree with the one beside the sources. It is no Python module, as setuptools expects."""
    trees = [self._directory(package) for package in (f"{self.build_lib}/refurbish_tf", "refurbish_tf")]
    return {str(trees[0] / name): str(trees[1] / name) for name in (native.LIBRARY, native.RECORD)}

  @staticmethod
  def _directory(package):
    import tensorflow as tf
    return native.packaged_directory(tf.__version__, package)


class PlatformWheel(bdist_wheel):
  """What is in it is bound to the platform (native.py looks for the right TensorFlow), but not to a version of Python."""

  def get_tag(self):
    return ("py3", "none", super().get_tag()[2])


setup(
    # Stands for the library, so that build_ext runs and the wheel is known to be bound to a platform.
    ext_modules=[Extension("refurbish_tf._native", sources=[])],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel})

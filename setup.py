"""Builds the C++ part with the very function that rebuilds it after a change of TensorFlow; the rest is in setup.cfg."""
import importlib.util
import pathlib
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# By path: importing the package would load the very library that is to be built.
spec = importlib.util.spec_from_file_location("native", pathlib.Path(__file__).parent / "refurbish_tf" / "native.py")
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)


class BuildNative(build_ext):
  """One library, in the wheel's tree or, for an editable install, beside the sources; it is no Python module."""

  def run(self):
    try:
      print(native.build("refurbish_tf" if self.inplace else f"{self.build_lib}/refurbish_tf"), end="")
    except native.NoCompilerError as error:
      sys.exit(f"refurbish_tf cannot be built because {error}.")
    except native.BuildError as error:
      sys.exit(f"refurbish_tf's C++ part does not compile:\n{error}")

  def get_outputs(self):
    return [f"{self.build_lib}/refurbish_tf/{name}" for name in (native.LIBRARY, native.RECORD)]

  def get_output_mapping(self):
    return {output: f"refurbish_tf/{pathlib.Path(output).name}" for output in self.get_outputs() if self.inplace}


class PlatformWheel(bdist_wheel):
  """The library is bound to the platform (and checks TensorFlow by itself), but not to a version of Python."""

  def get_tag(self):
    return ("py3", "none", super().get_tag()[2])


setup(
    # Stands for the library, so that build_ext runs and the wheel is known to be bound to a platform.
    ext_modules=[Extension("refurbish_tf._native", sources=[])],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel})

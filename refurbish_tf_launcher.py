"""The console script `refurbish-tf`: starts `refurbish_tf.cli`. Nothing else imports this module.

It is outside the package, because importing any part of the package imports TensorFlow. That takes seconds, in which
TensorFlow writes to the terminal and the user may press Ctrl-C. `startup.py` handles both and so must be loaded first:
by its path, as setup.py loads native.py. The alternative, to look at `sys.argv` at the top of
`refurbish_tf/__init__.py`, would affect every program that imports the package.
"""

import importlib.util
import pathlib


def main():
  """Runs the command line of this process and returns its exit status."""
  # Finds the package without importing it. For a nested package, `find_spec` would import the outer one.
  package = pathlib.Path(importlib.util.find_spec("refurbish_tf").origin).parent
  spec = importlib.util.spec_from_file_location("refurbish_tf_startup", package / "cli" / "startup.py")
  startup = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(startup)
  return startup.main()

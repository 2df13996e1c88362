"""The console script `refurbish-tf`: starts `refurbish_tf.cli`. Nothing else imports this module.

It is no part of the package, because importing any part of it imports TensorFlow. That takes seconds, in which TensorFlow
writes to the terminal and the user may press Ctrl-C; `startup.py` looks after both and so has to be there before. Hence
it is loaded by its path, as setup.py loads native.py. The alternative, a look at `sys.argv` at the top of
`refurbish_tf/__init__.py`, would be in the way of every program that imports the package.
"""
import importlib.util
import pathlib


def main():
  """Runs the command line of this process and returns its exit status."""
  # Finds a package that is not nested in another one without importing it.
  package = pathlib.Path(importlib.util.find_spec("refurbish_tf").origin).parent
  spec = importlib.util.spec_from_file_location("refurbish_tf_startup", package / "cli" / "startup.py")
  startup = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(startup)
  return startup.main()

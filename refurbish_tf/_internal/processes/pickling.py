"""Pickles functions for processes, by cloudpickle."""

import functools
import glob
import io
import os
import re
import sys
import sysconfig
import threading
import time
import types

# How many global variables an error names, and how long it searches for them: a module may hold gigabytes.
_MOST_TOLD, _SECONDS_OF_SEARCH = 5, 5
# Importing one of these takes a process seconds and hundreds of megabytes.
_IMPORTED_LATER = ("tensorflow", "keras", "refurbish_tf")
# Held while modules are registered with cloudpickle, which affects all threads.
_pickling = threading.Lock()


def pickled(fn, name):
  """The function of a `numpy_layer` as bytes, with the user's own modules that it uses."""
  try:
    import cloudpickle
  except ImportError:
    raise ImportError(
      "numpy_layer needs cloudpickle to send functions to other processes. Run pip install 'refurbish_tf[python]', or "
      "pass processes=0."
    ) from None
  with _pickling:
    before = cloudpickle.list_registry_pickle_by_value()
    # By name, because `sys.modules` may hold one module under several keys.
    found = {module.__name__: module for module in list(sys.modules.values()) if _is_own(module)}
    own = [module for name, module in found.items() if name not in before]
    for module in own:
      cloudpickle.register_pickle_by_value(module)
    met = []
    try:
      return _dumps(cloudpickle, fn, met)
    except Exception as error:
      way = "Create objects that cannot be pickled, such as open files or locks, inside fn, or pass processes=0."
      held = _held_by_modules(cloudpickle, [module for module in own if module in met])
      if held:
        way = (
          f"A module that fn uses is sent as a whole, but it holds objects that cannot be pickled: {held}. Import only "
          "what fn needs (`from module import function`), or pass processes=0."
        )
      raise TypeError(
        f"fn of numpy_layer, {name}, must be sent to another process, but cloudpickle cannot pickle it: {error}. {way}"
      ) from error
    finally:
      for module in own:
        cloudpickle.unregister_pickle_by_value(module)


def _held_by_modules(cloudpickle, modules):
  """The names of global variables that cannot be pickled, as text: the first few found within a few seconds."""
  found, until = [], time.monotonic() + _SECONDS_OF_SEARCH
  for module in modules:
    for name, value in list(vars(module).items()):
      if len(found) == _MOST_TOLD or time.monotonic() > until:
        return ", ".join(found)
      if not name.startswith("__") and not isinstance(value, types.ModuleType):
        try:
          _dumps(cloudpickle, value, [])
        except Exception:
          found.append(f"{module.__name__}.{name}")
  return ", ".join(found)


def _dumps(cloudpickle, fn, met):
  """Returns the pickled bytes. Appends the modules that the pickler meets to `met`, even if it fails."""

  class Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, value):
      if isinstance(value, types.ModuleType):
        met.append(value)
        if value.__name__.split(".")[0] in _IMPORTED_LATER:
          return _imported_later, (value.__name__,)
      if isinstance(value, functools._lru_cache_wrapper):
        # cloudpickle would assume that the function can be imported.
        return _cached, (value.__wrapped__, value.cache_parameters())
      return super().reducer_override(value)

  with io.BytesIO() as file:
    Pickler(file).dump(fn)
    return file.getvalue()


def _imported_later(name):
  """A module that is imported at its first use: a user's modules may import it without using it in a process."""
  import importlib
  import types

  class Later(types.ModuleType):
    def __getattr__(self, attribute):
      if attribute.startswith("__"):
        raise AttributeError(attribute)
      return getattr(importlib.import_module(name), attribute)

  return Later(name)


def _cached(function, parameters):
  import functools

  return functools.lru_cache(**parameters)(function)


# As if defined in a script, so that cloudpickle sends these functions by value.
_imported_later.__module__ = _cached.__module__ = "__main__"


def _is_own(module):
  """Whether a module is the user's own, not an installed one."""
  file = getattr(module, "__file__", None)
  if not isinstance(file, str) or module.__name__ == "__main__" or sys.modules.get(module.__name__) is not module:
    return False
  return not _is_installed(file)


@functools.cache
def _is_installed(file):
  """Cached, because it is called for all modules whenever a function is sent."""
  path = os.path.abspath(file)
  if path.startswith(_installed()) or {"site-packages", "dist-packages"}.intersection(file.split(os.sep)):
    return True
  folders = [os.path.join(os.path.abspath(folder), "") for folder in sys.path]
  return any(path.startswith(each) and path[len(each) :].split(os.sep)[0] in _names_in(each) for each in folders)


@functools.cache
def _names_in(folder):
  """The top-level names that commands such as `pip install --target` put into a folder, from the RECORD files there."""
  names = set()
  for path in glob.iglob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
    with open(path, encoding="utf-8") as record:
      names.update(re.split("[/,]", line, maxsplit=1)[0] for line in record)
  return names


@functools.cache
def _installed():
  package = os.path.join(os.path.dirname(__file__), "..", "..")
  folders = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), package)
  return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in folders)

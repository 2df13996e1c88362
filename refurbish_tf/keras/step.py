"""What callbacks need that are around each training step of `fit`."""
import functools
import inspect
import types

import keras

KNOWN_VERSIONS = "3.10 to 3.15"  # Of Keras; tests/test_keras_versions.py has the oldest and the newest.


class StepCallback(keras.callbacks.Callback):
  """A callback that is around each call of the training step, on the thread that makes it.

  Keras' own hooks before and after a step do not see the iterator, and where they are used Keras waits for the device at
  each step.
  """

  _step = None

  def __init__(self):
    super().__init__()
    self._need(keras.Model, "fit", "train_function")
    self._need(keras.callbacks.History, "on_train_begin", "epoch")

  def _need(self, cls, method, *names):
    """Raises RuntimeError where a method of Keras' has not these names, which are not of its interface."""
    # What others have put in place of the method may not lead to it.
    functions = [inspect.unwrap(vars(base)[method]) for base in cls.__mro__ if method in vars(base)]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    missing = set(names).difference(*(code.co_names + code.co_varnames for code in codes))
    if missing:
      raise RuntimeError(
          f"{type(self).__name__} needs {cls.__name__}.{method} of Keras to use {', '.join(sorted(missing))}, and that of "
          f"Keras {keras.__version__} does not. It knows Keras {KNOWN_VERSIONS}: install one of these.")

  def on_epoch_begin(self, epoch, logs=None):
    if self._step is None:
      self._step = _Step.of_this_fit(self.model)
      self._join(self._step.callbacks)

  def _join(self, callbacks):
    """Takes its place in the list, whose first is the outermost."""
    callbacks.append(self)

  def on_train_begin(self, logs=None):
    self._step = None  # It may be one of a fit that was interrupted.

  def on_train_end(self, logs=None):
    if self._step is not None:
      self._step.leave(self)
      self._step = None

  def run_step(self, function, *args):
    raise NotImplementedError


class _Step:
  """Stands in for the training step of `model` during one `fit`, and lets callbacks be around it."""

  def __init__(self, model, function):
    self._model = model
    self._function = function
    self._fit = _fit_of(model)
    self.callbacks = []

  @staticmethod
  def of_this_fit(model):
    step = model.train_function
    if isinstance(step, _Step):
      if step._fit is _fit_of(model):
        return step
      step = step._function  # Left behind by a fit that was interrupted.
    model.train_function = _Step(model, step)
    return model.train_function

  def __call__(self, *args):
    function = self._function
    # Of a fit that was interrupted nobody is told: it may be another fit that calls.
    if _fit_of(self._model) is self._fit:
      for callback in reversed(self.callbacks):
        function = functools.partial(callback.run_step, function)
    return function(*args)

  def leave(self, callback):
    self.callbacks.remove(callback)
    if not self.callbacks and self._model.train_function is self:
      self._model.train_function = self._function


def _fit_of(model):
  """An object that the running `fit` of `model` has for itself: the list of epochs, new with every fit, in its history."""
  return getattr(getattr(model, "history", None), "epoch", None)

"""The base class of callbacks that wrap each training step of `fit`.

`fit` makes its iterator itself and does not show it to callbacks, but passes it to `model.train_function`. So a
callback here replaces that function while `fit` runs. TensorFlow waits for an element within the step, so TensorFlow's
own metric says how long the step waited.

Beyond Keras' public interface, the callbacks rely only on this:

- `fit` calls `model.train_function`, on TensorFlow with the `tf.data` iterator. It begins with `model._initial_epoch`,
  if that is set. Each `fit` makes the list `History.epoch` again.
- `model._symbolic_build(data_batch=...)` makes the metrics' variables. `model._flatten_layers()` yields all layers.
- A local variable of `fit`, `epoch_iterator`, has `reset()`, which forgets how many steps an epoch has. On JAX and
  PyTorch it has `steps_per_epoch` and `data_adapter`, a `TFDatasetAdapter`. Whenever an epoch begins, the adapter
  iterates in Python over its `_dataset`, and reads at most one step ahead.
- A distribution of `keras.distribution` over several processes has `_is_multi_process`.

`StepCallback` checks these names when a callback is made, and `tests/keras/test_keras_versions.py` checks the whole
list with each supported version.
"""

import functools
import inspect
import sys
import types

import keras

KNOWN_VERSIONS = "3.10 to 3.15"


class StepCallback(keras.callbacks.Callback):
  """A callback that wraps each call of the training step, on the thread that makes the call.

  Keras' own hooks before and after a step do not get the iterator, and make Keras wait for the device at each step.
  """

  _step = None

  def __init__(self):
    super().__init__()
    self._need(keras.Model, "fit", "train_function")
    self._need(keras.callbacks.History, "on_train_begin", "epoch")

  def _need(self, cls, method, *names):
    """Raises RuntimeError if a method of Keras does not use these names, which are not part of its interface."""
    # All bases count, because a wrapper that another library put around the method may hide the original.
    functions = [inspect.unwrap(vars(base)[method]) for base in cls.__mro__ if method in vars(base)]
    codes = [function.__code__ for function in functions if isinstance(function, types.FunctionType)]
    missing = set(names).difference(*(code.co_names + code.co_varnames for code in codes))
    if missing:
      raise RuntimeError(
        f"{type(self).__name__} needs {cls.__name__}.{method} of Keras to use {', '.join(sorted(missing))}, which "
        f"Keras {keras.__version__} does not. Install a supported version: Keras {KNOWN_VERSIONS}."
      )

  def on_epoch_begin(self, epoch, logs=None):
    if self._step is None:
      self._step = _Step.of_this_fit(self.model)
      self._join(self._step.callbacks)

  def _join(self, callbacks):
    """Adds itself to the list, whose first callback is the outermost."""
    callbacks.append(self)

  def on_train_begin(self, logs=None):
    self._step = None  # A step may be left from a fit that was interrupted.

  def on_train_end(self, logs=None):
    if self._step is not None:
      self._step.leave(self)
      self._step = None

  def run_step(self, function, *args):
    raise NotImplementedError


class _Step:
  """Replaces the training step of `model` during one `fit`, and wraps it in callbacks."""

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
    # After an interrupted fit, callbacks are not called: the caller may be another fit, or train_on_batch.
    if _fit_of(self._model) is self._fit and sys._getframe(1).f_code.co_name != "train_on_batch":
      for callback in reversed(self.callbacks):
        function = functools.partial(callback.run_step, function)
    return function(*args)

  def leave(self, callback):
    self.callbacks.remove(callback)
    if not self.callbacks and self._model.train_function is self:
      self._model.train_function = self._function


def epoch_iterator_of(name, model):
  """The epoch iterator of the running `fit` of `model`, a local variable that callbacks do not see."""
  frame = sys._getframe(1)
  while frame is not None:
    if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model and "epoch_iterator" in frame.f_locals:
      return frame.f_locals["epoch_iterator"]
    frame = frame.f_back
  raise RuntimeError(f"{name} is a callback for model.fit of Keras {KNOWN_VERSIONS}, but something else called it.")


def _fit_of(model):
  """Identifies the running `fit` of `model`: the list of epochs in its history, which each fit makes again."""
  return getattr(getattr(model, "history", None), "epoch", None)

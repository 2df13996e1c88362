"""The dataset that `fit` reads on JAX and PyTorch, where Keras reads batches in Python, ahead of training."""

import keras
import tensorflow as tf

from refurbish_tf.keras import step


class Reader:
  """Stands in for the dataset of the running `fit`.

  It calls `begin(iterator)` with the `tf.data` iterator of the first epoch. `begin` may restore it to a position in the
  epoch, and returns how many steps were done before. Before it reads the first batch of an execution of the training
  step, it calls `before(number, place, iterator)`: the number of the execution in this fit, its place in the epoch, and
  the iterator, which is then exactly before this execution's batches, however far training is behind.

  Attributes:
    num_read: the number of executions whose first batch has been read.
  """

  def __init__(self, name, model, begin, before):
    self._name = name
    epoch_iterator = step.epoch_iterator_of(name, model)
    self._dataset = getattr(epoch_iterator.data_adapter, "_dataset", None)
    if not isinstance(self._dataset, tf.data.Dataset):
      raise TypeError(
        f"{name} saves the position in a tf.data.Dataset, but fit was given something else. Make a dataset from arrays "
        "with tf.data.Dataset.from_tensor_slices(...).batch(...)."
      )
    epoch_iterator.data_adapter._dataset = self
    self._begin = begin
    self._before = before
    self._num_batches = model.steps_per_execution
    # With steps_per_epoch one iterator goes through several epochs of `fit`.
    steps = epoch_iterator.steps_per_epoch
    self._num_places = None if steps is None else -(-steps // self._num_batches)
    self._first = None
    self._num_done = 0  # Steps done of the first iterator's epoch.
    self._number = 0
    self._batches = None
    self.num_read = 0

  def begin(self):
    """Makes the first iterator, unless there is one. Called before it is first read."""
    if self._begin is not None:
      self._first = iter(self._dataset)
      self._num_done = self._begin(self._first)
      self._begin = None

  def begin_execution(self, number, *args):
    """Called when execution `number` begins, with the arguments of the training step."""
    self._number = number
    if len(args) == 2 and args[1] is not self._batches:
      # Keras has made another iterator, and has read none of its batches yet.
      self._batches = args[1]
      self.num_read = number

  def check_that_it_was_read(self, number):
    self._number = number + 1
    if not 0 < self.num_read - number <= 2:
      raise RuntimeError(
        f"{self._name} cannot follow Keras {keras.__version__}, which does not read exactly one step ahead of "
        f"training. Install a supported version: Keras {step.KNOWN_VERSIONS}."
      )

  def __iter__(self):
    self.begin()
    iterator, num_done = self._first or iter(self._dataset), self._num_done
    self._first, self._num_done = None, 0
    if keras.backend.backend() == "torch":
      yield from [()] * num_done  # `fit` itself reads the batches of a step, even if the step is not run.
    place = num_done // self._num_batches
    # Counting starts over: batches that another iterator has read ahead are never trained on.
    self.num_read = self._number
    while True:
      self._before(self.num_read, place, iterator)
      for position in range(self._num_batches):
        try:
          batch = next(iterator)
        except StopIteration:
          return
        if position == 0:
          self.num_read += 1
        yield batch
      place += 1
      if place == self._num_places:
        place = 0

"""`rtf.jax_loader`: a `tf.data` pipeline for JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from refurbish_tf.loaders import loader_output, loader

if TYPE_CHECKING:
  import jax


def jax_loader(
  dataset: tf.data.Dataset[Any], device_or_sharding: jax.Device | jax.sharding.Sharding | None = None
) -> loader.Loader:
  """Returns a loader of the batches of a `tf.data` pipeline as JAX arrays.

  >>> import jax
  >>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([6, 32, 32, 3], tf.uint8))
  >>> train = images.refurbish([rtf.augment.rand_augment()], [rtf.augment.random_flip()], r=3, seed=7).batch(2)
  >>> loader = rtf.jax_loader(train)
  >>> mean = jax.jit(lambda images: images.mean())
  >>> for epoch in range(3):
  ...   for batch in loader:
  ...     loss = mean(batch)
  >>> len(loader), batch.shape
  (3, (2, 32, 32, 3))

  Each iteration over the loader is an epoch. Batches have the structure, names and shapes of the pipeline's elements,
  and come in the pipeline's order. Their dtypes are those that `jax.numpy.asarray` gives: int64 becomes int32, and
  float64 becomes float32, unless `jax_enable_x64` is set. Batches may be donated. End the pipeline with
  `.prefetch(tf.data.AUTOTUNE)`, so that batches are made in parallel with training.

  On the CPU, batches are not copied. To other devices, an asynchronous `jax.device_put` sends the next batch while you
  use this one. TensorFlow must not use the accelerator: call `tf.config.set_visible_devices([], "GPU")` first.

  With a `jax.sharding.Sharding` a batch is one array over its devices. If these belong to several processes, each
  process provides its part of the batch: let it read its own shard of the data, with
  `dataset.shard(jax.process_count(), jax.process_index())` before `refurbish`.

  `loader.state_dict()` and `loader.load_state_dict(state)` resume in mid-epoch. The state is the position after the
  last batch that was returned, a NumPy array that orbax and others save with your weights. The rest of the epoch has
  exactly the samples that were not returned; with functions that take a `seed` it is the same bit for bit. After the
  last batch of an epoch comes the next one. `loader.epoch` is the number of the epoch: a program that may be restarted
  trains `for epoch in range(loader.epoch, num_epochs)`.

  Implements the reuse of one preparation by several frameworks (Kakaraparthi et al., "The Case for Unifying Data
  Loading in Machine Learning Clusters", HotCloud 2019, section 3): jobs in PyTorch, JAX and TensorFlow can share a
  `store`.

  Args:
    dataset: a finite `tf.data.Dataset`. Its elements are dense tensors of booleans, integers, floating point or complex
      numbers, in any nest of tuples, dicts and named tuples.
    device_or_sharding: where to put the batches, as for `jax.device_put`: a `jax.Device`, or a
      `jax.sharding.Sharding` of all components. None for JAX's default device.

  Returns:
    An `rtf.Loader`. Its `len` is the length of the dataset, and raises TypeError if this is unknown.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`, or it yields strings, ragged or sparse tensors, or another type
      that JAX does not have; `device_or_sharding` is neither a device nor a sharding.
    ValueError: `dataset` repeats without end; when it is read, the sharding cannot divide a batch.
    OverflowError: when it is read, an integer does not fit into 32 bits.
    RuntimeError: called while a `tf.function` is traced.
    ModuleNotFoundError: JAX is not installed.
    Errors of the pipeline: when it is read, in place of a batch. The next one follows.
  """
  try:
    import jax
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      "rtf.jax_loader needs JAX, which is not installed: pip install jax.", name="jax"
    ) from error
  return loader.Loader("rtf.jax_loader", dataset, _Mover(jax, device_or_sharding))


class _Mover:
  """Sends arrays to a device or a sharding.

  On the CPU an array shares the pipeline's memory, which others may also use, because JAX never writes into it.
  """

  exclusive = False

  def __init__(self, jax, target):
    self._jax = jax
    self._target = target
    self._is_global = False
    if isinstance(target, jax.sharding.Sharding):
      devices = target.device_set
      self._is_global = not target.is_fully_addressable
    elif isinstance(target, jax.Device):
      devices = {target}
    elif target is None:
      devices = jax.numpy.zeros([]).devices()
    else:
      raise TypeError(
        "device_or_sharding must be a jax.Device, such as jax.devices()[0], a jax.sharding.Sharding, or None, got "
        f"{target!r}."
      )
    on_cpu = all(device.platform == "cpu" for device in devices)
    self.num_ahead = 0 if on_cpu else 1
    if not on_cpu:
      loader_output.tell_of_gpu("rtf.jax_loader")

  def begin(self, tensors):
    arrays = [self._array(tensor) for tensor in tensors]
    try:
      if self._is_global:
        return [self._jax.make_array_from_process_local_data(self._target, array) for array in arrays]
      return self._jax.device_put(arrays, self._target)
    except (ValueError, AssertionError) as error:  # JAX raises AssertionError for a scalar.
      raise ValueError(
        f"rtf.jax_loader cannot divide components of the shapes {', '.join(str(array.shape) for array in arrays)} as "
        "the sharding asks. Pass batches that it can divide, with .batch(..., drop_remainder=True), and no component "
        f"without a batch dimension. {error}"
      ) from error

  def finish(self, begun):
    return begun

  def state(self, array):
    return array

  def _array(self, tensor):
    array = np.asarray(tensor.__array__())  # Shares the tensor's memory.
    if array.dtype.itemsize >= 8:
      dtype = self._jax.dtypes.canonicalize_dtype(array.dtype)
      array = array if dtype == array.dtype else _narrowed(array, dtype)
    return array


def _narrowed(array, dtype):
  if array.size and np.issubdtype(dtype, np.integer):
    limits = np.iinfo(dtype)
    least, most = array.min(), array.max()
    if least < limits.min or most > limits.max:
      raise OverflowError(
        f"rtf.jax_loader converts {array.dtype} to {dtype}, as jax.numpy.asarray does, but the values are from {least} "
        f'to {most}. Call jax.config.update("jax_enable_x64", True), or make them smaller.'
      )
  with np.errstate(over="ignore"):
    return array.astype(dtype)

"""A description of the reuse stages of a dataset."""
from refurbish_tf import stats


def describe(dataset):
  """What every reuse stage of `dataset` does, as a text to print.

  >>> train = tf.data.Dataset.range(600).refurbish(lambda x: 10 * x, r=3, seed=7, name="train").batch(2)
  >>> print(rtf.describe(train))
  refurbish "train", r = 3
    epoch   600 samples; after the first epoch about 200 fresh, 400 cached
    order   balanced eviction, cache-aware shuffle, seed 7
    source  by index: about 200 of 600 elements are read in an epoch after the first
    store   memory, without a limit

  A source is read by index, so that only fresh samples are read, or it is a stream, which is read through in every epoch; then
  the description says what makes it one. See `rtf.sources`.

  Args:
    dataset: a `tf.data.Dataset`.

  Returns:
    A string of a few lines for each stage `refurbish` and `echo`, upstream first; one that says so where there is none,
    or where it is in a function, as of `flat_map`, or the dataset has come as an argument of a `tf.function` or through
    a tf.data service, which keep only what it yields.

  Raises:
    TypeError: `dataset` is not a `tf.data.Dataset`.
    RuntimeError: called while a `tf.function` is traced.
  """
  stages = [upstream for upstream in stats.datasets("rtf.describe", dataset) if hasattr(upstream, "describe_stage")]
  return "\n".join(stage.describe_stage() for stage in stages) or "no reuse stages"

"""Cases of tests that derive from `checkpoint_test_base.CheckpointTestBase`, TensorFlow's own checks of checkpoints."""

from tensorflow.python.data.kernel_tests import checkpoint_test_base
from tensorflow.python.framework import combinations

from support import cases


def _each(parameters):
  return combinations.combine(tf_api_version=2, mode="eager", symbolic=[False, True], **parameters)


def symbolic_or_not(number=None, **parameters):
  """Runs a test with symbolic checkpoints and others, and with each of these parameters. Samples `number` cases."""
  found = _each(parameters)
  return combinations.generate(found if number is None else cases.some(found, number))


def core(number, **parameters):
  """Does the same with each of TensorFlow's checks, which the test gets as `verify_fn`."""
  return combinations.generate(
    cases.some(combinations.times(checkpoint_test_base.default_test_combinations(), _each(parameters)), number)
  )

"""A restored echo continues at the right repetition: at every step, among other stages, and with an error read
ahead."""

import math
import threading

from absl.testing import parameterized
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op
from tensorflow.python.data.kernel_tests import checkpoint_test_base
from tensorflow.python.framework import combinations

import refurbish_tf as rtf
from support import cases, checkpoint_cases
from support.checkpoints import with_checkpoints
from support.echoes import LIMIT, read

pytestmark = cases.slow


class EchoCheckpointTest(checkpoint_test_base.CheckpointTestBase, parameterized.TestCase):
  """Runs TensorFlow's own checks of checkpoints."""

  FACTORS = [1, 2, 3, 1.5, math.pi]

  def _dataset_fn(self, e, symbolic, build=lambda echoed: echoed, n=5):
    source = tf.data.Dataset.range(n).map(lambda x: (x, tf.range(x)))
    return lambda: with_checkpoints(build(source.echo(e, seed=11)), symbolic)

  def _num_outputs(self, dataset_fn):
    return sum(1 for _ in dataset_fn())

  def _verify_every_step(self, dataset_fn):
    n = self._num_outputs(dataset_fn)
    self.verify_run_with_breaks(dataset_fn, list(range(n + 1)), n)

  def _restored(self, iterator, dataset_fn):
    path = tf.train.Checkpoint(iterator=iterator).save(self._ckpt_path())
    restored = iter(dataset_fn())
    tf.train.Checkpoint(iterator=restored).restore(path)
    return restored

  @checkpoint_cases.core(10, e=[1, 3, 1.5])
  def test_core(self, verify_fn, symbolic, e):
    dataset_fn = self._dataset_fn(e, symbolic)
    verify_fn(self, dataset_fn, self._num_outputs(dataset_fn))

  @checkpoint_cases.symbolic_or_not(4, e=FACTORS)
  def test_restore_at_every_step(self, symbolic, e):
    self._verify_every_step(self._dataset_fn(e, symbolic))

  @combinations.generate(
    combinations.combine(
      tf_api_version=2, mode="eager", symbolic=cases.some([False, True], 1), behind=["skip", "echo", "batch"]
    )
    + combinations.combine(
      tf_api_version=2, mode="eager", symbolic=cases.some([True, False], 1), behind=["shuffle", "repeat"]
    )
  )
  def test_restore_among_other_stages(self, symbolic, behind):
    self._verify_every_step(
      self._dataset_fn(
        2.5,
        symbolic,
        {
          "skip": lambda echoed: echoed.skip(4),
          "echo": lambda echoed: echoed.echo(2),
          "batch": lambda echoed: echoed.map(lambda x, _: x).batch(3),
          "shuffle": lambda echoed: echoed.shuffle(4, seed=1),
          "repeat": lambda echoed: echoed.repeat(2).prefetch(2),
        }[behind],
        n=4,
      )
    )

  @checkpoint_cases.symbolic_or_not(
    8, skipping=["whole", "many", "past_the_end", "between", "shard", "echo", "map", "batch"]
  )
  def test_restore_after_skip(self, symbolic, skipping):
    source = tf.data.Dataset.range(6)
    build = {
      "whole": lambda: source.echo(3).skip(3),
      "many": lambda: source.echo(3).skip(9),
      "past_the_end": lambda: source.echo(3).skip(15).concatenate(source.echo(2).skip(100)).concatenate(source),
      "between": lambda: source.echo(3).skip(7),
      "shard": lambda: source.echo(2).shard(3, 1),
      "echo": lambda: source.echo(2).echo(3).skip(9),
      "map": lambda: source.map(lambda x: x + 1).filter(lambda x: x > 1).echo(3).skip(3),
      "batch": lambda: source.echo(2).batch(2).skip(1).echo(2).skip(2),
    }[skipping]
    dataset_fn = lambda: with_checkpoints(build(), symbolic)
    n = self._num_outputs(dataset_fn)
    for step in cases.some(range(n + 1), 3):
      self.verify_run_with_breaks(dataset_fn, [step], n)

  @checkpoint_cases.symbolic_or_not()
  def test_adaptive_stage_keeps_an_error_it_has_read_ahead(self, symbolic):
    called = threading.Semaphore(0)

    def check(x):
      called.release()
      if x in (1, 3):
        raise ValueError("spoilt")
      return x

    source = tf.data.Dataset.range(6).map(lambda x: tf.numpy_function(check, [x], tf.int64, stateful=False))
    dataset_fn = lambda: with_checkpoints(source.echo(rtf.AUTOTUNE, max_e=1), symbolic)
    with tf.device("CPU"):
      iterator = iter(dataset_fn())
      assert next(iterator).numpy() == 0
      # When the third element is requested, the second one, an error, is in the buffer.
      for _ in range(3):
        assert called.acquire(timeout=LIMIT)
      found = read(self._restored(iterator, dataset_fn))
    assert ["spoilt" if isinstance(x, str) and "ValueError: spoilt" in x else x for x in found] == [
      "spoilt",
      2,
      "spoilt",
      4,
      5,
    ]

  @checkpoint_cases.symbolic_or_not()
  def test_restore_in_global_shuffle(self, symbolic):
    dataset_fn = self._dataset_fn(
      3, symbolic, lambda echoed: global_shuffle_op._global_shuffle(echoed, seed=5, reshuffle_each_iteration=False)
    )
    self.verify_run_with_breaks(dataset_fn, list(range(16)), 15)

  @checkpoint_cases.symbolic_or_not()
  def test_adaptive_stage_loses_no_element(self, symbolic):
    dataset_fn = self._dataset_fn(rtf.AUTOTUNE, symbolic, lambda echoed: echoed.map(lambda x, _: x))
    with tf.device("CPU"):
      for step in range(1, 5):
        iterator = iter(dataset_fn())
        before = [int(next(iterator)) for _ in range(step)]
        after = [int(x) for x in self._restored(iterator, dataset_fn)]
        assert sorted(set(before + after)) == list(range(5))
        assert before + after == sorted(before + after)

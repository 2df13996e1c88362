"""Reuse training samples inside `tf.data`, so that a starved accelerator trains faster.

>>> import tensorflow as tf
>>> import refurbish_tf as rtf
>>> train = tf.data.Dataset.range(6).refurbish(lambda x: 10 * x, lambda x: x + 1, r=3, seed=7)
>>> sorted(train.as_numpy_iterator())
[1, 11, 21, 31, 41, 51]

Importing the package adds `refurbish` to `tf.data.Dataset`; `dataset.apply(rtf.refurbish(...))` is the same stage.
"""
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf import native
from refurbish_tf.cache_store import CacheStore
from refurbish_tf.cache_store import CacheStoreStats
from refurbish_tf.refurbish_op import _refurbish
from refurbish_tf.refurbish_op import refurbish
from refurbish_tf.stats import EpochStats
from refurbish_tf.stats import StageStats
from refurbish_tf.stats import stats

__version__ = "0.1.0"
__all__ = ["CacheStore", "CacheStoreStats", "EpochStats", "StageStats", "augment", "refurbish", "stats"]

tf.data.Dataset.refurbish = _refurbish

# Registers the ops, so that a worker of a tf.data service that has imported the package can run its stages.
native.ops()

"""Reuse training samples inside `tf.data`, so that a starved accelerator trains faster.

>>> import tensorflow as tf
>>> import refurbish_tf as rtf
>>> train = tf.data.Dataset.range(6).refurbish(lambda x: 10 * x, lambda x: x + 1, r=3, seed=7)
>>> sorted(map(int, train))
[1, 11, 21, 31, 41, 51]

Importing the package adds `refurbish`, `echo` and `offload` to `tf.data.Dataset`; `dataset.apply(rtf.refurbish(...))`
is the same as `dataset.refurbish(...)`. The layers are in `rtf.augment` (crops, flips, resizing, colours, RandAugment,
mixup), sources that are read by index are in `rtf.sources`, and Keras callbacks are in `rtf.keras`.
"""

from refurbish_tf._internal import linux_only  # First, because TensorFlow may be missing on other systems.

import tensorflow as tf

from refurbish_tf import augment, diversity, keras, sources
from refurbish_tf._internal import native, positions, shared_levels, shared_seeds
from refurbish_tf._internal.method import as_method as _as_method
from refurbish_tf._internal.pipeline_warnings import PipelineWarning
from refurbish_tf._internal.version import VERSION as __version__
from refurbish_tf.advice.advise import advise
from refurbish_tf.advice.report import Advice, AdviceLayer
from refurbish_tf.advice.strategies import Strategy
from refurbish_tf.cache_store import CacheStore, CacheStoreStats
from refurbish_tf.describe import describe
from refurbish_tf.plotting.show import show
from refurbish_tf.echo_op import AUTOTUNE, echo
from refurbish_tf.epoch_position import EpochPosition
from refurbish_tf.offload_op import as_offloaded, offload
from refurbish_tf.loaders.jax_loader import jax_loader
from refurbish_tf.loaders.loader import Loader
from refurbish_tf.loaders.torch_loader import torch_loader
from refurbish_tf.refurbish_op import refurbish
from refurbish_tf.stats import EchoStats, EpochStats, OffloadStats, StageStats, stats

__all__ = ["AUTOTUNE", "Advice", "AdviceLayer", "CacheStore", "CacheStoreStats", "EchoStats", "EpochPosition"]
__all__ += ["EpochStats", "Loader", "OffloadStats", "PipelineWarning", "StageStats", "Strategy", "advise"]
__all__ += ["as_offloaded", "augment", "describe", "diversity", "echo", "jax_loader", "keras", "offload", "refurbish"]
__all__ += ["show", "sources", "stats", "torch_loader"]

tf.data.Dataset.echo = _as_method(echo)
tf.data.Dataset.offload = _as_method(offload)
tf.data.Dataset.refurbish = _as_method(refurbish)

positions.attach()
shared_seeds.attach()

# Registers the ops, so that a worker of a tf.data service that has imported the package can run its stages.
shared_levels.listen(native.ops().path)

"""The policies as TensorFlow operations: the reference of the native layers, value for value.

The functions are named as those of `rtf.augment`, and return layers, `layer(image, seed)`, for `compose` and `split`.
"""
from .auto_augment import auto_augment
from .deep_auto_augment import deep_auto_augment
from .rand_augment import rand_augment

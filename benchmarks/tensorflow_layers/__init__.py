"""The policies as TensorFlow operations, which the native layers are compared with: value for value the same.

The functions are named as those of `rtf.augment`, and return layers, `layer(image, seed)`, for `compose` and `split`.
"""
from .auto_augment import auto_augment
from .deep_auto_augment import deep_auto_augment
from .rand_augment import rand_augment

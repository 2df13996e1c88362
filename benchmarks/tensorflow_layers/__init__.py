"""RandAugment as TensorFlow operations, for comparison with the native layers, which make the same values.

The function is named as in `rtf.augment` and returns layers, `layer(image, seed)`, for `compose` and `split`.
"""

from .rand_augment import rand_augment

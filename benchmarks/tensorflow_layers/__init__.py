"""The policies as TensorFlow operations, for comparison with the native layers, which make the same values.

The functions are named as in `rtf.augment` and return layers, `layer(image, seed)`, for `compose` and `split`.
"""

from .auto_augment import auto_augment
from .deep_auto_augment import deep_auto_augment
from .rand_augment import rand_augment

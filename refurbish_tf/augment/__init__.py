"""Native augmentation layers, and the split of a sequence of them into partial and final augmentation.

>>> import tensorflow as tf
>>> from refurbish_tf import augment
>>> partial_fn, final_fn = augment.split(
...     [augment.rand_augment(num_ops=2, magnitude=9), augment.random_crop(padding=3), augment.random_flip()], at=2)
>>> images = tf.data.Dataset.from_tensor_slices(tf.zeros([8, 32, 32, 3], tf.uint8))
>>> seeds = tf.data.Dataset.from_tensor_slices(tf.random.split([7, 0], 8))
>>> partially_augmented = tf.data.Dataset.zip(images, seeds).map(lambda image, seed: partial_fn(image, seed=seed))

This is the pipeline of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1. The `refurbish` stage
takes the two functions and passes them seeds, their only source of randomness. `rand_augment`, `auto_augment` and
`deep_auto_augment` return lists of layers. Nested lists are flattened, so the example has four layers, and the first
two are the partial augmentation. Adjacent layers of this module become one operation, which makes as few passes over
the bytes of an image as possible. `mixup`, `cutmix` and `mixup_or_cutmix` mix the images of a batch; `mosaic` and
`copy_paste` combine parts of several images.
"""

from .augmix import augmix
from .auto_augment import auto_augment
from .color_layers import color_jitter, gaussian_blur, random_channel_permutation, random_grayscale
from .color_layers import random_photometric_distort, random_solarize
from .composites import copy_paste, mosaic
from .composition import compose, split
from .decoding import decode, decode_random_resized_crop
from .deep_auto_augment import deep_auto_augment
from .depth_layers import random_depth_crop, random_depth_flip
from .detection_layers import random_iou_crop, random_resize, random_zoom_out
from .distort_layers import random_adjust_sharpness, random_autocontrast, random_equalize
from .distort_layers import random_invert, random_posterize
from .final_layers import cutout, normalize, random_crop, random_erasing, random_flip, random_resized_crop, resize
from .geometry_layers import center_crop, pad, random_affine, random_elastic, random_perspective, random_rotate90
from .geometry_layers import random_rotation, random_transpose
from .inner_layers import random_apply, random_choice, random_order
from .intensity_layers import gaussian_noise, random_intensity
from .layers import seed_at
from .many_crops import five_crop, ten_crop
from .mixing import cutmix, mixup, mixup_or_cutmix
from .numpy_layer import numpy_layer
from .rand_augment import rand_augment
from .sanitize_boxes import sanitize_boxes
from .sound_layers import decode_wav, frequency_mask, time_mask, time_shift
from .trivial_augment import trivial_augment

__all__ = [
  "augmix",
  "auto_augment",
  "center_crop",
  "color_jitter",
  "compose",
  "copy_paste",
  "cutmix",
  "cutout",
  "decode",
  "decode_random_resized_crop",
  "decode_wav",
  "deep_auto_augment",
  "five_crop",
  "frequency_mask",
  "gaussian_blur",
  "gaussian_noise",
  "mixup",
  "mixup_or_cutmix",
  "mosaic",
  "normalize",
  "numpy_layer",
  "pad",
  "rand_augment",
  "random_adjust_sharpness",
  "random_affine",
  "random_apply",
  "random_autocontrast",
  "random_channel_permutation",
  "random_choice",
  "random_crop",
  "random_depth_crop",
  "random_depth_flip",
  "random_elastic",
  "random_equalize",
  "random_erasing",
  "random_flip",
  "random_grayscale",
  "random_intensity",
  "random_invert",
  "random_iou_crop",
  "random_order",
  "random_perspective",
  "random_photometric_distort",
  "random_posterize",
  "random_resize",
  "random_resized_crop",
  "random_rotate90",
  "random_rotation",
  "random_solarize",
  "random_transpose",
  "random_zoom_out",
  "resize",
  "sanitize_boxes",
  "seed_at",
  "split",
  "ten_crop",
  "time_mask",
  "time_shift",
  "trivial_augment",
]

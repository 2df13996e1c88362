"""Augmentation layers: functions `layer(image, seed)` whose randomness comes from `seed` alone."""

import functools
import math
import numbers

import tensorflow as tf

from . import distortions

# AutoAugment moves images of 331 x 331 by up to 150 pixels. As a fraction it means the same at every size.
_LARGEST_TRANSLATION = 150 / 331


def rand_augment_layer(magnitude=9):
    """Returns a layer that applies one of RandAugment's 14 distortions, each with the same probability.

    >>> layer = rtf.augment.rand_augment_layer(magnitude=9)
    >>> image = tf.zeros([32, 32, 3], tf.uint8)
    >>> layer(image, seed=[7, 0]).shape
    TensorShape([32, 32, 3])

    Two layers in a row are the RandAugment(N=2, M=9) of the papers; see `compose`.

    `magnitude` M sets how far every distortion goes, as in the reference implementation of the paper:

    | Distortion                             | Parameter                          | At M = 9       | Sign   |
    | -------------------------------------- | ---------------------------------- | -------------- | ------ |
    | identity, auto_contrast, equalize      | none                               |                |        |
    | rotate                                 | 30 degrees * M / 10                | 27 degrees     | random |
    | shear_x, shear_y                       | 0.3 * M / 10                       | 0.27           | random |
    | translate_x, translate_y               | 150 / 331 of the side * M / 10     | 41 % of a side | random |
    | color, contrast, brightness, sharpness | factor 0.1 + 1.8 * M / 10          | 1.72           |        |
    | solarize                               | threshold int(256 * M / 10)        | 230            |        |
    | posterize                              | bits max(1, int(4 * M / 10))       | 3              |        |

    As there, the enhancing factors only grow with M (from weakening at 0, over no change at 5, to strengthening at 10),
    and solarize and posterize are the milder the larger M. Two things differ: translation is proportional to the image
    in place of a fixed 100 pixels, and posterize keeps at least one bit, where the reference keeps none below M = 2.5
    and so returns a black image.

    The layer: `layer(image, seed)`.
      image: uint8 `[height, width, 3]`, sides of 1 to 32767; height and width may be unknown while tracing.
      seed: int32 `[2]`, as for `tf.random.stateless_uniform`. The same image and seed give the same result.
      Returns uint8 `[height, width, 3]` with the image's static shape. It raises `TypeError` for another dtype and
      `ValueError` for another shape, while tracing.

    Args:
      magnitude: real number from 0 to 10. The papers use 9 for ImageNet and 10 for CIFAR-10.

    Raises:
      TypeError: `magnitude` is not a real number.
      ValueError: `magnitude` is not between 0 and 10.

    Implements Cubuk et al., *RandAugment*, NeurIPS 2020, section 3; it is the expensive part of the pipeline that
    Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, sections 2.2 and 7, cache.
    """
    level = _checked_magnitude(magnitude) / 10
    choices = _choices(level)
    # A table of functions rather than of lambdas, so that the two signs of one distortion do not trace it twice.
    functions = {name: tf.function(choice, autograph=False) for name, choice in choices}

    @tf.autograph.experimental.do_not_convert
    def rand_augment(image, seed):
        image, seed = _checked_image(image, "rand_augment_layer"), _checked_seed(seed, "rand_augment_layer")
        chosen = tf.random.stateless_uniform([], seed, 0, len(choices), tf.int32, alg="philox")
        pass

    return rand_augment

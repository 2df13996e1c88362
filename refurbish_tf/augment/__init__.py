"""Native augmentation layers, and the split of their sequence into partial and final augmentation.

    from refurbish_tf import augment

    layers = [augment.rand_augment_layer(9), augment.rand_augment_layer(9), augment.random_crop(4), augment.random_flip()]
    partial_fn, final_fn = augment.split(layers, at=2)
    train = source.refurbish(partial_fn, final_fn, r=3, seed=7)

This is the pipeline of Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 7.1. All randomness comes
from the seeds that `refurbish` hands to the functions.
"""

from .composition import compose, split
from .layers import rand_augment_layer, random_crop, random_flip

__all__ = ["compose", "rand_augment_layer", "random_crop", "random_flip", "split"]

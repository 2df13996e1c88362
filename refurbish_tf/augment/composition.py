"""Functions for `refurbish` and `Dataset.map`, made of augmentation layers."""

import copy
import inspect
import operator

import tensorflow as tf

from .layers import checked_seed


def compose(layers):
    """Returns a function that applies the layers in order to the image of an element.

    >>> from refurbish_tf import augment
    >>> fn = augment.compose([augment.rand_augment_layer(9), augment.random_crop(4), augment.random_flip()])
    >>> image = tf.zeros([32, 32, 3], tf.uint8)
    >>> image, label = fn(image, 3, seed=[7, 0])
    >>> image.shape, label
    (TensorShape([32, 32, 3]), 3)

    The function is called as `Dataset.map` calls its own, `fn(image, *rest, seed)`, and returns `image` if there is no
    rest, else `(image, *rest)`. In place of the image there may be a dict: it is returned with another `"image"` entry.
    Everything but the image is passed through as it is. Shapes, dtypes and errors are the layers' own; `seed` is int32
    or int64 `[2]`.

    Every layer gets a seed of its own, made of `seed` and the layer's position. A layer without a parameter named
    `seed`, say `tf.io.decode_png`, is called as `layer(image)`; functions that do take a `seed` must take one as
    `tf.random.stateless_*` do (`tf.image.stateless_random_contrast`, not `tf.image.random_contrast`). If no layer takes
    a seed, neither does the function.

    Args:
      layers: list or tuple of at least one callable.

    Raises:
      TypeError: `layers` is not a list or tuple of callables; while tracing, `seed` has another dtype.
      ValueError: `layers` is empty; while tracing, `seed` has another shape, or a dict has no `"image"` entry.

    Lee et al., *Refurbish Your Training Data*, USENIX ATC 2021, section 2.2: an augmentation is a sequence of layers.
    """
    layers = _checked_layers(layers, "compose")
    return _composed(layers, 0, len(layers))


def split(layers, at):
    """Returns `(partial_fn, final_fn)`: what the first `at` layers do, and what the rest do.

    >>> from refurbish_tf import augment
    >>> layers = [augment.rand_augment_layer(9), augment.random_crop(4), augment.random_flip()]
    >>> partial_fn, final_fn = augment.split(layers, at=1)
    >>> image = tf.zeros([32, 32, 3], tf.uint8)
    >>> final_fn(partial_fn(image, seed=[7, 0]), seed=[7, 0]).shape
    TensorShape([32, 32, 3])

    Both are functions like the one that `compose(layers)` returns, and with the same seed one after the other gives
    just what that gives: layers keep the positions, and so the seeds, that they have in the whole.

    Args:
      layers: list or tuple of at least one callable, as for `compose`.
      at: whole number of layers, 1 to `len(layers)`, whose result is worth keeping. With `len(layers)` nothing is left
        to do afresh and `final_fn` is None.

    Raises:
      TypeError: `layers` is not a list or tuple of callables, or `at` is not a whole number.
      ValueError: `layers` is empty, or `at` is out of range.

    Implements the split into partial and final augmentation of Lee et al., *Refurbish Your Training Data*, USENIX ATC
    2021, section 4.
    """
    layers = _checked_layers(layers, "split")
    at = _checked_at(at, len(layers))
    return _composed(layers, 0, at), _composed(layers, at, len(layers)) if at < len(layers) else None


def _composed(layers, start, stop):
    """Returns what `layers[start:stop]` do. The others only count, for the seeds not to depend on the split."""
    taking_seed = [_takes_seed(layer) for layer in layers]

    def apply(element, rest, seeds):
        image = _image_of(element)
        for position in range(start, stop):
            if taking_seed[position]:
                image = layers[position](image, seed=seeds[position])
            else:
                image = layers[position](image)
        element = _with_image(element, image)
        return (element, *rest) if rest else element

    if any(taking_seed[start:stop]):

        def composed(image, *rest, seed):
            return apply(image, rest, _layer_seeds(seed, len(layers)))

    else:

        def composed(image, *rest):
            return apply(image, rest, None)

    return composed


def _layer_seeds(seed, count):
    """Returns a seed for each of `count` layers: `tf.random.split`, in two operations in place of five."""
    seed = checked_seed(seed, "compose")
    return tf.unstack(tf.raw_ops.StatelessRandomUniformFullInt(shape=[count, 2], seed=seed, dtype=tf.int32))


def _takes_seed(layer):
    try:
        return "seed" in inspect.signature(layer).parameters
    except ValueError:  # Some built-in functions have no signature to show.
        return False


def _image_of(element):
    if not isinstance(element, dict):
        return element
    if "image" not in element:
        raise ValueError(
            f"compose was given a dict with the entries {sorted(element)}; it works on the entry 'image'. Rename the "
            "entry that holds the image with Dataset.map first."
        )
    return element["image"]


def _with_image(element, image):
    if not isinstance(element, dict):
        return image
    element = copy.copy(element)
    element["image"] = image
    return element


def _checked_layers(layers, whose):
    if not isinstance(layers, (list, tuple)):
        raise TypeError(
            f"{whose} was given layers={layers!r}; it must be a list or tuple of callables. Put a single layer into a "
            "list."
        )
    if not layers:
        raise ValueError(
            f"{whose} was given no layers; it must be at least one. Leave the augmentation out where there is none."
        )
    for position, layer in enumerate(layers):
        if not callable(layer):
            raise TypeError(
                f"{whose} was given {layer!r} at position {position} of layers; it must be callable as "
                "layer(image, seed) or layer(image). Call the function that makes the layer, such as random_flip()."
            )
    return tuple(layers)


def _checked_at(at, count):
    try:
        whole = operator.index(at)
    except TypeError:
        whole = None
    if whole is None or isinstance(at, bool):
        raise TypeError(
            f"split was given at={at!r}; it must be a whole number from 1 to {count}, the number of layers. Pass how "
            "many layers the partial augmentation has."
        )
    if whole == 0:
        raise ValueError(
            f"split was given at=0; it must be from 1 to {count}, the number of layers. With 0 the partial augmentation "
            "is empty and nothing worth keeping is kept: use compose(layers) in Dataset.map instead."
        )
    if not 1 <= whole <= count:
        raise ValueError(
            f"split was given at={at!r}; it must be from 1 to {count}, the number of layers. Pass how many layers the "
            "partial augmentation has."
        )
    return whole

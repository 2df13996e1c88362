"""Breaks of the accelerator's pixels, and of the models that make them."""
from support.mutants import Mutant

PIXELS = "refurbish_tf/keras/offloaded_pixels.py"
LAYER = "refurbish_tf/keras/offloaded.py"
BYTES = "tests/keras/test_offloaded.py::test_the_bytes_are_those_of_the_host"
EVERY = f"{BYTES}[each distortion at each magnitude, twice-jitted]"
EVERYWHERE = f"{BYTES}[all layers, everywhere-eager]"
JAX = "tests/keras/test_offloaded_devices.py::test_jax_makes_the_same_bytes_and_devices_exchange_nothing"
REFUSED = "tests/keras/test_offloaded_model.py::test_what_is_no_batch_of_offload_is_refused_at_the_first_step"

MUTANTS = [
    Mutant("a compiler may fuse a product and a sum", PIXELS, "  return ops.maximum(product, np.float32(-65536))\n",
           "  return product\n", f"{BYTES}[final layers-jitted]"),
    Mutant("a stretch of contrast is exact", PIXELS, "stretched - ops.cast(low, \"int32\")", "stretched", EVERY),
    Mutant("policies are done again to images that are done", PIXELS,
           "ops.expand_dims(first, -1)) * ops.expand_dims(todo, 0)", "ops.expand_dims(first, -1))", EVERY),
    Mutant("crops before a policy are done again", PIXELS, "done = 1 if todo is None else _each(todo)", "done = 1", EVERYWHERE),
    Mutant("images that the host has done are made grey again", PIXELS, "changes = ops.logical_and(changes, todo > 0)", "pass", EVERYWHERE),
    Mutant("each image is solarized", PIXELS, 'drawn[:, 0] <= layer.number("below") - 1', 'drawn[:, 0] >= 0', f"{BYTES}[colours-eager]"),
    Mutant("TrivialAugment moves by parts", "refurbish_tf/keras/offloaded_rows.py", "affine[2] = round(value) << 16", "affine[2] = round(value * width) << 16",
           f"{BYTES}[trivial_augment-jitted]"),
    Mutant("the first image of a group that needs a table gets none", PIXELS, "(1, -1, 1)) < ops.reshape(place", "(1, -1, 1)) <= ops.reshape(place",
           EVERY),
    Mutant("sharpness works at the edges", PIXELS, "ops.where(inner, smooth, value)", "smooth", EVERY),
    Mutant("images without inner pixels are smoothed", PIXELS, "if min(height, width) > 2 else values", "if min(height, width) > 0 else values",
           f"{BYTES}[1 x 1-eager]"),
    Mutant("layers are undone in their own order", PIXELS, "in reversed(run):", "in run:", f"{BYTES}[final layers-jitted]"),
    Mutant("a last group that is not whole is left out", PIXELS, "(ops.shape(array)[0] + GROUP - 1) // GROUP",
           "ops.shape(array)[0] // GROUP", "tests/keras/test_offloaded.py::test_batches_of_any_size_in_one_trace"),
    Mutant("devices exchange counts", PIXELS,
           "  counts = ops.vectorized_map(\n"
           "      lambda group: ops.segment_sum(ops.ones_like(group), group, num_segments=num_tables * channels * 256), place)\n",
           "  number = place.shape[0] * num_tables * channels * 256\n"
           "  flat = place + ops.expand_dims(ops.arange(place.shape[0], dtype=\"int32\"), 1) * (num_tables * channels * 256)\n"
           "  flat = ops.reshape(flat, (-1,))\n"
           "  counts = ops.segment_sum(ops.ones_like(flat), flat, num_segments=number)\n", JAX),
    Mutant("batches for other layers are taken", LAYER, "fingerprint != self._device_layers.fingerprint", "fingerprint < 0",
           f"{REFUSED}[other layers]"),
    Mutant("float images are taken", LAYER, "      if dtype not in allowed and", "      if name != IMAGE and dtype not in allowed and",
           f"{REFUSED}[floats]"),
    Mutant("a strategy's models are not built", LAYER, " and not _builds_under_a_strategy():", ":",
           "tests/keras/test_offloaded_devices.py::test_replicas_of_a_mirrored_strategy"),
    Mutant("finished and unfinished batches share a trace", LAYER, 'LAYERS: ("int32", "uint8")', 'LAYERS: ("int32",)',
           "tests/keras/test_offloaded_model.py::test_any_model_trains_and_is_saved[functional]"),
]

"""Ops check their attributes and inputs when they run, because a loaded graph may be forged.

Each op is tried in a separate process, because a missing check may crash it. Each case raises one InvalidArgumentError
before an element is read.
"""

import re
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf._internal import native
from refurbish_tf.augment import device_layers
from support import processes

POLICY = "policy position=1 end=20 group=10 goes_on=1 fill=128 exact_turns=0 operations=invert parameters=0 edges=20"
LAYERS = device_layers.chain_of([*augment.rand_augment(1), augment.random_flip()], 0).texts
NAMES = ["a", "b"]


def source(seeds=None):
  components = (np.zeros([8, 8, 8, 3], np.uint8), np.arange(8))
  return tf.data.Dataset.from_tensor_slices(components if seeds is None else (*components, seeds))


def concrete(function, dataset):
  return tf.function(function).get_concrete_function(*tf.nest.flatten(dataset.element_spec))


def types_of(*specs):
  return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


def offload(dataset=None, seeds=None, **changes):
  given = {
    "layers": LAYERS,
    **dict(batch_size=4, num_parts=1, eighths=8, group=8, tables=2, drop_remainder=True, seeded=False, any_seed=False),
    **dict(image=0, image_height=8, image_width=8, image_frames=0, components=[-1, -2, -3, 1]),
    **outputs(0),
    **changes,
  }
  return native.ops().refurbish_tf_offload_dataset(
    (dataset or source(seeds))._variant_tensor, stage=native.ops().refurbish_tf_stage_name(), seed=1, **given
  )


def outputs(position, dtype=None, shape=None):
  """Returns the output types and shapes of `offload` above, with one of them changed."""
  specs = [
    tf.TensorSpec([4, 8, 24], tf.uint8),
    tf.TensorSpec([4, 3], tf.int32),
    tf.TensorSpec([4, 0, 5], tf.int32),
    tf.TensorSpec([4], tf.int64),
  ]
  specs[position] = tf.TensorSpec(specs[position].shape if shape is None else shape, dtype or specs[position].dtype)
  return types_of(*specs)


LABEL = [tf.TensorSpec([], tf.int64)]
OFFLOAD = {
  "a component beyond the input's": {"components": [-1, -2, -3, 9]},
  "a component that is none": {"components": [-1, -2, -4, 1]},
  "no images": {"components": [1, -2, -3, 1], **outputs(0, tf.int64, [4])},
  "images twice": {"components": [-1, -2, -1, 1], **outputs(2, tf.uint8, [4, 8, 24])},
  "no draws": {"components": [-1, 1, -3, 1], **outputs(1, tf.int64, [4])},
  "more components than types": {"components": [-1, -2, -3, 1, 1]},
  "images of another type": outputs(0, dtype=tf.int8),
  "images of another size": outputs(0, shape=[4, 8, 23]),
  "draws of another type": outputs(1, dtype=tf.uint8),
  "fewer draws": outputs(1, shape=[4, 2]),
  "layers with bytes": outputs(2, shape=[4, 1, 5]),
  "layers without a sign": outputs(2, shape=[4, 0, None]),
  "a component of another type": outputs(3, dtype=tf.int32),
  "a component of another shape": outputs(3, shape=[4, 2]),
  "batches of another size": outputs(3, shape=[5]),
  "three eighths": {"eighths": 3},
  "nine eighths": {"eighths": 9},
  "parts of unequal size": {"num_parts": 3},
  "more tables than images": {"tables": 9},
  "an image that is none": {"image": 1},
  "an image beyond the input": {"image": 2},
  "seeds that are none": {"seeded": True},
  "seeds of three numbers": {"seeded": True, "seeds": np.zeros([8, 3], np.int32)},
  "policies of clips": {"image_frames": 2, **outputs(0, shape=[4, 2, 8, 24])},
  "clips beyond memory": {"image_frames": 2**62},
  "images beyond memory": {"image_height": 2**31 - 1, "image_width": 2**31 - 1},
  "a side beyond 32 bits": {"image_height": 2**40},
  "a batch beyond memory": {"batch_size": 2**62, **outputs(0, shape=[2**62, 8, 24])},
  "a layer that resizes": {"layers": ["resize position=0 height=2 width=2 antialias=0", *LAYERS]},
  "means of four channels": {"layers": [*LAYERS, "normalize position=-1 dtype=float32 mean=0,0,0,0 std=1,1,1,1"]},
  "a layer that is none": {"layers": ["random_flap position=0"]},
  "a policy that goes on from none": {"layers": ["cutout position=0 side=2", POLICY]},
}


def refurbish(partial=lambda image, label: (image, label), final=None, sample=None, outputs=None, times=1, **changes):
  dataset = source()
  partial = concrete(partial, dataset)
  sample = sample or [tf.TensorSpec([8, 8, 3], tf.uint8), *LABEL]
  final = [] if final is None else [tf.function(final).get_concrete_function(*sample)] * times
  given = {
    "stage": native.ops().refurbish_tf_stage_name(),
    "partial_fn": partial,
    "final_fn": final,
    **dict(seed=1, order_seed=1, reuse_factor=2.0, store="", max_bytes=1 << 40, shared="", shared_max_bytes=1 << 40),
    **dict(shuffle_buffer_size=0, num_parallel_calls=0, batch_size=0, drop_remainder=False, eviction="balanced"),
    **dict(shuffle="cache_aware", deterministic="true", any_seed=False, partial_seed=False, partial_generation=False),
    **dict(final_seed=False, final_epoch=False),
    "sample_types": [spec.dtype for spec in sample],
    "sample_shapes": [spec.shape for spec in sample],
    **types_of(*(outputs or sample)),
    **changes,
  }
  return native.ops().refurbish_tf_refurbish_dataset(dataset._variant_tensor, [], [], **given)


REFURBISH = {
  "partial_fn returns fewer components": {"partial": lambda image, label: image},
  "partial_fn returns another type": {"partial": lambda image, label: (image, tf.cast(label, tf.int32))},
  "fewer shapes than types of a sample": {"sample_shapes": [[8, 8, 3]]},
  "other outputs than a sample has": {"outputs": LABEL},
  "no output for the seed": {"final_seed": True},
  "no output for the epoch": {"final_epoch": True},
  "final_fn returns fewer components": {
    "final": lambda image, label: label,
    "outputs": [tf.TensorSpec([8, 8, 3], tf.uint8), *LABEL],
  },
  "two final functions": {"final": lambda image, label: (image, label), "times": 2},
  "r below 1": {"reuse_factor": 0.5},
  "r is no number": {"reuse_factor": float("nan")},
  "r is infinite": {"reuse_factor": float("inf")},
  "a buffer below 0": {"shuffle_buffer_size": -1},
  "too many calls": {"num_parallel_calls": 10**6},
  "a batch of less than nothing": {"batch_size": -1},
  "a batch without a dimension": {"batch_size": 2},
  "two names": {"stage": NAMES},
  "a negative limit": {"max_bytes": -5},
}


def augmented(function=lambda image, label: (image, label), **changes):
  dataset = source()
  specs = dataset.element_spec
  given = {"f": concrete(function, dataset), **types_of(*specs), **changes}
  return native.ops().refurbish_tf_augment_dataset(dataset._variant_tensor, [], **given)


AUGMENT = {
  "f returns fewer components": {"function": lambda image, label: image},
  "f returns another type": {"function": lambda image, label: (image, tf.cast(label, tf.int32))},
  "fewer shapes than types": {"output_shapes": [[8, 8, 3]]},
}


def reads(number, codes=tf.int32):
  elements = [np.int64(0)] * number
  return lambda indices: (tf.zeros_like(indices, codes), tf.fill(tf.shape(indices), ""), *map(tf.constant, elements))


def data_source(one=reads(1), many=reads(2), **changes):
  one, many = (tf.function(each).get_concrete_function(tf.TensorSpec([None], tf.int64)) for each in (one, many))
  given = {
    "num_elements": 8,
    "num_parallel_reads": 2,
    "read_one": one,
    "read_many": many,
    "batch_reads": 2,
    **types_of(*LABEL),
    **changes,
  }
  return native.ops().refurbish_tf_data_source_dataset(**given)


DATA_SOURCE = {
  "more at once than read_many returns": {"batch_reads": 4},
  "so many at once that their number overflows": {"batch_reads": 2**62},
  "codes of another type": {"one": reads(1, tf.int64)},
  "elements of another type": types_of(tf.TensorSpec([], tf.int32)),
  "fewer shapes than types": {"output_shapes": []},
  "elements below 0": {"num_elements": -1},
  "readers below 0": {"num_parallel_reads": -2},
}


def image_files(**changes):
  specs = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32)
  given = {"files": ["a", "b"], "labels": [0, 1], "num_parallel_reads": 2, **types_of(*specs), **changes}
  return native.ops().refurbish_tf_image_files_dataset(**given)


IMAGE_FILES = {
  "fewer labels than files": {"labels": [0]},
  "a file that is not in a list": {"files": "a", "labels": 0},
  "readers without end": {"num_parallel_reads": 2**40},
}


def loader_output(**changes):
  dataset = source()
  given = {"buffer_size": 1, "num_ahead": 0, "exclusive": False, **types_of(*dataset.element_spec), **changes}
  return native.ops().refurbish_tf_loader_output_dataset(dataset._variant_tensor, **given)


HAND_OVER = {"so many ahead that their number overflows": {"num_ahead": 2**63 - 1}, "two ahead": {"num_ahead": 2}}


def named(op, **inputs):
  return getattr(native.ops(), f"refurbish_tf_{op}")(**inputs)


NAMED = {
  **{
    f"two names for {op}": {"op": op, "stage": NAMES}
    for op in (
      *("refurbish_counts", "refurbish_description", "refurbish_position"),
      *("offload_counts", "offload_state", "echo_counts"),
    )
  },
  "two samples": {"op": "refurbish_generation", "stage": "", "index": [1, 2], "epoch": 0},
  "two names for offload_restore": {"op": "offload_restore", "stage": NAMES, "state": [1, 2]},
  "two names for refurbish_set_position": {
    "op": "refurbish_set_position",
    "stage": NAMES,
    "numbers": [1] * 7,
    "reuse_factor": 2.0,
    "yielded": np.zeros([0], np.uint8),
    "lost_shards": np.zeros([0], np.int64),
  },
  "two names for refurbish_keep_position": {"op": "refurbish_keep_position", "stage": NAMES, "next_epoch": 1},
  "two next epochs": {"op": "refurbish_keep_position", "stage": "", "next_epoch": np.zeros([0], np.int64)},
  "two names for a store": {"op": "cache_store_handle", "store": NAMES, "max_bytes": 1, "mode": "open"},
  "two limits": {"op": "cache_store_handle", "store": "", "max_bytes": [1, 2], "mode": "open"},
  "two modes": {"op": "cache_store_handle", "store": "", "max_bytes": 1, "mode": NAMES},
  "a mode that is none": {"op": "cache_store_handle", "store": "", "max_bytes": 1, "mode": "write"},
  "a negative limit of a store": {"op": "cache_store_handle", "store": "", "max_bytes": -1, "mode": "open"},
  "two names to get from": {"op": "cache_store_get", "store": NAMES, "index": 1, **types_of(*LABEL)},
  "two names to remove from": {"op": "cache_store_remove", "store": NAMES, "index": 1},
}


def layers(op="image_draws", text=(), **changes):
  images = {
    "images": np.zeros([8, 8, 3], np.uint8),
    "T": tf.uint8,
    "clips": False,
    "targets": [],
    "kinds": [],
    "names": [],
  }
  images["Tmoved"] = [tf.convert_to_tensor(each).dtype for each in changes.get("targets", [])]
  given = {
    "image_draws": {"seed": [7, 0], "batch_size": []},
    "image_layers": {"seed": [7, 0], **images},
    "image_pixels": {"draws": [0, 0, 0], **images},
  }[op]
  return named(op, layers=list(text), **{**given, **changes})


FIRST = POLICY.replace("goes_on=1", "goes_on=0")
PARSED = {
  "it goes on from a cutout": ["cutout position=0 side=2", POLICY],
  "it goes on from a policy of another end": [FIRST.replace("20", "30"), POLICY],
  "it goes on from a policy of other groups": [FIRST.replace("group=10", "group=5"), POLICY],
  "the last group is not whole": [FIRST.replace("group=10", "group=8"), POLICY.replace("group=10", "group=8")],
}
IMAGES = {
  f"{op}: {name}": {"op": op, "text": text}
  for op in ("image_draws", "image_layers", "image_pixels")
  for name, text in PARSED.items()
}
IMAGES.update(
  {
    f"{op}: {name}": {"op": op, "text": ["random_flip position=-1"], **changes}
    for op in ("image_layers", "image_pixels")
    for name, changes in {
      "a target without a kind": {"targets": [[[0.0] * 4]], "names": ["it"]},
      "a target without a name": {"targets": [[[0.0] * 4]], "kinds": ["xyxy"]},
      "a kind without a target": {"kinds": ["xyxy"], "names": ["it"]},
      "a mask of strings": {"targets": [np.full([8, 8], b"a", object)], "kinds": ["mask"], "names": ["it"]},
      "another dtype of a mask": {
        "targets": [np.zeros([8, 8])],
        "kinds": ["mask"],
        "names": ["it"],
        "Tmoved": [tf.int32],
      },
      "another dtype of an image": {
        "targets": [np.zeros([8, 8, 3], np.uint8)],
        "kinds": ["image"],
        "names": ["it"],
        "Tmoved": [tf.float32],
      },
      "more dtypes than targets": {"Tmoved": [tf.float32]},
      "a kind that is none": {"targets": [[[0.0] * 4]], "kinds": ["yxy"], "names": ["it"]},
    }.items()
  }
)


IMAGES_TO_MIX = {
  "op": "mix_images",
  "images": np.zeros([2, 8, 8, 3], np.uint8),
  "seed": [7, 0],
  "mixup_alpha": 1.0,
  "cutmix_alpha": 1.0,
  "switch_prob": 0.5,
}
ROWS_TO_MIX = {
  "op": "mix_rows",
  "rows": np.zeros([2, 3], np.float32),
  "lambdas": [0.5, 0.5],
  "partners": [1, 0],
  "num_classes": 0,
  "called": "it",
}
NAMED.update(
  {
    "mixed images of no batch": {**IMAGES_TO_MIX, "images": np.zeros([8, 8, 3], np.uint8)},
    "alpha 0": {**IMAGES_TO_MIX, "mixup_alpha": 0.0},
    "alpha that is no number": {**IMAGES_TO_MIX, "cutmix_alpha": float("nan")},
    "a probability above 1": {**IMAGES_TO_MIX, "switch_prob": 1.5},
    "a partner beyond the batch": {**ROWS_TO_MIX, "partners": [1, 2]},
    "a partner before the batch": {**ROWS_TO_MIX, "partners": [1, -1]},
    "fewer partners": {**ROWS_TO_MIX, "partners": [1]},
    "more rows than images": {**ROWS_TO_MIX, "rows": np.zeros([3, 3], np.float32)},
    "a single row": {**ROWS_TO_MIX, "rows": np.float32(3)},
    "classes without their number": {**ROWS_TO_MIX, "rows": np.array([0, 1])},
    "a class beyond the last one": {**ROWS_TO_MIX, "rows": np.array([0, 3]), "num_classes": 3},
    "classes beyond memory": {**ROWS_TO_MIX, "rows": np.array([0, 1]), "num_classes": 2**62},
  }
)

COMPOSITES = {"images": np.zeros([2, 8, 8, 3], np.uint8), "min_visibility": 0.1, "called": "it"}
COMPOSITES.update(height=0, width=0)
PIECE = [0, 0, 0, 8, 8, 0, 0]
PIECES = {**COMPOSITES, "pieces": np.int32([[PIECE], [PIECE]])}
PLACED = {**PIECES, "op": "place_pieces", "maps": np.zeros([2, 8, 8, 1], np.int32), "fill": 0}
PLACED.update(pasted=np.zeros([0, 0, 0], bool), numbers=np.zeros([0, 0, 0], np.int32))
MOVED = {**PIECES, "op": "piece_rows", "rows": np.zeros([2, 1, 4]), "visible": np.zeros([0, 0, 0]), "kind": "xyxy"}
MOSAICS = {**COMPOSITES, "op": "mosaic_pieces", "seed": [7, 0], "p": [0.5, 0.5]}
PASTED = {**MOSAICS, "op": "pasted_objects", "instances": np.zeros([2, 8, 8, 1], np.int32)}
PASTED["ids"] = np.zeros([2, 1], np.int32)
# One number is beyond the images, or below 0. A part may be lower or narrower.
BEYOND = np.int32(PIECE) + np.concatenate([np.eye(7) * 2, -np.eye(7)]).astype(np.int32)[[*range(10), 12, 13]]
NAMED.update(
  {
    **{f"piece {piece.tolist()}": {**PLACED, "pieces": np.int32([[PIECE], [piece]])} for piece in BEYOND},
    "maps of another size": {**PLACED, "maps": np.zeros([2, 8, 9, 1], np.int32)},
    "fills of each image": {**PLACED, "fill": [0, 0]},
    "fills of nothing": {**PLACED, "fill": np.zeros([0], np.int32)},
    "maps of strings": {**PLACED, "maps": np.full([2, 8, 8, 1], b"", object), "fill": ""},
    "pieces of another batch": {**PLACED, "pieces": np.int32([[PIECE]])},
    "fewer pasted pixels": {**PLACED, "pasted": np.zeros([2, 8, 7], bool)},
    "numbers of other pieces": {**PLACED, "numbers": np.zeros([2, 2, 3], np.int32)},
    "rows of five numbers": {**MOVED, "rows": np.zeros([2, 1, 5])},
    "rows of another batch": {**MOVED, "rows": np.zeros([1, 1, 4])},
    "visible boxes of other rows": {**MOVED, "visible": np.zeros([2, 2, 4])},
    "rows of no kind": {**MOVED, "kind": "yxy"},
    "mosaics of no batch": {**MOSAICS, "images": np.zeros([8, 8, 3])},
    "mosaics without probabilities": {**MOSAICS, "p": [0.5]},
    "mosaics beyond memory": {**MOSAICS, "height": 2**40, "width": 2**40},
    "instances of no batch": {**PASTED, "instances": np.zeros([8, 8], np.int32)},
    "objects of another batch": {**PASTED, "ids": np.zeros([1, 1], np.int32)},
  }
)


def store_op(op, **inputs):
  store = rtf.CacheStore()
  store.put(0, tf.constant(1))
  return named(op, store=store._id, **inputs)


IN_STORE = {
  "two indices": {"op": "cache_store_remove", "index": [1, 2]},
  "an index below 0": {"op": "cache_store_contains", "index": -1},
  "fewer shapes than types": {"op": "cache_store_get", "index": 0, "output_types": [tf.int32], "output_shapes": []},
}

TRIED = {
  offload: OFFLOAD,
  refurbish: REFURBISH,
  augmented: AUGMENT,
  data_source: DATA_SOURCE,
  image_files: IMAGE_FILES,
  loader_output: HAND_OVER,
  named: NAMED,
  layers: IMAGES,
  store_op: IN_STORE,
}


def run(function):
  for name, changes in TRIED[function].items():
    print(name, file=sys.stderr, flush=True)
    with pytest.raises(tf.errors.InvalidArgumentError):
      function(**changes)
  if function in (offload, refurbish, augmented, data_source, image_files, loader_output):
    function()


@pytest.mark.parametrize("function", TRIED)
def test_a_forged_attribute_or_input_is_refused(function):
  assert processes.run_forked(run, function) == 0


@pytest.mark.parametrize("policy", ["eviction", "shuffle"])
def test_the_op_knows_the_policies_that_python_offers(policy):
  with pytest.raises(ValueError) as refused:
    source().refurbish(lambda *element: element, **{policy: "lru"})
  with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(str(refused.value))):
    refurbish(**{policy: "lru"})


def test_seeds_of_another_shape_than_the_input_says_are_refused():
  seeds = source(np.zeros([8, 1], np.int32))
  unknown = seeds.map(lambda image, label, seed: (image, label, tf.boolean_mask(seed, seed == 0)))
  specs = tuple(map(tf.TensorSpec, *reversed(outputs(0).values())))
  made = tf.data.experimental.from_variant(offload(unknown, seeded=True), specs)
  with pytest.raises(tf.errors.InvalidArgumentError, match="takes seeds of shape"):
    list(made)


def read_another_type(image, label):
  """Reads a `map` whose graph declares uint8 and int64, but whose function returns these types."""
  given = source()
  function = concrete(
    lambda image_, label_: (tf.cast(image_, image), tf.cast(label_, label) if label != tf.string else "a"), given
  )
  mapped = tf.raw_ops.MapDataset(
    input_dataset=given._variant_tensor, other_arguments=[], f=function, **types_of(*given.element_spec)
  )
  forged = offload(tf.data.experimental.from_variant(mapped, given.element_spec))
  specs = tuple(map(tf.TensorSpec, *reversed(outputs(0).values())))
  with pytest.raises(tf.errors.InvalidArgumentError, match="Data type mismatch at component"):
    list(tf.data.experimental.from_variant(forged, specs))


@pytest.mark.parametrize("image, label", [(tf.uint8, tf.string), (tf.float32, tf.int64), (tf.uint8, tf.float64)])
def test_elements_of_other_types_than_the_input_says_are_refused(image, label):
  assert processes.run_forked(read_another_type, image, label) == 0

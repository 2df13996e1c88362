"""Checks and traces the source and the layers for `rtf.advise`."""

import collections
import contextlib
import re

import tensorflow as tf

from refurbish_tf._internal import dataset_graph, pipeline_warnings, tracing
from refurbish_tf._internal.tensorflow_internals import none_tensor, op_def_registry
from refurbish_tf.augment import composition
from refurbish_tf.augment.layers import layer_name

# Stateful operations that do not change outputs: checks, and calls of functions whose own operations are examined.
_HARMLESS = frozenset({"Assert", "Case", "If", "PrintV2", "StatefulPartitionedCall", "While"})
# Operations that call Python in this process, one call at a time.
_CALLS_PYTHON = re.compile("(Eager|Stateless)?PyFunc(Stateless)?")


# Facts from the graph of a layer: whether it takes a seed; has no stateful operation, so that one input has one output;
# calls Python in this process, where one call runs at a time.
Traced = collections.namedtuple("Traced", ["takes_seed", "is_pure", "calls_python"])


def call(function, element, seed):
  """Calls the function as refurbish does: with the seed if it takes one."""
  return tracing.call(function, element, **({"seed": seed} if tracing.takes("seed", function, element) else {}))


def part(layers, start, stop, targets):
  return composition.compose_part(layers, start, stop, targets, clips=True)


def trace_layers(layers, source, targets):
  """The types of all layers' inputs and of the last output, and a `Traced` for each. Raises ValueError if one fails."""
  specs, traced, spec = [], [], source.element_spec
  for position, layer in enumerate(layers):
    with naming(layers, position):
      function = part(layers, position, position + 1, targets)
      several, given = type(spec) is tuple, image_spec(spec)
      with tracing.in_stage() as in_processes:
        called = lambda element, seed, function=function: call(function, element, seed)
        given_to = (spec, tf.TensorSpec([2], tf.int32))
        wrapper = tracing.trace(called, "advise", "the layer", input_structure=given_to)
      spec = wrapper.output_structure
      # If an image without a label becomes a tuple, that tuple is not an image with a label.
      returned = image_spec(spec) if several or type(spec) is not tuple else spec
    # The two layers of AutoAugment pass their own structure between them.
    in_a_pair = any(getattr(layer, side, None) for side in ("hands_on", "takes_over"))
    if not in_a_pair and not _same_structure(given, returned):
      raise ValueError(
        f"layers: layer {position + 1} of {len(layers)}, {layer_name(layer)}, must return the structure that it is "
        "given, one output for one input, so that the augmentation can be split after it; it was given "
        f"{given} and returned {returned}. Put functions that make several components from one before or after "
        "refurbish."
      )
    ops = dataset_graph.operations(wrapper)
    apart = any(each.processes for each in in_processes)
    takes_seed = tracing.takes("seed", function, source.element_spec if position == 0 else specs[-1])
    definitions = filter(None, map(op_def_registry.get, ops - _HARMLESS))
    is_pure = not any(each.is_stateful for each in definitions) and not in_processes
    traced.append(Traced(takes_seed, is_pure, any(map(_CALLS_PYTHON.fullmatch, ops)) and not apart))
    specs.append(spec)
  return (source.element_spec, *specs), tuple(traced)


@contextlib.contextmanager
def naming(layers, position):
  """Turns any exception into a ValueError that names the layer."""
  try:
    yield
  except Exception as error:
    message = getattr(error, "message", None) or str(error)
    raise ValueError(
      f"layers: layer {position + 1} of {len(layers)}, {layer_name(layers[position])}, fails on its input: "
      f"{message.strip()} Every layer must take what the one before it returns, alone; the first one the first "
      "component of an element, such as an image or a sound. Leave labels out: they pass by; see rtf.augment.compose."
    ) from error


def image_spec(element_spec):
  return composition.image_of(element_spec[0] if type(element_spec) is tuple else element_spec)


def is_image(element_spec):
  """Whether the first component may be an image or a clip, and not a sound, a series or points."""
  spec = image_spec(element_spec)
  return isinstance(spec, tf.TensorSpec) and spec.shape.rank in (None, 3, 4) and spec.dtype != tf.string


def _same_structure(given, returned):
  if any(isinstance(spec, none_tensor.NoneTensorSpec) for spec in tf.nest.flatten(returned)):
    return False
  try:
    tf.nest.assert_same_structure(given, returned)
  except (TypeError, ValueError):
    return False
  return True


def check_source(source):
  """Raises unless `source` is a dataset of single samples that can be read without beginning an epoch of a stage."""
  if not isinstance(source, tf.data.Dataset):
    raise TypeError(
      f"source must be a tf.data.Dataset of single samples, the one after which refurbish would stand, got {source!r}."
    )
  datasets = dataset_graph.upstream_first(source)
  stages = [each for each in datasets if hasattr(each, "saved_state") or type(each).__name__ == "_CachedDataset"]
  if stages:
    raise ValueError(
      "source must not have a stage that keeps something yet, got "
      f"{dataset_graph.method_name(type(stages[0]).__name__)}: advise says which to use. Pass what stands before it, "
      "and all layers."
    )
  if pipeline_warnings.yields_batches(source):
    raise ValueError(
      f"source must yield single samples, got batches: {source.element_spec}. Leave .batch out, and pass batch_size to "
      "advise; split what cannot be read otherwise with .unbatch()."
    )
  if source.cardinality() == tf.data.INFINITE_CARDINALITY:
    raise ValueError("source must be finite, got one without an end. Leave .repeat() out: advise reckons with epochs.")


def is_fixed(element_spec):
  """Whether all elements have the same shape, so that they can be batched."""
  specs = tf.nest.flatten(element_spec)
  return all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs)

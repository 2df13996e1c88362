"""Traces and calls users' functions as `Dataset.map` does, with a stage's own arguments, and finds what they draw."""

import contextlib
import functools
import inspect
import os
import re
import textwrap
import threading

import keras
import tensorflow as tf

from refurbish_tf._internal import dataset_graph
from refurbish_tf._internal.tensorflow_internals import errors, inspect_utils, none_tensor, parser, structured_function

_tracing = threading.local()
# AutoGraph's text of an error: the lines that led to it, its type and its message. Then the attributes in which
# TensorFlow's errors, and AutoGraph's KeyError, keep it.
_OF_AUTOGRAPH = re.compile(r"(in user code:.*)\n\n    (\w+): (.*)", re.DOTALL)
_TEXTS = {"_message", "_MultilineMessageKeyError__message"}
# One of the lines that led to an error, and the paths of code that is not the user's.
_LINE = re.compile(r'    File "(.*)", line .*\n(?:        .*\n?)*')
_OTHERS = (
  contextlib.__file__,
  *(os.path.join(path, "") for path in (os.path.dirname(os.path.dirname(__file__)), *tf.__path__, *keras.__path__)),
)
# More wrappers than this around a function count as an endless chain.
MOST_DECORATORS = 100


def call(function, element, **added):
  """Calls `function` with an element as `Dataset.map` does. Returns its result."""
  result = function(*element, **added) if type(element) is tuple else function(element, **added)
  # `map` also turns a list into a tuple.
  return tuple(result) if isinstance(result, list) else result


def traceable(function):
  """Returns `function`, excluded from AutoGraph if converting it would fail: AutoGraph would warn in nine lines.

  AutoGraph cannot distinguish two lambdas with the same arguments in one line.
  """
  if not inspect_utils.islambda(function):
    return function
  try:
    parser.parse_entity(function, ())
  except errors.UnsupportedLanguageElementError:
    return tf.autograph.experimental.do_not_convert(function)
  except Exception:  # AutoGraph will report it.
    pass
  return function


def trace(function, name, what, **inputs):
  """Traces a function as `map` does; TypeError if it returns None.

  TensorFlow calls it `name`, errors call it `what`. `inputs` is `dataset` or `input_structure`, which its argument has.
  """
  try:
    wrapper = structured_function.StructuredFunctionWrapper(function, name, **inputs)
  except Exception as error:
    _put_cause_first(error)
    raise
  if isinstance(wrapper.output_structure, none_tensor.NoneTensorSpec):
    raise TypeError(f"{what} returned None, as a function without `return` does. Let it return the augmented sample.")
  return wrapper


def _put_cause_first(error):
  """Moves an error's text before AutoGraph's list of lines that led to it, and keeps only the user's own lines."""
  found = _OF_AUTOGRAPH.fullmatch(str(error))
  if not found:
    return
  above, name, cause = found.groups()
  lines = [line[0] for line in _LINE.finditer(above) if not line[1].startswith(_OTHERS)]
  cause = textwrap.dedent(f"    {cause}").strip()
  # AutoGraph replaces some errors by its own.
  text = cause if name == type(error).__name__ else f"{name}: {cause}"
  text += f"\n\nin user code:\n\n{''.join(lines)}" if lines else ""
  error.args = (text,)
  for held in _TEXTS.intersection(vars(error)):
    setattr(error, held, text)


@contextlib.contextmanager
def in_stage():
  """A context for tracing functions of single samples. Yields the list that `note_layer` fills."""
  before, _tracing.layers = getattr(_tracing, "layers", None), []
  try:
    yield _tracing.layers
  finally:
    _tracing.layers = before


def is_in_stage():
  return getattr(_tracing, "layers", None) is not None


def note_layer(layer):
  """Adds a layer that runs in Python to the list of the stage whose functions are being traced, if there is one."""
  if is_in_stage():
    _tracing.layers.append(layer)


@contextlib.contextmanager
def parameters_explained(what, function, element_spec, of, added=("seed",)):
  """Explains a TypeError that `function` raised because of its parameters. `of` describes what it was called with.

  `added`: the parameters that the stage fills if the function has them. The signature is only checked after the
  failure, because decorators may report a wrong one.
  """
  try:
    yield
  except TypeError as failed:
    given = {name: None for name in added if takes(name, function, element_spec)}
    is_tuple = type(element_spec) is tuple
    try:
      inspect.signature(function, follow_wrapped=False).bind(*element_spec if is_tuple else (element_spec,), **given)
    except ValueError:  # Some built-in functions have no signature.
      pass
    except TypeError as error:
      raise TypeError(
        f"{what} cannot be called with {of}: {error}. As in tf.data.Dataset.map, it is called with "
        + (f"the {len(element_spec)} components of {element_spec}" if is_tuple else f"one argument, {element_spec}")
        + f", and with {' and '.join(added)} if it has parameters with these names."
      ) from failed
    if "multiple values for argument" in str(failed):
      raise TypeError(f"{what} has a parameter that {of} already filled: {failed}. Pass layers in a list.") from failed
    raise


def takes(name, function, element_spec):
  """Whether `function` has a parameter of this name that no component of an element fills."""
  signature = signature_with(name, function)
  if signature is None:
    return False
  components = element_spec if type(element_spec) is tuple else (element_spec,)
  try:
    return name not in signature.bind_partial(*components).arguments
  except TypeError:  # Too many components; calling the function will say so.
    return False


def signature_with(name, function):
  """The signature in which `function` has a parameter of this name that can be given by keyword, or None.

  For a decorated function it is the wrapper's signature, unless the wrapper passes on any keyword.
  """
  if isinstance(function, functools.partial) and name in function.keywords:
    return None
  outermost = None
  for _ in range(MOST_DECORATORS):
    try:
      signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # Some built-in functions have no signature.
      return None
    parameter = signature.parameters.get(name)
    if parameter is not None:
      named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
      return (outermost or signature) if named and not seeds_a_state(function, parameter) else None
    kinds = {each.kind for each in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
      return None
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
      outermost = outermost or signature  # The signature that takes the components.
    # If `__call__` is decorated, the method has `__wrapped__`, not the object.
    call = getattr(function, "__call__", None)  # noqa: B004
    function = getattr(function, "__wrapped__", None) or getattr(call, "__wrapped__", None)
  return None


def seeds_a_state(function, parameter):
  """Whether the parameter seeds a state of TensorFlow or Keras, as in tf.image.random_hue(seed=None)."""
  while isinstance(function, functools.partial):
    function = function.func
  module = getattr(function, "__module__", None) or ""
  return parameter.default is not parameter.empty and module.split(".")[0] in ("keras", "tensorflow")


# Operations that draw from a state which a dataset's checkpoint does not save.
_DRAWS = re.compile(
  "AllCandidateSampler|Multinomial|NonDeterministicInts|ParameterizedTruncatedNormal|RngReadAndSkip|TruncatedNormal|"
  "Random(Crop|Gamma|Poisson|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt)|SampleDistortedBoundingBox(V2)?|"
  "Stateful(RandomBinomial|StandardNormal|StandardNormalV2|TruncatedNormal|Uniform|UniformFullInt|UniformInt)|"
  "(FixedUnigram|LearnedUnigram|LogUniform|ThreadUnsafeUnigram|Uniform)CandidateSampler"
)
_DRAWS_WITH_A_SEED = re.compile("Stateless(Random(?!Get)|Multinomial|(Parameterized)?TruncatedNormal)")


def draws(wrapper):
  """The operations with which a traced function draws its own random numbers, which no other run repeats."""
  names = dataset_graph.operations(wrapper)
  found = {name for name in names if _DRAWS.fullmatch(name)}
  # Keras' random layers keep their seed in a variable, and assign the next one to it.
  if "AssignVariableOp" in names:
    found |= {f"{name} with a seed from a variable" for name in names if _DRAWS_WITH_A_SEED.match(name)}
  return found

"""What the stages share: checks of arguments, seeds, and calling functions as `Dataset.map` does."""
import contextlib
import functools
import inspect
import numbers
import os
import re
import uuid

import tensorflow as tf
from tensorflow.python.autograph.pyct import errors
from tensorflow.python.autograph.pyct import inspect_utils
from tensorflow.python.autograph.pyct import parser
from tensorflow.python.data.ops import structured_function
from tensorflow.python.framework import none_tensor
from tensorflow.python.framework import random_seed

PROCESSORS = len(os.sched_getaffinity(0))
# With how many calls a parallel map of tf.data itself does its best, for what is compared with it. With no more than there
# are processors, as with AUTOTUNE, its threads run out of work and are woken again for one element after the other.
PLAIN_MAP_CALLS = max(16, 2 * PROCESSORS)
# Around a function; what claims more is no decorator.
MOST_DECORATORS = 100


@contextlib.contextmanager
def build_errors():
  """What the ops find wrong while the stage is built is an error of its arguments."""
  try:
    yield
  except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error:
    # TensorFlow puts the name of the op before and after.
    message = re.sub(r"^\{\{.*?\}\}\s*", "", error.message)
    raise ValueError(re.sub(r"\s*\[Op:[\w>]+\].*$", "", message, flags=re.DOTALL)) from None


def call(function, element, **seed):
  """What `function` returns for an element, called as `Dataset.map` does."""
  result = function(*element, **seed) if type(element) is tuple else function(element, **seed)  # pylint: disable=unidiomatic-typecheck
  # As `map` does with what its function returns.
  return tuple(result) if isinstance(result, list) else result


def traceable(function):
  """`function`, or the same for AutoGraph to leave alone where it would fail to, with nine lines of complaint.

  Of two lambdas in one line, with the same arguments, AutoGraph cannot tell which is which.
  """
  if not inspect_utils.islambda(function):
    return function
  try:
    parser.parse_entity(function, ())
  except errors.UnsupportedLanguageElementError:
    return tf.autograph.experimental.do_not_convert(function)
  except Exception:  # Whatever it is, AutoGraph tells it.  pylint: disable=broad-except
    pass
  return function


def trace(function, name, what, **inputs):
  """A function as `map` traces it.

  Args:
    function: what is traced.
    name: of the function, for TensorFlow's names.
    what: of the function, for error messages: the name of the argument that it is.
    **inputs: `dataset` or `input_structure`, what it is a function of.

  Raises:
    TypeError: the function returns None.
  """
  wrapper = structured_function.StructuredFunctionWrapper(function, name, **inputs)
  if isinstance(wrapper.output_structure, none_tensor.NoneTensorSpec):
    raise TypeError(
        f"{what} returned None. Let it return the sample, augmented: a function that ends without `return` returns None.")
  return wrapper


@contextlib.contextmanager
def parameters_explained(what, function, element_spec, of):
  """Where `function` has failed with a TypeError because of its parameters, the error says so.

  Only then is its signature looked at: what decorators say of it may be wrong.

  Args:
    what: the name of the argument that the function is.
    function: what `Dataset.map` could be given; it may also have a parameter `seed`.
    element_spec: of what it is called with.
    of: what that is, for the message.
  """
  try:
    yield
  except TypeError as failed:
    seed = {"seed": None} if takes_seed(function, element_spec) else {}
    is_tuple = type(element_spec) is tuple  # pylint: disable=unidiomatic-typecheck
    try:
      inspect.signature(function, follow_wrapped=False).bind(*element_spec if is_tuple else (element_spec,), **seed)
    except ValueError:  # Some built-in functions have no signature.
      pass
    except TypeError as error:
      raise TypeError(
          f"{what} cannot be called with {of}: {error}. As with tf.data.Dataset.map, it is called with "
          + (f"the {len(element_spec)} components of {element_spec}" if is_tuple else f"one argument, {element_spec}")
          + ", and with a seed where it has a parameter of that name.") from failed
    raise


def takes_seed(function, element_spec):
  """Whether `function` has a parameter `seed` that the components of an element leave free."""
  signature = signature_with_seed(function)
  if signature is None:
    return False
  components = element_spec if type(element_spec) is tuple else (element_spec,)  # pylint: disable=unidiomatic-typecheck
  try:
    return "seed" not in signature.bind_partial(*components).arguments
  except TypeError:  # Too many components; calling the function will say so.
    return False


def signature_with_seed(function):
  """The signature in which `function` has a parameter `seed` that a keyword reaches, or None.

  It is that of a decorator's wrapper and not of what is wrapped, unless the wrapper hands on any keyword.
  """
  if isinstance(function, functools.partial) and "seed" in function.keywords:
    return None
  outermost = None
  for _ in range(MOST_DECORATORS):
    try:
      signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # Some built-in functions have none.
      return None
    parameter = signature.parameters.get("seed")
    if parameter is not None:
      named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
      return (outermost or signature) if named and not seeds_a_state(function, parameter) else None
    kinds = {each.kind for each in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
      return None
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
      outermost = outermost or signature  # It is what takes the components.
    # A decorated `__call__` has it at the method.
    function = getattr(function, "__wrapped__", None) or getattr(getattr(function, "__call__", None), "__wrapped__", None)
  return None


def seeds_a_state(function, parameter):
  """Whether the parameter seeds a state of TensorFlow's or Keras' own: tf.image.random_flip_left_right(image, seed=None)."""
  while isinstance(function, functools.partial):
    function = function.func
  module = getattr(function, "__module__", None) or ""
  return parameter.default is not parameter.empty and module.split(".")[0] in ("keras", "tensorflow")


# Operations that draw from a state that no checkpoint of a dataset has.
_DRAWS = re.compile(
    "AllCandidateSampler|Multinomial|NonDeterministicInts|ParameterizedTruncatedNormal|RngReadAndSkip|TruncatedNormal|"
    "Random(Crop|Gamma|Poisson|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt)|SampleDistortedBoundingBox(V2)?|"
    "Stateful(RandomBinomial|StandardNormal|StandardNormalV2|TruncatedNormal|Uniform|UniformFullInt|UniformInt)|"
    "(FixedUnigram|LearnedUnigram|LogUniform|ThreadUnsafeUnigram|Uniform)CandidateSampler")
_DRAWS_WITH_A_SEED = re.compile("Stateless(Random(?!Get)|Multinomial|(Parameterized)?TruncatedNormal)")


def draws(wrapper):
  """By which operations a traced function draws random numbers of its own: then no run is like another."""
  graph = wrapper.function.graph.as_graph_def()
  names = {node.op for nodes in (graph.node, *(each.node_def for each in graph.library.function)) for node in nodes}
  found = {name for name in names if _DRAWS.fullmatch(name)}
  # Random layers of Keras keep their seed in a variable, and assign it the next one.
  if "AssignVariableOp" in names:
    found |= {f"{name} with a seed from a variable" for name in names if _DRAWS_WITH_A_SEED.match(name)}
  return found


def without_autotuner(dataset):
  """The dataset with tf.data's autotuner off, unless its options have it on.

  An iterator that has come to its end is not gone before the thread of the autotuner wakes up, which takes up to a second
  in an epoch of some seconds and up to a minute in a long one. Keras waits for that at the end of each epoch.
  """
  # While a function is traced only what Python knows of the options can be read.
  given = (dataset.options() if tf.executing_eagerly() else dataset._options_attr).autotune  # pylint: disable=protected-access
  if given.enabled is not None:
    return dataset
  options = tf.data.Options()
  options.autotune.enabled = False
  if given.initial_parallelism is None:
    # How many calls AUTOTUNE then stands for in the other stages: of these as many as the pool has threads, wherever it
    # is, and not 16.
    options.autotune.initial_parallelism = 1024
  return dataset.with_options(options)


def check_callable(name, function):
  """Raises TypeError when `function` cannot be called."""
  if not callable(function):
    raise TypeError(f"{name} must be a function as for tf.data.Dataset.map, got {function!r}.")


def absolute_path(name, path):
  """The path, as bytes, for whoever opens it later, when the process may work in another directory.

  Raises:
    ValueError: it has a null character in it.
  """
  if b"\0" in path:
    raise ValueError(f"{name} must be made of paths, and one has a null character in it: {path!r}.")
  # Where the path says it all, the working directory may be gone.
  return path if b"://" in path or os.path.isabs(path) else os.path.join(os.getcwdb(), path)


def printable_path(path):
  """A path for a message, with what is not UTF-8 as \\xff."""
  return os.fsencode(path).decode("utf-8", "backslashreplace")


def check_choice(name, value, choices):
  """Raises ValueError when `value` is none of `choices`."""
  # Of an array `in` would not give an answer.
  if value is not None and not isinstance(value, str) or value not in choices:
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_whole_number(name, value, least):
  """Raises TypeError or ValueError when `value` is not a whole number of at least `least`."""
  if isinstance(value, bool) or not isinstance(value, numbers.Integral):
    raise TypeError(f"{name} must be a whole number of at least {least}, got {value!r}.")
  if not least <= value < 2**63:
    raise ValueError(f"{name} must be a whole number below 2**63 and of at least {least}, got {value!r}.")


def check_real(name, value, is_allowed, allowed):
  """Raises TypeError or ValueError when `value` is not a real number of those that are allowed."""
  if isinstance(value, bool) or not isinstance(value, numbers.Real):
    raise TypeError(f"{name} must be {allowed}, got {value!r}.")
  if not is_allowed(value):
    raise ValueError(f"{name} must be {allowed}, got {value!r}.")


def stage_seed(seed):
  """The seed of a stage: `seed`, or one derived from `tf.random.set_seed`, or a random one where that was not called."""
  if seed is not None:
    return int(seed)
  global_seed, operation_seed = random_seed.get_seed(None)
  if global_seed is None:
    return int.from_bytes(uuid.uuid4().bytes[:7], "little")
  # Both are 31-bit numbers.
  return (global_seed << 31) ^ operation_seed


def upstream_first(dataset):
  """A list of `dataset` and all that it is made from, each once, upstream first and from left to right."""
  found, seen, waiting = [], set(), [(dataset, False)]
  while waiting:
    each, is_entered = waiting.pop()
    if is_entered:
      found.append(each)
    elif id(each) not in seen:
      seen.add(id(each))
      waiting.append((each, True))
      waiting += [(upstream, False) for upstream in reversed(each._inputs())]  # pylint: disable=protected-access
  return found


def stage_title(kind, name):
  """A stage as it is called in a description: by its kind and by the name that its user gave it, if any."""
  return kind if name is None else f'{kind} "{name}"'


def method_name(name):
  """What a dataset is called where it is written, `filter` for FilterDataset and _FilterDataset, or else as TensorFlow does."""
  name = re.sub(r"(Dataset)?(V\d+)?$", "", name.rpartition(">")[2].lstrip("_"))
  method = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub("^(Parallel|Adaptive)", "", name)).lower()
  return method if hasattr(tf.data.Dataset, method) else f"{name}Dataset"

"""Fingerprints of the functions and files that samples are prepared from. A store on disk uses them to notice changes.

The same code has the same fingerprint in every process. In case of doubt there is no fingerprint, and no warning.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import pathlib
import sys
import types

import keras
import numpy as np
import tensorflow as tf

from tensorflow.core.framework import function_pb2

from refurbish_tf._internal import dataset_graph, pipeline_warnings, version
from refurbish_tf._internal.processes import worker
from refurbish_tf._internal.tensorflow_internals import context, script_ops

# The setting of a store on disk with the fingerprints, as JSON, of the stages that may have prepared its samples.
PREPARED_WITH = "prepared_with"
OTHER_FUNCTION = (
  "store {path} holds samples that another partial_fn has prepared, and refurbish will use each of them until it is "
  "evicted. To start with an empty store, write store=rtf.CacheStore({path!r}, overwrite=True), or give another "
  f"directory. If you want to use these samples, silence this warning: {pipeline_warnings.SILENCE}."
)
OTHER_FILES = (
  "store {path} was filled from other files or labels than the source finds now (files were added, removed, renamed or "
  "moved to another class), so refurbish may use the sample of one file for another. To start with an empty store, "
  "write store=rtf.CacheStore({path!r}, overwrite=True), or give another directory. If the samples are right, silence "
  f"this warning: {pipeline_warnings.SILENCE}."
)
# The setting with the digest of the source of a job on an empty store, and the job's process.
SOURCE = "source"
OTHER_SOURCE = (
  "store {path} is also used by process {process} with a different source, so one job may get the samples of the "
  "other, because a sample is identified by its position. Give each source its own directory or name; ranks must "
  "divide one source with source.shard(n, i) instead of dividing the list of files. If the sources are the same, "
  f"silence this warning: {pipeline_warnings.SILENCE}."
)

# Attributes of operations that differ from run to run, or between machines, for the same code.
_PASSING = frozenset(
  {"config", "config_proto", "container", "metadata", "executor_type", "seed", "seed2", "shared_name", "token"}
)
_CALLS_OF_PYTHON = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
# A relative tolerance, because statistics of a data set that each run computes again differ a little.
_TOLERANCE = 1e-4
# The sizes of this many files are part of a source's digest. Not of all: on a network mount each takes a millisecond.
_SIZED_FILES = 64
# The number of weights is prime, so that the shape of an array is unlikely to have the same period.
_WEIGHTS = np.cos(np.arange(65_537.0))


# Fingerprints of a stage. --------------------------------------------------------------------------------------------


def of_stage(source, partial_fn, exact=False):
  """The fingerprints of the function and files behind a stage's samples, as a dict for JSON.

  `partial_fn` is a `ConcreteFunction`. The keys are `function`; `constants`, which are part of `function` if `exact`;
  `traced_by`, because only fingerprints of the same versions can be compared; and `files`. Unknown ones are empty.
  """
  traced_by = {
    "tensorflow": tf.__version__.rpartition(".")[0],
    "keras": keras.__version__,
    "python": "{}.{}".format(*sys.version_info),
    "refurbish_tf": version.VERSION,
    "source": str(source.element_spec),
  }
  try:
    function, constants = _Functions(exact).of(partial_fn)
  except (LookupError, TypeError, ValueError, tf.errors.NotFoundError):
    function, constants = "", []  # Not supported: control flow of version 1, and dtypes that NumPy lacks.
  return {"traced_by": traced_by, "function": function, "constants": constants, "files": of_files(source)}


def of_samples(source, partial_fn, *more):
  """A digest of what determines the samples of a stage, as far as it is known, and of `more`."""
  known = [of_stage(source, partial_fn, exact=True), of_source(source), *more]
  return of_strings(json.dumps(known, sort_keys=True).encode())


def of_source(source):
  """A digest of the graph of a source, empty if it is unknown. It ignores the shard and the directories of files, but
  includes the sizes of some files."""
  try:
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    serialized = source._as_serialized_graph(external_state_policy=policy)
    graph = {node.name: node for node in tf.compat.v1.GraphDef.FromString(serialized.numpy()).node}
    definition = function_pb2.FunctionDef()
    definition.signature.output_arg.add(name="source")
    for node in graph.values():
      inputs = [_without_shard(graph, each) for each in node.input if not each.startswith("^")]
      if node.op.startswith("RefurbishTf>"):  # The names of stages and stores differ from process to process.
        inputs = [each for each in inputs if not _holds(graph[_producer(each)[0]], tf.string)]
      node.ClearField("input")
      node.input.extend(inputs)
      if _holds(node, tf.resource):
        node.op = "Resource"
        node.attr.clear()  # It has a name.
      if _holds(node, tf.string):
        texts = tf.io.parse_tensor(node.attr["value"].tensor.SerializeToString(), tf.string).numpy()
        texts = list(np.ravel(texts))
        start = os.path.commonpath([os.path.dirname(text) for text in texts])
        sized = texts[:: max(1, len(texts) // _SIZED_FILES)]
        texts = [text[len(start) :] for text in texts] + list(map(_size_of, sized))
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(texts, tf.string))
    definition.ret["source"] = next(node.input[0] for node in graph.values() if node.op == "_Retval")
    definition.node_def.extend(graph.values())
    return _Functions(exact=True)._of_definition(definition)[0].hex()
  except Exception:  # Of TensorFlow, for example for more than 2 GB.
    return ""


def _size_of(path):
  try:
    return str(os.path.getsize(path)).encode()
  except (OSError, ValueError):  # It is no file of this machine.
    return b""


def _holds(node, dtype):
  return node.op == "Const" and node.attr["dtype"].type == dtype.as_datatype_enum


def _without_shard(graph, name):
  while graph[_producer(name)[0]].op == "ShardDataset":
    name = graph[_producer(name)[0]].input[0]
  return name


def of_files(source):
  """The fingerprints of the lists of files that a source reads; empty if it reads none."""
  datasets = dataset_graph.upstream_first(source)
  return " ".join(each.files_fingerprint() for each in datasets if hasattr(each, "files_fingerprint"))


def of_strings(*strings):
  """A fingerprint of bytes objects; only the first may contain null characters."""
  return hashlib.sha256(b"\0".join(strings)).hexdigest()


class _Functions:
  """Traced functions that call each other. `exact`: floats count with all their digits."""

  def __init__(self, exact=False):
    self._exact, self._by_name = exact, {}

  def of(self, function):
    """Returns a digest of a `ConcreteFunction`, and the measures of its constants."""
    digest, constants = hashlib.sha256(), []
    for each in function.captured_inputs:
      # The contents and the name of a resource, such as a variable or a table, may differ each time.
      has_value = hasattr(each, "numpy") and each.dtype not in (tf.resource, tf.variant)
      digest.update(_value(each.numpy(), constants, self._exact) if has_value else each.dtype.name.encode())
    inner, more = self._of_definition(function.function_def)
    digest.update(inner)
    return digest.hexdigest(), constants + more

  def _of_definition(self, definition):
    """Like `of`, for a FunctionDef. A node is identified by its place in the order of dependencies, not by its name.

    Control edges are ignored: their order varies, and they lead to nodes that change no samples, such as assertions.
    """
    digest, constants = hashlib.sha256(), []
    nodes = {node.name: node for node in definition.node_def}
    places = {argument.name: place for place, argument in enumerate(definition.signature.input_arg)}
    results = [_producer(definition.ret[result.name]) for result in definition.signature.output_arg]
    waiting, entered = [name for name, _ in reversed(results)], set()
    while waiting:
      name = waiting[-1]
      inputs = [] if name in places else [_producer(each) for each in nodes[name].input if not each.startswith("^")]
      missing = [each for each, _ in inputs if each not in places]
      if missing and name in entered:
        raise ValueError("A loop.")
      entered.add(name)
      waiting += reversed(missing)
      if missing:
        continue
      waiting.pop()
      if name not in places:
        places[name] = len(places)
        digest.update(repr((nodes[name].op, [(places[each], output) for each, output in inputs])).encode())
        digest.update(self._attributes(nodes[name], constants))
    digest.update(repr([(places[name], output) for name, output in results]).encode())
    return digest.digest(), constants

  def _attributes(self, node, constants):
    if node.op == "Const":
      return _value(tf.make_ndarray(node.attr["value"].tensor), constants, self._exact)
    found = [_code_of(node.attr["token"].s)] if node.op in _CALLS_OF_PYTHON else []
    for name in sorted(node.attr):
      value = node.attr[name]
      if name in _PASSING or name.startswith("_"):
        continue
      called = [value.func] if value.HasField("func") else value.list.func
      described = [self._called(each.name, constants) for each in called]
      found.append((name, described or value.SerializeToString(deterministic=True)))
    return repr(found).encode()

  def _called(self, name, constants):
    if name not in self._by_name:
      self._by_name[name] = self._of_definition(context.context().get_function_def(name))
      constants += self._by_name[name][1]
    return self._by_name[name][0]


def _producer(name):
  """Splits "node:output:0" into the node and the output."""
  node, _, output = name.partition(":")
  return node, output


def _value(array, constants, exact):
  """The digest of an array. For floats, only of dtype and shape, unless `exact`; their measures go to `constants`."""
  array = np.asarray(array)
  kind = f"{array.dtype} {array.shape}".encode()
  if array.dtype == object:
    return kind + hashlib.sha256(repr(array.ravel().tolist()).encode()).digest()
  if exact or not tf.as_dtype(array.dtype).is_floating and not tf.as_dtype(array.dtype).is_complex:
    return kind + hashlib.sha256(np.ascontiguousarray(array)).digest()
  size = weighted = 0.0
  flat = array.ravel()
  for start in range(0, flat.size, len(_WEIGHTS) // 2):
    part = flat[start : start + len(_WEIGHTS) // 2]
    part = np.nan_to_num(part.astype(np.result_type(part, np.float64)).view(np.float64))
    part = np.clip(part, -1e30, 1e30)  # Keeps the sums finite.
    size += np.abs(part).sum()
    weighted += part @ _WEIGHTS[: part.size]
  constants += [float(f"{size:.7g}"), round(float(weighted / size), 7) if size else 0.0]
  return kind


def _code_of(token):
  """The compiled code of the Python function that an operation calls, excluding the functions that it calls in turn."""
  function = script_ops._py_funcs.get(token.decode())
  function = inspect.unwrap(getattr(function, "_func", function))  # `py_function` wraps the function once more.
  if hasattr(function, "fingerprinted"):
    return _described_value(function.fingerprinted(), {})
  code = getattr(function, "__code__", None)
  return _described(code, function.__doc__) if isinstance(code, types.CodeType) else None


def _described_value(value, seen):
  """Describes a function by its code and references, an object by its class and what it holds, a class by its name.

  `seen`: the values described so far, by id. It keeps them alive, because Python reuses the ids of deleted objects.
  """
  if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic, np.dtype)):
    return repr(value)
  if isinstance(value, np.ndarray):
    digest = hashlib.sha256(np.ascontiguousarray(value)).hexdigest() if value.dtype != object else ""
    return str(value.dtype), value.shape, digest
  if id(value) in seen:
    return "again"
  seen[id(value)] = value
  if isinstance(value, dict):
    return sorted((repr(_described_value(key, seen)), _described_value(each, seen)) for key, each in value.items())
  if isinstance(value, (list, tuple)):
    return [_described_value(each, seen) for each in value]
  if isinstance(value, (set, frozenset)):
    return sorted(repr(_described_value(each, seen)) for each in value)
  if isinstance(value, types.FunctionType):
    cells = [worker.contents_of(cell) for cell in value.__closure__ or ()]
    names = [name for name in sorted(worker.names_in(value.__code__)) if name in value.__globals__]
    used = {name: value.__globals__[name] for name in names}
    used = {name: each for name, each in used.items() if not isinstance(each, (type, types.ModuleType))}
    held = [cells, value.__defaults__, value.__kwdefaults__, used]
    return _described(value.__code__, value.__doc__), _described_value(held, seen)
  if isinstance(value, types.MethodType):
    return _described_value([value.__func__, value.__self__], seen)
  if isinstance(value, functools.partial):
    return _described_value([value.func, value.args, value.keywords], seen)
  name = worker.attribute_of(value, "__qualname__") or type(value).__qualname__
  if isinstance(value, (staticmethod, classmethod)):
    return _described_value(value.__func__, seen)
  return name, _described_value({} if isinstance(value, (type, types.ModuleType)) else worker.held_by(value), seen)


def _described(code, doc=None):
  constants = []
  for each in code.co_consts:
    if isinstance(each, types.CodeType):
      each = _described(each)
    elif isinstance(each, frozenset):
      each = sorted(map(repr, each))
    constants.append(None if isinstance(each, str) and each == doc else each)
  return code.co_code, code.co_names, constants


# Fingerprints in a store. --------------------------------------------------------------------------------------------


def check_store(store, r, source, stage):
  """Records in a store on disk what `of_stage` returned, and warns if samples in it may have another origin.

  Elements of the source are compared with the elements that samples were prepared from. While there are none, for
  example when ranks start together, the digests of the sources are compared.

  Fingerprints belong to epochs, not to samples: every sample used in an epoch was prepared in it or in the few before.
  """
  with tf.init_scope():
    stats = store.stats()
  if not stats.entries and (digest := of_source(source)):
    _check_other_jobs(store, digest)
  settings = store._agree({})
  # Pairs of a stage's first epoch and its fingerprints, oldest first.
  before = json.loads(settings.get(PREPARED_WITH, "[]")) if stats.entries else []
  ends = [min(since, stats.epochs) for since, _ in before[1:]] + [stats.epochs]
  # Stages that are not in `live` prepared no samples, or none that are still in use.
  oldest = stats.epochs - math.ceil(r) + 2
  live = [(since, what) for (since, what), end in zip(before, ends) if since < end and end >= oldest]
  if any(function_differs(what, stage) for _, what in live):
    pipeline_warnings.warn(OTHER_FUNCTION.format(path=store.path))
  if any(what["files"] and stage["files"] and what["files"] != stage["files"] for _, what in live):
    pipeline_warnings.warn(OTHER_FILES.format(path=store.path))
  if not live or live[-1][1] != stage:
    live.append((stats.epochs, stage))
  # `_agree` raises ValueError if the disk is full. The fingerprints are then not recorded.
  if live != before:
    with contextlib.suppress(ValueError):
      store._agree({PREPARED_WITH: json.dumps(live)}, replace=True)


def _check_other_jobs(store, digest):
  """Warns if another living process has recorded the digest of a different source."""
  own = f"{digest} {_process(os.getpid())}"
  try:
    store._agree({SOURCE: own})
  except ValueError:  # There is another one, or the disk is full.
    other, _, process = store._agree({}).get(SOURCE, own).partition(" ")
    pid = process.partition(" ")[0]
    if _process(pid) != process or int(pid) == os.getpid():
      with contextlib.suppress(ValueError):
        store._agree({SOURCE: own}, replace=True)
    elif other != digest:
      pipeline_warnings.warn(OTHER_SOURCE.format(path=store.path, process=pid))


def _process(pid):
  """Identifies a living process by its number and start time; empty for other processes."""
  try:
    return f"{pid} {pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
  except OSError:
    return ""


def function_differs(one, other):
  """Whether two results of `of_stage` certainly come from different functions."""
  if not one["function"] or not other["function"] or one["traced_by"] != other["traced_by"]:
    return False
  if (one["function"], len(one["constants"])) != (other["function"], len(other["constants"])):
    return True
  # Two measures of each floating-point constant: its sum of absolute values, and how its values are arranged (-1 to 1).
  constants = [np.reshape(each["constants"], [-1, 2]).T for each in (one, other)]
  (sizes, other_sizes), (places, other_places) = zip(*constants)
  return not (
    np.allclose(sizes, other_sizes, rtol=_TOLERANCE, atol=1e-8)
    and np.allclose(places, other_places, rtol=0, atol=_TOLERANCE / 10)
  )

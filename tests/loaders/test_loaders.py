"""`torch_loader` and `jax_loader` yield the pipeline's batches, in memory that belongs to their user."""

import collections
from concurrent import futures
import contextlib
import copy
from importlib import metadata
import pickle
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.loaders import loader_output
from refurbish_tf.loaders import torch_loader
from refurbish_tf.loaders.loader import Loader
from support.datasets import outcomes
from support.loaders import DTYPES, FRAMEWORKS, NumpyMover, as_numpy, loader_of, numpy_loader, values
from support.warned import told

Point = collections.namedtuple("Point", "x y")
N = 7


def structured(dtypes):
  """Elements of all kinds of structure, with a component of each dtype."""

  def element(index):
    ones = tf.ones([2, 3], tf.int64)
    of_dtype = {dtype.name: tf.cast(index * ones % 2 if dtype == tf.bool else index * ones, dtype) for dtype in dtypes}
    return {"by dtype": of_dtype, "point": Point(index, (tf.zeros([0, 3]), -index)), "nothing": None}, tf.cast(
      index, tf.int32
    )

  return tf.data.Dataset.range(N).refurbish(element, r=2, seed=7).batch(3).prefetch(2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_are_the_pipelines(framework):
  assert set(loader_output.DTYPES) == set(DTYPES)
  loader, bare = loader_of(framework, structured(DTYPES)), structured(DTYPES)
  assert len(loader) == 3
  for _ in range(3):
    for batch, expected in zip(loader, bare, strict=True):
      got = as_numpy(framework, batch)
      tf.nest.assert_same_structure(got, expected)
      assert isinstance(batch[0]["point"], Point) and batch[0]["nothing"] is None
      for array, tensor in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        if tensor is not None:
          wanted = tensor.numpy()
          if framework == "jax" and wanted.dtype.name in ("int64", "uint64", "float64", "complex128"):
            wanted = wanted.astype({"i": "int32", "u": "uint32", "f": "float32", "c": "complex64"}[wanted.dtype.kind])
          assert array.dtype == wanted.dtype and array.shape == wanted.shape
          assert array.tobytes() == wanted.tobytes()


SHARED = np.arange(24, dtype=np.int32).reshape([4, 6])
# Pipelines that keep references to the memory of their batches.
PIPELINES = {
  "slices": lambda: tf.data.Dataset.from_tensor_slices(SHARED).repeat(2),
  "a constant": lambda: tf.data.Dataset.range(4).map(lambda _: tf.constant(SHARED)),
  "cache after batch": lambda: tf.data.Dataset.from_tensor_slices(SHARED).batch(2).cache().repeat(3),
  "echo after batch": lambda: tf.data.Dataset.from_tensor_slices(SHARED).batch(2).echo(3),
  "adaptive echo": lambda: tf.data.Dataset.from_tensors(SHARED).batch(1).echo(rtf.AUTOTUNE),
  "a buffer twice": lambda: tf.data.Dataset.from_tensor_slices(SHARED).batch(2).map(lambda x: (x, x, x[0])),
  "refurbish alone": lambda: tf.data.Dataset.from_tensor_slices(SHARED).refurbish(lambda x: x, r=3, seed=7),
  "numpy": lambda: tf.data.Dataset.range(3).map(
    lambda _: tf.ensure_shape(tf.numpy_function(lambda: SHARED, [], tf.int32), SHARED.shape)
  ),
  "a Python source": lambda: rtf.sources.data_source([SHARED, SHARED]),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_modifying_a_batch_changes_no_other(framework, make):
  loader, expected = loader_of(framework, make()), make()
  if framework == "jax":
    import jax

    donated = jax.jit(lambda array: array + 1, donate_argnums=0)
  for _ in range(2):
    seen, held = [], []
    for batch in loader:
      seen += values([as_numpy(framework, batch)])
      for array in tf.nest.flatten(batch):
        if framework == "jax":
          donated(array).block_until_ready()
        else:
          held.append(array)
          array[...] = -1
    wanted = values(expected)
    if make is PIPELINES["adaptive echo"]:
      assert all(each == wanted[0] for each in seen)
    else:
      assert seen == wanted
    assert all((array == -1).all() for array in held)
  assert (SHARED.ravel() == np.arange(24)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_copy_where_none_is_needed(framework):
  made = []

  def seen(batch):
    made.append(batch.__array__().ctypes.data)
    return 0

  dataset = (
    tf.data.Dataset.range(1024)
    .batch(32)
    .map(lambda batch: tf.cast(batch, tf.int32))
    .map(lambda batch: (batch, tf.ensure_shape(tf.py_function(seen, [batch], tf.int32), [])))
  )
  batches = [batch for batch, _ in loader_of(framework, dataset)]
  address_of = {
    "numpy": lambda batch: batch.ctypes.data,
    "torch": lambda batch: batch.data_ptr(),
    "jax": lambda batch: batch.unsafe_buffer_pointer(),
  }[framework]
  addresses = [address_of(batch) for batch in batches]
  # Fewer than 32 suffice: TensorFlow may keep an argument of a function for microseconds after the function returns.
  assert sum(address == own for address, own in zip(addresses, made, strict=True)) >= 16


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bad_input_is_refused(framework):
  name = f"rtf.{framework}_loader"
  texts = tf.data.Dataset.from_tensors({"image": 1.0, "file": ("a", 1)})
  with pytest.raises(TypeError, match=f"{name} cannot pass on component file/0 of dtype string. Decode it"):
    loader_of(framework, texts)
  ragged = tf.data.Dataset.range(3).map(tf.range).ragged_batch(2)
  with pytest.raises(TypeError, match=f"{name} needs dense tensors, but the dataset's element is a RaggedTensor"):
    loader_of(framework, ragged)
  sparse = tf.data.Dataset.from_tensors({"sparse": tf.sparse.eye(3)})
  with pytest.raises(TypeError, match="component sparse is a SparseTensor"):
    loader_of(framework, sparse)
  with pytest.raises(TypeError, match=f"{name} takes a tf.data.Dataset, got list"):
    loader_of(framework, [1])
  with pytest.raises(ValueError, match=f"{name} needs a dataset that ends, got one that repeats without end"):
    loader_of(framework, tf.data.Dataset.range(3).repeat())
  with pytest.raises(RuntimeError, match=f"{name} cannot be part of a tf.function"):
    tf.function(lambda: loader_of(framework, tf.data.Dataset.range(3)))()
  with pytest.raises(TypeError, match="length is unknown"):
    len(loader_of(framework, tf.data.Dataset.range(3).filter(lambda x: x > 1)))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_framework_that_is_not_installed(framework, monkeypatch):
  monkeypatch.setitem(sys.modules, framework, None)
  with pytest.raises(ModuleNotFoundError, match=f"rtf.{framework}_loader needs .*: pip install {framework}"):
    loader_of(framework, tf.data.Dataset.range(3))


@pytest.mark.parametrize("num_ahead", [0, 1])
@pytest.mark.parametrize("prefetched", [0, 2])
def test_an_error_takes_the_place_of_its_batch(num_ahead, prefetched):
  dataset = tf.data.Dataset.range(5).map(lambda x: tf.debugging.check_numerics(1 / (x - 2), "two"))
  loader = numpy_loader(dataset.prefetch(prefetched) if prefetched else dataset, num_ahead)
  batches = iter(loader)
  seen = ["error" if isinstance(each, tf.errors.InvalidArgumentError) else float(each) for each in outcomes(batches)]
  assert seen == [-0.5, -1, "error", 1, 0.5]
  with pytest.raises(StopIteration):
    next(batches)


def test_two_iterators_are_two_epochs():
  loader = numpy_loader(tf.data.Dataset.range(8).refurbish(lambda x: x, r=2, seed=7).batch(2).prefetch(1), 1)
  first, second = iter(loader), iter(loader)
  pairs = list(zip(first, second, strict=True))
  for place in (0, 1):
    assert sorted(int(x) for pair in pairs for x in pair[place]) == list(range(8))


def test_jax_arrays_are_as_those_of_device_put():
  jax = pytest.importorskip("jax")
  dataset, device = tf.data.Dataset.range(2), jax.devices()[0]
  assert not next(iter(rtf.jax_loader(dataset))).committed
  for target in (device, jax.sharding.SingleDeviceSharding(device)):
    batch = next(iter(rtf.jax_loader(dataset, target)))
    assert batch.committed and batch.devices() == {device}


def test_integers_for_jax_must_fit():
  pytest.importorskip("jax")
  dataset = tf.data.Dataset.from_tensor_slices(np.array([[1, -(2**31)], [2, 2**31]]))
  batches = iter(rtf.jax_loader(dataset))
  assert next(batches).tolist() == [1, -(2**31)]
  with pytest.raises(
    OverflowError, match="converts int64 to int32, as jax.numpy.asarray does, but the values are from 2 to 2147483648"
  ):
    next(batches)
  with pytest.raises(TypeError, match="device_or_sharding must be a jax.Device"):
    rtf.jax_loader(dataset, "cpu")


class FakeTorch:
  """A stand-in for `torch` on a machine with a GPU. Records the calls."""

  def __init__(self):
    self.log = []
    self.cuda = self
    self.pending = []  # Events that are still to come.

  def Stream(self, device):
    assert device == "cuda:0"
    return FakeStream(self, "own")

  def current_stream(self, device):
    assert device == "cuda:0"
    return FakeStream(self, "current")

  @contextlib.contextmanager
  def stream(self, stream):
    self.log.append(f"enter {stream.name}")
    yield
    self.log.append(f"leave {stream.name}")

  def from_dlpack(self, _):
    return FakeTensor(self, "host")


class FakeStream:
  def __init__(self, torch, name):
    self.torch, self.name = torch, name

  def record_event(self):
    event = FakeEvent(f"event {sum(entry.startswith('record') for entry in self.torch.log)}")
    self.torch.log.append(f"record {event.name} in {self.name}")
    self.torch.pending.append(event)
    return event

  def wait_event(self, event):
    self.torch.log.append(f"{self.name} waits for {event.name}")


class FakeEvent:
  def __init__(self, name):
    self.name, self.has_come = name, False

  def query(self):
    return self.has_come


class FakeTensor:
  alive = collections.Counter()

  def __init__(self, torch, place):
    self.torch, self.place = torch, place
    FakeTensor.alive[place] += 1

  def __del__(self):
    FakeTensor.alive[self.place] -= 1

  def pin_memory(self):
    self.torch.log.append("pin")
    return FakeTensor(self.torch, "pinned")

  def to(self, device, non_blocking):
    assert (self.place, device, non_blocking) == ("pinned", "cuda:0", True)
    self.torch.log.append("copy")
    return FakeTensor(self.torch, "device")

  def record_stream(self, stream):
    assert self.place == "device"
    self.torch.log.append(f"{stream.name} uses it")


def test_copies_to_a_gpu_and_training_wait_for_each_other():
  torch = FakeTorch()
  mover = torch_loader._ToCuda(torch, "cuda:0")
  assert (mover.num_ahead, mover.exclusive) == (1, False)
  first, second = (mover.begin([tf.constant(number)]) for number in range(2))
  copies = [["pin", "enter own", "copy", f"record event {number} in own", "leave own"] for number in range(2)]
  assert torch.log == copies[0] + copies[1]
  torch.log.clear()
  assert [tensor.place for tensor in mover.finish(first)] == ["device"]
  assert torch.log == ["current waits for event 0", "current uses it"]
  # No pinned memory is freed before its copy is done.
  assert FakeTensor.alive["pinned"] == 2
  torch.pending[0].has_come = True
  mover.begin([tf.constant(2)])
  assert FakeTensor.alive["pinned"] == 2
  for event in torch.pending:
    event.has_come = True
  mover.begin([tf.constant(3)])
  assert FakeTensor.alive["pinned"] == 1
  mover.finish(second)
  assert torch.log[-2:] == ["current waits for event 1", "current uses it"]


def test_a_batch_is_sent_to_the_device_ahead():
  log = []

  class Mover(NumpyMover):
    def begin(self, tensors):
      log.append(f"begin {int(tensors[0])}")
      return tensors

    def finish(self, begun):
      log.append(f"finish {int(begun[0])}")
      return begun

  list(Loader("loader", tf.data.Dataset.range(3), Mover(num_ahead=1)))
  assert log == ["begin 0", "begin 1", "finish 0", "begin 2", "finish 1", "finish 2"]


def test_an_error_on_the_way_takes_the_place_of_its_batch():

  class Mover(NumpyMover):
    def begin(self, tensors):
      return [1 // (int(tensors[0]) - 1)]  # Fails for batch 1.

  batches = iter(Loader("loader", tf.data.Dataset.range(3), Mover(num_ahead=1)))
  assert int(next(batches)) == -1
  with pytest.raises(ZeroDivisionError):
    next(batches)
  assert list(map(int, batches)) == [1]


def test_a_gpu_visible_to_tensorflow_causes_one_warning(monkeypatch):
  monkeypatch.setattr(loader_output, "_told_of_gpu", False)
  assert not told(lambda: loader_output.tell_of_gpu("rtf.torch_loader"))
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"/physical_device:{kind}:0"])
  (message,) = told(lambda: loader_output.tell_of_gpu("rtf.torch_loader"))
  assert message.startswith("rtf.torch_loader loads to an accelerator, but TensorFlow can see a GPU")
  assert not told(lambda: loader_output.tell_of_gpu("rtf.jax_loader"))


@pytest.mark.parametrize(
  "version, imported, is_warned", [("3.8.0", False, True), ("3.8.0", True, False), ("3.6.1", False, False)]
)
def test_an_impending_triton_crash_causes_a_warning(version, imported, is_warned, monkeypatch):
  monkeypatch.setattr(metadata, "version", lambda name: version)
  monkeypatch.delitem(sys.modules, "triton", raising=False)
  if imported:
    monkeypatch.setitem(sys.modules, "triton", metadata)
  messages = told(torch_loader._tell_of_triton)
  assert ["Begin the program with `import torch._dynamo`" in each for each in messages] == [True] * is_warned


@pytest.mark.parametrize("num_ahead", [0, 1])
def test_threads_may_share_an_epoch(num_ahead):
  """Each batch goes to one of the threads, and all of them see the end."""
  batches, seen = iter(numpy_loader(tf.data.Dataset.range(300).batch(1).prefetch(2), num_ahead)), []
  with futures.ThreadPoolExecutor(4) as threads:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
      for each in [threads.submit(lambda: [seen.append(int(batch[0])) for batch in batches]) for _ in range(4)]:
        each.result()
    finally:
      sys.setswitchinterval(interval)
  assert sorted(seen) == list(range(300))


def test_a_state_may_be_loaded_while_another_thread_reads():
  """Loading waits for the batch that is being read; only the next batch is refused."""
  loading = threading.Event()

  class Mover(NumpyMover):
    """Starts loading the state when a batch is about to be read."""

    thread = None

    def __init__(self):
      self.exclusive = True

    @property
    def num_ahead(self):
      if self.thread is not None and self.thread.ident is None:
        self.thread.start()
        loading.wait()
      return 0

  class Lock(type(threading.RLock())):
    """Signals that the state is about to be loaded."""

    def __enter__(self):
      if threading.current_thread() is mover.thread:
        loading.set()
      return super().__enter__()

  def load():
    loader.load_state_dict(start)
    loading.set()

  mover = Mover()
  loader = Loader("numpy_loader", tf.data.Dataset.range(8).refurbish(tf.identity, r=2, seed=7).batch(2), mover)
  loader._lock, start, batches = Lock(), loader.state_dict(), iter(loader)
  mover.thread = threading.Thread(target=load)
  assert len(next(batches)) == 2
  mover.thread.join()
  with pytest.raises(RuntimeError, match=r"load_state_dict\(\) has moved to another position"):
    next(batches)
  assert sorted(int(x) for batch in loader for x in batch) == list(range(8))


def test_a_loader_is_not_copied():
  loader = numpy_loader(tf.data.Dataset.range(3))
  for each in (loader, iter(loader)):
    for copied in (copy.deepcopy, pickle.dumps):
      with pytest.raises(TypeError, match=r"numpy_loader: a loader cannot be copied or pickled.*state_dict\(\)"):
        copied(each)


def test_a_missing_gpu_is_an_error():
  torch = pytest.importorskip("torch")
  if torch.cuda.is_available():
    pytest.skip("there is one")
  with pytest.raises(RuntimeError, match='device is "cuda:1", but PyTorch finds no GPU .* Pass "cpu"'):
    rtf.torch_loader(tf.data.Dataset.range(3), "cuda:1")


def test_components_that_a_sharding_cannot_divide_are_refused():
  jax = pytest.importorskip("jax")
  mesh = jax.make_mesh([1], ["batch"])
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
  with pytest.raises(
    ValueError, match=r"cannot divide components of the shapes \(2,\), \(\) as .* no component without a batch"
  ):
    next(iter(rtf.jax_loader(tf.data.Dataset.from_tensors(([1, 2], 3)), sharding)))

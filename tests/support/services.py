"""A tf.data service whose dispatcher, workers and trainers are processes, each with its own directory, like
machines."""

import contextlib
import dataclasses
import multiprocessing
import os
import pathlib

import tensorflow as tf
from tensorflow.core.protobuf import service_config_pb2

import refurbish_tf  # noqa: F401  (attaches the methods)
from support.processes import TIMEOUT, free_port, start_forked

service = tf.data.experimental.service
HINT = tf.data.experimental.SHARD_HINT

N, R = 24, 2
# A path in the working directory of each process, so that processes on one machine have separate stores under one name.
OWN_STORE = "/proc/self/cwd/store"


@contextlib.contextmanager
def in_this_process(number=1, **how):
  """The address of a service with this number of workers, all in this process. `how`: for each worker."""
  dispatcher = service.DispatchServer(service.DispatcherConfig(worker_addresses=["localhost:%port%"] * number))
  config = service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1], **how)
  workers = [service.WorkerServer(config) for _ in range(number)]
  try:
    yield dispatcher.target
  finally:
    # In another order, each would wait for the other.
    del workers
    del dispatcher


def name_own_store():
  """Lets this process pass OWN_STORE on by name. Otherwise `CacheStore` would resolve it to a directory of this
  process."""
  resolve = os.path.realpath
  os.path.realpath = lambda path, **options: path if path == OWN_STORE else resolve(path, **options)


@dataclasses.dataclass(frozen=True)
class Job:
  """The pipeline that trainers share."""

  name: str
  policy: str = "HINT"
  store: bool = False
  seed: int = 1

  def dataset(self, address, trainer):
    source = tf.data.Dataset.range(N)
    if self.policy == "HINT":
      source = source.shard(HINT, HINT)
    dataset = source.refurbish(self.prepare, self.tell, r=R, seed=self.seed, store=OWN_STORE if self.store else None)
    return (
      dataset.repeat()
      .enumerate()
      .apply(
        service.distribute(
          service.ShardingPolicy[self.policy],
          f"grpc://{address}",
          job_name=self.name,
          max_outstanding_requests=1,
          cross_trainer_cache=service.CrossTrainerCache(trainer),
        )
      )
    )

  def prepare(self, index, seed):
    """Records each call in a file. The second number differs for each version of a sample."""
    tf.print(index, seed[0], output_stream=f"file://{self.name}")
    return tf.stack([index, tf.cast(seed[0], tf.int64)])

  def tell(self, sample):
    """Adds the number of the worker, and how often that worker was started before."""
    who = tf.strings.to_number(tf.strings.split(tf.io.read_file("who")), tf.int64)
    return tf.concat([tf.ensure_shape(who, [2]), sample], axis=0)


@dataclasses.dataclass(frozen=True)
class Element:
  """An element for a trainer: its position in the worker's order, worker and start of the worker, sample and
  version."""

  position: int
  worker: int
  start: int
  index: int
  version: int


def _dispatch(directory, port, workers, pipe):
  os.chdir(directory)
  server = service.DispatchServer(
    service.DispatcherConfig(
      port=port, worker_addresses=workers, worker_timeout_ms=2000, fault_tolerant_mode=True, work_dir="work_dir"
    )
  )
  pipe.send("ready")
  server.join()


def _work(directory, dispatcher, port, who, pipe):
  os.chdir(directory)
  pathlib.Path("who").write_text(who)
  server = service.WorkerServer(
    service_config_pb2.WorkerConfig(
      dispatcher_address=dispatcher,
      worker_address=f"localhost:{port}",
      port=port,
      protocol="grpc",
      heartbeat_interval_ms=200,
      cross_trainer_cache_size_bytes=2**24,
    )
  )
  pipe.send("ready")
  server.join()


def _train(directory, dispatcher, name, pipe):
  os.chdir(directory)
  name_own_store()
  pipe.send("ready")
  iterators = {}
  for job, count in iter(pipe.recv, None):
    if job not in iterators:
      iterators[job] = job.dataset(dispatcher, name).as_numpy_iterator()
    elements = [next(iterators[job]) for _ in range(count)]
    pipe.send([Element(int(position), *sample.tolist()) for position, sample in elements])


class Machine:
  """A process in a directory, and a pipe to it."""

  def __init__(self, function, directory, *args):
    directory.mkdir(exist_ok=True)
    self._pipe, other = multiprocessing.Pipe()
    self.process = start_forked(function, str(directory), *args, other)
    other.close()
    assert self.get() == "ready"

  def put(self, *what):
    self._pipe.send(what)

  def get(self):
    assert self._pipe.poll(TIMEOUT), "it hangs"
    return self._pipe.recv()

  def kill(self):
    self.process.kill()
    self.process.join()


class Cluster:
  """A dispatcher, workers with the given cache sizes, and trainers."""

  def __init__(self, directory):
    self._directory = directory
    self._port, *self._ports = [free_port() for _ in range(3)]
    self.address = f"localhost:{self._port}"
    self._starts = [0] * 2
    self.machines = {}

  def start(self, name):
    """Starts the dispatcher, a worker by its number, or a trainer."""
    if name == "dispatcher":
      function, args = _dispatch, (self._port, [f"localhost:{port}" for port in self._ports])
    elif name in range(len(self._ports)):
      function, args = _work, (self.address, self._ports[name], f"{name} {self._starts[name]}")
      self._starts[name] += 1
    else:
      function, args = _train, (self.address, name)
    self.machines[name] = Machine(function, self._directory / str(name), *args)

  def read(self, job, counts):
    """The next elements of each trainer. `counts`: how many, by name."""
    for name, count in counts.items():
      self.machines[name].put(job, count)
    return {name: self.machines[name].get() for name in counts}

  def prepared(self, job, worker):
    """Everything that the worker has prepared for the job since the first start: (index, version), in order."""
    path = self._directory / str(worker) / job.name
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()]

  def close(self):
    for machine in reversed(self.machines.values()):
      machine.kill()

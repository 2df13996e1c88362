"""Trainers on several machines share one preparation by a tf.data service."""

import collections
import contextlib
import random
import time

import keras
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, services
from support.offloading import layers, source, values
from support.loaders import FRAMEWORKS, as_numpy, loader_of
from support.services import N, R, Cluster, Job

pytestmark = cases.slow  # A service starts processes.

TRAINERS = "abcd"
SHARE = N // 2


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster(tmp_path_factory):
  with contextlib.closing(Cluster(tmp_path_factory.mktemp("cluster"))) as cluster:
    for name in ("dispatcher", 0, 1, *TRAINERS):
      cluster.start(name)
    yield cluster


def by_worker(elements):
  """Returns the elements by worker and start of the worker, in order."""
  found = collections.defaultdict(list)
  for element in elements:
    found[element.worker, element.start].append(element)
  return found


def whole(elements, samples):
  """Checks that the elements of a worker are whole epochs of `samples`, except the last, and that none is lost."""
  assert [element.position for element in elements] == list(range(len(elements)))
  n = len(samples)
  for begin in range(0, len(elements), n):
    epoch = sorted(element.index for element in elements[begin : begin + n])
    assert epoch == list(samples) or begin + n > len(elements) and len(set(epoch)) == len(epoch), epoch


def uses(elements):
  """Returns the maximum number of uses of any version of a sample."""
  return max(collections.Counter((element.index, element.version) for element in elements).values())


def share_of(elements):
  return range(elements[0].index % 2, N, 2)


@pytest.mark.parametrize("store", [False, True])
def test_four_trainers_get_the_same_whole_epochs_prepared_once(cluster, store):
  epochs, job = 4, Job(f"shared {store}", store=store)
  found = cluster.read(job, dict.fromkeys(TRAINERS, epochs * N))
  assert all(by_worker(elements) == by_worker(found["a"]) for elements in found.values())
  for elements in found.values():
    # Because of one request at a time, elements come from the workers alternately.
    for begin in range(0, epochs * N, N):
      assert sorted(element.index for element in elements[begin : begin + N]) == list(range(N))
    assert uses(elements) == R
  for worker in range(2):
    made = cluster.prepared(job, worker)
    assert len(set(made)) == len(made)
    # A worker reads ahead by less than an epoch. Four independent trainers would prepare four times as much.
    assert SHARE + (epochs - 1) * SHARE / R <= len(made) <= SHARE + epochs * SHARE / R


ROUNDS = 20 if cases.exhaustive else 1


def test_killed_workers_come_back_with_their_stores(cluster):
  """No trainer hangs; each start of a worker yields whole epochs to all; no version is used more than R times."""
  draw, job = random.Random(7), Job("killed", store=True)
  found, num_killed = {name: [] for name in TRAINERS}, collections.Counter()
  for turn in range(ROUNDS):
    _extend(found, cluster.read(job, {name: draw.randrange(N, 3 * N) for name in TRAINERS}))
    killed = draw.choice([[0], [1], [0, 1], ["dispatcher", 0]]) if turn else [0]
    num_killed.update(killed)
    for name in TRAINERS:
      cluster.machines[name].put(job, draw.randrange(N, 3 * N))
    time.sleep(draw.random() / 20)
    for machine in killed:
      cluster.machines[machine].kill()
    time.sleep(draw.random() / 20)
    for machine in killed:
      cluster.start(machine)
    _extend(found, {name: cluster.machines[name].get() for name in TRAINERS})
  _extend(found, cluster.read(job, dict.fromkeys(TRAINERS, 4 * N)))
  lives = collections.defaultdict(list)
  for elements in found.values():
    assert uses(elements) <= R
    for life, of_one in by_worker(elements).items():
      whole(of_one, share_of(of_one))
      lives[life].append(of_one)
  for of_all in lives.values():
    longest = max(of_all, key=len)
    assert all(elements == longest[: len(elements)] for elements in of_all)
  made = [cluster.prepared(job, worker) for worker in range(2)]
  for worker in range(2):
    assert max(collections.Counter(made[worker]).values()) <= (2 if num_killed[worker] else 1)
    assert len({start for of, start in lives if of == worker}) == num_killed[worker] + 1


def _extend(found, more):
  for name, elements in more.items():
    found[name] += elements


@pytest.fixture(name="own_service")
def fixture_own_service():
  """Yields a function that distributes a dataset by a service of one worker, in this process."""
  with services.in_this_process(heartbeat_interval_ms=200) as address:
    yield lambda dataset: dataset.apply(
      services.service.distribute(
        services.service.ShardingPolicy.OFF,
        address,
        job_name="job",
        max_outstanding_requests=1,
        cross_trainer_cache=services.service.CrossTrainerCache("trainer"),
      )
    )


def test_offload_on_the_workers_makes_the_same_batches_as_locally(own_service):
  def offloaded():
    return (
      source(N)
      .refurbish(lambda *element: element, None, r=R, seed=7)
      .offload(layers(), 4, device_fraction=0.5)
      .repeat()
    )

  made, expected = (values(each.take(2 * N // 4)) for each in (own_service(offloaded()), offloaded()))
  assert made == expected


def test_offload_works_after_the_service(own_service):
  dataset = own_service(source(N).refurbish(lambda *element: element, None, r=R, seed=7).repeat()).offload(layers(), 4)
  labels = [label for _, batch in dataset.take(2 * N // 4) for label in batch.numpy().tolist()]
  assert sorted(labels[:N]) == sorted(labels[N:]) == list(range(N))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_loaders_read_a_service_once_and_have_no_state(framework, own_service):
  batches = own_service(tf.data.Dataset.range(N).refurbish(lambda index: index, r=R, seed=7).repeat().batch(4))
  with pytest.raises(ValueError, match="got one that repeats without end"):
    loader_of(framework, batches)
  loader = loader_of(framework, batches.take(2 * N // 4))
  refused = pytest.raises(
    tf.errors.UnimplementedError, match="cannot save the pipeline: it reads a tf.data service .*job_name"
  )
  with refused:
    loader.state_dict()
  found = []
  for batch in loader:
    found += as_numpy(framework, batch).tolist()
    with refused:
      loader.state_dict()
  assert sorted(found[:N]) == sorted(found[N:]) == list(range(N))
  with refused:
    loader.state_dict()
  with pytest.raises(tf.errors.InvalidArgumentError, match="disallows multiple repetitions"):
    next(iter(loader))


def test_features_that_need_a_position_are_refused_after_a_service(own_service, tmp_path):
  samples = tf.data.Dataset.range(N).refurbish(lambda index: (tf.cast([index], tf.float32), 1.0), r=R)
  batches = own_service(samples.repeat().batch(4))
  model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
  model.compile("sgd", "mse")
  with pytest.raises(tf.errors.UnimplementedError, match="BackupAndRestore cannot save .*a tf.data service.*job_name"):
    model.fit(batches, steps_per_epoch=2, verbose=0, callbacks=[rtf.keras.BackupAndRestore(tmp_path)])
  with pytest.raises(IndexError, match="on the workers of a tf.data service"):
    rtf.stats(batches)[0]

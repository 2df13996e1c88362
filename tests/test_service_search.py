"""Trainers on several machines share one preparation by a tf.data service, as docs/search.md says."""
import collections
import random
import time

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases, services
from support.services import N, R, Cluster, Job

TRAINERS = "abcd"
SHARE = N // 2
# A trainer behind by so many elements of each worker loses none.
LAG = 60
PAYLOAD = 12_000


def cache_bytes(lag, element_bytes):
  """As docs/search.md says."""
  return lag * (element_bytes * 7 // 6 + 1000)


@pytest.fixture(scope="module", name="cluster")
def fixture_cluster(tmp_path_factory):
  # Worker 0 has too little for `test_a_trainer_that_falls_behind`, and enough for the others.
  cluster = Cluster(
      tmp_path_factory.mktemp("cluster"), (cache_bytes(LAG // 2, PAYLOAD), cache_bytes(LAG, PAYLOAD)), TRAINERS)
  yield cluster
  cluster.close()


def by_worker(elements):
  """By worker and start: what it has made, in order."""
  found = collections.defaultdict(list)
  for element in elements:
    found[element.worker, element.start].append(element)
  return found


def whole(elements, samples):
  """Checks that elements of one worker are whole epochs of `samples`, but for the last, and that none is lost between."""
  assert [element.position for element in elements] == list(range(len(elements)))
  n = len(samples)
  for begin in range(0, len(elements), n):
    epoch = sorted(element.index for element in elements[begin:begin + n])
    assert epoch == list(samples) or begin + n > len(elements) and len(set(epoch)) == len(epoch), epoch


def uses(elements):
  """How often at most one version of a sample comes."""
  return max(collections.Counter((element.index, element.version) for element in elements).values())


def share_of(elements):
  return range(elements[0].index % 2, N, 2)


@pytest.mark.parametrize("store", [False, True])
def test_four_trainers_have_the_same_whole_epochs_of_one_preparation(cluster, store):
  epochs, job = 4, Job(f"shared {store}", store=store)
  found = cluster.read(job, dict.fromkeys(TRAINERS, epochs * N))
  assert len({tuple(sorted(elements, key=lambda each: (each.worker, each.position))) for elements in found.values()}) == 1
  for elements in found.values():
    # One request at a time takes turns of the workers.
    for begin in range(0, epochs * N, N):
      assert sorted(element.index for element in elements[begin:begin + N]) == list(range(N))
    assert uses(elements) == R
  for worker in range(2):
    made = cluster.prepared(job, worker)
    assert len(set(made)) == len(made)
    # A worker reads ahead, less than an epoch. Four trainers by themselves would prepare four times as much.
    assert SHARE + (epochs - 1) * SHARE / R <= len(made) <= SHARE + epochs * SHARE / R


def test_without_shares_each_worker_prepares_everything(cluster):
  """OFF: a trainer gets each version up to R times from each worker."""
  job = Job("off", "OFF")
  found = cluster.read(job, dict.fromkeys(TRAINERS, 2 * R * N))
  for elements in found.values():
    for of_one in by_worker(elements).values():
      whole(of_one, range(N))
    assert uses(elements) == 2 * R
  made = [cluster.prepared(job, worker) for worker in range(2)]
  assert all(N + (R - 1) * N / R <= len(each) for each in made) and len(set(made[0]) & set(made[1])) >= N * (R + 1) / R


def test_shares_behind_the_stage_are_prepared_by_all(cluster):
  """DATA: all together whole epochs, but each worker prepares all."""
  job = Job("data", "DATA")
  found = cluster.read(job, dict.fromkeys(TRAINERS, 2 * N))
  for elements in found.values():
    for begin in (0, N):
      assert sorted(element.index for element in elements[begin:begin + N]) == list(range(N))
    assert uses(elements) == R
  assert all(N + N / R <= len(cluster.prepared(job, worker)) for worker in range(2))


def test_a_trainer_that_falls_behind(cluster):
  """It loses what the cache of a worker no longer holds. The size that docs/search.md calculates avoids that."""
  job = Job("behind", "OFF", payload=PAYLOAD)
  first = cluster.read(job, {"b": 2})["b"]
  ahead = by_worker(cluster.read(job, {"a": 2 * LAG})["a"])
  late = by_worker(first + cluster.read(job, {"b": LAG})["b"])
  for worker, elements in late.items():
    positions = [element.position for element in elements]
    gaps = [after - before - 1 for before, after in zip(positions, positions[1:]) if after > before + 1]
    if worker == (1, 0):
      assert gaps == []
    else:
      gap, = gaps
      assert LAG // 2 - 10 <= gap <= LAG // 2
    # Of the same order.
    made = {element.position: element for element in ahead[worker]}
    assert all(made.get(element.position, element) == element for element in elements)


def test_the_first_trainer_says_what_is_prepared(cluster):
  """A trainer with another seed under the same name of a job gets what the others get. Another id begins with the oldest element."""
  job, other = Job("named"), Job("named", seed=2)
  found = cluster.read(job, {"a": 2 * N})["a"]
  assert by_worker(cluster.read(other, {"b": 2 * N})["b"]) == by_worker(found)
  # The same id goes on.
  assert all(element.position >= SHARE * 2 for element in cluster.read(other, {"a": 2})["a"])


ROUNDS = 20 if cases.exhaustive else 1


def test_killed_workers_come_back_with_their_stores(tmp_path):
  """No trainer hangs; each start of a worker yields whole epochs to all; no version comes more than R times."""
  draw = random.Random(7)
  cluster, job = Cluster(tmp_path, (0, 0), TRAINERS), Job("killed", store=True)
  try:
    found = {name: [] for name in TRAINERS}
    num_killed = {0: 0, 1: 0}
    for turn in range(ROUNDS):
      counts = {name: draw.randrange(N, 3 * N) for name in TRAINERS}
      for name, elements in cluster.read(job, counts).items():
        found[name] += elements
      killed = draw.choice([[0], [1], [0, 1], [0, "dispatcher"]]) if turn else [0]
      for name, count in counts.items():
        cluster.machines[name].put(job, count)
      time.sleep(draw.random() / 20)
      for machine in killed:
        cluster.machines[machine].kill()
      time.sleep(draw.random() / 20)
      for machine in killed:
        if machine == "dispatcher":
          cluster.start_dispatcher()
      for machine in killed:
        if machine != "dispatcher":
          num_killed[machine] += 1
          cluster.start_worker(machine)
      for name in TRAINERS:
        found[name] += cluster.machines[name].get()
    for name, elements in cluster.read(job, dict.fromkeys(TRAINERS, 4 * N)).items():
      found[name] += elements
    _check_lives(cluster, job, found, num_killed)
  finally:
    cluster.close()


def _check_lives(cluster, job, found, num_killed):
  lives = collections.defaultdict(list)
  for elements in found.values():
    assert uses(elements) <= R
    for life, of_one in by_worker(elements).items():
      whole(of_one, share_of(of_one))
      lives[life].append(of_one)
  for of_all in lives.values():
    longest = max(of_all, key=len)
    assert all(elements == longest[:len(elements)] for elements in of_all)
  total = [cluster.prepared(job, worker) for worker in range(2)]
  print("killed", num_killed, "prepared", [len(each) for each in total], "versions", [len(set(each)) for each in total],
        "most", [max(collections.Counter(each).values()) for each in total], "elements", {name: len(e) for name, e in found.items()})
  for worker, made in enumerate(total):
    assert max(collections.Counter(made).values()) <= (2 if num_killed[worker] else 1)
    assert len({start for of, start in lives if of == worker}) == num_killed[worker] + 1

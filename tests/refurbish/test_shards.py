"""Shards of a source: how samples are numbered, and training that continues with another number of shards."""

import collections
import gc
import itertools
import math

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from support.checkpoints import partial_fn, restore, save
from support.loaders import FRAMEWORKS, as_numpy, loader_of

Dataset = tf.data.Dataset

pytestmark = cases.slow

N = 24
F_OFD_SETLK = 37  # Python 3.11 has no name for it.


def sharded(n, i, r, *, total=N, store=None, **options):
  """Elements have their index in the whole source and the seed of their generation."""
  source = Dataset.range(total)
  options = {"seed": 1, "order_seed": i, "store": store, **options}
  return (source.shard(n, i) if n > 1 else source).refurbish(partial_fn, r=r, **options)


class Workers:
  """A stage for each of `n` shards. In a `directory` they have one store together."""

  def __init__(self, n, r, directory=None, *, total=N, **options):
    self.total = total
    self.stages = [sharded(n, i, r, total=total, store=directory, **options) for i in range(n)]
    self.iterators = []

  def epoch(self):
    """Returns the samples of each worker, as {index: seed}. Checks that every sample comes once."""
    self.iterators = [iter(stage) for stage in self.stages]
    shares = [[element.numpy().tolist() for element in iterator] for iterator in self.iterators]
    assert sorted(index for share in shares for index, *_ in share) == list(range(self.total))  # G1.
    return [{index: tuple(seed) for index, *seed in share} for share in shares]

  def fresh(self):
    return [rtf.stats(stage)[0].epochs[-1].fresh for stage in self.stages]

  def save(self, directory):
    directory.mkdir()
    return [save(iterator, directory / str(i)) for i, iterator in enumerate(self.iterators)]

  def restore(self, paths):
    """Each worker restores the checkpoint of its number; new workers restore the first one."""
    for i, stage in enumerate(self.stages):
      assert list(restore(stage, paths[i if i < len(paths) else 0])) == []


def moved(n, m):
  """Returns the samples that move to another worker when n shards become m."""
  return {index for index in range(N) if index % n != index % m}


@cases.each_value
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [4, 3, 2, 1])
@pytest.mark.parametrize("r", [1.5, 2, 3])
@pytest.mark.parametrize("on_disk", [True, False])
def test_another_number_of_shards_continues_the_schedule(tmp_path, n, m, r, on_disk):
  """After any epoch: each sample has the generation that it would have had, and in one directory none is lost."""
  unbroken = Workers(n, r)
  num_epochs = 2 * math.ceil(r) + 1
  expected = [collections.ChainMap(*unbroken.epoch()) for _ in range(2 * num_epochs)]
  for number in cases.some(range(num_epochs), 2):
    directory = tmp_path / f"stores {number}" if on_disk else None
    before, uses = Workers(n, r, directory), collections.Counter()
    for each in expected[: number + 1]:
      before.epoch()
      uses.update(each.items())
    paths = before.save(tmp_path / f"checkpoints {number}")
    del before
    gc.collect()  # Closing a store writes its samples in memory.
    after = Workers(m, r, directory)
    after.restore(paths)
    for later in range(number + 1, number + num_epochs):
      shares = after.epoch()
      assert dict(collections.ChainMap(*shares)) == dict(expected[later])
      uses.update(expected[later].items())
      evicted = {index for index in range(N) if expected[later][index] != expected[later - 1][index]}
      if later == number + 1:
        # A worker without its store prepares all its samples once more.
        evicted |= set() if on_disk else set(range(N))
      assert after.fresh() == [len(evicted & set(share)) for share in shares]  # G5.
      for share in shares:
        most = 1 + len(moved(n, m)) if later > number + 1 else N
        assert abs(len(evicted & set(share)) - len(share) / r) < most  # G3.
    assert max(uses.values()) <= math.ceil(r)  # G2.


@pytest.mark.parametrize(
  "r, options", [(2, {}), (2.5, {"total": 23, "shuffle": "uniform"}), (2, {"total": 7, "eviction": "reference_count"})]
)
def test_the_number_changes_again_and_again(tmp_path, r, options):
  unbroken = Workers(4, r, **options)
  workers = Workers(4, r, tmp_path / "stores", **options)
  for number, n in enumerate([4, 2, 3, 1, 4, 4, 2]):
    if number:
      paths = workers.save(tmp_path / f"checkpoints {number}")
      del workers
      gc.collect()
      workers = Workers(n, r, tmp_path / "stores", **options)
      workers.restore(paths)
    assert dict(collections.ChainMap(*workers.epoch())) == dict(collections.ChainMap(*unbroken.epoch()))


@pytest.mark.parametrize("total", cases.some([*range(1, 51)], 4))
def test_all_workers_restore_the_position_of_any_of_them(total):
  """As docs/workers.md says, even if their shards differ in size."""
  for n in range(1, min(4, total) + 1):
    before = Workers(n, 2, total=total)
    epochs = [dict(collections.ChainMap(*before.epoch())) for _ in range(2)]
    positions = [rtf.EpochPosition(stage).serialize() for stage in before.stages]
    epochs += [dict(collections.ChainMap(*before.epoch())) for _ in range(2)]
    for m, saved in itertools.product(range(1, min(4, total) + 1), {positions[0], positions[-1]}):
      after = Workers(m, 2, total=total)
      for stage in after.stages:
        rtf.EpochPosition(stage).deserialize(saved)
      assert [dict(collections.ChainMap(*after.epoch())) for _ in range(2)] == epochs[2:]


@pytest.mark.parametrize("ragged", [False, True])
def test_a_position_of_another_worker_after_a_new_schedule(ragged):
  """The schedule began in mid-training, with another number of workers. `ragged`: only an epoch shows how many samples
  fit."""

  def workers(n):
    sources = [Dataset.range(50).shard(n, i) for i in range(n)]
    return [
      source.refurbish(
        (lambda index, seed: tf.fill([1 + index % 3], index)) if ragged else partial_fn,
        r=2,
        seed=1,
        order_seed=i,
        store=rtf.CacheStore(max_bytes=8 * 24),
      )
      for i, source in enumerate(sources)
    ]

  def epoch(stages):
    shares = [[element.tolist() for element in stage.as_numpy_iterator()] for stage in stages]
    assert sorted(index for share in shares for index, *_ in share) == list(range(50))
    return list(map(sorted, shares))

  def restored(n, before):
    saved, stages = rtf.EpochPosition(before[0]).serialize(), workers(n)
    for stage in stages:
      rtf.EpochPosition(stage).deserialize(saved)
    return stages

  before = workers(2)
  epoch(before)
  before = restored(3, before)
  epoch(before)
  after = restored(3, before)
  for _ in range(4):
    assert epoch(after) == epoch(before)


def test_a_changed_shard_size_is_refused_if_the_source_has_changed_size():
  saved = rtf.EpochPosition(sharded(2, 0, 2, total=49)).serialize()
  with pytest.raises(tf.errors.InvalidArgumentError, match="num_samples of refurbish is 23, but was 25"):
    rtf.EpochPosition(sharded(2, 0, 2, total=46)).deserialize(saved)


def test_more_samples_in_all_shards_than_there_are_seeds():
  """Too many are refused when the stage is built, not when its checkpoint is restored. One sample less is accepted."""
  rtf.EpochPosition(sharded(1 << 16, 0, 2, total=(1 << 32) - 1)).serialize()
  with pytest.raises(
    ValueError, match="has 4294967296 elements in all shards together; refurbish takes at most 4294967295. Divide"
  ):
    sharded(1 << 16, 0, 2, total=1 << 32)


def test_samples_have_the_numbers_of_the_whole_source(tmp_path):
  """Workers with one seed augment different samples differently, and one worker augments as several together do."""
  whole, shards = Workers(1, 2), Workers(3, 2, tmp_path)
  for number in range(4):
    alone, shares = whole.epoch()[0], shards.epoch()
    if not number:
      assert alone == dict(collections.ChainMap(*shares))
      assert len(set(alone.values())) == N
  assert set(range(N)) == {index for index in range(N) if index in rtf.CacheStore(tmp_path)}


@pytest.mark.parametrize(
  "source, known",
  [
    (lambda: Dataset.range(N).shard(2, 1), True),
    (lambda: Dataset.range(N).shard(2, 1).map(tf.identity).prefetch(1).cache(), True),
    (lambda: Dataset.range(N).filter(lambda i: True).shard(2, 1), True),
    (lambda: Dataset.range(N).skip(2).shard(2, 1), True),
    (lambda: Dataset.range(N).shard(2, 1).skip(2), False),
    (lambda: Dataset.range(N).shard(2, 1).filter(lambda i: i > 2), False),
    (lambda: Dataset.range(N).shard(2, 1).shard(2, 0), False),
    (lambda: Dataset.range(N).shard(2, 1).skip(2).shard(1, 0), False),
    (lambda: Dataset.range(2).shard(2, 1).flat_map(lambda k: Dataset.range(4)), False),
  ],
)
def test_numbers_in_the_whole_source_are_used_where_known(source, known):
  """If it is unknown, a sample has its number among the elements that the stage reads."""

  def number(source):
    seeds = {
      tuple(seed.tolist())
      for seed in source.refurbish(lambda element, seed: seed, r=2, seed=1, shuffle_buffer_size=1).as_numpy_iterator()
    }
    return {k for k in range(2 * N) if tuple(all_seeds[k]) in seeds}

  all_seeds = list(
    Dataset.range(2 * N)
    .refurbish(lambda element, seed: tf.concat([[tf.cast(element, tf.int32)], seed], 0), r=2, seed=1)
    .as_numpy_iterator()
  )
  all_seeds = {row[0]: row[1:].tolist() for row in all_seeds}
  count = len(list(source()))
  assert number(source()) == (set(range(1, 2 * count, 2)) if known else set(range(count)))


def positions(stage):
  return tf.train.Checkpoint(position=rtf.EpochPosition(stage))


def test_a_checkpoint_of_another_worker_is_accepted_only_between_epochs(tmp_path):
  """Each worker has its own order. This also holds with the same number of workers, as after any restart."""
  first, second = sharded(2, 0, 2), sharded(2, 1, 2)
  expected = [list(map(tuple, second.as_numpy_iterator())) for _ in range(3)]
  assert len([list(first) for _ in range(2)]) == 2
  path = positions(first).save(tmp_path / "checkpoint")
  resumed = sharded(2, 1, 2)
  positions(resumed).restore(path).assert_consumed()
  assert list(map(tuple, resumed.as_numpy_iterator())) == expected[2]
  iterator = iter(first)
  next(iterator)
  with pytest.raises(tf.errors.InvalidArgumentError, match="order_seed of refurbish is 1, but was 0"):
    restore(sharded(2, 1, 2), save(iterator, tmp_path))


def test_refused_before_the_shard_is_known(tmp_path):
  first = sharded(2, 0, 2)
  assert len(list(first)) == N // 2
  path = positions(first).save(tmp_path / "checkpoint")
  hint = tf.data.experimental.SHARD_HINT
  with pytest.raises(tf.errors.FailedPreconditionError, match="before it is known which shard.*SHARD_HINT"):
    positions(Dataset.range(N).shard(hint, hint).refurbish(partial_fn, r=2, seed=1, order_seed=0)).restore(path)


def refused(n, i, path, match, **options):
  with pytest.raises(tf.errors.InvalidArgumentError, match=match):
    restore(sharded(n, i, 2, **options), path)


def test_refused_in_the_middle_of_an_epoch(tmp_path):
  iterator = iter(sharded(4, 1, 2))
  next(iterator)
  path = save(iterator, tmp_path)
  refused(2, 1, path, "had 4 shards, and now it has 2. In the middle of an epoch")
  refused(1, 0, path, "had 4 shards, and now it has 1. In the middle of an epoch")
  assert len(list(restore(sharded(4, 1, 2), path))) == N // 4 - 1


def test_refused_where_the_samples_of_a_shard_are_not_known(tmp_path):
  def files(n):
    return Dataset.range(4).shard(n, 0).flat_map(lambda k: Dataset.range(3)).refurbish(partial_fn, r=2, seed=1)

  iterator = iter(files(4))
  assert len(list(iterator)) == 3
  with pytest.raises(
    tf.errors.InvalidArgumentError, match="had 4 shards, and now it has 2. It is not known which samples"
  ):
    restore(files(2), save(iterator, tmp_path))


def test_refused_with_another_source_or_seed(tmp_path):
  iterator = iter(sharded(4, 0, 2))
  list(iterator)
  path = save(iterator, tmp_path)
  refused(3, 0, path, f"all shards together had {N} samples, and now have 21", total=21)
  with pytest.raises(tf.errors.InvalidArgumentError, match="seed of refurbish is 2, but was 1"):
    restore(Dataset.range(N).shard(2, 0).refurbish(partial_fn, r=2, seed=2), path)


@pytest.mark.parametrize("why", ["limit", "stream", "stream, read before"])
def test_a_new_schedule_begins_if_the_old_one_cannot_be_continued(tmp_path, why):
  """With a limit, or while the length is unknown, every sample is prepared once more, and none is used too often."""

  def make(n, i):
    source = Dataset.range(N)
    if why.startswith("stream"):
      return source.filter(lambda index: True).shard(n, i).refurbish(partial_fn, r=2, seed=1, shuffle_buffer_size=1)
    return source.shard(n, i).refurbish(partial_fn, r=2, seed=1, store=rtf.CacheStore(max_bytes=4 * 24))

  uses, paths = collections.Counter(), []
  for n in (3, 2):
    for i in range(n):
      stage = make(n, i)
      if n == 2:
        if "before" in why:
          assert len(list(stage)) == N // 2  # The stage now knows its shard's length, but not its source's.
        assert list(restore(stage, paths[i])) == []
      for number in range(5):
        iterator = iter(stage)
        elements = [tuple(element.numpy().tolist()) for element in iterator]
        assert sorted(index for index, *_ in elements) == list(range(i, N, n))
        uses.update(elements)
        if number == 0:
          assert rtf.stats(stage)[0].epochs[-1].fresh == N // n
      (tmp_path / f"{n} {i}").mkdir()
      paths.append(save(iterator, tmp_path / f"{n} {i}"))
  assert max(uses.values()) == 2


def test_a_store_on_disk_continues_without_a_checkpoint(tmp_path):
  """With any number of shards: no sample is prepared again."""
  unbroken = Workers(2, 2)
  expected = [dict(collections.ChainMap(*unbroken.epoch())) for _ in range(8)]
  number = 0
  for n in (2, 1, 3, 2):
    workers = Workers(n, 2, tmp_path)
    for _ in range(2):
      assert dict(collections.ChainMap(*workers.epoch())) == expected[number]
      changed = [index for index in range(N) if number and expected[number][index] != expected[number - 1][index]]
      assert sum(workers.fresh()) == (len(changed) if number else N)
      number += 1
    del workers
    gc.collect()


@pytest.mark.parametrize("ragged", [False, True])
def test_shards_divide_the_room_of_a_store(tmp_path, monkeypatch, ragged):
  """Each keeps its part, and no less over all epochs. `ragged`: only the first epoch shows how many samples fit."""
  size = 1000 if ragged else 900
  partial = lambda index, seed: tf.fill([size + (index % 2 if ragged else 0)], index)

  def stages(n, local=None):
    store = rtf.CacheStore(tmp_path / f"{n} {local}", max_bytes=12 * 9000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local or str(n))
    return [Dataset.range(N).shard(n, i).refurbish(partial, r=2, seed=1, order_seed=i, store=store) for i in range(n)]

  def fresh(each):
    for _ in range(5):
      for stage in each:
        assert len(list(stage)) == stage.cardinality()  # G1.
    return [[counts.fresh for counts in rtf.stats(stage)[0].epochs][1:] for stage in each]

  (alone,) = fresh(stages(1))
  for two in fresh(stages(2)):
    assert all(abs(part - whole / 2) <= 2 for part, whole in zip(two, alone)), (two, alone)
  # The variable says that this machine has one of four shards.
  assert sum(fresh(stages(4, "1")[:1])[0]) < sum(fresh(stages(4)[:1])[0])


@pytest.mark.parametrize(
  "change, match",
  [
    ({"total": 20}, "num_samples is 20, but it was 24"),
    ({"r": 3}, "r is 3, but it was 2"),
    ({"seed": 2}, "seed is 2, but it was 1"),
    ({"max_bytes": 600}, "num_kept_samples is .*, but it was 24.*overwrite=True"),
  ],
)
def test_shards_that_cannot_share_a_store(tmp_path, change, match):
  list(sharded(3, 0, 2, store=tmp_path))
  gc.collect()
  store = rtf.CacheStore(tmp_path, max_bytes=change.pop("max_bytes", None))
  with pytest.raises(ValueError, match=match):
    sharded(2, 0, **{"r": 2, "store": store, **change})


def test_a_limited_store_refuses_another_number_of_shards(tmp_path):
  """Which samples it keeps depends on that number."""
  options = {"total": 200, "store": rtf.CacheStore(tmp_path, max_bytes=6000)}
  list(sharded(2, 0, 2, **options))
  with pytest.raises(ValueError, match="shards_of_schedule is 4, but it was 2.*overwrite=True"):
    sharded(4, 0, 2, **options)


def test_a_new_store_keeps_the_schedule_of_a_restored_checkpoint(tmp_path):
  unbroken, before = Workers(2, 3), Workers(2, 3, tmp_path / "before")
  expected = [dict(collections.ChainMap(*unbroken.epoch())) for _ in range(5)]
  for _ in range(3):
    before.epoch()
  paths = before.save(tmp_path / "checkpoints")
  after = Workers(4, 3, tmp_path / "after")
  after.restore(paths)
  assert dict(collections.ChainMap(*after.epoch())) == expected[3]
  del after
  gc.collect()
  assert dict(collections.ChainMap(*Workers(4, 3, tmp_path / "after").epoch())) == expected[4]


def test_between_epochs_a_loader_takes_batches_of_another_size():
  """So another number of workers can keep the size of all their batches together."""
  torch_like = lambda n, i, size: loader_of(FRAMEWORKS[0], sharded(n, i, 2).batch(size, drop_remainder=True))
  before, after = torch_like(2, 0, 4), torch_like(4, 0, 2)
  batches = iter(before)
  next(batches)
  with pytest.raises(ValueError, match="the state belongs to another pipeline"):
    after.load_state_dict(before.state_dict())
  assert len(list(batches)) == 2
  after.load_state_dict(before.state_dict())
  assert after.epoch == 1 and len(list(after)) == 3


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_loader_state_is_accepted_only_between_epochs(framework):
  def loaders(n):
    return [loader_of(framework, sharded(n, i, 2).batch(2)) for i in range(n)]

  def epoch(workers):
    rows = [tuple(row) for loader in workers for batch in loader for row in as_numpy(framework, batch).tolist()]
    assert sorted(index for index, *_ in rows) == list(range(N))
    return {index: tuple(seed) for index, *seed in rows}

  unbroken = loaders(4)
  expected = [epoch(unbroken) for _ in range(4)]
  workers = loaders(4)
  assert [epoch(workers) for _ in range(2)] == expected[:2]
  states = [loader.state_dict() for loader in workers]
  batches = iter(workers[0])
  next(batches)
  within = workers[0].state_dict()
  two = loaders(2)
  with pytest.raises(tf.errors.InvalidArgumentError, match="had 4 shards, and now it has 2. In the middle of an epoch"):
    two[0].load_state_dict(within)
  assert epoch(two) == expected[0]  # Nothing has changed.
  for loader, state in zip(two, states):
    loader.load_state_dict(state)
  assert [epoch(two) for _ in range(2)] == expected[2:]

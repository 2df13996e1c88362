"""Faults of a level that machines share cost time, and never content: every epoch is whole, with the right bytes."""

import itertools
import math
import os
import random
import re
import sys
import threading
import time

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.cli import startup
from support import cases, checkpoints
from support.processes import environment, outputs_of, run_forked
from support.shared_levels import CALLS, KINDS, Job, Machine, Object, Proxy, empty_levels, redis_server, start_machines
from support.waiting import ends, until
from support.warned import told

N = 48
PASSWORD = "hunter-2"


@pytest.fixture(scope="module", name="levels")
def fixture_levels(tmp_path_factory):
  with empty_levels(tmp_path_factory.mktemp("levels")) as empty:
    yield empty


@pytest.mark.parametrize("fault", cases.some(["cut", "slow", "killed"], 2))
def test_a_level_that_goes_away_and_comes_back(fault):
  """A job goes on alone, with one warning. When the level is back, perhaps empty, the job uses it again."""
  with redis_server() as level:
    proxy = Proxy(level.port)
    job = Job(level.address.replace(f":{level.port}/", f":{proxy.port}/"))
    slow = lambda seconds: setattr(proxy, "delay", seconds)
    away, back = {"cut": (proxy.cut, lambda: proxy.cut(False)), "slow": (lambda: slow(5), lambda: slow(0))}.get(
      fault, (level.kill, level.start)
    )
    messages = told(lambda: [job.epoch(lambda number: number == N // 2 and away()) for _ in range(2)])
    messages += told(lambda: until(lambda: job.epoch() and time.sleep(0.5), 4))
    assert len(messages) == 1 and str(proxy.port) in messages[0]
    back()
    before = len(job.prepared)
    assert until(lambda: job.epoch() and {*job.prepared[before:]} & {*level.generations().items()}, 30)
    other = Job(level.address, seconds=level.slow)
    other.epoch()
    assert len(other.prepared) < N


def test_a_level_that_is_away_at_the_start(levels):
  """Making the store raises an error that names the address."""
  with pytest.raises(ValueError, match=r"^shared level redis://127.0.0.1:1/0 cannot .*"):
    rtf.CacheStore(shared="redis://127.0.0.1:1/0", version="1")
  with pytest.raises(ValueError, match=r"^shared .*s3://no-such-bucket/x cannot"):
    levels("s3")
    rtf.CacheStore(shared="s3://no-such-bucket/x", version="1")


def test_a_full_level():
  """Samples that do not fit are prepared by each job; those that fit are shared. There is one warning."""
  with redis_server("--maxmemory", "4mb", "--maxmemory-policy", "noeviction") as level:
    first, second = (Job(level.address, size=100_000, seconds=seconds) for seconds in (0.01, level.slow))
    messages = told(lambda: ([first.epoch() for _ in range(2)], time.sleep(1), second.epoch()))
    assert 0 < len(level.records()) < N and len(second.prepared) < N
    assert len(messages) == 1 and "cannot be written" in messages[0]


def test_an_evicting_level_is_noticed():
  """A server that may evict any sample gives a warning that says what to configure."""
  with redis_server("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru") as level:
    (message,) = told(lambda: rtf.CacheStore(shared=level.address, version="1"))
    assert "allkeys-lru" in message and "noeviction" in message and "shared_max_bytes" in message


def flipped(record, bit):
  return (int.from_bytes(record, "little") ^ 1 << bit).to_bytes(len(record), "little")


def cut_or_foreign(level):
  """Ways to damage a record: cut, a false size, another sample's, or one of a stage of other samples."""
  records, other = level.records(), Object()
  job = Job(other, len(records), version="another")
  job.epoch()
  other.wait_for(job)
  others = other.records()
  return [
    *(lambda index, record, size=size: record[:size] for size in (0, 1, 31, 32, -1)),
    lambda index, record: record[:12] + b"\xff" * 4 + record[16:],
    lambda index, record: records[(index + 1) % len(records)],
    lambda index, record: others[index],
    lambda index, record: b"another's value",
    *(lambda index, record, bit=bit: flipped(record, bit) for bit in range(0, 8 * len(records[0]), 23)),
  ]


@pytest.mark.parametrize(
  "kind, n", [*((kind, N) for kind in KINDS), pytest.param("object", 1000, marks=cases.only_exhaustive)]
)
def test_damaged_records_are_prepared_again(levels, kind, n):
  """A record that is cut, flipped in any part, or foreign is prepared again, and replaced."""
  level = levels(kind)
  first = Job(level.address, n)
  first.epoch()
  level.wait_for(first)
  ways = itertools.cycle(cut_or_foreign(level))
  level.change(lambda index, record: next(ways)(index, record))
  second = Job(level.address, n, seconds=level.slow / 10)
  assert sorted(second.epoch()) == sorted(second.prepared) == [(index, 0) for index in range(n)]
  level.wait_for(second)
  third = Job(level.address, n, seconds=level.slow)
  third.epoch()
  assert len(third.prepared) <= CALLS * math.ceil(n / 100)  # A job asks for 128 samples at a time.


def raises(keys):
  raise RuntimeError(f"the secret is {PASSWORD}")


@pytest.mark.parametrize(
  "fault",
  [
    raises,
    lambda keys: None,
    lambda keys: ["text"] * len(keys),
    lambda keys: [b""] * (len(keys) + 1),
    lambda keys: [3, b"x"],
    lambda keys: threading.Event().wait(),
    lambda keys: raises(keys) if any(key.endswith("0") for key in keys) else [None] * len(keys),
  ],
  ids=["raises", "None", "text", "too many", "other types", "hangs", "one key fails"],
)
def test_an_object_that_fails(fault):
  """A user's object that raises, hangs, or returns anything else costs time only, and at most one warning."""
  level = Object()
  job = Job(level, seconds=0.01)
  level.fault = fault
  messages = []
  assert ends(lambda: messages.extend(told(lambda: [job.epoch() for _ in range(3)])), 60)
  assert len(messages) <= 1 and PASSWORD not in str(messages)


def test_passwords_are_shown_nowhere(monkeypatch, tmp_path, capfd):
  """Neither in errors nor in the stage's texts, graph and checkpoint."""
  with redis_server(password=PASSWORD) as level:
    for given in ("wrong-" + PASSWORD, ""):
      monkeypatch.setenv("REFURBISH_TF_SHARED_PASSWORD", given)
      with pytest.raises(ValueError, match="REFURBISH_TF_SHARED_PASSWORD") as error:
        rtf.CacheStore(shared=level.address, version="1")
      assert PASSWORD not in f"{error.value!r} {error.value.__context__!r} {error.value.__cause__!r}"
      assert error.value.__cause__ is None and error.value.__suppress_context__
    monkeypatch.setenv("REFURBISH_TF_SHARED_PASSWORD", PASSWORD)
    job = Job(level.address)
    iterator = iter(job.dataset)
    next(iterator)
    checkpoints.save(iterator, tmp_path)
    assert startup.main(["store", level.address]) == 0
    shown = [repr(job.store), rtf.describe(job.dataset), repr(rtf.stats(job.dataset)), *capfd.readouterr()]
    shown = [*map(str.encode, shown), job.dataset._as_serialized_graph().numpy()]
    shown += [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(PASSWORD.encode() in each for each in shown)
    assert level.address.encode() in shown[1]


@pytest.mark.parametrize(
  "arguments, error, message",
  [
    ({"shared": "redis://127.0.0.1:1/0"}, ValueError, "^shared .*version"),
    ({"shared_max_bytes": 100}, ValueError, "^shared_max_bytes .*shared"),
    ({"shared": Object(), "version": "1", "shared_max_bytes": 0}, ValueError, "^shared_max_bytes .*positive, got 0"),
    ({"shared": "cache:6379", "version": "1"}, ValueError, "^shared .*redis://"),
    ({"shared": "ftp://cache/0", "version": "1"}, ValueError, "^shared .*redis://"),
    ({"shared": "file://data/level", "version": "1"}, ValueError, "^shared .*file:///"),
    ({"shared": "file:///no/such/directory", "version": "1"}, ValueError, "^shared .*/no/such/directory"),
    *(
      ({"shared": f"redis://{secret}", "version": "1"}, ValueError, "^shared .*REFURBISH_TF_SHARED_PASSWORD")
      for secret in (f"me:{PASSWORD}@cache/0", f"cache/0?password={PASSWORD}", f"cache/0#{PASSWORD}")
    ),
  ],
)
def test_bad_arguments(arguments, error, message):
  """An error says what is allowed, and shows no password of an address."""
  with pytest.raises(error, match=message) as raised:
    rtf.CacheStore(**arguments)
  assert PASSWORD not in str(raised.value)


def test_cached_refuses_a_level():
  """Elements of a source are not shared."""
  with pytest.raises(ValueError, match="^store .*shared"):
    rtf.sources.cached(tf.data.Dataset.range(3), rtf.CacheStore(shared=Object(), version="1"))


@pytest.mark.parametrize("address, module", [("redis://127.0.0.1:1/0", "redis"), ("file:///tmp", "obstore")])
def test_missing_packages(monkeypatch, address, module):
  """The error has the command that installs them."""
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ValueError, match=re.escape("pip install 'refurbish-tf[cluster]'")):
    rtf.CacheStore(shared=address, version="1")


def read_in_a_fork(address):
  job = Job(address)
  begun = iter(job.dataset)
  next(begun)
  child = os.fork()
  job.epoch()
  if not child:
    os._exit(0)
  assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["redis", "file"])
def test_a_fork_goes_on_alone(levels, kind):
  """A child that was forked after its parent used the level reads whole epochs, and so does the parent."""
  level = levels(kind)
  assert run_forked(read_in_a_fork, level.address) == 0


PROGRAM = """
import sys, threading, time
import tensorflow as tf, refurbish_tf as rtf

class Hangs:
  def get_many(self, keys):
    return hung.wait() if hung else [None] * len(keys)
  def put(self, key, value):
    hung and hung.wait()

hung = None
stores = [rtf.CacheStore(shared=each, version="1") for each in (sys.argv[1], Hangs())]
hung = threading.Event()
stages = [tf.data.Dataset.range(50).refurbish(lambda x: x, r=2, store=store) for store in stores]
iterators = [iter(stage) for stage in stages]
for stage, iterator in zip(stages, iterators):
  list(stage), next(iterator)
print(time.time())
"""


def test_an_interpreter_ends(levels):
  """A process ends within seconds and without an error, also if a level hangs; what it has prepared is written."""
  level = levels("redis")
  (output,) = outputs_of(["-c", PROGRAM, level.address], env=environment())
  assert time.time() - float(output) < 20
  assert len(level.records()) == 50


@cases.only_exhaustive
@pytest.mark.alone
def test_kills(levels):
  """While 50 jobs and 20 servers are killed, other jobs go on with whole epochs, and never wait for a second."""
  with redis_server() as level:
    options = {"n": 400, "seconds": 0.01}
    _, finish = start_machines(*[Machine(level.address, {**options, "order_seed": k}, epochs=60) for k in range(2)])
    for number in range(50):
      (process,), _ = start_machines(Machine(level.address, {**options, "order_seed": 2 + number}, epochs=10**6))
      time.sleep(random.uniform(1, 3))  # It first imports this package, and traces.
      process.kill()
      if number % 5 < 2:
        level.kill()
        time.sleep(random.uniform(0, 1))
        level.start()
    results = finish()
    assert all(longest < 1 for _, _, longest in results), results

"""Processes that call Python functions: if one dies, no sample is lost, and no process is left behind."""

import contextlib
import functools
import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf import augment
from refurbish_tf._internal.processes import channel, pool
from support import cases
from support.programs import Server
from support.python_layers import IMAGES, N, SOURCE, epochs_of, noise
from support.waiting import until

pytestmark = cases.slow


def dies_at(folder, how, once):
  """Returns a function that ends its process at sample 5, the first time or always."""
  broken, otherwise = int(IMAGES[5].sum()), noise

  def fn(image, rng):
    mark = folder / "died"
    if image.sum() == broken and not (once and mark.exists()):
      mark.touch()
      if how == "exit":
        os._exit(9)
      os.kill(os.getpid(), how)
    return otherwise(image, rng)

  return fn


class TestDeaths:
  def test_an_exit_with_status_0_counts_as_a_death(self, monkeypatch):
    started, start = [], subprocess.Popen

    def counted(*arguments, **options):
      started.append(1)
      assert len(started) < 20
      return start(*arguments, **options)

    monkeypatch.setattr(pool.subprocess, "Popen", counted)
    with pytest.raises(RuntimeError, match="has ended its process twice.*exit status 0"):
      augment.numpy_layer(lambda image, rng: os._exit(0), processes=1)(IMAGES[0], seed=[7, 0])

  @pytest.mark.parametrize("how", ["exit", signal.SIGKILL, signal.SIGSEGV])
  def test_the_sample_is_retried_once(self, tmp_path, how):
    layer = augment.numpy_layer(dies_at(tmp_path, how, once=True), processes=2)
    expected = epochs_of(SOURCE.refurbish([augment.numpy_layer(noise, processes=0)], r=2, seed=5))
    assert epochs_of(SOURCE.refurbish([layer], r=2, seed=5)) == expected
    assert (tmp_path / "died").exists()

  def test_a_second_death_is_an_error_of_that_sample(self, tmp_path):
    layer = augment.numpy_layer(dies_at(tmp_path, signal.SIGKILL, once=False), processes=2, name="deadly")
    iterator, found = iter(SOURCE.refurbish([layer], r=2, seed=5)), 0
    with pytest.raises(
      tf.errors.UnknownError, match="sample 5 of the source.*deadly, has ended its process twice.*signal 9"
    ) as raised:
      for _ in range(N):
        next(iterator)
        found += 1
    del raised
    assert found < N and sum(1 for _ in iterator) == N - 1 - found

  def test_an_interrupted_call_leaves_no_answer(self, monkeypatch):
    """Otherwise the next call would return that answer as its own."""
    layer = augment.numpy_layer(lambda image, rng: image, processes=1)
    layer(IMAGES[0], seed=[7, 0])
    receive = channel.Connection.receive

    def interrupted(connection):
      monkeypatch.undo()
      receive(connection)
      raise KeyboardInterrupt

    monkeypatch.setattr(channel.Connection, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
      layer(IMAGES[1], seed=[7, 0])
    np.testing.assert_array_equal(layer(IMAGES[2], seed=[7, 0]), IMAGES[2])

  def test_a_death_is_noticed_although_a_fork_lives_on(self, tmp_path):
    """The fork has also inherited the socket, so the connection stays open when the process dies."""

    def fn(image, rng):
      forked = os.fork()
      if not forked:
        time.sleep(60)
        os._exit(0)
      (tmp_path / str(forked)).touch()
      os._exit(7)

    with pytest.raises(RuntimeError, match="twice.*exit status 7"):
      augment.numpy_layer(fn, processes=1)(IMAGES[0], seed=[7, 0])
    forked = [int(each.name) for each in tmp_path.iterdir()]
    assert len(forked) == 2
    for each in forked:
      os.kill(each, signal.SIGKILL)  # Raises ProcessLookupError if the call waited for the fork.


def processes_of(parent):
  """Returns the ids of the living processes that `parent` has started to call functions."""
  found = []
  for entry in pathlib.Path("/proc").iterdir():
    try:
      if (
        entry.name.isdigit()
        and b"processes/worker.py" in (entry / "cmdline").read_bytes()
        and (parent is None or f"PPid:\t{parent}\n" in (entry / "status").read_text())
      ):
        found.append(int(entry.name))
    except (OSError, ProcessLookupError):
      pass
  return found


def times_woken(process):
  statuses = [each.read_text() for each in pathlib.Path(f"/proc/{process}/task").glob("*/status")]
  return sum(int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for status in statuses)


def assert_end(processes):
  assert until(lambda: not set(processes) & set(processes_of(None)), 5)


def memory_files():
  """Returns the blocks of memory that this process shares with others."""
  found = [os.readlink(each) for each in pathlib.Path("/proc/self/fd").iterdir() if each.is_symlink()]
  return [each for each in found if "refurbish_tf" in each and "memfd" in each]


class TestWhatIsGone:
  @pytest.mark.parametrize("is_traced", [True, False])
  def test_deleted_functions_are_released_in_all_processes(self, is_traced):
    """In a search over functions that each hold a table, the tables of deleted functions must not fill the memory."""

    def num_known(image, rng, table):
      return np.array(sum(type(each).__name__ == "Function" for each in gc.get_objects())) + table[0]

    tables, found = [], []
    for _ in range(5):
      table = np.zeros(1000, np.int64)
      tables.append(weakref.ref(table))
      layer = augment.numpy_layer(functools.partial(num_known, table=table), tf.TensorSpec([], tf.int64), processes=4)
      source = tf.data.Dataset.from_tensors(IMAGES[0])
      found += (
        list(source.map(lambda image, layer=layer: layer(image, seed=[7, 0])))
        if is_traced
        else [layer(IMAGES[0], seed=[7, 0])]
      )
      del table, layer, source
      gc.collect()
    assert max(found) == 1 and not any(table() is not None for table in tables)

  def test_functions_still_in_use_are_not_released(self):
    layers, index = [augment.numpy_layer(lambda number, rng: number + 1, processes=2)], tf.constant(3)

    def called(number):
      return layers[0](number, seed=[7, 0])

    def nested(number):
      return tf.data.Dataset.from_tensors(number).map(called).get_single_element()

    iterator = iter(tf.data.Dataset.from_tensors(3).map(nested).prefetch(1))
    traced = [
      tf.function(fn).get_concrete_function(index)
      for fn in (
        called,
        nested,
        lambda x: tf.cond(x > 0, lambda: called(x), lambda: x),
        lambda x: tf.map_fn(called, x[None])[0],
      )
    ]
    layers.clear()
    gc.collect()
    assert [int(next(iterator)), *(int(each(index)) for each in traced)] == [4] * 5

  def test_calling_a_deleted_function_raises_a_clear_error(self):
    layer = augment.numpy_layer(noise, name="mine", processes=2)
    variant = tf.data.experimental.to_variant(SOURCE.map(lambda image: layer(image, seed=[7, 0])))
    gc.collect()
    # TensorFlow 2.22 also deletes the Python functions, which causes the second message.
    with pytest.raises(
      tf.errors.OpError,
      match="mine, is called for a tf.data.Dataset that is gone. Keep|Could not find callback with key",
    ):
      next(iter(tf.data.experimental.from_variant(variant, tf.TensorSpec([None, None, 3], tf.uint8))))


PROGRAM = textwrap.dedent("""
    import os, signal, sys, time
    import numpy as np
    import tensorflow as tf
    import refurbish_tf as rtf

    def slow(image, rng):
      time.sleep(0.2)
      return image

    source = tf.data.Dataset.from_tensor_slices(np.zeros([40, 4, 4, 3], np.uint8))
    stage = source.refurbish([rtf.augment.numpy_layer(slow, processes=2)], seed=3)
    iterator = iter(stage)
    next(iterator)
    os.write(1, b"begun\\n")
    sys.stdin.readline()
    {end}
""")


@pytest.fixture(scope="module")
def programs():
  with contextlib.closing(Server()) as server:
    yield server


class TestProcesses:
  @pytest.mark.parametrize(
    "end, sent",
    cases.some(
      [
        ("more = iter(stage.repeat().prefetch(20)); next(more); sys.exit(3)", None),
        ("sys.exit(3)", None),
        ("del iterator", None),
        ("list(iterator)", signal.SIGINT),
        ("raise KeyError", None),
        ("os._exit(3)", None),
        ("time.sleep(60)", signal.SIGKILL),
      ],
      3,
    ),
  )
  def test_none_is_left_when_a_program_ends(self, programs, tmp_path, end, sent):
    """The program also ends quickly. After Ctrl-C it prints only the trainer's own traceback."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(end=end))
    with programs.start(path) as program:
      assert program.stdout.readline() == "begun\n"
      left = processes_of(program.pid)
      assert 1 <= len(left) <= 2
      program.stdin.write("\n")
      program.stdin.flush()
      if sent:
        time.sleep(0.5)
        program.send_signal(sent)
      program.wait(30)
      errors = program.errors()
    assert_end(left)
    assert errors.count("Traceback") <= 1 and "worker.py" not in errors

  @pytest.mark.parametrize(
    "call, before",
    [
      pytest.param("time.sleep(30)", "", id="sleep", marks=cases.only_exhaustive),
      pytest.param("__import__('re').match('(a+)+b', 29 * 'a')", "", id="in C code"),
      pytest.param("time.sleep(30)", "os.fork() or (time.sleep(12), os._exit(0));", id="forked"),
    ],
  )
  def test_none_is_left_when_a_busy_trainer_is_killed(self, programs, tmp_path, call, before):
    """The trainer's processes are in a call at that time. It may run C code, or have forked a process that lives on."""
    path = tmp_path / "train.py"
    path.write_text(
      PROGRAM.format(end="list(iterator)")
      .replace("time.sleep(0.2)", call)
      .replace("os.write(1", before + "os.write(1")
      .replace(
        "next(iterator)",
        "import threading; threading.Thread(target=next, args=(iterator,), daemon=True).start(); time.sleep(2)",
      )
    )
    with programs.start(path) as program:
      assert program.stdout.readline() == "begun\n"
      left = processes_of(program.pid)
      assert left
    assert_end(left)

  def test_live_as_long_as_a_stage_and_not_much_longer(self, monkeypatch):
    """A validation between two epochs does not end the processes. While they wait, they wake only to check that the
    trainer is alive."""
    for each in pool._pools.values():
      each.kill()
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.5)
    layer = augment.numpy_layer(noise, processes=3)
    iterator = iter(SOURCE.refurbish([layer], seed=3))
    assert len(list(iterator)) == N
    mine = processes_of(os.getpid())
    woken = sum(map(times_woken, mine))
    time.sleep(3)
    assert mine and processes_of(os.getpid()) == mine and sum(map(times_woken, mine)) - woken <= 5 * len(mine)
    del iterator
    gc.collect()
    assert until(lambda: not memory_files(), 10) and not layer.pool().num_alive() and processes_of(os.getpid()) == []
    assert len(list(SOURCE.refurbish([layer], seed=3))) == N

  def test_start_despite_many_open_files(self):
    with contextlib.ExitStack() as stack:
      limits = resource.getrlimit(resource.RLIMIT_NOFILE)
      resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
      stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
      files = [stack.enter_context(open(os.devnull)) for _ in range(1100)]
      assert max(file.fileno() for file in files) >= 1024
      np.testing.assert_array_equal(
        augment.numpy_layer(lambda image, rng: image, processes=6)(IMAGES[0], seed=[7, 0]), IMAGES[0]
      )

  def test_start_at_the_first_sample_and_are_shared(self):
    layers = [augment.numpy_layer(noise, processes=5) for _ in range(2)]
    stages = [SOURCE.refurbish([layer], seed=3) for layer in layers]
    assert not layers[0].pool().num_alive() and layers[0].pool() is layers[1].pool()
    for stage in stages:
      list(stage)
    assert 1 <= layers[0].pool().num_alive() <= 5

  def test_are_small_and_use_one_thread(self):
    def facts(image, rng):
      status = open("/proc/self/status").read()  # noqa: SIM115
      large = image.astype(np.float64).reshape(-1, 3) @ np.ones([3, 400])
      resident = int(status.split("VmRSS:")[1].split()[0])
      return np.array([resident, int(status.split("Threads:")[1].split()[0]), "tensorflow" in sys.modules, large.size])

    found = augment.numpy_layer(facts, tf.TensorSpec([4], tf.int64), processes=2)(IMAGES[0], seed=[7, 0]).numpy()
    # Besides the main thread, one thread watches the trainer.
    assert found[0] < 60_000 and found[1] <= 3 and not found[2]

  def test_modules_go_by_value(self, programs, tmp_path):
    """A script needs no `if __name__` guard, and a process does not import TensorFlow even if the function's modules
    import it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import tensorflow as tf\nfrom mine.transforms import fn\n")
    (tmp_path / "mine" / "transforms.py").write_text(
      "import sys\nimport numpy as np\nimport tensorflow as tf\nfrom mine import helpers\nADDED = 3\n"
      "def fn(image, rng):\n  return helpers.add(image, ADDED) + np.uint8('tensorflow' in sys.modules)\n"
    )
    (tmp_path / "mine" / "helpers.py").write_text(
      "import tensorflow as tf\nclass Adder:\n  def __call__(self, image, n): return image + np.uint8(n)\nimport "
      "numpy as np\nadd = Adder()\n"
    )
    (tmp_path / "train.py").write_text(
      textwrap.dedent("""
        import numpy as np
        import tensorflow as tf
        import refurbish_tf as rtf
        import mine

        source = tf.data.Dataset.from_tensor_slices(np.zeros([4, 2, 2, 3], np.uint8))
        for fn in (mine.fn, lambda image, rng: mine.fn(image, rng)):
          stage = source.refurbish([rtf.augment.numpy_layer(fn, processes=2)], seed=3)
          print({value for each in stage.as_numpy_iterator() for value in each.ravel().tolist()})
    """)
    )
    with programs.start(tmp_path / "train.py") as program:
      program.wait(120)
      assert program.stdout.read().splitlines() == ["{3}"] * 2, program.errors()[-3000:]

  def test_packages_installed_with_target_are_imported(self, monkeypatch, tmp_path):
    """An example is `pip install --target`. A user's own module in the same folder is sent by value."""
    (tmp_path / "its_library").mkdir()
    (tmp_path / "its_library" / "__init__.py").write_text(
      "import threading\nLOCK = threading.Lock()\ndef add(image):\n  with LOCK:\n    return image + 3\n"
    )
    (tmp_path / "its_library-1.0.dist-info").mkdir()
    (tmp_path / "its_library-1.0.dist-info" / "RECORD").write_text("its_library/__init__.py,sha256=abc,9\n")
    (tmp_path / "of_the_user.py").write_text(
      "import its_library\ndef fn(image, rng):\n  return its_library.add(image)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import of_the_user

    (tmp_path / "of_the_user.py").unlink()
    made = augment.numpy_layer(of_the_user.fn, processes=1)(IMAGES[0], seed=[7, 0])
    np.testing.assert_array_equal(made, IMAGES[0] + np.uint8(3))

  def test_an_error_names_a_few_of_a_modules_variables(self, monkeypatch, tmp_path):
    """The error names only a few variables, because trying all of them can take minutes."""
    (tmp_path / "of_many.py").write_text(
      "TRIED = []\nclass Held:\n  def __reduce__(self):\n    TRIED.append(self)\n    raise ValueError('held')\n"
      "globals().update((f'V{i}', Held()) for i in range(100))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import of_many

    names = "of_many.TRIED, of_many.Held, of_many.V0, of_many.V1, of_many.V2. "
    with pytest.raises(TypeError, match=f"is sent as a whole, but it holds objects that cannot be pickled: {names}"):
      augment.numpy_layer(lambda image, rng: of_many.V0 and image)(IMAGES[0], seed=[7, 0])
    assert len(of_many.TRIED) < 20

  def test_calls_in_progress_are_twice_the_number_of_processes(self):
    def graph_of(**options):
      stage = SOURCE.refurbish(lambda image, seed: layer(image, seed=seed), seed=3, **options)
      return stage._op_arguments["num_parallel_calls"].numpy()

    layer = augment.numpy_layer(noise, processes=7)
    assert graph_of() == 14 and graph_of(num_parallel_calls=3) == 3 and graph_of(num_parallel_calls=None) == 0
    layer = augment.numpy_layer(noise, processes=0)
    assert graph_of() == tf.data.AUTOTUNE

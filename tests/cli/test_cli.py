"""The command `refurbish-tf`: how it starts and ends, `refurbish-tf advise` and `refurbish-tf store`; test_demo.py has
`refurbish-tf demo`."""

import gc
import multiprocessing
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
import refurbish_tf_launcher
from refurbish_tf._internal import version
from refurbish_tf.cli import startup
from support import ROOT
from support.datasets import without_prefetch
from support.processes import TIMEOUT, end_of, start_forked

LAUNCH = "import sys, refurbish_tf_launcher; sys.exit(refurbish_tf_launcher.main())"


@pytest.fixture
def launched(tmp_path):
  """Returns a function that launches, with the real startup.py, a stand-in for our package that needs no TensorFlow."""
  shutil.copy(refurbish_tf_launcher.__file__, tmp_path)
  package = tmp_path / "refurbish_tf"
  (package / "cli").mkdir(parents=True)
  (package / "_internal").mkdir()
  shutil.copy(version.__file__, package / "_internal")
  shutil.copy(startup.__file__, package / "cli")

  def launch(on_import, main, **options):
    (package / "__init__.py").write_text(f"import os\n{on_import}\n", encoding="utf-8")
    (package / "cli" / "store.py").write_text(f"import os\ndef run(args):\n  {main}\n", encoding="utf-8")
    return subprocess.run(
      [sys.executable, "-c", LAUNCH, "store", "x"],
      cwd=tmp_path,
      env={**os.environ, "PYTHONPATH": str(tmp_path)},
      text=True,
      stderr=subprocess.PIPE,
      check=False,
      **{"stdout": subprocess.PIPE, **options},
    )

  return launch


def test_output_of_imports_is_suppressed(launched):
  """Only output to the file descriptor is suppressed, which native libraries write, and only during the import."""
  done = launched("os.write(2, b'from a library\\n')", "os.write(2, b'from the command\\n'); print('result'); return 1")
  assert (done.returncode, done.stdout, done.stderr) == (1, "result\n", "from the command\n")


def test_output_of_a_failing_import_is_shown(launched):
  done = launched("os.write(2, b'from a library\\n'); raise ImportError('no library')", "return 0")
  assert done.returncode == startup.FAILED
  assert done.stderr.startswith("from a library\n") and done.stderr.endswith("ImportError: no library\n")


@pytest.mark.parametrize(
  "on_import, main",
  [("os.write(2, b'from a library'); raise KeyboardInterrupt", "return 0"), ("", "raise KeyboardInterrupt")],
)
def test_interrupted(launched, on_import, main):
  """Ctrl-C also works in the seconds in which TensorFlow is imported."""
  done = launched(on_import, main)
  assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_closed_output_pipe_ends_the_command_silently(launched, size):
  """The pipe breaks when a print fails or, for short output, when the buffer is flushed at the end."""
  read, write = os.pipe()
  os.close(read)
  try:
    done = launched("", f"print({size} * 'x'); return 0", stdout=write)
  finally:
    os.close(write)
  assert (done.returncode, done.stderr) == (141, "")


def test_version_help_and_usage_errors_do_not_import_tensorflow():
  """The version, the help and invalid command lines import neither TensorFlow nor the package."""
  code = (
    "import contextlib, sys, refurbish_tf_launcher\n"
    "for *sys.argv[1:], in (['--version'], ['--help'], ['advise', '--help'], ['demo', '--help'], ['store', '--help'], "
    "['demo', '-r', '0']):\n  with contextlib.suppress(SystemExit):\n"
    "    refurbish_tf_launcher.main()\n"
    "    print('no exit')\n"
    "print(*{'refurbish_tf', 'tensorflow'} & set(sys.modules))"
  )
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
  assert "demo" in done.stdout and "store" in done.stdout and "--version" in done.stdout
  version, *helps, imported = done.stdout.splitlines()
  assert imported == ""
  assert version == f"refurbish-tf {rtf.__version__}" and "no exit" not in helps
  assert sum(line.startswith("usage: ") for line in helps) == 4
  assert "argument -r: must be a real number of at least 1, got '0'" in done.stderr


@pytest.mark.parametrize(
  "arguments, message", [([], "COMMAND"), (["dome"], "invalid choice: 'dome'"), (["store", "x", "--y"], "--y")]
)
def test_invalid_arguments_are_refused(capsys, arguments, message):
  with pytest.raises(SystemExit) as end:
    startup.main(arguments)
  assert end.value.code == 2
  captured = capsys.readouterr()
  assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


def write_images(*paths):
  for number, path in enumerate(paths):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tf.io.encode_png(np.full([20, 24, 3], number, np.uint8)).numpy())


def program_in(printed):
  return printed[printed.index("import tensorflow as tf\n") :]


class Asked(Exception):
  """Carries the arguments with which `rtf.advise` was called."""


@pytest.fixture
def asked(monkeypatch):
  """Returns a function that runs the command and returns the arguments of `rtf.advise`."""

  def ask(source, layers, **options):
    raise Asked(source, layers, options)

  def run(*arguments):
    with pytest.raises(Asked) as raised:
      startup.main(["advise", *map(str, arguments)])
    return raised.value.args

  monkeypatch.setattr(rtf, "advise", ask)
  return run


def test_advises_and_prints_a_program_that_runs(tmp_path, capsys):
  write_images(*(tmp_path / kind / f"{number}.png" for kind in ("cat's", "dogs") for number in range(20)))
  assert (
    startup.main(
      ["advise", str(tmp_path), "--size", "16", "--batch-size", "8", "--max-seconds", "0.3", "--memory", "1GB"]
    )
    == 0
  )
  printed = capsys.readouterr().out
  assert "decode_random_resized_crop" in printed and "samples/s" in printed and printed.count("import tensorflow") == 1
  names = {}
  exec(program_in(printed), names)
  images, labels = next(iter(names["train"]))
  assert images.shape == (8, 16, 16, 3) and set(labels.numpy()) <= {0, 1}


def test_advise_gets_the_options_of_the_command_line(tmp_path, asked):
  write_images(tmp_path / "a" / "1.png")
  given = {"--step-seconds": "0.25", "--epochs": "9", "--memory": "1.5 MB", "--disk": tmp_path, "--network": "125MB"}
  source, layers, options = asked(tmp_path, *(each for pair in given.items() for each in pair), "--max-seconds", "2")
  assert source.class_names == ["a"] and layers[0].__name__ == "decode_random_resized_crop"
  one = {"step_seconds": 0.25, "epochs": 9, "memory": 1_500_000, "disk": tmp_path, "network": 125e6, "max_seconds": 2}
  assert options == {"batch_size": 64, **one}
  _, _, options = asked(tmp_path)
  other = {"step_seconds": None, "epochs": 90, "memory": None, "disk": None, "network": None, "max_seconds": 30}
  assert options == {"batch_size": 64, **other}


def test_advises_on_images_without_classes(tmp_path, asked):
  write_images(tmp_path / "b.PNG", tmp_path / "a.png", tmp_path / ".hidden" / "c.png")
  (tmp_path / "notes.txt").write_text("none")
  source, _, _ = asked(tmp_path)
  assert [tf.io.decode_png(file).numpy()[0, 0, 0] for file in source] == [1, 0]


@pytest.mark.parametrize(
  "arguments, message",
  [
    (["nothing"], "FOLDER: directory must .* nothing does not exist"),
    ([".elsewhere/empty"], "empty has no images"),
    (["page.txt"], "page.txt is not a directory"),
    (["\0"], "null"),
    (["gs://bucket/photos"], "FOLDER: must be a local directory, got 'gs://bucket/photos'.*image_folder"),
    ([".", "--disk", "page.txt"], "--disk: 'page.txt' is not a directory"),
    ([".", "--memory", "8G"], "--memory: must be a size such as 8GB or 500MB, got '8G'"),
    ([".", "--memory", "0"], "got '0'"),
    ([".", "--step-seconds", "0"], "at least 1e-06"),
    ([".", "--size", "9.5"], "a whole number"),
  ],
)
def test_what_advise_refuses(tmp_path, monkeypatch, capsys, arguments, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / ".elsewhere" / "empty").mkdir(parents=True)
  write_images(tmp_path / "a" / "1.png")
  (tmp_path / "page.txt").write_text("none")
  with pytest.raises(SystemExit) as end:
    startup.main(["advise", *arguments])
  assert end.value.code == 2
  printed = capsys.readouterr().err
  assert re.search(message, printed) and "Traceback" not in printed


def test_advise_ends_with_one_line_at_a_damaged_image(tmp_path, capsys):
  (tmp_path / "1.jpg").write_bytes(b"none")
  assert startup.main(["advise", str(tmp_path), "--max-seconds", "0.3"]) == 1
  printed = capsys.readouterr().err
  assert "refurbish-tf advise: " in printed and "Traceback" not in printed


@pytest.fixture
def path(tmp_path):
  return tmp_path / "store"


def test_prints_what_is_in_a_store(path, capsys):
  dataset = tf.data.Dataset.range(100).refurbish(
    lambda x: {"image": tf.fill([8, 100], x), "label": x}, r=2.5, seed=3, store=rtf.CacheStore(path, version="one")
  )
  for _ in range(3):
    for _ in dataset:
      pass
  del dataset
  before = {name: (path / name).read_bytes() for name in ("store", "index")}
  assert startup.main(["store", str(path), "--verify"]) == 0
  printed = capsys.readouterr().out
  assert {name: (path / name).read_bytes() for name in ("store", "index")} == before
  for fact in [
    f"cache store {path}\n",
    "samples   100 of 100\n",
    "{image: int64[8, 100], label: int64[]}",
    "r         2.5\n",
    "seed      3\n",
    "layers    rtf.augment version 2\n",
    "version   one\n",
    "verified  100 intact, 0 damaged",
  ]:
    assert fact in printed
  image = np.full(800, 7).tobytes()
  for file in path.glob("*-*"):  # Damages all records of sample 7, because the order of writes decides which is in use.
    file.write_bytes(file.read_bytes().replace(image, b"\0" + image[1:]))
  assert startup.main(["store", str(path), "--verify"]) == 1
  assert "99 intact, 1 damaged" in capsys.readouterr().out


def hold_a_job(path, count, connection):
  """Reads one epoch and `count` samples of the next, then waits for a message."""
  dataset = without_prefetch(
    tf.data.Dataset.range(640).refurbish(lambda x: x, r=2, seed=3, store=path, num_parallel_calls=None)
  )
  list(dataset)
  iterator = iter(dataset)
  for _ in range(count):
    next(iterator)
  connection.send("at work")
  connection.recv()


def test_says_which_jobs_are_alive_and_where(path, capsys):
  def jobs():
    assert startup.main(["store", str(path)]) == 0
    return capsys.readouterr().out.partition("  jobs      ")[2].splitlines()

  here, there = multiprocessing.Pipe()
  job = start_forked(hold_a_job, str(path), 320, there)
  try:
    assert here.poll(TIMEOUT) and here.recv() == "at work"
    assert jobs() == [f"process {job.pid}: epoch 1, 50 %"]
  finally:
    here.send("end")
    assert end_of(job) == 0
  assert jobs() == ["none running"]


def test_leaves_a_damaged_store_alone(path, capsys):
  rtf.CacheStore(path, version="back\\slash").put(0, 1)
  gc.collect()
  assert startup.main(["store", str(path)]) == 0
  assert "version   back\\slash" in capsys.readouterr().out
  damaged = (path / "store").read_text().replace("back", "bank")
  (path / "store").write_text(damaged)
  with pytest.raises(SystemExit) as end:
    startup.main(["store", str(path)])
  assert end.value.code == 2
  assert "is damaged" in capsys.readouterr().err
  assert (path / "store").read_text() == damaged and list(path.glob("small-*"))


@pytest.mark.parametrize(
  "name, message",
  [
    (os.fsdecode(b"/tmp/\xff"), "PATH must be .* UTF-8"),
    ("/tmp/\0x", "PATH must be .* null character"),
    ("x" * 300, "PATH 'xxx.*File name too long"),
    ("nothing", "not a cache store"),
    ("hdfs://name/store", "PATH must be an address .* got another form after 'hdfs://'"),
    ("", "PATH must be the name of a directory"),
  ],
)
def test_a_path_without_a_store_is_refused(capsys, tmp_path, monkeypatch, name, message):
  """The command ends with one line, not with a traceback, and makes no store."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as end:
    startup.main(["store", name])
  assert end.value.code == 2
  assert re.search(message, capsys.readouterr().err)
  assert not list(tmp_path.iterdir())

"""Processes for tests, and the files that they read."""

import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import socket
import subprocess
import sys

import tensorflow as tf

import refurbish_tf as rtf

N = 12
# Seconds, long enough for a busy machine; only a failure takes this long. Emulated machines set their own.
TIMEOUT = int(os.environ.get("REFURBISH_TF_TEST_TIMEOUT", "180"))


def environment():
  path = [str(pathlib.Path(rtf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
  return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CUDA_VISIBLE_DEVICES": "-1"}


def free_port():
  """A free port below the range that the system assigns from, so that no other test gets it in the meantime."""
  while True:
    port = random.randrange(20_000, 32_768)
    with socket.socket() as found, contextlib.suppress(OSError):
      found.bind(("localhost", port))
      return port


def environment_of(backend, *path):
  """The environment with this backend of Keras, the tests' modules, and directories that precede all others."""
  env = environment()
  tests = str(pathlib.Path(__file__).parents[1])
  return {**env, "PYTHONPATH": os.pathsep.join([*map(str, path), tests, env["PYTHONPATH"]]), "KERAS_BACKEND": backend}


def run_killed_fit(directory, backend, ahead, ends, *path):
  """Runs support/killed_fit.py, which checks that the fit ends like an unbroken one. Returns its output."""
  program = pathlib.Path(__file__).parent / "killed_fit.py"
  arguments = [program, directory, "ahead" if ahead else "", json.dumps(ends)]
  return outputs_of(arguments, env=environment_of(backend, *path), timeout=2 * TIMEOUT)[0]


@contextlib.contextmanager
def killed_at_the_end():
  """Yields a list of processes that are killed at the end, even if the test fails."""
  processes = []
  try:
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.communicate()


def outputs_of(*programs, timeout=TIMEOUT, **options):
  """The outputs of Python programs, given by their arguments, that run at the same time and must succeed."""
  with killed_at_the_end() as started:
    for arguments in programs:
      started.append(
        subprocess.Popen(
          [sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
      )
    outputs = []
    for process in started:
      output, errors = process.communicate(timeout=timeout)
      assert process.returncode == 0, output + errors
      outputs.append(output)
  return outputs


def start_forked(function, *args):
  """Starts a function in a forked process, which need not import TensorFlow again."""
  context = multiprocessing.get_context("forkserver")
  # PyTorch may import Triton, which must precede TensorFlow: see docs/torch_jax.md.
  first = ["torch._dynamo"] if os.environ.get("KERAS_BACKEND") == "torch" else []
  context.set_forkserver_preload([*first, "refurbish_tf", "keras"])
  process = context.Process(target=function, args=args)
  process.start()
  return process


def end_of(process):
  """Waits for a forked process. Returns its exit status."""
  process.join(TIMEOUT)
  ended = not process.is_alive()
  process.kill()
  assert ended
  return process.exitcode


def run_forked(function, *args):
  return end_of(start_forked(function, *args))


def write_files(tmp_path_factory):
  """Three files of N / 3 records each."""
  paths = [str(tmp_path_factory.mktemp("files") / f"{i}.tfrecord") for i in range(3)]
  for i, path in enumerate(paths):
    with tf.io.TFRecordWriter(path) as writer:
      for index in range(i * N // 3, (i + 1) * N // 3):
        writer.write(str(index).encode())
  return paths

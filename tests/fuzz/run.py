"""Runs the fuzzers, each of which tries random cases and checks what must hold for all of them.

    python tests/fuzz/run.py hostile                     ten minutes of hostile arguments
    python tests/fuzz/run.py pipelines layers --minutes 2
    python tests/fuzz/run.py damage --block 1234         repeats the cases of a block, and the failure found there

A fuzzer is a module `fuzz_NAME` of this folder with a function `case(chance, directory)`. It draws its case from
`chance`, a random.Random that hypothesis drives, calls `tell` with a description, and raises an error if something is
wrong. Blocks of cases run in a child process, so a crash or a hang is reported as well, and the fuzzer goes on.
Hypothesis reduces a failing case to a smaller one before it is reported. The exit status is the number of blocks that
failed, at most 100.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

FOLDER = pathlib.Path(__file__).resolve().parent
# Seconds without a new case after which the child process is said to hang.
LIMIT = 300


def tell(description):
  """Says what the case in progress does. If the process dies, this is what the report has."""
  print("case", json.dumps(str(description)), flush=True)


def run_child(name, first, cases):
  """Runs block after block. The cases of a block are drawn from its number."""
  sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent.parent)]
  import hypothesis
  from hypothesis import strategies as st
  from hypothesis.internal.conjecture import engine

  engine.MAX_SHRINKING_SECONDS = 60
  case = importlib.import_module(f"fuzz_{name}").case
  settings = hypothesis.settings(
    max_examples=cases,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    report_multiple_bugs=False,
  )
  for block in itertools.count(first):
    print("block", block, flush=True)

    @hypothesis.seed(block)
    @settings
    @hypothesis.given(st.randoms(use_true_random=False))
    def run(chance):
      with tempfile.TemporaryDirectory(prefix="refurbish_tf_fuzz_") as directory:
        case(chance, pathlib.Path(directory))

    try:
      run()
    except Exception:
      print("failed", json.dumps(traceback.format_exc()), flush=True)


class Fuzzer:
  """Runs blocks of a fuzzer in child processes, from `first` on: `blocks` of them, or until the time is over."""

  def __init__(self, name, first, blocks, seconds, cases):
    self.name, self.next, self.cases, self.number, self.finds = name, first, cases, 0, []
    self._last, self._end = None if blocks is None else first + blocks, time.monotonic() + seconds
    while not self._is_over():
      self._run_child()

  def _is_over(self):
    return self.next == self._last or time.monotonic() > self._end

  def _run_child(self):
    command = [sys.executable, __file__, self.name, "--child", str(self.next), "--cases", str(self.cases)]
    case, why = None, []
    with (
      tempfile.TemporaryFile("w+", errors="replace") as errors,
      subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):

      def kill(*reason):
        why.extend(reason)
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)

      watch = threading.Timer(0, lambda: None)
      for line in itertools.chain(["begins"], process.stdout):
        watch.cancel()
        watch = threading.Timer(LIMIT, kill, [f"no new case for {LIMIT} s"])
        watch.start()
        kind, _, rest = line.partition(" ")
        if kind == "case":
          case, self.number = rest, self.number + 1
        elif kind == "failed":
          self._report(json.loads(rest), case)
        elif kind == "block":
          self.next = int(rest)
          if self._is_over():
            kill()
            watch.cancel()
            return
      watch.cancel()
      kill()
      errors.seek(0)
      self._report(f"{''.join(why) or f'exit status {process.wait()}'}\n{errors.read()[-3000:]}", case)
      if case is None:
        sys.exit(f"fuzz_{self.name} does not begin")
      self.next += 1

  def _report(self, what, case):
    repeat = f"python tests/fuzz/run.py {self.name} --block {self.next} --cases {self.cases}"
    self.finds.append(f"{what}\nThe last case: {case}\nTo repeat it: {repeat}")
    print(f"FOUND {self.finds[-1]}\n", flush=True)


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="+", help="pipelines, layers, damage or hostile")
  parser.add_argument("--minutes", type=float, default=10, help="of each fuzzer; default: 10")
  parser.add_argument("--block", type=int, help="run only the block with this number")
  parser.add_argument("--first", type=int, default=int(time.time()), help="default: the seconds since 1970")
  parser.add_argument("--cases", type=int, default=20, help="of a block; default: 20")
  parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.child is not None:
    run_child(given.names[0], given.child, given.cases)
  finds, blocks = 0, None if given.block is None else 1
  for name in given.names:
    first = given.first if given.block is None else given.block
    fuzzer = Fuzzer(name, first, blocks, 60 * given.minutes, given.cases)
    print(f"{name}: {fuzzer.number} cases, blocks {first} to {fuzzer.next - 1}, {len(fuzzer.finds)} found", flush=True)
    finds += len(fuzzer.finds)
  return min(finds, 100)


if __name__ == "__main__":
  sys.exit(main())

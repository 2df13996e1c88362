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
CASES = 20


def tell(description):
  """Says what the case in progress does. If the process dies, this is what the report has."""
  print(f"case {' '.join(str(description).split())}", flush=True)


def run_block(case, block, cases):
  """Runs in the child process: the cases of one block, drawn from its number. Returns whether they succeeded."""
  import hypothesis
  from hypothesis import strategies as st
  from hypothesis.internal.conjecture import engine

  engine.MAX_SHRINKING_SECONDS = 60
  settings = hypothesis.settings(
    max_examples=cases,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    report_multiple_bugs=False,
    print_blob=False,
    verbosity=hypothesis.Verbosity.quiet,
  )

  @hypothesis.seed(block)
  @settings
  @hypothesis.given(st.randoms(use_true_random=False))
  def run(chance):
    with tempfile.TemporaryDirectory(prefix="refurbish_tf_fuzz_") as directory:
      case(chance, pathlib.Path(directory))

  try:
    run()
  except Exception:
    print(f"failed\n{traceback.format_exc()}\nend of failure", flush=True)


def child(name, first, cases):
  sys.path[:0] = [str(FOLDER), str(FOLDER.parent), str(FOLDER.parent.parent)]
  case = importlib.import_module(f"fuzz_{name}").case
  for block in range(first, first + 10**9):
    print(f"block {block}", flush=True)
    run_block(case, block, cases)


class Fuzzer:
  """Runs blocks of a fuzzer in child processes, from `first` on: `blocks` of them, or until the time is over."""

  def __init__(self, name, first, blocks, seconds, cases):
    self.name, self.next, self.cases = name, first, cases
    self.last = None if blocks is None else first + blocks
    self.number, self.finds, self._end = 0, [], time.monotonic() + seconds
    self._failure = None
    while not self._is_over():
      self._run_child()

  def _is_over(self):
    return self.next == self.last or time.monotonic() > self._end

  def _run_child(self):
    command = [sys.executable, __file__, self.name, "--child", str(self.next), "--cases", str(self.cases)]
    with (
      tempfile.TemporaryFile("w+", errors="replace") as errors,
      subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace", start_new_session=True
      ) as process,
    ):
      self._case, self._at, self._hangs = None, time.monotonic(), False
      watch = threading.Thread(target=self._watch, args=[process], daemon=True)
      watch.start()
      is_over = self._read(process.stdout)
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      status = process.wait()
      if not is_over:
        errors.seek(0)
        why = f"no new case for {LIMIT} s" if self._hangs else f"exit status {status}"
        self._report(f"{why}\n{errors.read()[-3000:]}")
        if self._case is None:
          sys.exit(f"{self.name} does not begin")
        self.next += 1

  def _read(self, lines):
    """Follows the child. Returns whether it is to be stopped, because the time is over; otherwise it has died."""
    for line in lines:
      self._at = time.monotonic()
      kind, _, rest = line.rstrip("\n").partition(" ")
      if self._failure is not None:
        if line == "end of failure\n":
          self._report("".join(self._failure))
          self._failure = None
        else:
          self._failure.append(line)
      elif kind == "block":
        self.next = int(rest)
        if self._is_over():
          return True
      elif kind == "case":
        self._case, self.number = rest, self.number + 1
      elif line == "failed\n":
        self._failure = []
    return False

  def _watch(self, process):
    while process.poll() is None:
      if time.monotonic() - self._at > LIMIT:
        self._hangs = True
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)
      time.sleep(1)

  def _report(self, what):
    repeat = f"python tests/fuzz/run.py {self.name} --block {self.next} --cases {self.cases}"
    self.finds.append(f"{what}\nThe last case: {self._case}\nTo repeat it: {repeat}")
    print(f"FOUND {self.finds[-1]}\n", flush=True)


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="+", help="pipelines, layers, damage or hostile")
  parser.add_argument("--minutes", type=float, default=10, help="of each fuzzer; default: 10")
  parser.add_argument("--block", type=int, help="run only the block with this number")
  parser.add_argument("--first", type=int, help="begin with this block; default: the seconds since 1970")
  parser.add_argument("--cases", type=int, default=CASES, help=f"of a block; default: {CASES}")
  parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
  given = parser.parse_args(arguments)
  if given.child is not None:
    return child(given.names[0], given.child, given.cases)
  finds = 0
  for name in given.names:
    first = given.block if given.block is not None else given.first if given.first is not None else int(time.time())
    fuzzer = Fuzzer(name, first, None if given.block is None else 1, 60 * given.minutes, given.cases)
    print(f"{name}: {fuzzer.number} cases, blocks {first} to {fuzzer.next - 1}, {len(fuzzer.finds)} found", flush=True)
    finds += len(fuzzer.finds)
  return min(finds, 100)


if __name__ == "__main__":
  sys.exit(main())

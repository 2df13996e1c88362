"""Measures on a machine with a GPU what the package's tables still lack, within a few minutes.

    python3 offline/visit.py offline --minutes 9 --output results

It unpacks what `offline.py pack` wrote, then runs these parts, in the order of their value per minute:

    speed      4 1/2 minutes: benchmarks/run.py gpu, unless benchmarks/results/gpu.json is there
    accuracy   the rest, three visits of 8 minutes in all: experiments.full_length cifar10, which goes on where it stopped
    scaling    1 1/2 minutes: benchmarks/run.py scaling, unless benchmarks/results/scaling.json is there

Rows, JSON and a log of each part are in the output folder. It ends within its minutes: a part that would take longer is stopped.
A part that fails does not keep the next one from running; the exit status is then 1.
"""
import argparse
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import offline

# Seconds that a part has beyond its minutes, until it is stopped.
GRACE = 30


@dataclasses.dataclass(frozen=True)
class Part:
  """A program that a visit runs.

  Attributes:
    name: of its log.
    minutes: that it takes; None: all that the others leave.
    table: the file that it writes.
    command: a function from its minutes, the unpacked folder, its table and whether it is quick to arguments of Python.
  """
  name: str
  minutes: float | None
  table: str
  command: object

  def is_missing(self, unpacked):
    """Whether there is something to measure. `accuracy` finds out by itself."""
    if self.minutes is None:
      return True
    benchmarks = unpacked / "benchmarks"
    return (benchmarks / f"{pathlib.Path(self.table).stem}.py").exists() and not (benchmarks / "results" / self.table).exists()


def _benchmark(name, *options):
  return lambda minutes, unpacked, table, quick: [
      unpacked / "benchmarks" / "run.py", name, "--json", table, *(option(minutes, unpacked) for option in options),
      *["--quick"] * quick]


def _accuracy(minutes, unpacked, table, quick):
  data = [] if quick else ["--data", unpacked / "data" / "cifar10.npz"]
  return ["-m", "refurbish_tf.experiments.full_length", "cifar10", "--minutes", f"{minutes:.2f}", "--output", table, *data,
          *["--quick"] * quick]


PARTS = (
    Part("speed", 4.5, "gpu.json", _benchmark(
        "gpu", lambda minutes, _: f"--minutes={minutes:.2f}", lambda _, unpacked: f"--photographs={unpacked / 'data' / 'photographs'}")),
    Part("accuracy", None, "cifar10.csv", _accuracy),
    Part("scaling", 1.5, "scaling.json", _benchmark("scaling")))


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("parts", type=pathlib.Path, help="the folder that `offline.py pack` wrote")
  parser.add_argument("--minutes", type=float, default=9.0, help="for all of it (default: 9)")
  parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results"), help="a new folder (default: results)")
  parser.add_argument("--quick", action="store_true", help="run everything on little data, also without a GPU, as a test")
  arguments = parser.parse_args(argv)
  end = time.monotonic() + 60 * arguments.minutes
  arguments.output.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as scratch:
    unpacked = pathlib.Path(scratch, "unpacked")
    try:
      offline.unpack(arguments.parts, unpacked)
    except offline.Refused as error:
      parser.error(str(error))
    say(f"unpacked, {end - time.monotonic():.0f} s are left")
    environment = {"KERAS_BACKEND": "jax", "JAX_COMPILATION_CACHE_DIR": str(unpacked / "compiled"), "TF_CPP_MIN_LOG_LEVEL": "2",
                   **os.environ, **offline.environment(arguments.parts, unpacked)}
    missing = [part for part in PARTS if part.is_missing(unpacked)]
    succeeded = [_run(part, share(missing[number:], (end - time.monotonic()) / 60), unpacked, arguments, environment)
                 for number, part in enumerate(missing)]
  return 0 if all(succeeded) else 1


def share(parts, left):
  """The minutes of the first of `parts`, which are all that are still to come, of those that are `left`."""
  first, *others = parts
  rest = left - GRACE / 60 * len(parts)
  return max(0.0, rest - sum(part.minutes or 0 for part in others) if first.minutes is None else min(first.minutes, rest))


def _run(part, minutes, unpacked, arguments, environment):
  """Runs a part. Returns whether it succeeded."""
  table = arguments.output.resolve() / part.table
  landed = next((unpacked / "site").glob(f"refurbish_tf/experiments/results/{part.table}"), None)
  if landed:
    # What another visit has made, under the name of another process's rows.
    shutil.copy(landed, table.with_name(f"{table.stem}.0-0{table.suffix}"))
  say(f"{part.name}: {minutes:.1f} minutes")
  began = time.monotonic()
  with (arguments.output / f"{part.name}.log").open("wb") as log:
    command = [str(each) for each in part.command(minutes, unpacked, table, arguments.quick)]
    try:
      status = subprocess.run([sys.executable, *command], cwd=arguments.output, env=environment, stdout=log, stderr=subprocess.STDOUT,
                              timeout=60 * minutes + GRACE, check=False).returncode
    except subprocess.TimeoutExpired:
      status = "stopped"
  lines = (arguments.output / f"{part.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
  say("\n".join([f"{part.name}: exit status {status} after {time.monotonic() - began:.0f} s, {part.name}.log ends with:", *lines[-12:]]))
  return status == 0


def say(text):
  print(f"visit: {text}", flush=True)


if __name__ == "__main__":
  sys.exit(main())

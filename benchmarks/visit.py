"""Measures on a machine with a GPU what the package's tables still lack, within a few minutes.

    python3 offline/visit.py offline --minutes 9 --output results

It unpacks the parts that `offline.py pack` wrote, then runs these programs, in the order of their value per minute:

    check      imports everything, computes one step on the GPU, and prints the versions
    speed      4 1/2 minutes: benchmarks/run.py gpu, unless offline/landed/gpu.json has all of it
    accuracy   the other minutes of about four visits: trainings/cifar10.py, which continues offline/landed/cifar10.csv
    scaling    4 minutes: benchmarks/run.py scaling, unless offline/landed/scaling.json has all of it

Rows, JSON and a log of each part are in the output folder. The program ends within its minutes: a part that would take
longer is stopped. If a part fails, the next one still runs, and the exit status is 1. Back here, with results/ copied:

    tail -n +2 results/cifar10.csv >> refurbish_tf/experiments/results/cifar10.csv    # the first time, copy it whole
    mkdir -p benchmarks/results && cp results/*.json benchmarks/results/
    cp refurbish_tf/experiments/results/cifar10.csv benchmarks/results/*.json offline/landed/    # for the next visit
    python -m refurbish_tf.experiments.plots    # the tables of accuracy
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import offline

# How many seconds beyond its minutes a part may run before it is stopped.
GRACE = 30
# A part that would have fewer minutes is not started.
LEAST_MINUTES = 1.0
# A program needs this time to import everything and read its data before it begins to count its minutes.
START_MINUTES = 0.5
CHECK = """
import importlib.metadata, keras, tensorflow, refurbish_tf
names = ("numpy", keras.backend.backend(), "keras", "protobuf")
print(*(f"{name} {importlib.metadata.version(name)}" for name in names), f"tensorflow {tensorflow.__version__}")
dataset = tensorflow.data.Dataset.from_tensor_slices(([[1.0]] * 8, [0.0] * 8))
dataset = dataset.refurbish(lambda *sample: sample, None, 2).batch(4)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(dataset, shuffle=False, verbose=2)
"""


@dataclasses.dataclass(frozen=True)
class Part:
  """A program that a visit runs.

  Attributes:
    name: the name of its log.
    minutes: how many it takes; None for all that the others leave.
    table: the file that it writes; "" for none.
    command: a function of its minutes, the unpacked folder, its table and "quick" that returns arguments of Python.
  """

  name: str
  minutes: float | None
  table: str
  command: object

  def is_missing(self, unpacked, landed):
    """Whether there is anything left to measure. `accuracy` checks this itself."""
    table = pathlib.Path(self.table)
    if table.suffix != ".json":
      return True
    if not (unpacked / "benchmarks" / f"{table.stem}.py").exists():
      return False
    if not (landed / table).exists():
      return True
    sections = json.loads((landed / table).read_text(encoding="utf-8"))["sections"]
    # Rows that failed would fail again. The other empty rows ran out of time, so another run may fill them.
    return any(not row["values"] and "failed: " not in row["name"] for section in sections for row in section["rows"])


def _benchmark(name, *options):
  return lambda minutes, unpacked, table, quick: [
    unpacked / "benchmarks" / "run.py",
    name,
    "--json",
    table,
    *(text for option in options for text in option(minutes, unpacked)),
    *["--quick"] * quick,
  ]


def _accuracy(minutes, unpacked, table, quick):
  data = [] if quick else ["--data", unpacked / "data" / "cifar10.npz"]
  return [
    unpacked / "trainings" / "cifar10.py",
    "--minutes",
    f"{minutes - START_MINUTES:.2f}",
    "--output",
    table,
    *data,
    *["--quick"] * quick,
  ]


def _photographs(_, unpacked):
  # With `pack --without-data` there are no photographs, and `gpu` generates pictures.
  folder = unpacked / "data" / "photographs"
  return [f"--photographs={folder}"] if folder.exists() else []


PARTS = (
  Part("check", 1.0, "", lambda *_: ["-c", CHECK]),
  Part(
    "speed",
    4.5,
    "gpu.json",
    _benchmark("gpu", lambda minutes, _: [f"--minutes={minutes - START_MINUTES:.2f}"], _photographs),
  ),
  Part("accuracy", None, "cifar10.csv", _accuracy),
  Part("scaling", 4.0, "scaling.json", _benchmark("scaling")),
)


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("parts", type=pathlib.Path, help="the folder that `offline.py pack` wrote")
  parser.add_argument("--minutes", type=float, default=9.0, help="for all of it (default: 9)")
  parser.add_argument(
    "--output", type=pathlib.Path, default=pathlib.Path("results"), help="a new folder (default: results)"
  )
  parser.add_argument(
    "--quick", action="store_true", help="run everything on little data, even without a GPU, as a test"
  )
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
    environment = {
      "KERAS_BACKEND": "jax",
      "JAX_COMPILATION_CACHE_DIR": str(unpacked / "compiled"),
      "TF_CPP_MIN_LOG_LEVEL": "2",
      **os.environ,
      **offline.environment(arguments.parts, unpacked),
    }
    landed = arguments.parts / "landed"
    missing = [part for part in PARTS if part.is_missing(unpacked, landed)]
    succeeded = [
      _run(part, share(missing[number:], (end - time.monotonic()) / 60), unpacked, landed, arguments, environment)
      for number, part in enumerate(missing)
    ]
  return 0 if all(succeeded) else 1


def share(parts, left):
  """How many of the `left` minutes the first of `parts` gets. All of `parts` are still to run."""
  first, *others = parts
  rest = left - GRACE / 60 * len(parts)
  return max(
    0.0, rest - sum(part.minutes or 0 for part in others) if first.minutes is None else min(first.minutes, rest)
  )


def _run(part, minutes, unpacked, landed, arguments, environment):
  """Runs a part. Returns whether it succeeded."""
  if minutes < LEAST_MINUTES:
    say(f"{part.name}: not started, because too little time is left")
    return False
  table = arguments.output.resolve() / part.table
  if table.suffix == ".csv" and (landed / part.table).exists():
    # Gives the rows of earlier visits a name that `results.Table` also reads, so that `table` has only the new rows.
    shutil.copy(landed / part.table, table.with_name(f"{table.stem}.0-0{table.suffix}"))
  say(f"{part.name}: {minutes:.1f} minutes")
  began = time.monotonic()
  with (arguments.output / f"{part.name}.log").open("wb") as log:
    command = [str(each) for each in part.command(minutes, unpacked, table, arguments.quick)]
    process = subprocess.Popen(
      [sys.executable, *command],
      cwd=arguments.output,
      env=environment,
      stdout=log,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    try:
      status = process.wait(60 * minutes + GRACE)
    except subprocess.TimeoutExpired:
      # Kills the whole process group, because child processes would otherwise keep the GPU's memory.
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()
      status = "stopped"
  lines = (arguments.output / f"{part.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
  say(
    "\n".join(
      [
        f"{part.name}: exit status {status} after {time.monotonic() - began:.0f} s, {part.name}.log ends with:",
        *lines[-12:],
      ]
    )
  )
  return status == 0


def say(text):
  print(f"visit: {text}", flush=True)


if __name__ == "__main__":
  sys.exit(main())

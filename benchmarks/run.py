"""Runs a benchmark: `python benchmarks/run.py NAME`, or all of them, `python benchmarks/run.py all`.

Prints tables and writes them as JSON, with every single measurement. Every module in this folder is a benchmark, except
for modules that several benchmarks share.
"""

import argparse
import ast
import importlib
import os
import pathlib
import subprocess
import sys

DIRECTORY = pathlib.Path(__file__).resolve().parent
SHARED = ("run", "common", "samples", "augment_peers", "gpu_training", "offline", "sharing_jobs", "visit")


def main():
  names = sorted(path.stem for path in DIRECTORY.glob("*.py") if path.stem not in SHARED)
  parser = argparse.ArgumentParser(
    description="Measures side by side with a baseline and compares the quotient with its bar.",
    epilog="benchmarks:\n"
    + "\n".join(f"  {name:<12} {_summary(name)}" for name in names)
    + f"\n  {'all':<12} All of them, one after the other, each in its own process: an hour and a half."
    "\n\nThe exit status is 0 if everything ran, even if a bar was missed; the last lines of the output say which.",
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("name", choices=[*names, "all"], metavar="NAME", help="one of: " + ", ".join([*names, "all"]))
  parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="default: NAME.json in the current directory")
  parser.add_argument(
    "--quick", action="store_true", help="run everything once on little data, as a test; the figures are meaningless"
  )
  parser.add_argument(
    "--only",
    default="",
    metavar="WORDS",
    help="with gpu and sharing, which take long: only the sections whose titles contain these words",
  )
  parser.add_argument(
    "--minutes", type=float, metavar="NUMBER", help="with gpu: run only the most important sections that end in time"
  )
  parser.add_argument(
    "--photographs",
    type=pathlib.Path,
    metavar="FOLDER",
    help="with gpu: JPEG files to train on, instead of photographs from TFDS",
  )
  parser.add_argument("--readme", action="store_true", help="replace this benchmark's tables in README.md")
  arguments = parser.parse_args()
  for option, names_with_it in {"photographs": ["gpu"], "minutes": ["gpu"], "only": ["gpu", "sharing"]}.items():
    if getattr(arguments, option) and arguments.name not in names_with_it:
      parser.error(f"--{option} is for {' and '.join(names_with_it)}; the others do not have it")
  if arguments.readme and (arguments.only or arguments.quick or arguments.name not in [*_in_readme(names), "all"]):
    parser.error(
      "--readme is only for complete runs of benchmarks with tables in README.md, which are "
      + ", ".join(_in_readme(names))
      + ". Choose one of them, and leave out --only and --quick"
    )
  if arguments.name == "all":
    if arguments.json:
      parser.error("--json names the file of one benchmark; with all, the files are NAME.json in this directory")
    return _run_all(names, ["--quick"] * arguments.quick, _in_readme(names) if arguments.readme else ())
  # A wrong path must fail before minutes of measuring, not after.
  path = arguments.json or pathlib.Path(f"{arguments.name}.json")
  if not path.absolute().parent.is_dir():
    parser.error(f"--json: there is no directory {path.absolute().parent}")

  # Imported before the table is printed, because TensorFlow's messages would interrupt it.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  common = importlib.import_module("common")
  benchmark = importlib.import_module(arguments.name)
  report = common.Report(arguments.name, arguments.quick)
  print(report.heading())
  own = {
    "sharing": {"only": arguments.only},
    "gpu": {"only": arguments.only, "photographs": arguments.photographs, "minutes": arguments.minutes},
  }
  for section in benchmark.measure(arguments.quick, **own.get(arguments.name, {})):
    report.add(section)
    print(f"\n{section}", flush=True)
    # Written after each section, so that measured sections are kept if a later one is stopped.
    report.write_json(path)
  print(f"\n{report.verdict()}")
  if arguments.readme:
    report.write_readme()
  print(f"\nWritten: {path}. The exit status is 0, because everything ran.")
  return 0


def _in_readme(names):
  page = (DIRECTORY / "README.md").read_text()
  return [name for name in names if f"<!-- {name} -->" in page]


def _run_all(names, options, in_readme):
  failed = [
    name
    for name in names
    if subprocess.run(
      [sys.executable, __file__, name, *options, *["--readme"] * (name in in_readme)], check=False
    ).returncode
  ]
  print(
    f"\n{len(names) - len(failed)} of {len(names)} benchmarks ran."
    + (f" Failed: {', '.join(failed)}." if failed else "")
  )
  return 1 if failed else 0


def _summary(name):
  # The module is not imported, because that would import TensorFlow.
  return ast.get_docstring(ast.parse((DIRECTORY / f"{name}.py").read_text())).splitlines()[0]


if __name__ == "__main__":
  sys.exit(main())

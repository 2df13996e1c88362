"""Runs a benchmark: `python benchmarks/run.py NAME [--quick] [--json PATH] [--png PATH]`.

Every module beside this one that has a function `run(quick)` is a benchmark. It measures side by side in one run and
returns a `common.Report`; this prints it as a table and writes it as JSON and as a figure. The exit status is 0 when
everything ran, also where a bar is missed: that is what the table is for.
"""
import argparse
import importlib
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

HERE = pathlib.Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if "def run(quick)" in path.read_text() and path.stem != "run")


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("name", choices=NAMES, help="what to measure")
  parser.add_argument("--quick", action="store_true", help="little data: shows that it runs, not what it costs")
  parser.add_argument("--json", type=pathlib.Path, metavar="PATH", help="write the figures there")
  parser.add_argument("--png", type=pathlib.Path, metavar="PATH", help="draw them there (default: NAME.png)")
  args = parser.parse_args(argv)
  report = importlib.import_module(args.name).run(args.quick)
  print(report.table())
  png = args.png or pathlib.Path(f"{args.name}.png")
  report.draw(png)
  print(f"\nFigure: {png}")
  if args.json:
    report.write_json(args.json)
    print(f"JSON: {args.json}")
  return 0


if __name__ == "__main__":
  sys.path.insert(0, str(HERE))
  sys.exit(main())

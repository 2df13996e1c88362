"""Compares the files that git tracks with .ci/budgets. Prints what exceeds its budget, and fails if anything does."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Patterns for `git ls-files`. The scripts are only those directly in these folders.
FILES = {
  "C++ of the package": ("refurbish_tf/*.cc", "refurbish_tf/*.h"),
  "Python of the package": ("refurbish_tf/*.py",),
  "tests": ("tests/*.cc", "tests/*.h", "tests/*.py"),
  "benchmarks": ("benchmarks/*.py", "trainings/*.py"),
  "scripts at the root and in docs/": (":(glob)*.py", ":(glob)docs/*.py", ":(glob).ci/*.py"),
}
WORDS = {
  "words of ARCHITECTURE.md": ("ARCHITECTURE.md",),
  "words of README.md, CONTRIBUTING.md and docs/*.md": ("README.md", "CONTRIBUTING.md", ":(glob)docs/*.md"),
}


def main():
  budgets = {}
  for line in (ROOT / ".ci" / "budgets").read_text(encoding="utf-8").splitlines():
    if line and not line.startswith("#"):
      name, _, number = line.rpartition(": ")
      budgets[name] = int(number)
  if set(budgets) != {*FILES, *WORDS}:
    sys.exit(f".ci/budgets must have {', '.join([*FILES, *WORDS])}; it has {', '.join(budgets)}")
  now = {name: sum(text.count(b"\n") for text in texts(patterns)) for name, patterns in FILES.items()}
  now |= {name: sum(len(text.split()) for text in texts(patterns)) for name, patterns in WORDS.items()}
  above = [name for name, budget in budgets.items() if now[name] > budget]
  if above:
    print(f"{'above its budget (CONTRIBUTING.md)':50}{'now':>8}{'budget':>8}")
    for name in above:
      print(f"{name:50}{now[name]:8,}{budgets[name]:8,}")
  return bool(above)


def texts(patterns):
  """The files that git tracks, as they are in the working tree."""
  names = subprocess.run(
    ["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
  ).stdout.split("\0")
  return [(ROOT / name).read_bytes() for name in names if name and (ROOT / name).exists()]


if __name__ == "__main__":
  sys.exit(main())

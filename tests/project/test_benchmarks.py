import json
import subprocess
import sys

import pytest

from refurbish_tf.experiments import results
from support import ROOT, cases

RUN = ROOT / "benchmarks" / "run.py"


# For each benchmark: the number of rows with a limit.
BENCHMARKS = {
  "augment": 18,
  "cluster": 1,
  "offload": 4,
  "gpu": 0,
  "loaders": 8,
  "overhead": 10,
  "scaling": 15,
  "sharing": 3,
  "sounds": 2,
  "sources": 8,
  "throughput": 17,
  "uneven": 2,
  "volumes": 1,
}


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=() if name == "loaders" else cases.only_exhaustive) for name in BENCHMARKS]
)
def test_runs_and_reports_every_bar(name, tmp_path):
  figures = tmp_path / f"{name}.json"
  done = subprocess.run(
    [sys.executable, str(RUN), name, "--quick", "--json", str(figures)], capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(figures.read_text())
  rows = [row for section in found["sections"] for row in section["rows"]]
  assert sum(row["limit"] is not None for row in rows) == BENCHMARKS[name]
  # Each table names its commit.
  commit = f"commit {results.commit(RUN.parent.parent) or 'unknown'}"
  assert found["machine"]["commit"] == commit and f"{name}, {commit}: TensorFlow " in done.stdout
  for section in found["sections"]:
    assert section["commit"] == commit and f"\n| {section['title']} |" in done.stdout
  assert " ".join(done.stdout.split()).count(f"({commit}.)") == len(found["sections"])
  if name == "gpu":  # With little data everything runs on the CPU, except for a framework that is not installed.
    assert all(
      row["values"] or row["name"].endswith("No module named 'torch'")
      for section in found["sections"]
      for row in section["rows"]
    )
    same = [row["values"] for section in found["sections"] for row in section["rows"] if row["key"].endswith(", same")]
    assert same and all(values == [2] for values in same)
  for row in rows:
    assert row["name"] in done.stdout
    if not row["values"]:  # The benchmark cannot run here; the name says why.
      assert row["met"] is None and any(why in row["name"] for why in ("not installed", "failed"))
      continue
    assert row["min"] <= row["median"] <= row["max"]
    assert row["met"] == (None if row["limit"] is None else row["median"] <= row["limit"])


def test_all_benchmarks_are_tested():
  shared = {"run", "common", "samples", "augment_peers", "gpu_training", "offline", "sharing_jobs", "visit"}
  assert {path.stem for path in RUN.parent.glob("*.py")} - shared - {"peers"} == set(BENCHMARKS)


def test_the_tables_go_into_the_page(tmp_path, monkeypatch):
  """The tables name the commit and the machine, and replace the earlier ones of this benchmark. This test's tables have
  few rows, ranges of quotients and missed limits."""
  monkeypatch.syspath_prepend(str(RUN.parent))
  import common

  page = (RUN.parent / "README.md").read_text(encoding="utf-8")
  (tmp_path / "benchmarks").mkdir()
  (tmp_path / "benchmarks" / "README.md").write_text(page, encoding="utf-8")
  report = common.Report("peers", quick=False)
  report.add(
    common.Section(
      "Some",
      "How.",
      [
        common.Row("one", "a", "µs", [1, 3, 2]),
        common.Row("two", "a", "of b", [0.5], 0.75),
        common.Row("three", "b", "µs", [2000]),
        common.Row("four", "b", "of b", [0.8, 0.7, 1.0], 0.75),
        common.Row("five", "c", "µs", [5]),
      ],
      lambda row: row.name != "c",
    )
  )
  report.add(common.Section("More", "How.", [common.Row("six", "d", "µs", [6])]))
  monkeypatch.setattr(common, "ROOT", tmp_path)
  report.write_readme()
  written = (tmp_path / "benchmarks" / "README.md").read_text(encoding="utf-8")
  before, after = page.split("<!-- peers -->")[0], page.split("<!-- peers -->")[1].partition("<!-- end -->")[2]
  assert written.startswith(before) and written.endswith(after)
  told = written[len(before) : len(written) - len(after)]
  assert common.commit() in told and told.endswith(
    "\n| Some | µs | of b |\n| --- | ---: | ---: |\n| a | 2 | 0.5 |\n| b | 2,000 | 0.8 (0.7 to 1); bar 0.75: missed "
    "|\n\n<!-- end -->"
  )

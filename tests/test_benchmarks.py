import json
import pathlib
import subprocess
import sys

RUN = pathlib.Path(__file__).parent.parent / "benchmarks" / "run.py"


def test_overhead_runs_and_reports_every_bar(tmp_path):
  figures, figure = tmp_path / "overhead.json", tmp_path / "overhead.png"
  done = subprocess.run(
      [sys.executable, str(RUN), "overhead", "--quick", "--json", str(figures), "--png", str(figure)],
      capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  report = json.loads(figures.read_text())
  limits = {bar["name"].split(",")[0]: bar["limit"] for bar in report["bars"] if bar["limit"] is not None}
  assert set(limits.values()) == {0.7, 1.05, 150, 1.1}
  assert len([bar for bar in report["bars"] if bar["name"].startswith("CPU time / (t_p / r + t_f)")]) == 3
  for bar in report["bars"]:
    assert min(bar["values"]) <= bar["median"] <= max(bar["values"])
    assert bar["met"] == (None if bar["limit"] is None else bar["median"] <= bar["limit"])
    assert bar["name"] in done.stdout
  assert figure.read_bytes().startswith(b"\x89PNG")


def test_unknown_benchmarks_are_refused():
  done = subprocess.run([sys.executable, str(RUN), "nothing"], capture_output=True, text=True, timeout=300)
  assert done.returncode == 2
  assert "overhead" in done.stderr

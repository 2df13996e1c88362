import json
import os
import pathlib
import subprocess
import sys

import pytest

from support import cases

RUN = pathlib.Path(__file__).parent.parent / "benchmarks" / "run.py"


# By name: the number of bars, and the plots besides the bar chart.
BENCHMARKS = {
    "augment": (24, []),
    "balance": (3, ["batches", "rates"]),
    "restart": (4, []),
    "cpus": (0, ["processors"] if len(os.sched_getaffinity(0)) > 1 else []),
    "disk": (25, []),
    "echo": (5, ["time"]),
    "fuse": (19, ["reuse"]),
    "loaders": (18, []),
    "memory": (9, ["shares"]),
    "overhead": (12, []),
    "sharing": (58, []),
    "sources": (12, []),
    "split": (1, []),
    "throughput": (22, ["224", "32"]),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "restart" else cases.only_exhaustive) for name in BENCHMARKS])
def test_runs_and_reports_every_bar(name, tmp_path):
  bars, pictures = BENCHMARKS[name]
  figures = tmp_path / f"{name}.json"
  done = subprocess.run(
      [sys.executable, str(RUN), name, "--quick", "--json", str(figures), "--png", str(tmp_path / f"{name}.png")],
      capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  drawn = sorted(tmp_path.glob(f"{name}*.png"))
  assert [path.name for path in drawn] == [
      *([f"{name}.png"] if bars else []), *(f"{name}_{picture}.png" for picture in pictures)]
  for path in drawn:
    assert path.read_bytes().startswith(b"\x89PNG")
  rows = [row for section in json.loads(figures.read_text())["sections"] for row in section["rows"]]
  assert sum(row["limit"] is not None for row in rows) == bars
  for row in rows:
    assert row["name"] in done.stdout
    if not row["values"]:  # Benchmarks that cannot run here; the name says why.
      assert row["met"] is None and any(why in row["name"] for why in ("not installed", "failed", " ("))
      continue
    assert row["min"] <= row["median"] <= row["max"]
    assert row["met"] == (None if row["limit"] is None else row["median"] <= row["limit"])


def test_all_are_known_here():
  shared = {"run", "common", "samples", "augment_peers", *(f"sharing_{part}" for part in (
      "frameworks", "jobs", "photographs", "simulation", "alone")), "fuse_accelerator", "fuse_device"}
  assert {path.stem for path in RUN.parent.glob("*.py")} - shared - {"peers"} == set(BENCHMARKS)


@cases.only_exhaustive
def test_peers_that_do_not_run_are_marked(tmp_path):
  for module in ("torch", "torchvision"):
    package = tmp_path / "broken" / module
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('built for another machine')")
  figures = tmp_path / "peers.json"
  path = os.pathsep.join([str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")])
  done = subprocess.run(
      [sys.executable, str(RUN), "peers", "--quick", "--json", str(figures), "--png", str(tmp_path / "figure.png")],
      capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
  assert done.returncode == 0, done.stderr
  rows = {row["key"]: row for section in json.loads(figures.read_text())["sections"] for row in section["rows"]}
  for kind in ("small", "large"):
    assert rows[f"{kind}_refurbish_wall"]["median"] > 0
    assert rows[f"{kind}_tf_data"]["limit"] == 1
    for name in ("torch", "torch_loader"):
      broken = rows[f"{kind}_{name}_wall"]
      assert broken["median"] is None and broken["values"] == []
      assert "failed: ImportError: built for another machine" in broken["name"]
    for name in ("dali", "grain", "jax_loader"):
      row = rows[f"{kind}_{name}_wall"]
      assert row["values"] or "not installed" in row["name"]


def test_all_run_one_after_the_other_and_unknown_ones_are_refused(tmp_path, monkeypatch, capsys):
  monkeypatch.syspath_prepend(str(RUN.parent))
  import run  # pylint: disable=import-outside-toplevel
  ran = []
  monkeypatch.setattr(run.subprocess, "run", lambda command, check: ran.append(command[2:]) or subprocess.CompletedProcess(
      command, returncode=int("disk" in command)))
  monkeypatch.setattr(sys, "argv", ["run.py", "all", "--quick"])
  assert run.main() == 1
  assert "Failed: disk." in capsys.readouterr().out
  assert ["throughput", "--quick"] in ran and ["cpus", "--quick"] in ran and not any("all" in command for command in ran)
  monkeypatch.setattr(sys, "argv", ["run.py", "all", "--json", str(tmp_path / "all.json")])
  with pytest.raises(SystemExit):
    run.main()
  assert "of one benchmark" in capsys.readouterr().err
  monkeypatch.setattr(sys, "argv", ["run.py", "nothing"])
  with pytest.raises(SystemExit, match="2"):
    run.main()
  assert "overhead" in capsys.readouterr().err

"""Packages for a machine without a network are whole, checked and complete. A visit to that machine ends within its
minutes."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
import zipfile

import pytest

from refurbish_tf.experiments import results
from support import ROOT

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
NOISE = os.urandom(25_000)


@pytest.fixture
def offline(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
  import offline as module

  return module


@pytest.fixture
def visit(offline):
  import visit as module

  return module


def wheel(directory, name, files):
  directory.mkdir(exist_ok=True)
  path = directory / f"{name}-1.5-py3-none-any.whl"
  with zipfile.ZipFile(path, "w") as archive:
    for file, content in files.items():
      archive.writestr(file, content)
  return path


@pytest.fixture
def packed(offline, monkeypatch, tmp_path):
  """Makes the parts of two small wheels and of data."""
  monkeypatch.setattr(offline, "PART_BYTES", 10_000)
  monkeypatch.setattr(
    offline,
    "_package",
    lambda directory: wheel(
      directory,
      "refurbish_tf",
      {"refurbish_tf/__init__.py": "import large_one", "refurbish_tf-1.5.dist-info/METADATA": "Name: refurbish-tf"},
    ),
  )
  monkeypatch.setattr(
    offline,
    "_download",
    lambda directory, python: [
      wheel(
        directory,
        "large_one",
        {"large_one/__init__.py": "", "large_one/noise": NOISE, "large_one-1.5.data/scripts/run": ""},
      ),
      wheel(directory, "tensorflow_cpu", {"tensorflow/include/some.h": "", "tensorflow/some.py": ""}),
      wheel(directory, "PyTest", {"pytest.py": ""}),
    ],
  )

  def data(directory):
    directory.mkdir()
    (directory / "cifar10.npz").write_bytes(b"images")
    return [directory / "cifar10.npz"]

  monkeypatch.setattr(offline, "_write_data", data)
  monkeypatch.setattr(results, "commit", lambda root=None: "abc1234")
  offline.main(["pack", "--python", HERE, "--output", str(tmp_path / "offline"), "--there", "pytest"])
  return tmp_path / "offline"


def read_manifest(packed):
  return json.loads((packed / "manifest.json").read_text(encoding="utf-8"))


def refusal(offline, capsys, *arguments):
  with pytest.raises(SystemExit, match="2"):
    offline.main([*map(str, arguments)])
  return capsys.readouterr().err


def test_an_unpacked_package_can_be_imported(offline, packed, tmp_path):
  """A Python that finds nothing else imports it. `pack` also copies the program that unpacks the parts."""
  manifest = read_manifest(packed)
  assert len(manifest["parts"]) > 2 and {part["bytes"] for part in manifest["parts"][:-1]} == {10_000}
  assert manifest["wheels"] == [
    f"{name}-1.5-py3-none-any.whl" for name in ("refurbish_tf", "large_one", "tensorflow_cpu")
  ]
  assert (manifest["python"], manifest["commit"]) == (HERE, "abc1234")
  there = tmp_path / "there"
  done = subprocess.run(
    [sys.executable, str(packed / "offline.py"), "unpack", str(packed), str(there)],
    text=True,
    check=True,
    capture_output=True,
  )
  assert str(there / "env.sh") in done.stdout
  files = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
  # Headers and scripts are left out, and so are packages that the machine already has.
  assert {name for name in files if name.startswith("site/")} == {
    "site/refurbish_tf/__init__.py",
    "site/refurbish_tf-1.5.dist-info/METADATA",
    "site/large_one/__init__.py",
    "site/large_one/noise",
    "site/tensorflow/some.py",
  }
  assert {
    "data/cifar10.npz",
    "benchmarks/run.py",
    "benchmarks/visit.py",
    "benchmarks/gpu_training.py",
    "trainings/cifar10.py",
  } <= files
  assert (there / "site" / "large_one" / "noise").read_bytes() == NOISE
  program = "import os, refurbish_tf, large_one; print(refurbish_tf.__file__, os.environ['REFURBISH_TF_COMMIT'])"
  told = subprocess.run(
    ["bash", "-c", f". {shlex.quote(str(there / 'env.sh'))} && {sys.executable} -c {shlex.quote(program)}"],
    text=True,
    check=True,
    capture_output=True,
    cwd=tmp_path,
  ).stdout
  assert told.split() == [str(there / "site" / "refurbish_tf" / "__init__.py"), manifest["commit"]]


def test_parts_that_do_not_fit_are_refused(offline, packed, tmp_path, capsys):
  """After the error, nothing is written."""
  there = tmp_path / "there"
  part = packed / "part-01"
  content = part.read_bytes()
  for damaged, why in (
    (content[:-1], "it has 9,999 of 10,000 bytes"),
    (content[:-1] + bytes([content[-1] ^ 1]), "is damaged or cut off"),
  ):
    part.write_bytes(damaged)
    assert why in refusal(offline, capsys, "unpack", packed, there)
  part.unlink()
  assert "part-01 cannot be read" in refusal(offline, capsys, "unpack", packed, there)
  part.write_bytes(content)
  manifest = read_manifest(packed)
  for changed, why in (
    ({"python": "3.9"}, f"for Python 3.9, and this is {HERE}. Use `pack --python {HERE}`"),
    ({"there": ["pytest", "no-such-package"]}, "must have no-such-package, which"),
  ):
    (packed / "manifest.json").write_text(json.dumps({**manifest, **changed}), encoding="utf-8")
    assert why in refusal(offline, capsys, "unpack", packed, there)
  assert not there.exists()
  assert "manifest.json cannot be read" in refusal(offline, capsys, "unpack", tmp_path, there)
  assert "must be an empty or new folder" in refusal(offline, capsys, "unpack", packed, packed)
  assert "must be an empty or new folder" in refusal(offline, capsys, "pack", "--output", packed)


def is_running(pid):
  try:
    return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
  except FileNotFoundError:
    return False


def script(text):
  """Returns a program for `Part.command`."""
  return lambda minutes, unpacked, table, quick: ["-c", text, str(table), f"{minutes:.2f}", str(unpacked), str(quick)]


def test_a_visit_runs_each_part_and_keeps_its_output(visit, packed, monkeypatch, tmp_path, capsys):
  """A part that fails, or that does not end, does not keep the next one from running."""
  monkeypatch.setattr(visit, "GRACE", 1)
  monkeypatch.setattr(visit, "LEAST_MINUTES", 0)
  monkeypatch.setattr(visit.Part, "is_missing", lambda part, unpacked, landed: True)
  write = (
    "import os, sys; open(sys.argv[1], 'w').write('|'.join([*sys.argv[2:], os.environ['REFURBISH_TF_COMMIT'], "
    "os.getcwd()]))"
  )
  monkeypatch.setattr(
    visit,
    "PARTS",
    (
      visit.Part("broken", None, "a.csv", script("print('as far as here', flush=True); 1 / 0")),
      visit.Part(
        "endless",
        0.01,
        "b.csv",
        script(
          "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, "
          "flush=True); sys.stdin.read(); import time; time.sleep(60)"
        ),
      ),
      visit.Part("fine", None, "c.csv", script(write)),
    ),
  )
  output = tmp_path / "results"
  assert visit.main([str(packed), "--minutes", "2", "--output", str(output), "--quick"]) == 1
  told = capsys.readouterr().out
  assert "broken: exit status 1" in told and "ZeroDivisionError" in told and "endless: exit status stopped" in told
  assert told.index("broken:") < told.index("endless:") < told.index("fine: exit status 0")
  # The processes that a stopped part has started do not stay on the GPU.
  pid = int((output / "endless.log").read_text(encoding="utf-8"))
  for _ in range(500):
    if not is_running(pid):
      break
    time.sleep(0.01)
  assert not is_running(pid)
  minutes, unpacked, quick, commit, directory = (output / "c.csv").read_text(encoding="utf-8").split("|")
  assert (
    float(minutes) < 2 and quick == "True" and commit == read_manifest(packed)["commit"] and directory == str(output)
  )
  # The unpacked files are deleted.
  assert not pathlib.Path(unpacked).exists()


def test_a_visit_runs_the_missing_parts(visit, tmp_path):
  """Speed runs once, scaling once if there is such a benchmark, and accuracy at each visit."""
  benchmarks, landed = tmp_path / "benchmarks", tmp_path / "landed"
  missing = lambda: [part.name for part in visit.PARTS if part.is_missing(tmp_path, landed)]
  write = lambda name, *rows: (landed / name).write_text(
    json.dumps({"sections": [{"rows": [{"name": row, "values": [1.0] if row == "plain" else []} for row in rows]}]}),
    encoding="utf-8",
  )
  benchmarks.mkdir()
  landed.mkdir()
  (benchmarks / "gpu.py").touch()
  assert missing() == ["check", "speed", "accuracy"]
  (benchmarks / "scaling.py").touch()
  # Some rows ran out of time.
  write("gpu.json", "plain", "the next: stopped after 80 s")
  assert missing() == ["check", "speed", "accuracy", "scaling"]
  write("gpu.json", "plain", "the next: failed: No module named 'torch'")
  assert missing() == ["check", "accuracy", "scaling"]
  write("scaling.json", "plain")
  assert missing() == ["check", "accuracy"]

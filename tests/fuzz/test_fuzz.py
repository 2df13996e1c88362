"""A sample of each fuzzer's cases. `python tests/fuzz/run.py` runs others, for as long as one likes."""

import pytest

import run
from support import cases

# These fuzzers show that the runner finds what goes wrong.
FAULTY = {
  "fails": ("raise ValueError('a large number')", "a large number"),
  "dies": ("os.abort()", "exit status -6"),
  "hangs": ("time.sleep(1000)", "no new case for 20 s"),
}


def slow(name, number):
  return pytest.param(name, number, marks=cases.slow)


@pytest.mark.parametrize(
  "name, number", [("layers", 25), slow("pipelines", 8), slow("damage", 12), slow("hostile", 30)]
)
def test_a_sample_of_cases(name, number, capfd):
  """The cases are the same in each run."""
  found = run.main([name, "--block", "0", "--cases", str(cases.examples(number))])
  assert not found, capfd.readouterr().out


@cases.slow
@pytest.mark.parametrize("kind", FAULTY)
def test_failures_crashes_and_hangs_are_found(monkeypatch, tmp_path, kind):
  """The report has the case, which hypothesis has made small if it could, and the command that repeats it."""
  fault, why = FAULTY[kind]
  (tmp_path / f"fuzz_{kind}.py").write_text(
    "import os, time, run\n"
    "def case(chance, directory):\n"
    "  number = chance.randint(0, 1000)\n"
    "  run.tell(number)\n"
    f"  if number > 400: {fault}\n"
  )
  monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
  monkeypatch.setattr(run, "LIMIT", 20)
  fuzzer = run.Fuzzer(kind, 3, 1, 600, 30)
  (found,) = fuzzer.finds
  assert why in found and f"run.py {kind} --block 3 --cases 30" in found
  assert kind != "fails" or 'The last case: "401"' in found

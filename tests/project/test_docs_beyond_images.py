"""The programs of the page about sound, text, series and points."""

import re

import pytest

from support import cases
from test_docs import run_program_of


@cases.slow
@pytest.mark.parametrize(
  "name, line, count",
  [
    ("sound", r"\(8, \d+, 80\) \[[0-3 ]+\]", 2),
    pytest.param("text", r"\(8, None\) [1-9]\d* hidden", 3, marks=cases.only_exhaustive),
    ("series", r"\(64, 256, 3\) \(64, 24\)", 2),
    pytest.param("points", r"\(8, None, 3\) \[[\d ]+\]", 2, marks=cases.only_exhaustive),
  ],
)
def test_a_program(name, line, count, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  lines = run_program_of("beyond_images.md", f"train_{name}.py").splitlines()
  assert len(lines) == count and all(re.fullmatch(line, each) for each in lines)

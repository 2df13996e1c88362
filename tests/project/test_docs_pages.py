"""The pages have working links and valid Python examples, and Sphinx gives no warnings."""

import ast
import configparser
import functools
import importlib.util
import inspect
import os
import re
import subprocess
import sys

import pytest

import refurbish_tf as rtf
from support import ROOT, cases
from test_docs import NOT_RUN, PAGES, SERVICE, SMALLER, SMALLER_PROGRAMS, examples

LINKED = [
  *PAGES,
  ROOT / "ARCHITECTURE.md",
  ROOT / "CHANGELOG.md",
  ROOT / "CONTRIBUTING.md",
  ROOT / "SECURITY.md",
  ROOT / "benchmarks" / "README.md",
]


def test_no_address_is_invented():
  """Whoever registers an invented address decides what `pip install git+...` runs. Our own address is `url` in
  setup.cfg, if there is one."""
  setup = configparser.ConfigParser()
  setup.read(ROOT / "setup.cfg")
  ours = setup.get("metadata", "url", fallback=None)
  address = r"(?:https?://|git@)?[\w.-]*git(?:hub|lab)[\w./:-]*/[\w.-]*refurbish[\w./-]*"
  assert re.search(address, "git+https://gitlab.com/refurbish/refurbish")
  for path in [
    *LINKED,
    *(ROOT / "notebooks").glob("*.ipynb"),
    ROOT / "setup.cfg",
    ROOT / "setup.py",
    ROOT / "pyproject.toml",
    ROOT / "docs" / "conf.py",
    *(ROOT / "refurbish_tf").rglob("*.py"),
  ]:
    found = re.findall(address, path.read_text(encoding="utf-8"), re.IGNORECASE)
    assert [each for each in found if ours is None or not each.startswith(ours)] == [], path


def test_examples_are_python_and_few_are_not_run():
  not_run = 0
  for page in PAGES:
    for _, example, mark in examples(page):
      ast.parse(example)
      not_run += mark is not None and mark.startswith(NOT_RUN)
  assert not_run <= 4  # Examples that need other hosts or processes, or data sets that TFDS has prepared.


def test_every_replacement_occurs_in_an_example():
  everything = "".join(example for page in PAGES for _, example, _ in examples(page))
  assert [given for given in [*SMALLER, *SMALLER_PROGRAMS, SERVICE] if given not in everything] == []


def test_readme_is_short_enough_to_be_read():
  assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@functools.lru_cache
def anchors(path):
  """Returns the anchors that GitHub, and Sphinx with `myst_heading_anchors`, give to the headings of a file."""
  text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
  headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
  text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
  targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
  for target in targets:
    path, _, anchor = target.partition("#")
    to = (page.parent / path).resolve() if path else page
    assert to.exists(), target
    if anchor:
      assert anchor in anchors(to), target


def test_every_guide_is_in_the_contents():
  contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
  for page in (ROOT / "docs").glob("*.md"):
    if page.stem != "index":
      assert re.search(rf"^{page.stem}\*?$", contents, re.MULTILINE), page.name


def test_the_reference_has_a_row_for_each_public_name():
  rows = re.findall(r"^(`.*?) \| (\w.*)$", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
  diversity = [name for name, each in vars(rtf.diversity).items() if inspect.isfunction(each) and name[0] != "_"]
  modules = {"augment", "diversity", "keras", "sources"}
  public = [*({*rtf.__all__} - modules), *rtf.sources.__all__, *rtf.augment.__all__, *rtf.keras.__all__, *diversity]
  named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
  assert sorted(each for each in named if each != "rtf") == sorted(public)


@cases.only_exhaustive
def test_sphinx_gives_no_warnings(tmp_path):
  missing = [module for module in ("sphinx", "furo", "myst_nb") if importlib.util.find_spec(module) is None]
  if missing:
    pytest.skip(f"not installed: {', '.join(missing)}; pip install -e '.[docs]' does it")
  options = ["-W", "--keep-going", "-c", "docs", "-d", str(tmp_path / "doctrees")]
  done = subprocess.run(
    [sys.executable, "-m", "sphinx", *options, ".", str(tmp_path / "html")],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=1800,
    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
  )
  assert done.returncode == 0, done.stderr
  read = lambda page: (tmp_path / "html" / "docs" / page).read_text(encoding="utf-8")
  for name in ("refurbish", "image_folder", "CacheStore", "rand_augment"):
    assert f'href="reference/{name}.html"' in read("reference.html")
    assert 'id="refurbish_tf.' in read(f"reference/{name}.html")
  assert "rand_augment.webp" in read("reference/rand_augment.html")

"""The wheel of build_wheel.py: one file, libraries for all supported minors of TensorFlow, no compiler."""

import configparser
import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import tensorflow as tf

from refurbish_tf._internal import native
from refurbish_tf._internal.version import VERSION
from support import cases
from support.wheels import LIMIT, ROOT, build_wheel, new_environment, with_compiler

TRAINING = """
import json, os, sys
import keras
import tensorflow as tf
import refurbish_tf as rtf
from refurbish_tf._internal import native

images = tf.data.Dataset.range(256).map(lambda i: (tf.fill([8, 8, 3], tf.cast(i, tf.uint8)), i % 2))
final_fn = rtf.augment.random_flip()
train = images.refurbish(
    lambda image, label: (image // 2, label), lambda image, label, seed: (final_fn(image, seed=seed), label),
    r=2, seed=1)
model = keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
losses = model.fit(train.batch(32), epochs=3, verbose=0).history["loss"]
print(json.dumps({"tensorflow": tf.__version__, "library": str(native.library(tf.__version__)), "losses": losses,
                  "fresh": [epoch.fresh for epoch in rtf.stats(train)[0].epochs]}))
"""


def test_the_wheel_covers_all_supported_versions():
  """An install allows exactly the versions whose libraries are in the wheel."""
  config = configparser.ConfigParser()
  config.read(ROOT / "setup.cfg", encoding="utf-8")
  (requirement,) = re.findall(
    r"^tensorflow >=2\.(\d+), <2\.(\d+)$", config["options"]["install_requires"], re.MULTILINE
  )
  first, end = map(int, requirement)
  assert build_wheel.MINORS == tuple(f"2.{minor}" for minor in range(first, end))
  for name, quote in (("pyproject.toml", '"'), ("README.md", "'"), (".ci/run", "'")):
    assert f"{quote}tensorflow>=2.{first},<2.{end}{quote}" in (ROOT / name).read_text(encoding="utf-8")


def test_the_name_of_the_wheel_matches_the_docs():
  told = [
    name
    for path in ("README.md", "docs/install.md", "build_wheel.py")
    for name in re.findall(r"refurbish_tf-(\d[\d.]*)-py3-none-(\w+).whl", (ROOT / path).read_text(encoding="utf-8"))
  ]
  assert len(told) >= 4 and set(told) == {(VERSION, f"{build_wheel.PLATFORM}_x86_64")}
  assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_a_cross_build_has_the_flags_of_tensorflow():
  """A cross build cannot ask the TensorFlow of another machine. A wrong flag would change the layout of classes."""
  assert tuple(tf.sysconfig.get_compile_flags()[1:]) == build_wheel.TENSORFLOW_FLAGS


@pytest.mark.parametrize(
  "compiler, told",
  [(None, "and there is no {other}-linux-gnu-g..: install it"), ("g++", "and g.. is for {here}.*: set CXX to one")],
)
def test_a_wrong_cross_compiler_is_reported_at_once(tmp_path, monkeypatch, compiler, told):
  (other,) = set(build_wheel.MACHINES) - {build_wheel.HERE}
  monkeypatch.setattr(build_wheel, "create_environment", lambda *args: pytest.fail("begun"))
  monkeypatch.setenv("CXX", compiler or "")
  if compiler is None:
    monkeypatch.setenv("PATH", str(tmp_path))
  elif not shutil.which(compiler):
    pytest.skip("no g++: `apt-get install g++` and run again")
  with pytest.raises(
    SystemExit, match=f"needs a C.. compiler for {other}, {told.format(other=other, here=build_wheel.HERE)}"
  ):
    build_wheel.main(["--machine", other, "--output", str(tmp_path)])


def test_it_is_built_from_all_sources_and_nothing_else(tmp_path):
  build_wheel.copy_sources(tmp_path / "sources")
  copied = tmp_path / "sources" / "refurbish_tf"
  for path in (ROOT / "refurbish_tf").rglob("*"):
    if path.suffix in (".py", ".cc", ".h", ".csv") and not any(part.startswith(".build-") for part in path.parts):
      assert (copied / path.relative_to(ROOT / "refurbish_tf")).is_file(), path
  assert not (copied / "_native").exists() and not list(copied.rglob("__pycache__"))


def test_a_missing_compiler_is_reported_at_once(tmp_path, monkeypatch):
  """The error comes before anything is downloaded."""
  monkeypatch.setattr(build_wheel, "create_environment", lambda *args: pytest.fail("begun"))
  monkeypatch.setenv("PATH", str(tmp_path))
  monkeypatch.delenv("CXX", raising=False)
  with pytest.raises(SystemExit, match=r"needs a C\+\+ compiler, and there is no .*`apt-get install g\+\+`\)\.$"):
    build_wheel.main(["--output", str(tmp_path)])


def test_pip_install_without_a_compiler_names_one_and_the_wheel(tmp_path):
  """The last line before pip's own lines names them."""
  build_wheel.copy_sources(tmp_path / "sources")
  # A stand-in for TensorFlow, whose import takes seconds.
  (tmp_path / "modules").mkdir()
  (tmp_path / "modules" / "tensorflow.py").write_text("__version__ = '1.99.0'\n")
  environment = {name: value for name, value in os.environ.items() if name != "CXX"}
  options = ["--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path]
  done = subprocess.run(
    [sys.executable, "-m", "pip", "wheel", *options, tmp_path / "sources"],
    env=environment | {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "modules")},
    capture_output=True,
    text=True,
    timeout=LIMIT,
  )
  said, pips = (done.stdout + done.stderr).split("[end of output]")
  last = said.strip().splitlines()[-1].strip()
  assert done.returncode != 0 and "ERROR: Failed" in pips
  assert (
    last.startswith("refurbish_tf was not built: there is no C++ compiler")
    and "g++" in last
    and "refurbish_tf-*.whl" in last
  )


def sdist(directory, address=""):
  """Makes a source distribution, with the line `address` added to setup.cfg. Returns it and the folder that it unpacks
  to."""
  build_wheel.copy_sources(directory / "sources")
  settings = directory / "sources" / "setup.cfg"
  text = settings.read_text(encoding="utf-8")
  settings.write_text(text.replace("[options]", f"{address}\n[options]", 1), encoding="utf-8")
  subprocess.run(
    [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", directory],
    cwd=directory / "sources",
    capture_output=True,
    check=True,
  )
  (archive,) = directory.glob("*.tar.gz")
  shutil.unpack_archive(archive, directory)
  return archive, directory / archive.name.removesuffix(".tar.gz")


@pytest.mark.parametrize("address", ["", "https://example.com/repository"])
def test_the_page_of_the_package_index_has_no_broken_link(tmp_path, address):
  """With an address of the repository, links lead there. Without one, only the text of links and pictures remains."""
  _, unpacked = sdist(tmp_path, address and f"url = {address}")
  metadata = email.message_from_string((unpacked / "PKG-INFO").read_text(encoding="utf-8"))
  assert all(metadata[name] for name in ("Author", "Keywords", "Requires-Python", "Summary", "License"))
  assert {"Programming Language :: Python :: 3.13", "Typing :: Typed"} <= set(metadata.get_all("Classifier"))
  page, readme = metadata.get_payload(), (ROOT / "README.md").read_text(encoding="utf-8")
  targets = re.findall(r"\]\(([^)\s]+)\)", page)
  assert all(target.startswith(f"{address}/" if address else "https:") for target in targets)
  assert len(targets) == (len(re.findall(r"\]\(\w", readme)) if address else 0)
  assert (
    "One photograph over six epochs." in page and "[decoded data" in page
    if address
    else "your decoded data\nset fits" in page
  )
  blocks = re.compile("^```.*?^```$", re.MULTILINE | re.DOTALL)
  assert blocks.findall(page) == blocks.findall(readme)
  markdown = pytest.importorskip("readme_renderer.markdown")
  rendered = markdown.render(page)
  if rendered is None:
    pytest.skip("not installed: `pip install 'readme_renderer[md]'` does it")
  links = re.findall(r'(?:src|href)="([^"]*)"', rendered)
  # Links of headings to themselves do not count.
  assert [link for link in links if not link.startswith("#user-content-")] == targets


@cases.slow
def test_the_source_distribution_builds_the_same_library(tmp_path):
  """The fingerprint of the distribution shows that it has all sources, and twine accepts it."""
  archive, unpacked = sdist(tmp_path)
  fingerprint = "import sys; sys.path.insert(0, 'refurbish_tf/_internal'); import native; print(native.fingerprint())"
  found = subprocess.run(
    [sys.executable, "-c", fingerprint], cwd=unpacked, capture_output=True, text=True, check=True
  ).stdout
  assert found.strip() == native.fingerprint()
  files = lambda root: {
    path.relative_to(root) for path in (root / "refurbish_tf").rglob("*") if path.suffix in (".py", ".csv", ".typed")
  }
  assert files(unpacked) == files(ROOT)
  pytest.importorskip("twine", reason="twine is not installed: `pip install twine` does it")
  subprocess.run([sys.executable, "-m", "twine", "check", "--strict", archive], check=True)


def outputs(directory, environment, *command):
  """Runs a command that must succeed. Returns what it prints, on stdout and on stderr."""
  done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=LIMIT)
  assert done.returncode == 0, done.stderr
  return done.stdout, done.stderr


@cases.only_exhaustive
def test_the_source_distribution_builds_in_a_new_environment(tmp_path):
  archive, _ = sdist(tmp_path)
  binaries, environment = with_compiler(
    new_environment(tmp_path / "venv", f"tensorflow=={build_wheel.MINORS[-1]}.*", "setuptools>=70.1")
  )
  for command in (["-m", "pip", "install", "--quiet", "--no-build-isolation", archive], ["-c", TRAINING]):
    printed, _ = outputs(tmp_path, environment, binaries / "python", *command)
  assert json.loads(printed.splitlines()[-1])["fresh"] == [256, 128, 128]


@cases.only_exhaustive
def test_a_cross_build_is_for_the_other_machine(tmp_path, monkeypatch):
  """pip must be able to fetch TensorFlow. tests/run_emulated.py runs the wheel."""
  (other,) = set(build_wheel.MACHINES) - {build_wheel.HERE}
  if not shutil.which(f"{other}-linux-gnu-g++"):
    pytest.skip(f"there is no {other}-linux-gnu-g++: `apt-get install g++-{other.replace('_', '-')}-linux-gnu`")
  monkeypatch.delenv("CXX", raising=False)
  made = build_wheel.main(["--machine", other, "--output", str(tmp_path)])
  assert made.name == f"refurbish_tf-{VERSION}-py3-none-{build_wheel.PLATFORM}_{other}.whl"
  with zipfile.ZipFile(made) as archive:
    for minor in build_wheel.MINORS:
      record = json.loads(archive.read(f"refurbish_tf/_native/{minor}/{native.RECORD}"))
      assert (record["machine"], record["sources"]) == (other, native.fingerprint(other))
      # e_machine of the ELF header.
      assert archive.read(f"refurbish_tf/_native/{minor}/{native.LIBRARY}")[18] == {"x86_64": 62, "aarch64": 183}[other]


@cases.only_exhaustive
def test_the_wheel_has_all_its_files(wheel):
  assert re.fullmatch(r"refurbish_tf-[\d.]+-py3-none-manylinux_2_35_[a-z0-9_]+\.whl", wheel.name)
  with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    assert archive.testzip() is None
    for minor in build_wheel.MINORS:
      record = json.loads(archive.read(f"refurbish_tf/_native/{minor}/{native.RECORD}"))
      assert record["tensorflow"].startswith(f"{minor}.") and record["sources"] == native.fingerprint()
  # It has no libraries other than ours, and it has the sources that these are built from.
  assert sorted(name for name in names if ".so" in name) == [
    f"refurbish_tf/_native/{minor}/{native.LIBRARY}" for minor in build_wheel.MINORS
  ]
  assert "refurbish_tf/cc/ops/ops.cc" in names and "refurbish_tf_launcher.py" in names


@cases.only_exhaustive
@pytest.mark.parametrize("minor", build_wheel.MINORS)
def test_it_trains_without_a_compiler(wheel, tmp_path, minor):
  """The environment is new, and the library comes from the wheel: nothing is built."""
  binaries, environment = new_environment(tmp_path / "venv", wheel, f"tensorflow=={minor}.*")
  environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
  # Nothing that is installed with the wheel is too new for this TensorFlow, as protobuf could be.
  subprocess.run([binaries / "python", "-m", "pip", "check"], env=environment, check=True)
  assert not any(shutil.which(compiler, path=environment["PATH"]) for compiler in ("g++", "clang++", "c++"))
  printed, _ = outputs(tmp_path, environment, binaries / "python", "-c", TRAINING)
  found = json.loads(printed.splitlines()[-1])
  assert found["tensorflow"].startswith(f"{minor}.") and found["fresh"] == [256, 128, 128]
  assert f"site-packages/refurbish_tf/_native/{minor}/" in found["library"]
  assert not (tmp_path / "cache" / "refurbish_tf").exists()
  # The wheel's command also works.
  version, errors = outputs(tmp_path, environment, binaries / "refurbish-tf", "--version")
  assert version.startswith("refurbish-tf ") and errors == ""

"""The folders of the package: what each may import, and how large a file may be. ARCHITECTURE.md describes them."""

import ast
import pathlib
import re

from support import ROOT

PACKAGE = ROOT / "refurbish_tf"

# The folders of cc/ that each folder may include from, in addition to itself.
CC_MAY_INCLUDE = {
  "base": (),
  "plan": ("base",),
  "workers": (),
  "image": ("base",),
  "sources": ("base",),
  "source_checks": ("base",),
  "store": ("base",),
  "store/memory": ("base", "store"),
  "store/disk": ("base", "store", "source_checks"),
  "cooperation": ("base", "plan", "store"),
  "cooperation/shared": ("base", "plan", "store", "store/disk", "cooperation"),
  "sample_store": (
    *("base", "plan", "source_checks", "store", "store/memory", "store/disk", "cooperation", "cooperation/shared"),
  ),
  "refurbish": ("base", "plan", "source_checks", "store", "sample_store", "cooperation"),
  "cached": ("base", "plan", "source_checks", "store", "sample_store", "cooperation", "refurbish"),
  "batches": ("base",),
  "offload": ("base", "plan", "image"),
  "kernels": (
    *("base", "plan", "workers", "image", "sources", "source_checks", "store", "sample_store", "cooperation"),
    *("refurbish", "cached", "batches", "offload"),
  ),
  "ops": ("image",),
}
# Folders within a room that are rooms of their own.
CC_WITHIN = ("cooperation/shared", "store/memory", "store/disk")
# The same for the folders in kernels/. "" stands for the files directly in kernels/, which all of its folders share.
KERNELS_MAY_INCLUDE = {
  "": (),
  "source_checks": ("",),
  "refurbish": ("", "source_checks"),
  "echo": ("",),
  "sources": ("", "source_checks"),
  "image": ("",),
  "loader": ("",),
  "offload": ("",),
}
# Modules and folders of the package, in lines. Each may import those of earlier lines.
LAYERS = (
  ("_internal",),
  ("cache_store",),
  ("augment",),
  ("echo_op", "sources", "stats"),
  ("describe", "epoch_position", "offload_op", "keras", "loaders", "refurbish_op"),
  ("diversity", "plotting"),
  ("advice",),
  ("__init__",),
  ("experiments",),
  ("cli",),
)


def includes(path):
  return re.findall(r'^#include "refurbish_tf/cc/([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)


def check_includes(root, room_of, may_include):
  for path in root.rglob("*.*"):
    room = room_of(path.relative_to(PACKAGE / "cc"))
    used = {room_of(pathlib.PurePath(name)) for name in includes(path)} - {room, None}
    assert used <= set(may_include[room]), path


def test_includes_run_downward_only():
  cc = PACKAGE / "cc"
  assert {path.name for path in cc.iterdir()} == set(CC_MAY_INCLUDE) - set(CC_WITHIN)
  check_includes(
    cc,
    lambda path: "/".join(path.parts[:2]) if "/".join(path.parts[:2]) in CC_WITHIN else path.parts[0],
    CC_MAY_INCLUDE,
  )
  # The folder of one kind of dataset must not include files of another.
  check_includes(
    cc / "kernels", lambda path: "/".join(path.parts[1:-1]) if path.parts[0] == "kernels" else None, KERNELS_MAY_INCLUDE
  )


def test_portable_code_calls_no_math_functions_of_the_c_library():
  """base/elementary.h has replacements, made of operations that every machine rounds in the same way."""
  used = re.compile(
    r"\b(std::|math\.|np\.)(exp2?|expm1|log(2|10|1p)?|pow(er)?|cbrt|hypot|a?(sin|cos|tan)h?|atan2|erfc?|[tl]gamma)f?\("
  )
  offloaded = list((PACKAGE / "keras").glob("offloaded*.py"))
  assert offloaded
  for path in [*(PACKAGE / "cc").rglob("*.*"), *offloaded]:
    assert not used.search(path.read_text(encoding="utf-8")), path


def imported(path):
  """Returns the modules and folders of the package that a file imports anywhere; `__init__` for the package itself."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      package = ["refurbish_tf", *path.relative_to(PACKAGE).parent.parts][: None if node.level < 2 else 1 - node.level]
      module = ".".join(filter(None, [*(package if node.level else []), node.module]))
      names = [f"{module}.{alias.name}" for alias in node.names]
    found |= {(name.split(".") + ["__init__"])[1] for name in names if name.split(".")[0] == "refurbish_tf"}
  return found


def test_imports_run_downward_only():
  layer_of = {name: number for number, names in enumerate(LAYERS) for name in names}
  assert set(layer_of) == {
    path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
  }
  for path in PACKAGE.rglob("*.py"):
    own = pathlib.PurePath(path.relative_to(PACKAGE).parts[0]).stem
    upward = {name for name in imported(path) - {own} if layer_of[name] >= layer_of[own]}
    assert not upward, path


def test_no_file_is_above_500_lines():
  for path in (
    *PACKAGE.rglob("*.*"),
    *(ROOT / "tests").rglob("*.*"),
    *(ROOT / "benchmarks").rglob("*.*"),
    *(ROOT / "trainings").rglob("*.*"),
    *ROOT.glob("*.py"),
  ):
    if path.suffix in (".py", ".cc", ".h"):
      assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, path


def test_no_random_device():
  """Some builds of the standard library open a file for std::random_device, and throw if the process has no descriptor
  left."""
  for path in (PACKAGE / "cc").rglob("*.*"):
    assert "#include <random>" not in path.read_text(encoding="utf-8"), path

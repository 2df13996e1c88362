"""The programs of docs/volumes.md, on files as the page describes them."""

import importlib.util
import pathlib

import numpy as np
import pytest

from support import cases
from test_docs import ROOT, run_program_of

RNG = np.random.default_rng(7)
PREPARED = "scans prepared: [6, 2, 2] (2, 32, {0}, {0}, 1) (2, 32, {0}, {0})\n"


def lacks(*modules):
  return next((name for name in modules if importlib.util.find_spec(name) is None), None)


@cases.slow
@pytest.mark.skipif(lacks("monai", "nibabel") is not None, reason=f"not installed: {lacks('monai', 'nibabel')}")
def test_nifti_files_with_monai(tmp_path, monkeypatch):
  """Scans have any size and orientation, and may be smaller than a patch. A mask of another scan is an error."""
  import nibabel

  monkeypatch.chdir(tmp_path)
  for folder in ("scans", "masks"):
    pathlib.Path(folder).mkdir()
  for number in range(6):
    scan = RNG.integers(-1000, 1000, [40 + 4 * number, 50, 60], np.int16)
    affine = np.diag([(-1) ** number, 1.5, 2, 1])
    nibabel.save(nibabel.Nifti1Image(scan, affine), f"scans/{number}.nii.gz")
    nibabel.save(nibabel.Nifti1Image((scan > 0).astype(np.uint8), affine), f"masks/{number}.nii.gz")
  assert run_program_of("volumes.md", "train_scans.py") == PREPARED.format(40)
  nibabel.save(nibabel.Nifti1Image(np.zeros([40, 50, 60], np.uint8), np.eye(4)), "masks/0.nii.gz")
  with pytest.raises(AssertionError, match="0.nii.gz'.*are not aligned"):
    run_program_of("volumes.md", "train_scans.py")


@cases.slow
@pytest.mark.parametrize("opened", cases.some(['h5py.File("scans.h5")', 'zarr.open_group("scans.zarr", mode="r")'], 1))
def test_arrays(opened, tmp_path, monkeypatch):
  import h5py

  monkeypatch.chdir(tmp_path)
  scans = RNG.integers(-1000, 1000, [6, 40, 36, 36, 1], np.int16)
  arrays = {"images": scans, "masks": (scans[..., 0] > 0).astype(np.uint8)}
  if lacks("zarr") is None:
    import zarr

    group = zarr.open_group("scans.zarr", mode="w")
    for name, array in arrays.items():
      group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(1, *array.shape[1:]))[...] = array
  with h5py.File("scans.h5", "w") as file:
    for name, array in arrays.items():
      file.create_dataset(name, data=array, chunks=(1, *array.shape[1:]))
  assert opened in (ROOT / "docs" / "volumes.md").read_text(encoding="utf-8")
  assert run_program_of(
    "volumes.md",
    "train_arrays.py",
    smaller={'zarr.open_group("scans.zarr", mode="r")': opened, "import tensorflow": "import h5py\nimport tensorflow"},
  ) == PREPARED.format(36)

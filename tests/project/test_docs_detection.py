"""The programs of docs/detection.md, on small data sets of the same form."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from support import checkpoints
from test_docs import ROOT, program_of

PAGE = ROOT / "docs" / "detection.md"
GENERATOR = np.random.default_rng(7)
# Height and width of each image. The last one has no boxes.
SIDES = [(48, 64), (80, 60), (64, 64), (50, 50)]


def run(name, names=None):
  """Runs a program of the page in this process, after another one with these variables. Returns its variables."""
  names = names or {}
  exec(compile(program_of(PAGE, name), name, "exec"), names)
  return names


def jpeg(sides):
  return tf.io.encode_jpeg(GENERATOR.integers(0, 256, [*sides, 3], np.uint8)).numpy()


@pytest.fixture
def coco(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  annotations = [
    {"image_id": image, "category_id": category, "bbox": box, "iscrowd": crowd}
    for image, category, box, crowd in [
      (10, 90, [4.0, 6.0, 40.0, 30.0], 0),
      (10, 1, [0.0, 0.0, 64.0, 48.0], 0),
      (11, 1, [10.5, 20.0, 30.0, 40.0], 0),
      (12, 44, [1.0, 2.0, 60.0, 60.0], 0),
      (12, 44, [0.0, 0.0, 9.0, 9.0], 1),
      (13, 1, [0.0, 0.0, 9.0, 9.0], 1),
    ]
  ]
  images = [
    {"id": 10 + number, "file_name": f"{number}.jpg", "height": height, "width": width}
    for number, (height, width) in enumerate(SIDES)
  ]
  categories = [{"id": number, "name": str(number)} for number in (0, 1, 44, 90)]
  pathlib.Path("annotations").mkdir()
  for part in ("train2017", "val2017"):
    pathlib.Path(part).mkdir()
    for number, sides in enumerate(SIDES):
      pathlib.Path(f"{part}/{number}.jpg").write_bytes(jpeg(sides))
    found = {"images": images, "categories": categories[part == "val2017" :], "annotations": annotations}
    pathlib.Path(f"annotations/instances_{part}.json").write_text(json.dumps(found), encoding="utf-8")


def test_coco(coco, capsys):
  """Photographs with boxes are read, without crowds. The page's rule takes predictions back out of the letterbox."""
  names = run("train_coco.py")
  assert capsys.readouterr().out.startswith("(3, 640, 640, 3) (3, ")
  found = list(names["validation"].unbatch().as_numpy_iterator())
  assert [each["bounding_boxes"]["labels"].tolist() for each in found] == [[3, 1], [1], [2], []]
  page = " ".join(PAGE.read_text(encoding="utf-8").split())
  for rule in (
    "`scale = min(640 / height, 640 / width)`",
    "`(640 - width * scale) / 2` from x",
    "`(640 - height * scale) / 2` from y",
  ):
    assert rule in page
  for each, (height, width), given in zip(found, SIDES, [[4, 6, 40, 30], [10.5, 20, 30, 40], [1, 2, 60, 60]]):
    scale = min(640 / height, 640 / width)
    border = np.array([640 - width * scale, 640 - height * scale]) / 2
    box = each["bounding_boxes"]["boxes"][0]
    np.testing.assert_allclose([*(box[:2] - border) / scale, *box[2:] / scale], given, atol=0.1)


def test_mosaic(coco, tmp_path):
  """The program continues the one of COCO's. A restored iterator yields the mosaics of the unbroken run."""
  train = run("train_mosaic.py", run("train_coco.py"))["train"].repeat()
  unbroken = iter(train)
  first = next(unbroken)
  saved = checkpoints.save(unbroken, tmp_path / "saved")
  assert first["images"].shape == (3, 640, 640, 3) and max(first["bounding_boxes"]["labels"].row_lengths()) > 2
  both = next(unbroken), next(checkpoints.restore(train, saved))
  tf.nest.map_structure(
    np.testing.assert_array_equal, *(tf.nest.flatten(each, expand_composites=True) for each in both)
  )


def test_tfds(tmp_path, monkeypatch, capsys):
  """The features are VOC's, read from files that TFDS has written."""
  tfds = pytest.importorskip("tensorflow_datasets")

  class Voc(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(
          {
            "image": tfds.features.Image(),
            "image/filename": tfds.features.Text(),
            "objects": tfds.features.Sequence(
              {
                "label": tfds.features.ClassLabel(num_classes=20),
                "bbox": tfds.features.BBoxFeature(),
                "is_difficult": np.bool_,
              }
            ),
          }
        ),
      )

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      for number, sides in enumerate(SIDES):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(sides))
        box = {"label": number, "bbox": tfds.features.BBox(0.1, 0.2, 0.9, 0.8), "is_difficult": False}
        yield number, {"image": str(path), "image/filename": path.name, "objects": [box] * (number + 1)}

  monkeypatch.setattr(tfds, "builder", lambda name: Voc(data_dir=tmp_path / "tfds"))
  names = run("train_voc.py")
  assert capsys.readouterr().out.splitlines()[-1].startswith("(4, 512, 512, 3) (4, ")
  for batch in names["train"]:
    rows = [batch["objects"][name].row_lengths().numpy().tolist() for name in ("bbox", "label", "is_difficult")]
    assert rows[0] == rows[1] == rows[2] and max(rows[0]) > 0

"""The programs of docs/sources.md on files of other libraries: what and how much they read, and that they resume where
they stopped.

They run in this process, so that the reads of their sources can be counted.
"""

import io
import os
import pathlib
import re
import tarfile

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import cases
from test_docs import ROOT, examples, program_of

PAGE = ROOT / "docs" / "sources.md"
N = 48
LABELS = np.arange(N) * 7 % 10
IMAGES = np.random.default_rng(7).integers(0, 256, [N, 12, 16, 3], np.uint8)
FILES = [tf.io.encode_jpeg(image).numpy() for image in IMAGES]
STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def write_memmap():
  np.save("images.npy", IMAGES)
  np.save("labels.npy", LABELS)


def write_hdf5():
  with h5py.File("photos.h5", "w") as file:
    file.create_dataset("images", data=IMAGES, chunks=(1, *IMAGES.shape[1:]), compression="gzip")
    file["labels"] = LABELS


def write_zarr():
  import zarr

  group = zarr.open_group("photos.zarr", mode="w")
  for name, array in (("images", IMAGES), ("labels", LABELS)):
    group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(1, *array.shape[1:]))[...] = array


def write_parquet():
  os.mkdir("photos")
  table = pyarrow.table({"label": LABELS, "other": [None] * N, "image": pyarrow.array(FILES, pyarrow.binary())})
  pq.write_table(table[:30], "photos/0.parquet", row_group_size=4)
  pq.write_table(table[:0], "photos/1.parquet")
  pq.write_table(table[30:], "photos/2.parquet", row_group_size=7)


def write_hugging_face():
  import datasets

  features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
  images = [{"bytes": file, "path": None} for file in FILES]
  datasets.Dataset.from_dict({"image": images, "label": LABELS.tolist()}, features=features).save_to_disk("photos")


def write_tar_files():
  os.mkdir("photos")
  # A directory's name has dots, file names have several, and some names are longer than an old header can hold.
  names = [f"v1.0/{'x' * 120 * (index % 2)}{index:03}" for index in range(N)]
  for number, begin in enumerate(range(0, N, 20)):
    with tarfile.open(f"photos/{number}.tar", "w") as tar:
      for index in range(begin, min(N, begin + 20)):
        for extension, content in (("cls", b"%d" % LABELS[index]), ("seg.png", b""), ("jpg", FILES[index])):
          member = tarfile.TarInfo(f"{names[index]}.{extension}")
          member.size = len(content)
          tar.addfile(member, io.BytesIO(content))


PROGRAMS = {
  "memmap.py": write_memmap,
  "hdf5.py": write_hdf5,
  "zarr_group.py": write_zarr,
  "parquet.py": write_parquet,
  "tar_files.py": write_tar_files,
  "hugging_face.py": write_hugging_face,
}


# Pages show how each program opens its data. They leave out how its batches are read, which this adds.
TRAINING = """
for epoch in range(3):
  for batch in train:
    pass
print("records read:", [epoch.fresh for epoch in rtf.stats(train)[0].epochs])
"""


def program(name):
  """Returns the text of a program, as a reader would put it together."""
  layers = [line for _, text, _ in examples(PAGE) for line in text.splitlines() if re.match("(partial|final) = ", line)]
  text = program_of(PAGE, name)
  if "train = " not in text:
    opened, rest = program_of(PAGE, "memmap.py").split("\nassert ")
    assert opened.count("\n") == 2  # The page says how many lines are replaced.
    text = f"{text}assert {rest}"
  return "\n".join(["import numpy as np", "import tensorflow as tf", "import refurbish_tf as rtf", *layers, text])


class Counted:
  """A source that records which elements are read."""

  def __init__(self, source, length):
    self.source, self.length, self.asked = source, length, []

  def __len__(self):
    return self.length

  def __getitem__(self, index):
    self.asked.append(index)
    return self.source[index]


class CountedBatches(Counted):
  def __getitems__(self, indices):
    self.asked += indices
    return self.source.__getitems__(indices)


@pytest.fixture
def counted(monkeypatch):
  """Wraps the sources that `rtf.sources.data_source` is given, so that they record which elements are read. Returns
  their list."""
  found, data_source = [], rtf.sources.data_source

  def counting(source):
    kind = CountedBatches if hasattr(type(source), "__getitems__") else Counted
    found.append(kind(source, len(data_source(source))))
    return data_source(found[-1])

  monkeypatch.setattr(rtf.sources, "data_source", counting)
  return found


def assert_a_third_is_read(asked):
  """Checks the reads of three epochs: all N records in the first, and a different third in each of the others."""
  # The first record is also read for the spec.
  spec, first, others = asked[0], asked[1 : 1 + N], asked[1 + N :]
  assert spec == 0 and sorted(first) == list(range(N)) and len(others) == 2 * N // 3
  second, third = set(others[: N // 3]), set(others[N // 3 :])
  assert len(second) == len(third) == N // 3 and not second & third


def executed(name, end=""):
  """Runs a program, which does not train, and then `end`. Returns its names."""
  names = {}
  exec(compile(program(name) + end, name, "exec"), names)
  return names


@pytest.fixture(
  params=[pytest.param(name, marks=cases.only_exhaustive if name == "hugging_face.py" else ()) for name in PROGRAMS]
)
def name(request, tmp_path, monkeypatch):
  program(request.param)
  monkeypatch.chdir(tmp_path)
  PROGRAMS[request.param]()
  return request.param


def test_a_third_of_the_records_is_read(name, counted, capsys):
  executed(name, TRAINING)
  assert capsys.readouterr().out == "records read: [48, 16, 16]\n"
  (source,) = counted
  assert_a_third_is_read(source.asked)


def test_records_are_what_was_written(name):
  names = executed(name)
  elements = list(names["source"].as_numpy_iterator())
  if isinstance(elements[0], dict):
    elements = [(element["image"], element["label"]) for element in elements]
  images = IMAGES if isinstance(elements[0][0], np.ndarray) else FILES
  assert len(elements) == N
  for element, image, label in zip(elements, images, LABELS):
    assert np.array_equal(element[0], image) and element[1] == label


def test_how_many_row_groups_are_read(tmp_path, monkeypatch):
  """At most as many row groups are read as rows, and each is read once for a batch of reads."""
  monkeypatch.chdir(tmp_path)
  write_parquet()
  names = executed("parquet.py")
  read, read_row_group = [], pq.ParquetFile.read_row_group
  monkeypatch.setattr(
    pq.ParquetFile,
    "read_row_group",
    lambda self, group, columns: read.append(group) or read_row_group(self, group, columns),
  )
  rows = names["Rows"](["photos/0.parquet", "photos/1.parquet", "photos/2.parquet"], ["label"])
  assert len(rows) == N and rows[31] == (LABELS[31],)
  assert read == [0]
  read.clear()
  indices = [47, 3, 0, 31, 29, 3]
  assert rows.__getitems__(indices) == [(LABELS[index],) for index in indices]
  assert sorted(read) == [0, 0, 2, 7]


def test_parquet_with_small_row_groups(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (rewrite,) = re.findall(r"`(pq.write_table\(.*?16\))`", PAGE.read_text(encoding="utf-8"))
  # The table is like those on the Hugging Face Hub.
  table = pyarrow.table(
    {"image": pyarrow.array([{"bytes": file, "path": None} for file in FILES], STRUCT), "label": LABELS}
  )
  pq.write_table(table, "large.parquet")
  names = {"pq": pq, "path": "large.parquet", "to": "small.parquet"}
  exec(rewrite, names)
  small = pq.ParquetFile("small.parquet")
  assert [small.metadata.row_group(group).num_rows for group in range(small.num_row_groups)] == [16, 16, 16]
  assert small.read() == table
  exec(compile(program("parquet.py").partition("\nsource")[0], "parquet.py", "exec"), names)
  assert list(
    rtf.sources.data_source(names["Rows"](["small.parquet"], ["image.bytes", "label"])).as_numpy_iterator()
  ) == list(zip(FILES, LABELS))


def test_a_missing_member_of_a_tar_file_is_an_error(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_tar_files()
  names = executed("tar_files.py")
  with pytest.raises(KeyError, match="txt"):
    names["Samples"](["photos/0.tar"], "jpg", "txt")
  with tarfile.open("packed.tar.gz", "w:gz") as tar:
    tar.add("photos/0.tar")
  with pytest.raises(tarfile.ReadError):
    names["Samples"](["packed.tar.gz"], "jpg")
  with tarfile.open("twice.tar", "w") as tar:
    for name in ("photos/0.tar", "photos/1.tar", "photos/0.tar"):
      tar.add(name)
  with pytest.raises(tarfile.ReadError, match="twice.tar has photos/0.tar twice"):
    names["Samples"](["twice.tar"], "tar")
  content = pathlib.Path("photos/0.tar").read_bytes()
  with tarfile.open("photos/0.tar") as tar:
    begins = [member.offset for member in tar]
  # The file ends after a whole sample, in the next one's header or in its content, or a header is damaged.
  for torn in (
    content[: begins[9]],
    content[: begins[9] + 100],
    content[: begins[12] - 1],
    content[: begins[9]] + b"x" + content[begins[9] + 1 :],
  ):
    pathlib.Path("torn.tar").write_bytes(torn)
    with pytest.raises(tarfile.ReadError):
      names["Samples"](["torn.tar"], "cls")


@cases.only_exhaustive
def test_tar_files_are_read_as_by_webdataset(tmp_path, monkeypatch):
  webdataset = pytest.importorskip("webdataset", reason="not installed; pip install -e '.[exhaustive]' does it")
  monkeypatch.chdir(tmp_path)
  write_tar_files()
  names = executed("tar_files.py")
  paths = [f"photos/{number}.tar" for number in range(3)]
  for extension in ("jpg", "cls", "seg.png"):
    theirs = [sample[extension] for sample in webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)]
    assert theirs == [content for (content,) in map(names["Samples"](paths, extension).__getitem__, range(N))]

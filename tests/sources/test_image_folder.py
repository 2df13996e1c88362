"""`rtf.sources.image_folder`: the files, labels and splits of Keras' function, read by index."""

import os
import pathlib
import shutil

import hypothesis
from hypothesis import strategies
import keras
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops import global_shuffle_op

import refurbish_tf as rtf
from support import cases
from support import services
from support import warned

image_folder = rtf.sources.image_folder
NAMES = ["a.jpg", "B.PNG", "c.jpeg", "10.bmp", "9.gif", ".hidden.png", "deep/1.png", "deep/er/2.JPG", "z/1.png"]
NO_IMAGES = ["readme.txt", "jpg", "a.heic", "a.png.txt", ".DS_Store"]


def _write(directory, files):
  for name in files:
    path = pathlib.Path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode())


def _elements(dataset):
  return [(file.decode(), int(label)) for file, label in dataset.as_numpy_iterator()]


@strategies.composite
def _trees(draw):
  classes = draw(
    strategies.lists(
      strategies.sampled_from(["cats", "Dogs", "ants", "9", "10", "with space", "é"]),
      min_size=1,
      max_size=4,
      unique=True,
    )
  )
  return {
    name: draw(strategies.lists(strategies.sampled_from(NAMES + NO_IMAGES), max_size=6, unique=True))
    for name in classes
  }


def _in_keras(directory, **arguments):
  found = keras.utils.image_dataset_from_directory(str(directory), batch_size=None, verbose=False, **arguments)
  return found if isinstance(found, list) else [found]


@hypothesis.settings(max_examples=cases.examples(12))
@hypothesis.given(
  _trees(), strategies.sampled_from([None, 0.2, 0.5]), strategies.integers(0, 2**32 - 1), strategies.data()
)
def test_files_are_those_of_keras_in_the_same_order(tmp_path_factory, tree, split, seed, data):
  directory = tmp_path_factory.mktemp("images")
  _write(directory, [f"{name}/{file}" for name, files in tree.items() for file in files])
  for name in tree:
    (directory / name).mkdir(exist_ok=True)
  _write(directory, ["beside.png", ".hidden/1.png"])
  names = data.draw(strategies.none() | strategies.permutations(sorted(tree)))
  number = sum(file not in NO_IMAGES for files in tree.values() for file in files)
  arguments = {"class_names": names and list(names)}
  hypothesis.assume(names is None or len(names) == len(tree))
  if split is not None:
    arguments.update(validation_split=split, subset="both")
  if any(files and set(files) <= set(NO_IMAGES) and files != [".DS_Store"] for files in tree.values()):
    with pytest.raises(ValueError, match="^directory .*(with no readable images|without images)"):
      image_folder(directory, seed=seed, **arguments)
    return
  if number and names is None and not all(set(files) - set(NO_IMAGES) for files in tree.values()):
    with pytest.raises(
      ValueError, match="^directory .* has the class .* without images, which would still have a label"
    ):
      image_folder(directory, seed=seed, **arguments)
    return
  if split and not int(split * number) or not number:
    # If there are too few files for one validation file, Keras takes all of them.
    with pytest.raises(ValueError, match="^directory .*no images|^validation_split"):
      image_folder(directory, seed=seed, **arguments)
    return
  ours = image_folder(directory, seed=seed if split else None, **arguments)
  theirs = _in_keras(directory, shuffle=bool(split), seed=seed, **arguments)
  for one, other in zip(ours if split else [ours], theirs, strict=True):
    assert one.file_paths == other.file_paths and one.class_names == other.class_names
    place = {name: label for label, name in enumerate(one.class_names)}
    relative = [os.path.relpath(path, directory) for path in one.file_paths]
    assert _elements(one) == [(path, place[path.split("/")[0]]) for path in relative]


def test_labels_of_keras_without_a_split(tmp_path):
  for name in ("b/1.png", "b/2.png", "a/x/3.png"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(tf.io.encode_png(tf.fill([2, 2, 3], tf.constant(int(name[-5]), tf.uint8))).numpy())
  for arguments in ({"class_names": None}, {"class_names": ["b", "a"]}, {"class_names": ["b"]}):
    theirs = _in_keras(tmp_path, shuffle=False, image_size=(2, 2), **arguments)[0]
    ours = image_folder(tmp_path, **arguments)
    decoded = [(int(tf.io.decode_png(file)[0, 0, 0]), int(label)) for file, label in ours]
    assert decoded == [(int(image[0, 0, 0]), int(label)) for image, label in theirs]


def test_a_seed_without_a_split_shuffles_as_keras_does(tmp_path):
  _write(tmp_path, [f"{i % 3}/{i}.png" for i in range(20)])
  theirs = _in_keras(tmp_path, shuffle=True, seed=5)[0]
  assert image_folder(tmp_path, seed=5).file_paths == theirs.file_paths != sorted(theirs.file_paths)


def test_webp_files_are_images(tmp_path):
  _write(tmp_path, ["a/1.jpg", "a/2.webp", "a/3.JPG", "b/1.WEBP"])
  source = image_folder(tmp_path)
  assert _elements(source) == [("a/1.jpg", 0), ("a/2.webp", 0), ("a/3.JPG", 0), ("b/1.WEBP", 1)]
  assert rtf.describe(source) == "no reuse stages"


def test_omitted_files_are_counted_by_extension(tmp_path):
  a = "a/1.png a/2.heic a/deep/3.HEIC a/.DS_Store a/Thumbs.db a/png a/dot."
  b = "b/1.jpg b/2.Heic b/.DS_Store b/a.png.txt"
  _write(tmp_path, [*a.split(), *b.split(), "beside.heic", ".hidden/1.heic"])
  files = [
    f'image_folder "{tmp_path}"',
    "  files   2 listed; left out: 3 .heic, 2 .ds_store, 2 without an extension, 1 .db, 1 .txt",
  ]
  refurbished = image_folder(tmp_path).take(2).refurbish(lambda file, label: (file, label)).batch(2)
  lines = rtf.describe(refurbished).splitlines()
  assert lines[:3] == [*files, "refurbish, r = 3"] and sum("left out" in line for line in lines) == 1
  assert rtf.describe(image_folder(tmp_path).echo(2)).splitlines() == [*files, "echo, e = 2"]
  # The counts are of the folder, not of the subset.
  train, validation = image_folder(tmp_path, validation_split=0.5, subset="both", seed=1)
  for part in (train, validation, train.concatenate(validation)):
    assert rtf.describe(part).splitlines() == [*files, "no reuse stages"]
  # The counts are of the classes that are given.
  assert rtf.describe(image_folder(tmp_path, class_names=["b"])).splitlines()[1] == (
    "  files   1 listed; left out: 1 .ds_store, 1 .heic, 1 .txt"
  )


def test_many_extensions_are_counted_together(tmp_path):
  """For example, names with a number after the dot have many different extensions."""
  _write(tmp_path, ["a/1.png", *(f"a/subject.{i}" for i in range(9)), "a/b.5"])
  assert rtf.describe(image_folder(tmp_path)).splitlines()[1] == (
    "  files   1 listed; left out: 2 .5, 1 .0, 1 .1, 1 .2, 1 .3, 4 others"
  )


def test_a_class_whose_files_are_all_left_out_is_an_error(tmp_path):
  _write(tmp_path, ["a/1.png", "b/2.heic", "b/deep/3.HEIC", "b/.DS_Store"])
  with pytest.raises(ValueError) as caught:
    image_folder(tmp_path)
  assert str(caught.value) == (
    f"directory {tmp_path} has the class 'b' with no readable images, only 2 .heic, 1 .ds_store. Names of images "
    "must end in .bmp, .gif, .jpeg, .jpg, .png, .webp. Convert the files to one of these formats; or move the "
    "directory away if it is not a class, or pass the classes as class_names."
  )
  # The remedies of the error work.
  assert image_folder(tmp_path, class_names=["a"]).class_names == ["a"]
  (tmp_path / "b/2.heic").rename(tmp_path / "b/2.webp")
  assert _elements(image_folder(tmp_path)) == [("a/1.png", 0), ("b/2.heic", 1)]


def test_one_directory_around_the_class_directories_causes_a_warning(tmp_path):
  """This happens when an archive is unpacked, and all images would have label 0."""
  _write(tmp_path, ["photos/a/1.png", "photos/b/1.png"])
  with pytest.warns(
    rtf.PipelineWarning, match=r"one class in .*'photos'.*such as a, b.*read image_folder\('.*/photos'\)"
  ):
    image_folder(tmp_path)
  assert warned.told(lambda: image_folder(tmp_path, class_names=["photos"])) == []
  _write(tmp_path, ["photos/1.png"])
  assert warned.told(lambda: image_folder(tmp_path)) == []


def test_a_class_without_images_is_an_error(tmp_path):
  """A class without images would shift the labels of later classes."""
  _write(tmp_path, ["b/1.png", "c/1.png", "c/.DS_Store"])
  for other in ("a", "readme/deep"):
    (tmp_path / other).mkdir(parents=True)
    name = other.split("/", maxsplit=1)[0]
    with pytest.raises(ValueError) as caught:
      image_folder(tmp_path)
    assert str(caught.value) == (
      f"directory {tmp_path} has the class '{name}' without images, which would still have a label. Remove the "
      "directory if it is not a class. If only this part of the data has no images of the class, pass all "
      "class_names, which keeps its label."
    )
    # The remedy of the error works.
    assert _elements(image_folder(tmp_path, class_names=[name, "b", "c"])) == [("b/1.png", 1), ("c/1.png", 2)]
    shutil.rmtree(tmp_path / name)
  _write(tmp_path, ["__MACOSX/b/._1.png", "__MACOSX/._b", "@eaDir/b/SYNO.png", "b/@eaDir/1.png/SYNO.png"])
  assert image_folder(tmp_path).class_names == ["b", "c"] and _elements(image_folder(tmp_path)) == [
    ("b/1.png", 0),
    ("c/1.png", 1),
  ]


@pytest.mark.parametrize(
  "names, is_warned",
  [
    (("train", "test"), True),
    (("Train", "valid"), True),
    (("train", "validation", "cat"), True),
    (("train", "tram"), False),
    (("dev", "eval"), True),
    (("test_images", "train_images"), True),
    (("train2017", "val2017"), True),
    (("cat", "test"), False),
  ],
)
def test_data_set_splits_taken_for_classes_cause_a_warning(tmp_path, names, is_warned):
  _write(tmp_path, [f"{name}/cat/1.png" for name in names])
  expected = [
    f"image_folder treats each directory in {tmp_path} as a class, and "
    f"{' and '.join(map(repr, sorted(set(names) - {'cat'})))} seem to be parts of a data set: their labels say which "
    f"part a file is from. Read one part, such as image_folder('{tmp_path}/{min(set(names) - {'cat'})}'). If they "
    "are classes, pass them as class_names."
  ]
  assert warned.told(lambda: image_folder(tmp_path)) == expected * is_warned
  assert warned.told(lambda: image_folder(tmp_path, class_names=list(names))) == []
  assert warned.told(lambda: image_folder(tmp_path / names[0])) == []


def test_only_requested_files_are_read(tmp_path):
  _write(tmp_path, [f"a/{i}.png" for i in range(9)])
  source = image_folder(tmp_path)
  assert source.element_spec == (tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int32))
  assert len(source) == 9
  for i in range(9):
    if i != 4:
      (tmp_path / f"a/{i}.png").unlink()
  assert tf.data.experimental.at(source, 4)[0].numpy() == b"a/4.png"
  with pytest.raises(tf.errors.NotFoundError, match="a/5.png"):
    tf.data.experimental.at(source, 5)


@pytest.mark.parametrize("reads", [1, 2, 16])
def test_as_from_tensor_slices(tmp_path, reads):
  """The order of the files does not depend on the order in which they are read."""
  _write(tmp_path, [f"{i % 2}/{i:02}.png" for i in range(40)])
  source = image_folder(tmp_path, num_parallel_reads=reads)
  names = [os.path.relpath(path, tmp_path) for path in source.file_paths]
  slices = tf.data.Dataset.from_tensor_slices((names, [int(name[0]) for name in names]))
  shuffled = lambda d: global_shuffle_op._global_shuffle(d, seed=7)
  for make in (lambda d: d, lambda d: shuffled(d.skip(4).shard(3, 2))):
    assert _elements(make(source)) == _elements(make(slices))


@pytest.mark.parametrize("reads", [1, 16])
def test_a_file_that_cannot_be_read_costs_no_other(tmp_path, reads):
  _write(tmp_path, [f"a/{i}.png" for i in range(9)])
  source = image_folder(tmp_path, num_parallel_reads=reads)
  (tmp_path / "a/2.png").unlink()
  (tmp_path / "a/5.png").unlink()
  (tmp_path / "a/5.png").mkdir()
  (tmp_path / "a/7.png").write_bytes(b"")
  iterator, found = iter(source), []
  for i in range(9):
    try:
      found.append(next(iterator)[0].numpy())
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
      assert f"{tmp_path}/a/{i}.png" in str(error)
      found.append(type(error))
  expected = [b"a/%d.png" % i for i in range(9)]
  expected[2], expected[5], expected[7] = tf.errors.NotFoundError, tf.errors.InvalidArgumentError, b""
  assert found == expected
  assert next(iterator, None) is None


def test_a_service(tmp_path):
  """Each file comes once, whichever worker reads it."""
  _write(tmp_path, [f"a/{i}.png" for i in range(30)])
  source = image_folder(tmp_path)
  with services.in_this_process(2) as address:
    shared = source.apply(services.service.distribute(services.service.ShardingPolicy.DYNAMIC, address))
    assert sorted(_elements(shared)) == sorted(_elements(source))


def test_links(tmp_path):
  _write(tmp_path, ["images/a/1.png", "elsewhere/2.png", "elsewhere/more/3.png"])
  os.symlink(tmp_path / "elsewhere", tmp_path / "images/b")
  os.symlink(tmp_path / "elsewhere", tmp_path / "images/a/linked")
  os.symlink(tmp_path / "elsewhere/2.png", tmp_path / "images/a/2.png")
  source = image_folder(tmp_path / "images")
  # Keras 3.10 follows all links.
  if not keras.__version__.startswith("3.10."):
    assert source.file_paths == _in_keras(tmp_path / "images", shuffle=False)[0].file_paths
  assert [os.path.relpath(path, tmp_path / "images") for path in source.file_paths] == [
    "a/1.png",
    "a/2.png",
    "b/2.png",
    "b/more/3.png",
  ]


def test_file_names_that_are_not_utf_8_are_accepted(tmp_path):
  root = os.fsencode(tmp_path) + b"/\xfe"
  name = root + b"/a/\xff.png"
  os.makedirs(os.path.dirname(name))
  with open(name, "wb") as file:
    file.write(b"here")
  source = image_folder(os.fsdecode(root))
  ((contents, _),) = source.as_numpy_iterator()
  assert contents == b"here"
  for decode, error in (
    (lambda: None, tf.errors.InvalidArgumentError),
    (lambda: os.remove(name), tf.errors.NotFoundError),
  ):
    decode()
    with pytest.raises(error, match=r"/\\xfe/a/\\xff.png"):
      list(source.refurbish(lambda file, label: (tf.io.decode_png(file), label)))
  with pytest.raises(ValueError, match=r"^directory .*/\\xfe has no images"):
    image_folder(os.fsdecode(root))


def test_the_error_of_a_damaged_photograph_names_its_file(tmp_path):
  _write(tmp_path, ["a/1.png", "b/2.png"])
  (tmp_path / "a/1.png").write_bytes(tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8)).numpy())
  names = [str(tmp_path / name) for name in ("a/1.png", "b/2.png")]
  decode = lambda file, label: (tf.io.decode_png(file), label)
  own = tf.data.Dataset.from_tensor_slices((names, [0, 1])).map(lambda name, label: (tf.io.read_file(name), label))
  for source in (image_folder(tmp_path), image_folder(tmp_path).take(2).cache(), own.prefetch(1)):
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=f"sample 1 of the source of refurbish, the file {names[1]}, failed"
    ):
      list(source.refurbish(decode))
  # In another order, or if the entries are not file names, the error names no file.
  for source in (image_folder(tmp_path).skip(1), tf.data.Dataset.from_tensor_slices((["no file"], [1]))):
    with pytest.raises(tf.errors.InvalidArgumentError, match="sample 0 of the source of refurbish failed"):
      list(source.refurbish(decode))


def test_a_relative_directory_is_resolved_immediately(tmp_path, monkeypatch):
  _write(tmp_path, ["images/a/1.png"])
  monkeypatch.chdir(tmp_path)
  source = image_folder("images")
  assert source.file_paths == ["images/a/1.png"]
  assert source.files_fingerprint() == image_folder(tmp_path / "images").files_fingerprint()
  monkeypatch.chdir("images")
  assert _elements(source) == [("images/a/1.png", 0)]


def test_a_directory_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
  _write(tmp_path, ["a/1.png", "a/closed/2.png"])
  scandir = os.scandir

  def refusing(path):
    if os.fspath(path).endswith("closed"):
      raise PermissionError(13, "Permission denied", os.fspath(path))
    return scandir(path)

  monkeypatch.setattr(os, "scandir", refusing)
  with pytest.raises(ValueError, match="^directory .*cannot be listed.*closed"):
    image_folder(tmp_path)


def test_a_broken_link_is_an_error_of_its_photograph(tmp_path):
  _write(tmp_path, ["a/1.png", "a/3.png"])
  (tmp_path / "a/2.png").symlink_to("gone")
  source = image_folder(tmp_path)
  with pytest.raises(tf.errors.NotFoundError, match="a/2.png"):
    list(source)
  assert len(list(source.ignore_errors())) == 2


def test_a_class_that_is_a_broken_link_is_an_error(tmp_path):
  """If the class were left out, the labels of later classes would shift."""
  _write(tmp_path, ["a/1.png", "c/1.png"])
  (tmp_path / ".hidden").symlink_to("gone")
  assert image_folder(tmp_path).class_names == ["a", "c"]
  (tmp_path / "b").symlink_to("gone")
  with pytest.raises(ValueError, match="/b is a broken link. Remove it"):
    image_folder(tmp_path)


@pytest.mark.parametrize(
  "arguments, error, match",
  [
    ({"class_names": ["a", "c"]}, ValueError, "^class_names .*'a', 'b'.*got 'c'"),
    ({"class_names": ["a", "a"]}, ValueError, "^class_names .*once"),
    ({"validation_split": 0.5}, ValueError, "^subset .*None"),
    ({"validation_split": 0.5, "subset": "training"}, ValueError, "^seed .*validation_split"),
    ({"validation_split": 0.5, "subset": "test", "seed": 1}, ValueError, "^subset .*'training'"),
    ({"validation_split": 1.5, "subset": "training", "seed": 1}, ValueError, "^validation_split .*got 1.5"),
    (
      {"validation_split": 0.01, "subset": "validation", "seed": 1},
      ValueError,
      "^validation_split=0.01 .*for validation",
    ),
    ({"validation_split": 0.99, "subset": "training", "seed": 1}, None, ""),
    ({"subset": "training"}, ValueError, "^subset=.*validation_split"),
    ({"seed": 2**32}, ValueError, "^seed .*2\\*\\*32"),
    ({"num_parallel_reads": 1025}, ValueError, "^num_parallel_reads .*1,024"),
  ],
)
def test_arguments(tmp_path, arguments, error, match):
  _write(tmp_path, ["a/1.png", "b/2.png", "b/3.png"])
  if error is None:
    assert len(image_folder(tmp_path, **arguments)) == 1
    return
  with pytest.raises(error, match=match):
    image_folder(tmp_path, **arguments)


def test_directories_without_images(tmp_path):
  with pytest.raises(ValueError, match="^directory .*nowhere "):
    image_folder(tmp_path / "nowhere")
  (tmp_path / "file").write_bytes(b"")
  with pytest.raises(ValueError, match="^directory .*/file .*not a directory"):
    image_folder(tmp_path / "file")
  with pytest.raises(ValueError, match="^directory .*no images.*.jpeg"):
    image_folder(tmp_path)
  _write(tmp_path, ["1.png", "a/.2.heic"])
  with pytest.raises(ValueError, match="^directory .*no images"):
    image_folder(tmp_path)
  with pytest.raises(ValueError, match="^directory .*null character"):
    image_folder("a\0b")
  (tmp_path / "broken").symlink_to("gone")
  with pytest.raises(ValueError, match="^directory .*/broken is a broken link"):
    image_folder(tmp_path / "broken")
  with pytest.raises(ValueError, match="^directory .*http://a/b.*get_file"):
    image_folder("http://a/b")
  with pytest.raises(ValueError, match=r"^directory .*gs://\\xff .*UTF-8"):
    image_folder("gs://\udcff")
  with pytest.raises(TypeError, match="^directory .*path"):
    image_folder(7)

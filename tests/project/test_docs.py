"""The README and the guides: their examples and programs run."""

import ast
import contextlib
import functools
import inspect
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf.augment import composition
from support import ROOT, cases, services
from support.processes import TIMEOUT, end_of, environment, start_forked

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# Texts in examples that a test cannot wait for, and their replacements.
SMALLER = {
  "epochs=90, steps_per_epoch=391": "epochs=2, steps_per_epoch=2",
  "fit(train, epochs=90": "fit(train, epochs=2",
  "fit(train, validation_data=validation, epochs=90": "fit(train, validation_data=validation, epochs=2",
  "batch_size=64, step_seconds=0.1": "batch_size=8, step_seconds=0.1, max_seconds=0.5",
  ", 64)": ", 8)",
  "layers, 64, ": "layers, 8, ",
  "layers, batch_size=128": "layers, batch_size=8, max_seconds=0.5",
  "left_right], batch_size=128": "left_right], batch_size=8, max_seconds=0.5",
  '"/ssd/cache"': '"cache"',
  "MultiWorkerMirroredStrategy()": "get_strategy()",
  'cluster.cluster_spec().num_tasks("worker"), cluster.task_id': "1, 0",
  "while epoch < 90": "while epoch < 2",
  "imagenet/train-*-of-01024": "data/train-*.tfrecord",
  "oxford_flowers102": "flowers",
  '"redis://cache:6379/0"': "__import__('support.shared_levels').shared_levels.Object()",
}
# Replacements in the programs of docs/torch_jax.md. With the photographs of these tests, an epoch has three steps.
SMALLER_PROGRAMS = {
  ".batch(128)": ".batch(8)",
  "range(loader.epoch, 90)": "range(loader.epoch, 2)",
  "step % 500": "step % 2",
}
SERVICE = '"grpc://host0:5050"'
NOT_RUN = "<!-- not run: "
# Marks a program that is run as the page says, not together with the examples: `a program: NAME -->`, or `a program:
# NAME, needs: PACKAGE -->`.
PROGRAM = "<!-- a program: "


def examples(page):
  """Yields the Python blocks of a page: the number of the first line, the code, and the mark in the line before, if the
  block is not run with the others."""
  text = page.read_text(encoding="utf-8")
  for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
    before = text[: block.start()].rstrip("\n").rpartition("\n")[2]
    yield text[: block.start()].count("\n") + 1, block[1], before if before.startswith((NOT_RUN, PROGRAM)) else None


# The examples of Keras' documentation begin with this: `from keras import layers`.
KERAS_EXAMPLE = {"layers": tf.keras.layers}


def write(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(content.numpy())


def example_of(**features):
  """A serialized `tf.train.Example`. Each feature is a list of bytes or a whole number."""

  def feature(value):
    if isinstance(value, list):
      return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

  features = {name: feature(value) for name, value in features.items()}
  return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@pytest.fixture
def photographs(tmp_path, monkeypatch):
  """A working directory with small photographs of five classes and their masks: a folder for each class, and a TFRecord
  file of all photographs."""
  images = np.random.default_rng(7).integers(0, 256, [20, 6, 8, 3], np.uint8)
  for number, image in enumerate(tf.cast(tf.image.resize(images, [48, 64]), tf.uint8)):
    write(tmp_path / "photos" / "abcde"[number % 5] / f"{number}.jpg", tf.io.encode_jpeg(image))
    write(tmp_path / "masks" / "abcde"[number % 5] / f"{number}.png", tf.io.encode_png(image[..., :1] // 100))
  (tmp_path / "data").mkdir()
  with tf.io.TFRecordWriter(str(tmp_path / "data" / "train-0.tfrecord")) as writer:
    for path in (tmp_path / "photos").rglob("*.jpg"):
      image, label = [path.read_bytes()], "abcde".index(path.parent.name)
      writer.write(example_of(image=image, label=label, **{"image/encoded": image, "image/class/label": label}))
  monkeypatch.chdir(tmp_path)


@pytest.fixture
def clips(photographs, tmp_path):
  """Adds four clips of 16 to 19 frames to this directory: a folder of photographs for each clip, and one TFRecord file
  of all clips."""
  frames = np.random.default_rng(7).integers(0, 256, [4, 19, 24, 32, 3], np.uint8)
  (tmp_path / "clips").mkdir()
  with tf.io.TFRecordWriter(str(tmp_path / "clips" / "0.tfrecord")) as writer:
    for number, clip in enumerate(frames):
      files = [tf.io.encode_jpeg(frame) for frame in clip[: 16 + number]]
      for place, file in enumerate(files):
        write(tmp_path / "frames" / f"{number}" / f"{place:02}.jpg", file)
      writer.write(example_of(frames=[file.numpy() for file in files], label=number))


@pytest.fixture
def few_and_small(monkeypatch):
  """Replaces CIFAR-10 with a few images, and a network that takes long to compile with a small one."""
  generator = np.random.default_rng(7)
  images = generator.integers(0, 256, [256, 32, 32, 3], np.uint8), generator.integers(0, 10, [256, 1])
  monkeypatch.setattr(tf.keras.datasets.cifar10, "load_data", lambda: (images, images))

  def network(weights, classes, include_preprocessing=True):
    assert weights is None and include_preprocessing in (True, False)
    return tf.keras.Sequential(
      [
        tf.keras.Input([224, 224, 3]),
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(classes, activation="softmax"),
      ]
    )

  monkeypatch.setattr(tf.keras.applications, "MobileNetV3Small", network)


@pytest.fixture
def flowers(photographs, monkeypatch, tmp_path):
  """Prepares a TFDS data set of this name, where `tfds.load` and `tfds.builder` look for it."""
  tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")

  class Flowers(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        supervised_keys=("image", "label"),
        features=tfds.features.FeaturesDict(
          {
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=5),
            "file_name": tfds.features.Text(),
          }
        ),
      )

    def _split_generators(self, dl_manager):
      return {"train": self._generate_examples()}

    def _generate_examples(self):
      for number, path in enumerate(sorted(pathlib.Path("photos").rglob("*.jpg"))):
        yield number, {"image": path, "label": number % 5, "file_name": path.name}

  Flowers(data_dir=tmp_path / "tfds").download_and_prepare()
  for name in ("load", "builder"):
    monkeypatch.setattr(tfds, name, functools.partial(getattr(tfds, name), data_dir=tmp_path / "tfds"))


@pytest.fixture
def final_augmentations(monkeypatch):
  """Collects the `final_fn` of each `rtf.augment.split`, and of each `refurbish` of lists, unless they need targets."""
  found, split = [], composition._split

  def recorded(layers, at, targets, *args, **options):
    functions = split(layers, at, targets, *args, **options)
    if functions[1] and not targets:
      found.append(functions[1])
    return functions

  monkeypatch.setattr(composition, "_split", recorded)
  return found


def has_many_outcomes(final_fn):
  """Returns whether `final_fn` makes enough different results of an image: about 20 of them, which give a normalised
  diversity of 0.95 with r = 3."""
  values = np.random.default_rng(7).integers(0, 256, [8, 64, 64, 13])

  parameters = inspect.signature(final_fn).parameters

  def outcomes(image):
    seeds = (
      {name: value for name, value in (("seed", [number, 0]), ("epoch", 0)) if name in parameters}
      for number in range(64)
    )
    return len({final_fn(tf.constant(image), 0, **seed)[0].numpy().tobytes() for seed in seeds})

  clip = values[..., :3].astype(np.uint8)
  for image in (clip[0], values[0].astype(np.float32) / 255):  # The second image is a satellite's.
    with contextlib.suppress(ValueError, tf.errors.InvalidArgumentError):
      return outcomes(image) >= 20
  return outcomes(clip) >= 20


@pytest.fixture
def service():
  """Yields the address of a tf.data service with one worker."""
  with services.in_this_process() as address:
    yield address


@pytest.mark.parametrize(
  "page",
  [
    pytest.param(page, id=page.stem, marks=() if page.stem == "README" else cases.slow)
    for page in PAGES
    if any(mark is None for _, _, mark in examples(page))
  ],
)
def test_examples_run(page, photographs, clips, few_and_small, final_augmentations, request):
  """Runs all examples of a page, one after the other, as a reader would."""
  names = {"__name__": page.stem, **KERAS_EXAMPLE}
  for line, example, mark in examples(page):
    if mark is not None:
      continue
    if SERVICE in example:
      example = example.replace(SERVICE, repr(request.getfixturevalue("service")))
    if "tfds." in example:
      request.getfixturevalue("flowers")
    for given, run_here in SMALLER.items():
      example = example.replace(given, run_here)
    train, known = names.get("train"), len(final_augmentations)
    # The code is compiled with its line number in the page, for tracebacks.
    exec(compile("\n" * line + example, str(page), "exec"), names)
    # Datasets are also read, because many mistakes show only then.
    if names.get("train") is not train:
      next(iter(names["train"]))
    if "rtf.advise(" in example:
      # `advise` tries splits, which are not examples of the page.
      del final_augmentations[known:]
    final_augmentations += [names["final_fn"]] if names.get("final_fn") else []
  # An example must not have only a flip, which has two outcomes.
  assert all(map(has_many_outcomes, set(final_augmentations)))


def run_program(program, number, output):
  """Runs the text of a program like `python search.py NUMBER`. The caller starts it in a new process."""
  os.chdir(output.parent)
  sys.argv = ["search.py", str(number)]
  with open(output, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
    exec(compile(program, "search.py", "exec"), {"__name__": "__main__"})


def test_four_processes_search_hyperparameters(tmp_path):
  """As the guide says, they share one study and one store."""
  import optuna

  page = ROOT / "docs" / "search.md"
  (program,) = [program for _, program, mark in examples(page) if mark == f"{PROGRAM}search.py -->"]
  assert "for job in 1 2 3 4; do python search.py $job & done; wait" in page.read_text(encoding="utf-8")
  outputs = [tmp_path / str(job) for job in range(1, 5)]
  jobs = [start_forked(run_program, program, number, output) for number, output in enumerate(outputs, 1)]
  assert [end_of(job) for job in jobs] == [0] * 4
  counts = []
  for number, output in enumerate(outputs, 1):
    line = re.fullmatch(
      rf"job {number}: (\d+) samples prepared, (\d+) from others\n", output.read_text(encoding="utf-8")
    )
    counts.append(tuple(map(int, line.groups())))
    assert sum(counts[-1]) <= 6 * 500
  # This holds in whatever order the jobs ran.
  assert sum(from_other_jobs for _, from_other_jobs in counts) > 0
  storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "search.log")))
  trials = optuna.load_study(study_name="search", storage=storage).trials
  assert [trial.state.name for trial in trials] == ["COMPLETE"] * 8


def program_of(page, name):
  """Returns the program of this name, or skips the test if the package that it needs is not installed."""
  ((program, needed),) = [
    (program, mark.removeprefix(f"{PROGRAM}{name}, needs: ").removesuffix(" -->"))
    for _, program, mark in examples(page)
    if mark is not None and mark.startswith(f"{PROGRAM}{name}, ")
  ]
  if importlib.util.find_spec(needed) is None:
    pytest.skip(f"not installed: {needed}; pip install -e '.[exhaustive]' does it")
  return program


def run_program_of(page, name, arguments=(), with_errors=False, program_arguments=(), smaller=(), **variables):
  """Runs a program of a guide in the working directory, in its own process. Returns what it prints."""
  program = program_of(ROOT / "docs" / page, name)
  for given, run_here in {**SMALLER_PROGRAMS, **dict(smaller)}.items():
    program = program.replace(given, run_here)
  pathlib.Path(name).write_text(program, encoding="utf-8")
  done = subprocess.run(
    [sys.executable, *arguments, name, *program_arguments],
    capture_output=True,
    text=True,
    timeout=TIMEOUT,
    check=False,
    env={**environment(), **variables},
  )
  assert done.returncode == 0, done.stderr
  return done if with_errors else done.stdout


def test_a_program_resumes_from_its_checkpoint(photographs):
  """The program resumes in the middle of its last epoch, with the batches and weights of the unbroken run."""
  unbroken, resumed = (run_program_of("torch_jax.md", "train_torch.py") for _ in range(2))
  assert "epoch 0" not in resumed
  assert re.search(r"epoch 1: loss [\d.]+\n", unbroken)[0] in resumed


@cases.only_exhaustive
def test_boxes_of_a_library_keep_their_labels(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  lines = [list(map(int, line.split())) for line in run_program_of("transforms.md", "train_boxes.py").splitlines()]
  assert len(lines) == 3 and all(set(labels) <= {10, 11, 12} for labels in lines) and any(lines)


@cases.slow
def test_the_tutorial_resumes(photographs):
  """The tutorial resumes in the interrupted epoch. The folder of this test has two steps per epoch."""
  # The program ends in the second step of the third epoch.
  stop = (
    "tf.keras.callbacks.LambdaCallback(on_train_batch_begin=lambda step, logs: model.optimizer.iterations == 5 "
    "and __import__('os')._exit(0))"
  )
  smaller = {
    "tf.keras.applications.MobileNetV3Small(": "(lambda classes, **_: tf.keras.Sequential([\n"
    "    tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(classes, 'softmax')]))(",
    ".batch(64)": ".batch(8)",
    "epochs=20": "epochs=4",
    "save_freq=20": "save_freq=1",
  }
  run_program_of("tutorial.md", "train.py", smaller={**smaller, "callbacks=[": f"callbacks=[{stop}, "}.items())
  printed = run_program_of("tutorial.md", "train.py", smaller=smaller.items())
  assert re.findall(r"^Epoch (\d)/4$", printed, re.MULTILINE) == ["3", "4"]
  assert "input_wait_fraction" in printed
  assert not pathlib.Path("backup").exists() or not list(pathlib.Path("backup").iterdir())


@pytest.mark.parametrize("name", ["train_albumentations.py", "train_torchvision.py"])
def test_libraries_draw_the_same_whichever_process_calls_them(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  smaller = {
    "[64, 64, 3], tf.uint8)": "[64, 64, 3], tf.uint8), processes=int(sys.argv[1])",
    "import numpy as np": "import sys, zlib\nimport numpy as np",
    ".batch(8).prefetch(tf.data.AUTOTUNE))": (
      ")\nprint(*(zlib.crc32(image.tobytes()) for _ in range(2) for image in train.as_numpy_iterator()))"
    ),
  }
  printed = [
    run_program_of("transforms.md", name, program_arguments=[str(processes)], smaller=smaller.items())
    for processes in (0, 1, 4)
  ]
  # Half of the second epoch's samples are cached, and may be cropped and flipped as in the first.
  assert printed[0] == printed[1] == printed[2] and 16 + 8 <= len(set(printed[0].split())) <= 32


@cases.slow
def test_all_but_a_damaged_photograph_are_trained_on(photographs):
  pathlib.Path("photos/c/7.jpg").write_bytes(b"damaged")
  done = run_program_of("photographs.md", "train_on_the_others.py", TF_CPP_MIN_LOG_LEVEL="0", with_errors=True)
  assert done.stdout == "19 of 20 photographs\n" * 3
  # The error comes once per epoch, and for no other file.
  assert re.findall(r"the file \S*/(photos/\S*jpg), failed", done.stderr) == ["photos/c/7.jpg"] * 3


@cases.only_exhaustive
def test_files_of_a_torchvision_dataset_are_decoded_in_batches(photographs):
  printed = run_program_of("torch_jax.md", "torchvision_dataset.py")
  shapes = [f"torch.Size([{number}, 224, 224, 3]) torch.uint8 torch.int64" for number in (8, 8, 4)]
  assert printed.splitlines() == shapes


@cases.slow
@pytest.mark.parametrize("name", ["finetune.py", "finetune_torch.py"])
def test_both_phases_of_fine_tuning_read_one_stage(name, photographs):
  smaller = {
    "(weights=weights)": "(weights=None)",
    "applications.EfficientNetV2B0(": "Sequential([tf.keras.Input([32, 32, 3]), tf.keras.layers.Flatten()]) or dict(",
    "resnet50": "resnet18",
    "given.crop_size[0]": "32",
    "224": "32",
    "epochs=20, shuffle=False)": "epochs=6, shuffle=False); print(rtf.stats(train)[0])",
    "range(20)": "range(6)",
    'print(f"epoch': 'print(rtf.stats(train)[0], f"epoch',
  }
  printed = run_program_of("finetune.md", name, smaller=smaller.items())
  epochs = re.findall(r"^ +\d +(\d+) +(\d+)", printed, re.MULTILINE)[-6:]
  assert epochs == [("16", "0")] + [("8", "8")] * 5


def test_last_layers_for_pretrained_weights_are_as_in_keras():
  images = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3) * 5
  rows = re.findall(r"^([\w, ]+) \| [^|]+ \| `(.+)`$", (ROOT / "docs" / "finetune.md").read_text("utf-8"), re.MULTILINE)
  assert sum(len(names.split(", ")) for names, _ in rows) == 11
  for names, last in rows:
    layer = eval(last, {"tf": tf, "normalize": rtf.augment.normalize})
    for name in names.split(", "):
      expected = importlib.import_module(f"keras.applications.{name}").preprocess_input(images.astype(np.float32))
      np.testing.assert_allclose(layer(tf.constant(images)), expected, atol=1e-5)


@cases.slow
def test_imagenet_needs_the_memory_and_disk_that_the_guide_says(tmp_path):
  """The numbers must be those that `rtf.describe` plans for as many samples."""
  page = (ROOT / "docs" / "imagenet.md").read_text(encoding="utf-8")
  number = 1_281_167
  source = tf.data.Dataset.range(number).map(lambda index: (tf.zeros([224, 224, 3], tf.uint8), 0))
  assert f"{number:,}" in page and f"{224 * 224 * 3:,} bytes" in page

  def planned(r, store=None):
    """Returns the percentage that is prepared in each epoch, and the GB in memory."""
    plan = str(
      rtf.describe(source.refurbish([rtf.augment.rand_augment()], [rtf.augment.random_flip()], r, store=store))
    )
    fresh, cached = (
      int(count.replace(",", "")) for count in re.search("about ([0-9,]+) fresh, ([0-9,]+) cached", plan).groups()
    )
    assert fresh + cached - number in (0, 1)
    return f"{100 * fresh / number:.0f} %", f"{cached * 224 * 224 * 3 / 1e9:.0f} GB"

  for r in (2, 3):
    prepared, memory = planned(r)
    assert f"\nr = {r} | {memory} | {prepared}\n" in page
  for limit in (128, 64):
    prepared, memory = planned(3, rtf.CacheStore(max_bytes=limit * 10**9))
    assert f"\nr = 3, at most {limit} GB | {memory} | {prepared}\n" in page
  record = -(-(224 * 224 * 3 + 100) // 4096) * 4096
  assert f"{record:,} bytes" in page and f"All samples take {number * record / 1e9:.0f} GB" in page
  assert planned(3, rtf.CacheStore(tmp_path / "200", max_bytes=200_000_000_000))[0] == "33 %"
  assert (
    planned(3, rtf.CacheStore(tmp_path / "100", max_bytes=100_000_000_000))[0] == "67 %" and "prepares 67 %" in page
  )


def test_keras_example_takes_three_statements():
  """The imports do not count: they are those of the example in Keras' documentation."""
  page = ROOT / "docs" / "migrate.md"
  (example,) = [example for _, example, _ in examples(page) if "train_ds" in example]
  assert len(ast.parse(example).body) == 3

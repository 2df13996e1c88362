"""Damaged files and values: stores on disk, checkpoints, positions of loaders, records of a shared level, TFRecord and
image files. Bad data never comes out (G9): it is prepared again, or an error says so. A restore goes on exactly, or is
refused (G7). The process does not end."""

import collections
import gc
import io
import itertools

import numpy as np
from PIL import Image
import tensorflow as tf

import refurbish_tf as rtf
from run import tell
from support import autograph, checkpoints, images
from support.checkpoint_states import TYPES, set_state, state_of
from support.loaders import numpy_loader
from support.shared_levels import SEED, Job, Object, bytes_of, generation_of

autograph.parse_each_file_once()
N = 11
REFUSED = (tf.errors.OpError, ValueError, TypeError, IndexError)


def damaged(chance, data):
  """The bytes with a random fault."""
  data, size = bytearray(data), len(data)
  way = chance.choice(["bit", "byte", "run", "zeros", "cut", "longer", "twice", "nothing left", "moved"])
  at, more = chance.randint(0, max(0, size - 1)), chance.choice([1, 4, 8, 30, 500])
  if not size or way == "longer":
    return bytes(data) + bytes(more)
  if way == "bit":
    data[at] ^= 1 << chance.randint(0, 7)
  elif way == "byte":
    data[at] = chance.randint(0, 255)
  elif way == "run":
    data[at : at + more] = bytes(chance.randint(0, 255) for _ in data[at : at + more])
  elif way == "zeros":
    data[at : at + more] = bytes(len(data[at : at + more]))
  elif way == "cut":
    del data[at:]
  elif way == "twice":
    data[at:at] = data[at : at + more]
  elif way == "nothing left":
    data.clear()
  else:
    del data[at : at + more]
  return bytes(data)


def damage_files(chance, directory, other):
  """Damages or removes a few files of a directory, or replaces them by those of another one, or by each other."""
  names = sorted(path.name for path in directory.iterdir())
  for name in chance.sample(names, min(len(names), chance.randint(1, 3))):
    file, way = directory / name, chance.choice(["damage", "damage", "damage", "remove", "swap", "foreign"])
    source = {"swap": directory / chance.choice(names), "foreign": other / name}.get(way, file)
    tell(f"{directory.name}: {way} {name}")
    if way == "remove":
      file.unlink(missing_ok=True)
    elif source.exists():
      file.write_bytes(damaged(chance, source.read_bytes()) if way == "damage" else source.read_bytes())


def partial_fn(index, seed):
  """Its index, its generation, and bytes made of both; those of every fourth are many."""

  def make(index, seed):
    generation = generation_of(index, seed)
    return np.int64(generation), np.frombuffer(bytes_of(index, generation, 6000 if index % 4 == 0 else 40), np.uint8)

  generation, payload = tf.numpy_function(make, [index, seed], (tf.int64, tf.uint8))
  return index, tf.ensure_shape(generation, []), tf.ensure_shape(payload, [None])


def on_disk(store):
  return tf.data.Dataset.range(N).refurbish(partial_fn, r=2, seed=SEED, store=store)


def read_whole(dataset, harm=lambda: None):
  """Reads an epoch, which has each sample once, with the bytes of its index and generation."""
  seen = []
  for index, generation, payload in dataset.as_numpy_iterator():
    assert payload.tobytes() == bytes_of(index, int(generation), 6000 if index % 4 == 0 else 40), f"sample {index}"
    seen.append(int(index))
    harm()
  assert sorted(seen) == list(range(N)), f"not whole: {seen}"


def store(chance, directory):
  """Files are damaged between two trainings, or during one. Afterwards the store works, or its error says what to do.
  C++ tests do more: disk_fuzz_test.cc and disk_damage_test.cc."""
  paths = [directory / name for name in ("store", "other")]
  for path, build in zip(paths, (on_disk, foreign)):
    dataset = build(path)
    for _ in range(chance.randint(1, 3)):
      collections.deque(dataset, maxlen=0)
    del dataset
    gc.collect()
  if chance.choice([False, True]):
    harm = lambda: damage_files(chance, *paths) if chance.randint(0, 9) == 9 else None
    dataset = on_disk(paths[0])
    read_whole(dataset, harm)
    read_whole(dataset, harm)
    del dataset
    gc.collect()
  else:
    damage_files(chance, *paths)
  try:
    dataset = on_disk(paths[0])
  except ValueError as error:
    assert "overwrite=True" in str(error), error
    dataset = on_disk(rtf.CacheStore(paths[0], overwrite=True))
  for _ in range(3):
    read_whole(dataset)


def foreign(path):
  """A store of samples of the same structure, with other bytes."""

  def other(index, seed):
    size = tf.where(index % 4 == 0, 6000, 40)
    return index, tf.cast(seed[0], tf.int64), tf.zeros([size], tf.uint8)

  return tf.data.Dataset.range(N).refurbish(other, r=2, seed=5, store=path)


def make(chance):
  kind, buffer = chance.choice(["range", "mapped", "records"]), chance.choice([None, 1, 4])
  batch, symbolic = chance.choice([None, 3]), chance.choice([False, True])

  def build():
    dataset = checkpoints.make(kind, N, buffer=buffer, epochs=3)
    return checkpoints.with_checkpoints(dataset if batch is None else dataset.batch(batch), symbolic)

  return build


def checkpoint(chance, directory):
  build = make(chance)
  expected = checkpoints.take(iter(build()))
  places = []
  for name in ("saved", "other"):
    iterator, step = iter(build()), chance.randint(0, len(expected))
    checkpoints.take(iterator, step)
    (directory / name).mkdir()
    places.append((step, checkpoints.save(iterator, directory / name)))
  damage_files(chance, directory / "saved", directory / "other")
  try:
    rest = checkpoints.take(checkpoints.restore(build(), places[0][1]))
  except (*REFUSED, AssertionError):
    return
  # A file of the other checkpoint may have taken the place of this one's.
  assert rest in [expected[step:] for step, _ in places], f"restored at {places}: {rest} of {expected}"


def loader(chance, directory):
  build = make(chance)
  first = numpy_loader(build())
  iterator, expected = iter(first), [each.tolist() for each in numpy_loader(build())]
  step = chance.randint(0, len(expected) - 1)  # After the end comes the next pass.
  collections.deque(itertools.islice(iterator, step), maxlen=0)
  state = dict(first.state_dict())
  data = damaged(chance, np.asarray(state["state"]).tobytes())
  tell(f"a loader's state at {step}")
  second = numpy_loader(build())
  try:
    second.load_state_dict({**state, "state": np.frombuffer(data, np.uint8)})
    rest = [each.tolist() for each in second]
  except REFUSED:
    return
  assert rest == expected[step:], f"restored at {step}: {rest} instead of {expected[step:]}"


def numbers(chance, directory):
  """Whatever a checkpoint of a stage holds, it is refused or yields elements of the source, each once."""
  kind = chance.choice(["range", "stream", "stream of known length"])
  dataset = checkpoints.make(kind, N, epochs=None)
  for _ in range(chance.randint(0, 3)):
    checkpoints.take(iter(dataset))
  iterator = iter(dataset)
  checkpoints.take(iterator, chance.randint(0, N))
  state = state_of(iterator)
  # A change of these entries would only be refused as another pipeline or version.
  keys = [key for key in state.values if key not in ("version", "stage", "seed", "order_seed", "reuse_factor")]
  for key in chance.sample(keys, chance.randint(1, 3)):
    dtype = TYPES.get(key, tf.int64).as_numpy_dtype
    likely = [-(2**63), -1, 0, 1, 2, 3, N - 1, N, N + 1, 1000, 2**32 - 2, 2**32 - 1, 2**44, 2**63 - 1]
    values = [chance.choice([0, 1, N - 1, N, int(np.iinfo(dtype).max)]) for _ in range(chance.randint(0, 4))]
    state.values[key] = np.array(values, dtype) if key in TYPES else np.int64(chance.choice(likely))
  tell(f"{kind} {state.values}")
  iterator = iter(checkpoints.make(kind, N, epochs=None))
  try:
    set_state(iterator, state)
  except tf.errors.OpError:
    return
  try:
    indices = [index for index, *_ in checkpoints.take(iterator, 2 * N)]
  except tf.errors.OpError:  # The source of unknown length is not the one that was saved.
    assert kind == "stream"
    return
  assert len(set(indices)) == len(indices) and set(indices) <= set(range(N))


def echo(chance, directory):
  """The same for `echo`: a finite number of elements of the dataset's type follows."""
  dataset = tf.data.Dataset.range(N).echo(chance.choice([2, 1.5, rtf.AUTOTUNE]), seed=1, max_e=2)
  iterator = iter(dataset)
  checkpoints.take(iterator, chance.randint(0, 2 * N))
  state = state_of(iterator, "Echo", {})
  ahead = [f"buffered_{k}_{name}" for k in (0, 1) for name in ("code", "message", "0")]
  likely = [None, -(2**63), -1, 0, 1, 2, 3, 16, 17, 2**31, 2**62, 2**63 - 1, 1.0, [1], [[]], b"x", [b"", b""]]
  keys = sorted({*state.values, "position", "left", "element_0", "num_buffered", *ahead})
  for key in chance.sample(keys, chance.randint(1, 3)):
    value = chance.choice(likely)
    state.values[key] = np.int64(value) if type(value) is int else np.array(value)
  state.values = {key: value for key, value in state.values.items() if value.dtype != object}
  tell(f"echo {state.values}")
  iterator = iter(dataset)
  try:
    set_state(iterator, state)
    elements = checkpoints.take(iterator, 3 * N)
  except tf.errors.OpError:
    return
  assert len(elements) <= 2 * N and all(isinstance(element, int) for element in elements)


def shared_level(chance, directory):
  level = Object()
  for job in (Job(level, N), Job(level, N)):
    for _ in range(chance.randint(1, 2)):
      job.epoch()
    level.wait_for(job) if job.prepared else None
    records = level.records()
    level.change(
      lambda index, record: chance.choice([record, damaged(chance, record), records[chance.choice([*records])]])
    )
    job.dataset = job.store = None
  last = Job(level, N)
  for _ in range(3):
    last.epoch()
  last.dataset = last.store = None


def records(chance, directory):
  file = directory / "records"
  written = [bytes_of(index, 0, chance.choice([0, 1, 30, 3000])) for index in range(N)]
  with tf.io.TFRecordWriter(str(file)) as writer:
    for each in written:
      writer.write(each)
  if chance.choice([False, True]):
    rtf.sources.tfrecord(str(file), index_dir=str(directory / "index"))
  names = ["records", *(f"index/{path.name}" for path in directory.glob("index/*"))]
  name = chance.choice(names)
  tell(f"{name} {sorted(map(len, written))}")
  (directory / name).write_bytes(damaged(chance, (directory / name).read_bytes()))
  try:
    dataset = rtf.sources.tfrecord(str(file), index_dir=str(directory / "index"))
    found = list(dataset.as_numpy_iterator())
  except REFUSED:
    return
  theirs = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
  assert found == theirs, f"{len(found)} records, TensorFlow reads {len(theirs)}"


def image_file(chance, directory):
  """What TensorFlow decodes, the layers decode; what they refuse is an error; no file ends the process."""
  image = images.noise(chance.choice([1, 7, 16, 33]), chance.choice([1, 8, 19]), 3)
  kind = chance.choice(["jpeg", "png", "16 bits", "gif", "bmp or webp"])
  if kind == "gif":
    file = io.BytesIO()
    frames = [Image.fromarray(each) for each in (image, image[::-1])]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1 : chance.randint(1, 2)])
    data = file.getvalue()
  elif kind == "bmp or webp":
    file = io.BytesIO()
    Image.fromarray(image).save(file, chance.choice(["BMP", "WEBP"]))
    data = file.getvalue()
  else:
    encode = tf.io.encode_jpeg if kind == "jpeg" else tf.io.encode_png
    data = encode(image.astype(np.uint16) * 257 if kind == "16 bits" else image).numpy()
  for _ in range(chance.randint(1, 3)):
    data = damaged(chance, data)
  tell(f"{kind} {image.shape} {data[:2000].hex()}")
  dtype = chance.choice(["uint8", "uint8", "uint16"])
  size = chance.choice([None, (5, 6)])
  try:
    made = rtf.augment.decode(size, dtype=dtype, max_pixels=10**6)(data)
    assert made.dtype == dtype and made.shape[-1] == 3 and (size is None or made.shape[:2] == size)
  except REFUSED:
    pass
  try:
    made = rtf.augment.decode_random_resized_crop((5, 6), dtype=dtype, max_pixels=10**6)(data, seed=[1, 2])
    assert made.shape == (5, 6, 3)
  except REFUSED:
    pass


KINDS = [image_file, image_file, checkpoint, store, store, records, numbers, echo, loader, shared_level]


def case(chance, directory):
  kind = chance.choice(KINDS)
  tell(kind.__name__)
  kind(chance, directory)

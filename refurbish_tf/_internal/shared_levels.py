"""The level of a `CacheStore` that machines share: in Redis, in an object store, or in an object of the user.

The C++ part (sample_store/shared_level.h) decides which samples are read and written, and checks their records. It
announces each level once, even in a worker of a tf.data service, which has only the graph. Threads here then read and
write the samples that it asks for. Messages show only types of exceptions, because the texts may contain a password.
"""

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import re
import struct
import threading
import time
import urllib.parse
import uuid

import numpy as np

from refurbish_tf._internal import pipeline_warnings

_ADDRESS = re.compile(
  r"(redis|valkey)s?://(\[[^/\]]+\]|[^/:\[\]]+)(:\d+)?(/\d*)?|unix:///.+|(s3|gs|az)://[^/].*|file:///.*"
)
# A record is a header, with the sample's index at byte 4, its generation at 8 and its size at 12, and the sample.
_HEADER_BYTES, _MOST_BYTES = 32, 2**27
_FIRST_BYTES = 2**14  # An object of fewer bytes is read in one request.
# Runs in the server: finds the records that are new enough, in one round trip. Other values count as missing.
_READ = f"""
local found = {{}}
for i, key in ipairs(KEYS) do
  local header = redis.pcall('GETRANGE', key, 4, 15)
  found[i] = false
  if type(header) == 'string' and #header == 12 then
    local index, generation, size = struct.unpack('<I4I4I4', header)
    found[i] = index == tonumber(string.match(key, '%d+$')) and generation >= tonumber(ARGV[i])
      and size <= {_MOST_BYTES} and redis.call('STRLEN', key) == 32 + size and redis.call('GET', key)
  end
end
return found
"""
_READ_NAME = hashlib.sha1(_READ.encode(), usedforsecurity=False).hexdigest()
# A server does not answer other clients while it runs a script, so a script does not read much more than this.
_SCRIPT_BYTES = 2**20
_WAIT_MS = 200
# The most seconds for the check at the start, on a busy machine, and for the last writes at the end.
_CHECK_SECONDS, _END_SECONDS = 10, 2

_functions = None  # Those of the C++ library.
# The objects of users by address. They are kept until the process ends, because a stage may outlive Python's objects.
_objects = {}
_threads = []
_ending = False


class _UnusableError(Exception):  # With a message that needs no additions.
  pass


class _Redis:
  """Redis or Valkey. All clients have these attributes and methods; `most` records are read or written at a time."""

  readers, writers, most, again_ms, expires = 2, 2, 128, 20, True
  advice = (
    "Check that the server runs, has room and is not a Redis Cluster; check REFURBISH_TF_SHARED_USERNAME, "
    "REFURBISH_TF_SHARED_PASSWORD and the user's rights (docs/clusters.md)"
  )

  def __init__(self, address):
    import hiredis  # noqa: F401, redis uses it if it is installed.
    import redis
    from redis.connection import PythonRespSerializer

    self._client = redis.Redis.from_url(
      re.sub("^valkey", "redis", address),
      username=os.environ.get("REFURBISH_TF_SHARED_USERNAME") or None,
      password=os.environ.get("REFURBISH_TF_SHARED_PASSWORD") or None,
      **dict(socket_timeout=1, socket_connect_timeout=1, socket_read_size=2**18),
      retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    )
    # The packer of hiredis copies large values several times: 13 ms of CPU time for 4.4 MB instead of 1.3.
    pool = self._client.connection_pool
    pool.connection_kwargs["command_packer"] = PythonRespSerializer(6000, pool.get_encoder().encode)
    self._largest = 0  # Of the records found.

  def _pipelined(self, call, *arguments):
    rows, results = list(zip(*arguments)), []
    for start in range(0, len(rows), 1000):
      with self._client.pipeline(transaction=False) as pipeline:
        for each in rows[start : start + 1000]:
          call(pipeline, *each)
        results += pipeline.execute(raise_on_error=False)
    return results

  def read(self, keys, least):
    """The values with at least these generations, None for older ones, exceptions for values that cannot be read."""
    number = max(1, _SCRIPT_BYTES // (self._largest or _SCRIPT_BYTES))
    parts = [(keys[start : start + number], least[start : start + number]) for start in range(0, len(keys), number)]
    call = lambda pipeline, keys, least: pipeline.evalsha(_READ_NAME, len(keys), *keys, *least)
    results = self._pipelined(call, *zip(*parts))
    if any(type(each).__name__ == "NoScriptError" for each in results):
      self._client.script_load(_READ)
      results = self._pipelined(call, *zip(*parts))
    found = []
    for (part, _), result in zip(parts, results):
      found += [result] * len(part) if isinstance(result, Exception) else result
    self._largest = max([self._largest, *(len(each) for each in found if isinstance(each, bytes))])
    return found

  def write(self, records):
    """Writes tuples of a key, a value, and whether it stays. The result may contain exceptions."""
    call = lambda pipeline, key, value, stays: pipeline.set(key, value, px=None if stays else 60_000)
    return self._pipelined(call, *zip(*records))

  def names(self, root):
    """A dict of the keys below `root`, with the sizes of their values."""
    keys = {key.decode("utf-8", "replace") for key in self._client.scan_iter(f"{root}/*", count=1000)}
    sizes = zip(keys, self._pipelined(lambda pipeline, key: pipeline.strlen(key), keys))
    return {key: size for key, size in sizes if isinstance(size, int)}

  def delete(self, keys):
    _checked(self._pipelined(lambda pipeline, key: pipeline.unlink(key), keys))

  def warning(self, address):
    with contextlib.suppress(Exception):  # A server may not let users read its configuration.
      memory = self._client.info("memory")
      if memory["maxmemory"] and (policy := memory["maxmemory_policy"]).startswith("allkeys"):
        way_out = "Set it to noeviction or volatile-ttl, and give CacheStore a shared_max_bytes below maxmemory."
        return (
          f"shared level {address} has the maxmemory-policy {policy}, which evicts samples that jobs need. {way_out}"
        )


class _Objects:
  """An object store. Many threads wait for it without the GIL, because asynchronous calls need four times the CPU."""

  readers, writers, most, again_ms, expires = 64, 16, 1, 500, False
  advice = "Check the bucket, its region and endpoint, and the variables of the cloud, such as AWS_ACCESS_KEY_ID"
  process = None  # The process that used obstore first.

  def __init__(self, address):
    import obstore

    if _Objects.process not in (None, os.getpid()):
      told = "cannot be used in a process that was forked from one that uses an object store. Use spawn, not fork."
      raise _UnusableError(f"shared level {address} {told}")
    self._obstore, _Objects.process = obstore, os.getpid()
    self._store = self._opened(address)

  def _opened(self, address):
    options = {"timeout": "5s", "connect_timeout": "5s", "allow_http": True}
    return self._obstore.store.from_url(address, client_options=options, retry_config={"max_retries": 0})

  def read(self, keys, least):
    return list(map(_result_of, [self._read] * len(keys), keys, least))

  def _read(self, key, least):
    first = self._bytes(key, _FIRST_BYTES)
    if first is None or len(first) < _FIRST_BYTES:
      return first
    index, generation, size = struct.unpack_from("<III", first, 4)
    is_wanted = key.endswith(f"/{index}") and generation >= least and size <= _MOST_BYTES
    return self._bytes(key, _HEADER_BYTES + size) if is_wanted else None

  def _bytes(self, key, size):
    """The first bytes of an object; None if it is missing."""
    try:
      return self._obstore.get(self._store, key, options={"range": (0, size)}).bytes()
    except Exception as error:
      if isinstance(error, FileNotFoundError) or not self._obstore.head(self._store, key)["size"]:
        return None  # An empty object has no range.
      raise

  def write(self, records):
    put = lambda key, value: self._obstore.put(self._store, key, value, use_multipart=False)
    return [_result_of(put, key, value) for key, value, _ in records]

  def names(self, root):
    return {each["path"]: each["size"] for some in self._obstore.list(self._store, root) for each in some}

  def delete(self, keys):
    self._obstore.delete(self._store, keys)


class _Directory(_Objects):
  again_ms, advice = 50, "It must be an existing, writable directory"

  def _opened(self, address):
    path = urllib.parse.unquote(address.removeprefix("file://"))
    os.listdir(path)  # A missing directory is not made: the path may be wrong or not mounted.
    return self._obstore.store.LocalStore(path, automatic_cleanup=True)


class _Own:
  """An object of the user. It gets copies, because it may keep them."""

  readers, writers, most, again_ms, expires = 2, 2, 32, 100, False
  advice = "Its get_many(keys) must return a list with bytes or None for each key"

  def __init__(self, address):
    if address not in _objects:
      raise _UnusableError("shared is an object of another process. Give an address, which any process can use.")
    self._object = _objects[address]

  def read(self, keys, least):
    found = self._object.get_many(list(keys))
    if len(found) != len(keys):
      raise TypeError
    return [_result_of(lambda each: bytes(memoryview(each or b"")), each) or None for each in found]

  def write(self, records):
    return [_result_of(self._object.put, key, bytes(value)) for key, value, _ in records]


def _kind(address):
  kinds = {"s3": _Objects, "gs": _Objects, "az": _Objects, "file": _Directory, "object": _Own}
  return kinds.get(address.partition(":")[0], _Redis)


def _result_of(function, *arguments):
  try:
    return function(*arguments)
  except BaseException as error:  # Includes the panics of libraries in Rust.
    return error


def _checked(results):
  for each in results:
    if isinstance(each, BaseException):
      raise each
  return results


def address_of(shared, name="shared"):
  """The address of a level; `shared` is what the user gave as `name`. TypeError or ValueError if it is not allowed."""
  forms = "redis://host:6379/0, unix:///path, s3://bucket/prefix, gs://..., az://... or file:///mnt/nfs/folder"
  if not isinstance(shared, str):
    if not all(callable(getattr(shared, method, None)) for method in ("get_many", "put")):
      told = f"or an object with the methods get_many(keys) and put(key, value), got {type(shared).__name__}"
      raise TypeError(f"{name} must be an address such as {forms}, {told}.")
    address = next((each for each in _objects if _objects[each] is shared), f"object:{uuid.uuid4().hex}")
    _objects[address] = shared
    return address
  if not shared.isprintable() or not _ADDRESS.fullmatch(shared) or re.search("[@?#]", shared):
    # The rest of the text is not shown, because it may contain a password.
    scheme, found, _ = shared.partition("://")
    got = f"another form after {scheme + found!r}" if found and scheme.isalnum() else "a text without '://'"
    raise ValueError(
      f"{name} must be an address such as {forms}, without user name, password and options, got {got}. Set credentials "
      "in REFURBISH_TF_SHARED_USERNAME and REFURBISH_TF_SHARED_PASSWORD for Redis, and in the cloud's own variables, "
      "such as AWS_ACCESS_KEY_ID, for an object store."
    )
  return shared


def _as_record(data):
  """Wraps bytes in a value that `read` returns for a key that ends with 0."""
  return struct.pack("<4I", 0, 0, 1, len(data)).ljust(_HEADER_BYTES, b"\0") + data


def check(address):
  """ValueError unless the level reads, writes and deletes a small value within ten seconds."""
  root, value = f"refurbish/check/{uuid.uuid4().hex}", _as_record(uuid.uuid4().bytes)
  key = f"{root}/0"

  def tried(client):
    if isinstance(client, _Own):
      return _checked(client.read([key], [0])) and None
    written = client.write([(key, value, False)])
    if type(written[0]).__name__ == "OutOfMemoryError":
      return f"shared level {address} is full: jobs can read but not write. Delete a prefix or raise its maxmemory."
    _checked(written)
    # A server that divides its keys, such as Redis Cluster, refuses two of them at once.
    found = _checked(client.read([key, f"{root}/1"], [0, 0]))
    client.delete([key])
    if bytes(found[0] or b"") != value:
      raise LookupError
    return client.warning(address) if isinstance(client, _Redis) else None

  outcome = []
  _started(lambda: outcome.append(_result_of(called, address, tried))).join(_CHECK_SECONDS)
  _checked(outcome or [ValueError(_unusable(address, TimeoutError()))])
  if outcome[0]:
    pipeline_warnings.warn(outcome[0])


def write_about(address, prefix, about):
  """Starts to write what the command `refurbish-tf store` prints about a prefix. Does not wait, and does not fail."""
  record = (f"{prefix}/about/0", _as_record(json.dumps(about).encode()), True)
  _started(lambda: _result_of(called, address, lambda client: client.write([record])))


def about(client, prefix):
  """Returns what `write_about` has written. Raises an exception if it is missing or damaged."""
  return json.loads(bytes(client.read([f"{prefix}/about/0"], [0])[0])[_HEADER_BYTES:])


def called(address, function):
  """Calls a function with a new client. Raises ValueError if the level cannot be used."""
  try:
    return function(_kind(address)(address))
  except BaseException as error:
    raise ValueError(_unusable(address, error)) from None


def _unusable(address, error, what="be read and written"):
  if isinstance(error, _UnusableError):
    return str(error)
  if isinstance(error, ImportError):
    return f"shared needs the package {error.name}. Run pip install 'refurbish-tf[cluster]'."
  shown = "shared, the object," if _kind(address) is _Own else f"shared level {address}"
  return f"{shown} cannot {what} ({type(error).__name__}). {_kind(address).advice}."


class _Asked(ctypes.Structure):
  # A sample that a window of places wants, of the generation `least` or a later one.
  _fields_ = [("window", ctypes.c_uint64), ("index", ctypes.c_uint32), ("least", ctypes.c_uint32)]


class _Served:
  """A level that this process serves. Its name, for C++: address, prefix, and the level's limit."""

  def __init__(self, name):
    self._name, (self._address, self._prefix, _) = name, name.decode().split("\n")
    try:
      self._client = _kind(self._address)(self._address)
    except BaseException as error:
      _warn(_unusable(self._address, error))
      return
    self._failures = {"be read": (0, 0.0), "be written": (0, 0.0)}  # Their number, and the time of the last one.
    self._silent_until = 0.0
    for _ in range(self._client.readers):
      _started(lambda: self._run("be read", self._asked, self._read))
    for _ in range(self._client.writers):
      _started(lambda: self._run("be written", self._given, self._client.write))

  def _run(self, what, take, work):
    """Runs in a thread: works on what `take` returns, until it returns None. Pauses after repeated failures."""
    while True:
      failures, failed_at = self._failures[what]
      if failures > 1 and not _ending and time.monotonic() < failed_at + min(0.1 * 2 ** min(failures - 2, 6), 5):
        time.sleep(0.05)
        continue
      taken = take()
      if taken is None or _ending and (failures or not taken):
        return
      began = time.monotonic()
      try:
        if taken:
          _checked(work(taken))
          self._failures[what] = 0, 0.0
      except BaseException as error:
        failures, failed_at = self._failures[what]
        # Simultaneous failures count once. A first failure may be an accident. There is at most one warning a minute.
        if began >= failed_at:
          self._failures[what] = failures + 1, time.monotonic()
          if failures == 1 and time.monotonic() > self._silent_until:
            self._silent_until = time.monotonic() + 60
            _warn(f"{_unusable(self._address, error, what)} Until it works, each job prepares all samples itself.")

  def _key(self, index):
    return f"{self._prefix}/{index // 1024}/{index}"

  def _asked(self):
    """The samples that C++ asks for; None at the end."""
    most, asked = self._client.most, (_Asked * self._client.most)()
    number = _functions.refurbish_tf_level_asked(self._name, _WAIT_MS, most, asked)
    return None if number < 0 or _ending else asked[:number]

  def _read(self, asked):
    """Reads samples, and passes on the records that were found."""
    try:
      records = self._client.read([self._key(each.index) for each in asked], [each.least for each in asked])
      for each, record in zip(asked, records):
        if record is not None and not isinstance(record, BaseException):
          data, window = np.frombuffer(record, np.uint8), ctypes.c_uint64(each.window)
          size = ctypes.c_uint64(data.size)
          _functions.refurbish_tf_level_found(self._name, window, each.index, data.ctypes, size)
      return records
    finally:
      answered = (_Asked * len(asked))(*asked)
      _functions.refurbish_tf_level_answered(self._name, self._client.again_ms, len(asked), answered)

  def _given(self):
    """The samples to be written, as a client's `write` takes them; None at the end."""
    index, stays, put = ctypes.c_uint32(), ctypes.c_int(), ctypes.c_void_p()
    records, left = [], 2**23  # Bytes.
    while len(records) < self._client.most and left > 0:
      pointers = map(ctypes.byref, (index, stays, put))
      size = _functions.refurbish_tf_level_next_put(self._name, 0 if records or _ending else _WAIT_MS, *pointers)
      if size <= 0:
        return records if records or size == 0 else None
      if not stays.value and not self._client.expires:
        _functions.refurbish_tf_level_copy_put(put, None)
        continue
      record = np.empty(size, np.uint8)
      _functions.refurbish_tf_level_copy_put(put, record.ctypes)
      records.append((self._key(index.value), memoryview(record), bool(stays.value)))
      left -= size
    return records


def _started(function):
  """Starts and returns a thread that does not prevent the process from ending."""
  thread = threading.Thread(target=function, name="refurbish_tf shared level", daemon=True)
  _threads[:] = [*(each for each in _threads if each.is_alive()), thread]
  thread.start()
  return thread


def _warn(text):
  with contextlib.suppress(Exception):  # Warnings may be errors, by a filter or while the interpreter ends.
    pipeline_warnings.warn(text)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _on_new(name):
  """C++ may call this in any thread."""
  with contextlib.suppress(RuntimeError):  # While the interpreter ends, it starts no threads.
    if not _ending:
      _started(lambda: _Served(name))


def listen(library):
  """From now on, serves the levels of the C++ library at the path `library`."""
  global _functions
  _functions = ctypes.CDLL(library)
  _functions.refurbish_tf_level_next_put.restype = ctypes.c_int64
  _functions.refurbish_tf_level_on_new(_on_new)
  atexit.register(_stop)


def _stop():
  """Ends the threads after their last writes, because a Rust library must not return after the interpreter's end."""
  global _ending
  _ending = True
  _functions.refurbish_tf_level_on_new(None)
  until = time.monotonic() + _END_SECONDS
  for thread in list(_threads):
    thread.join(max(0, until - time.monotonic()))

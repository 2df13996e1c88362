"""Training programs, each in a separate process that need not import TensorFlow.

A server process that has only imported TensorFlow forks for each program. The fork runs the program as Python runs a
script, and ends as a script ends.
"""

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys

# The fork leaves the loop, so that no other frame is below the program, and the interpreter shuts down when it ends.
SERVER = """
import json, os, signal, socket, sys
import tensorflow, refurbish_tf

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
  message, files, _, _ = socket.recv_fds(asked, 1 << 16, 3)
  if not message:
    os._exit(0)
  forked = os.fork()
  if not forked:
    break
  for each in files:
    os.close(each)
  asked.sendall(json.dumps(forked).encode())
asked.close()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for each in range(3):
  os.dup2(files[each], each)
  os.close(files[each])
__file__ = json.loads(message)
sys.argv, sys.path[0] = [__file__], os.path.dirname(__file__)
with open(__file__, encoding="utf-8") as each:
  each = compile(each.read(), __file__, "exec")
del asked, message, files, forked, json, os, signal, socket, sys, tensorflow, refurbish_tf
exec(each)
"""


class Program:
  """The part of `subprocess.Popen` that tests need. `stdin` and `stdout` are pipes, `errors` is the text of stderr."""

  def __init__(self, pid, stdin, stdout, errors):
    self.pid, self.stdin, self.stdout, self._errors = pid, stdin, stdout, errors
    self._handle = os.pidfd_open(pid)

  def send_signal(self, number):
    with contextlib.suppress(ProcessLookupError):
      signal.pidfd_send_signal(self._handle, number)

  def wait(self, timeout):
    """Waits for the end, without reading stdout."""
    if not select.select([self._handle], [], [], timeout)[0]:
      raise TimeoutError(f"the program has not ended in {timeout} s")

  def errors(self):
    return self._errors.read_text(encoding="utf-8")

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.send_signal(signal.SIGKILL)
    os.close(self._handle)
    for pipe in (self.stdin, self.stdout):
      with contextlib.suppress(BrokenPipeError):
        pipe.close()


class Server:
  def __init__(self):
    self._socket, other = socket.socketpair()
    with other:
      self._process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(other.fileno())],
        pass_fds=[other.fileno()],
        stdin=subprocess.DEVNULL,
        # Otherwise TensorFlow would log the calls that are refused when a program ends.
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
      )

  def start(self, path):
    """Starts the script. Its stderr goes to a file next to it."""
    errors = pathlib.Path(path).with_suffix(".errors")
    with contextlib.ExitStack() as stack:
      (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
      for each in (read_in, write_out):
        stack.callback(os.close, each)
      told = stack.enter_context(open(errors, "wb"))
      socket.send_fds(self._socket, [json.dumps(str(path)).encode()], [read_in, write_out, told.fileno()])
    pid = json.loads(self._socket.recv(64))
    return Program(pid, open(write_in, "w", encoding="utf-8"), open(read_out, encoding="utf-8"), errors)

  def close(self):
    self._socket.close()
    self._process.wait()

"""How functions are sent to processes of `numpy_layer`, and the search for states in them."""

import functools
import socket
import threading

import numpy as np

from refurbish_tf._internal.processes import channel, worker


class Spied:
  """A socket that records the data sent, and the memory that it received into."""

  def __init__(self, socket):
    self._socket, self.sent, self.owners = socket, [], []
    self.fileno = socket.fileno

  def sendall(self, data):
    self.sent.append(data)
    self._socket.sendall(data)

  def recv_into(self, memory):
    self.owners.append(memory.obj)
    return self._socket.recv_into(memory)


def test_each_byte_is_received_without_an_extra_copy():
  """The time to send a function is therefore proportional to the size of the data it holds."""
  pair = socket.socketpair()
  pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # Otherwise a few receives may suffice.
  ours, theirs = map(Spied, pair)
  data = np.random.default_rng(7).bytes(10 << 20)
  threading.Thread(target=channel.Connection(ours).send, args=(("define", 3), data)).start()
  connection = channel.Connection(theirs)
  assert connection.receive() == ("define", 3)
  received = connection.read(len(data))
  assert received == data and ours.sent[-1] is data
  owners = [owner for number, owner in enumerate(theirs.owners) if owner is not theirs.owners[number - 1]]
  assert len(theirs.owners) > 10 and len(owners) == 3 and owners[-1] is received.obj


class TestSearchForStates:
  def test_does_not_access_dynamic_attributes(self):
    class Any(dict):
      def __getattr__(self, name):
        asked.append(name)
        return Any()

    asked = []
    worker.Seeder(Any(inner=[Any(), Any()]))
    assert asked == []

  def test_is_bounded_and_finds_states_next_to_large_data(self):
    rng = np.random.default_rng(3)
    much = [{"inner": [{"id": number} for number in range(10)]} for number in range(100_000)]
    for fn in (
      lambda image, rng, much=much, beside=[[[rng]]]: image,
      functools.partial(print, much, {1: {2: {3: rng}}}),
    ):
      seeder = worker.Seeder(fn)
      assert seeder.num_found() == worker.Seeder(rng).num_found() and len(seeder._seen) < 20_000

"""AutoGraph, for tests: it parses a whole file again for each of its lambdas, a sixth of what the tests would take."""
import copy
import functools
from unittest import mock

from tensorflow.python.autograph.pyct import parser


def parse_each_file_once():
  """AutoGraph holds a lock while it converts a function, so that nothing else parses in the meantime."""
  parse_lambda, without_context = parser._parse_lambda, parser._without_context
  parse_once = functools.cache(parser.parse)

  def parsed(function):
    with mock.patch.object(parser, "parse", parse_once):
      return parse_lambda(function)

  parser._parse_lambda = parsed
  # What it has found it changes.
  parser._without_context = lambda node, *where: without_context(copy.deepcopy(node), *where)

"""Speeds up AutoGraph, which parses the whole file for each lambda: that would be a sixth of the tests' time."""

import copy
import functools
from unittest import mock

from tensorflow.python.autograph.pyct import parser


def parse_each_file_once():
  """Patching is safe because AutoGraph holds a lock while it converts a function, so nothing else parses then."""
  parse_lambda, without_context = parser._parse_lambda, parser._without_context
  parse_once = functools.cache(parser.parse)

  def parsed(function):
    with mock.patch.object(parser, "parse", parse_once):
      return parse_lambda(function)

  parser._parse_lambda = parsed
  # AutoGraph changes the tree that it finds, so it gets a copy.
  parser._without_context = lambda node, *where: without_context(copy.deepcopy(node), *where)

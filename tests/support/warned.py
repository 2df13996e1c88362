"""Collects the warnings that a user gets."""

import warnings

import refurbish_tf as rtf


def told(function):
  """The messages of this package's warnings while `function` runs."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  return [str(warning.message) for warning in caught if warning.category is rtf.PipelineWarning]

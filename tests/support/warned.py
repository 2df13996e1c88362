"""What a user is warned of."""
import warnings

import refurbish_tf as rtf


def told(function):
  """What `function` is warned of: the messages of this package's warnings."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    function()
  return [str(warning.message) for warning in caught if warning.category is rtf.PipelineWarning]

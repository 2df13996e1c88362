"""Raises ImportError on systems other than Linux. Imports nothing that could be missing there."""

import platform
import sys

if sys.platform != "linux":
  raise ImportError(
    f"refurbish_tf runs on Linux, and this is {platform.system()}: use a Linux container, such as "
    '`docker run -it -v "$PWD":/work -w /work python:3.12 bash`, and install it there.'
  )

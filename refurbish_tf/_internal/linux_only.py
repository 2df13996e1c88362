"""Raises ImportError on systems other than Linux. Imports nothing that may be missing there."""

import platform
import sys

if sys.platform != "linux":
  raise ImportError(
    f"refurbish_tf runs only on Linux, got {platform.system()}. Start a Linux container, for example with "
    '`docker run -it -v "$PWD":/work -w /work python:3.12 bash`, and install refurbish_tf there.'
  )

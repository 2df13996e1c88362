"""The console script `refurbish-tf`.

A module of its own, because importing anything of the package imports TensorFlow, which says the most at that moment.
"""
import contextlib
import os
import sys
import tempfile


def main():
  # For what TensorFlow logs later.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  with stderr_held_back():
    from refurbish_tf import demo
  return demo.main()


@contextlib.contextmanager
def stderr_held_back():
  """Keeps off the terminal what native libraries say when they start, unless something fails.

  TensorFlow says some of it before its logging is set up, so no environment variable silences it all.
  """
  sys.stderr.flush()
  with tempfile.TemporaryFile() as held_back:
    stderr = os.dup(2)
    os.dup2(held_back.fileno(), 2)
    try:
      yield
    except BaseException:
      held_back.seek(0)
      os.write(stderr, held_back.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)


if __name__ == "__main__":
  sys.exit(main())

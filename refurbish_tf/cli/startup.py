"""Runs the command from before TensorFlow is imported until its exit status.

`refurbish_tf_launcher` loads this file by its path: it imports nothing of the package and nothing slow at its top.
"""
import contextlib
import os
import sys
import tempfile

FAILED = 1
# What a shell reports of a process that was ended by this signal: 128 + SIGINT and 128 + SIGPIPE.
INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13


def main(argv=None):
  """Runs the command line `argv`, that of the process if None.

  Returns:
    The exit status: 0, or 1 if the command failed or found what it was to look for (a damaged store), 130 if it was
    interrupted by Ctrl-C, 141 if nobody reads its output any more, as behind `| head`.

  Raises:
    SystemExit: argparse's, with 0 after --help and --version, and with 2 for a command line that is not understood.
  """
  # For what TensorFlow logs later.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  try:
    with stderr_held_back():
      from refurbish_tf import cli
    status = cli.main(argv)
    # Here, where a broken pipe can still be told, and not when the interpreter exits.
    sys.stdout.flush()
    return status
  except KeyboardInterrupt:
    print("\ninterrupted", file=sys.stderr)
    return INTERRUPTED
  except BrokenPipeError:
    # What is still buffered is written when the interpreter exits, and would fail once more.
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextlib.contextmanager
def stderr_held_back():
  """Keeps off the terminal what native libraries write when they start, unless something fails.

  TensorFlow writes some of it before its logging is set up, so no environment variable silences it all.
  """
  sys.stderr.flush()
  with tempfile.TemporaryFile() as held_back:
    stderr = os.dup(2)
    os.dup2(held_back.fileno(), 2)
    try:
      yield
    except KeyboardInterrupt:
      raise
    except BaseException:
      held_back.seek(0)
      os.write(stderr, held_back.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(stderr, 2)
      os.close(stderr)

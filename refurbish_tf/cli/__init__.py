"""The command `refurbish-tf`: a module for each subcommand.

    refurbish-tf demo
    refurbish-tf store PATH --verify
    refurbish-tf --version

What a subcommand needs beyond TensorFlow (Keras, TensorFlow Datasets, Matplotlib) is imported when it runs.
"""
import argparse

import refurbish_tf as rtf
from refurbish_tf.cli import demo
from refurbish_tf.cli import store


def main(argv=None):
  """Runs a command line as `startup.main` does, which calls it, but lets exceptions pass."""
  parser = argparse.ArgumentParser(
      prog="refurbish-tf", description="Reuse partially augmented training samples in tf.data pipelines.")
  parser.add_argument("--version", action="version", version=f"refurbish-tf {rtf.__version__}")
  commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
  demo.add_parser(commands)
  store.add_parser(commands)
  args = parser.parse_args(argv)
  return args.run(args)

"""Modules that tests share: pipelines, images, checkpoints, waiting, the number of cases in a run."""

import pathlib

# The checkout.
ROOT = pathlib.Path(__file__).resolve().parents[2]

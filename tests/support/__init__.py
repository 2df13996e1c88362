"""Shared by tests: pipelines, images, checkpoints, waiting, and how many of the cases a run has."""
import pathlib

# The checkout.
ROOT = pathlib.Path(__file__).resolve().parents[2]

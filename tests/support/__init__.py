"""Shared by tests: pipelines, images, checkpoints, waiting, and how many of the cases a run has."""

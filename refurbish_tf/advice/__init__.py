"""Recommends settings for a pipeline, from measurements of it."""

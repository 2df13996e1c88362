"""Processes that run Python functions for the trainer."""

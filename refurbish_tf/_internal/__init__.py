"""Modules that the rooms of the package share. They are not public."""

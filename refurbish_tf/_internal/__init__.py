"""Private modules that the other parts of the package share."""

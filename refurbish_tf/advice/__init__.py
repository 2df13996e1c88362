"""What to choose for a pipeline, measured on it."""

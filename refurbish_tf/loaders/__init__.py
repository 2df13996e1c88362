"""Loaders: pipelines of `tf.data` for PyTorch and JAX."""

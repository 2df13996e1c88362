"""Keras callbacks that resume training where it stopped and log the stages, and a layer that finishes batches."""

from refurbish_tf.keras.offloaded import Offloaded, with_offloaded
from refurbish_tf.keras.logger import RefurbishLogger
from refurbish_tf.keras.restore import BackupAndRestore

__all__ = ["BackupAndRestore", "Offloaded", "RefurbishLogger", "with_offloaded"]

"""Callbacks for Keras: to resume training where it stopped, and to log what the reuse stages do."""
from refurbish_tf.keras.logger import RefurbishLogger
from refurbish_tf.keras.restore import RestoreDataset

__all__ = ["RefurbishLogger", "RestoreDataset"]

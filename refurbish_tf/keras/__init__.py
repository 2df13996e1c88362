"""Callbacks for Keras: training that goes on where it was stopped, and a log of what the reuse stages do."""
from refurbish_tf.keras.logger import RefurbishLogger
from refurbish_tf.keras.restore import RestoreDataset

__all__ = ["RefurbishLogger", "RestoreDataset"]

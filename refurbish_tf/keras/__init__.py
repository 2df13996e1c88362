"""Callbacks for Keras, to resume training where it stopped and to log the stages, and a layer that finishes batches."""
from refurbish_tf.keras.finish import Finish, finish_first
from refurbish_tf.keras.logger import RefurbishLogger
from refurbish_tf.keras.restore import RestoreDataset

__all__ = ["Finish", "RefurbishLogger", "RestoreDataset", "finish_first"]

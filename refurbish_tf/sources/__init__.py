"""Sources whose elements are read by index, so that `refurbish` reads only what is fresh.

A stream is read through in every epoch, also what nobody wants of it. These datasets are asked for single elements in any
order.
"""
from .data_source import data_source
from .image_folder import image_folder
from .tfrecord import tfrecord

__all__ = ["data_source", "image_folder", "tfrecord"]

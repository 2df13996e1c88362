"""Sources whose elements are read by index, so that `refurbish` reads only fresh samples.

A stream is read to its end in every epoch, including elements that are not needed. These datasets return single
elements in any order.
"""

from .audio_folder import audio_folder
from .cached import cached
from .coco import coco
from .data_source import data_source
from .image_folder import image_folder
from .tfrecord import tfrecord
from .video_clips import video_clips

__all__ = ["audio_folder", "cached", "coco", "data_source", "image_folder", "tfrecord", "video_clips"]

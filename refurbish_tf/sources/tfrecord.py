"""Records of TFRecord files by index: `rtf.sources.tfrecord`."""
import tensorflow as tf


def tfrecord(files, *, index_dir=None, num_parallel_reads=tf.data.AUTOTUNE, compression_type=None):
  """A `tf.data.Dataset` of the records of TFRecord files, read by index."""
  raise NotImplementedError

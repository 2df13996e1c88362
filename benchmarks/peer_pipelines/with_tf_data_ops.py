"""As with_tf_data.py, with RandAugment and the decoding as TensorFlow's operations, as they once were in refurbish_tf."""
import common
import epochs
import throughput
import with_tf_data

RAND_AUGMENT = common.tensorflow_layers().rand_augment


def small(images):
  return with_tf_data.small(images, RAND_AUGMENT)


def large(files):
  return with_tf_data.large(files, RAND_AUGMENT, throughput.decode_part)


if __name__ == "__main__":
  epochs.serve(small=small, large=large)

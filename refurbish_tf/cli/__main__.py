"""`python -m refurbish_tf.cli` is `refurbish-tf`, but for what TensorFlow writes when it is imported."""
import sys

from refurbish_tf.cli import startup

sys.exit(startup.main())

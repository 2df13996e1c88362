"""`python -m refurbish_tf.cli` is `refurbish-tf`, but shows the messages that TensorFlow prints on import."""

import sys

from refurbish_tf.cli import startup

sys.exit(startup.main())

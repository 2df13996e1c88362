"""`python -m refurbish_tf.demo` is `refurbish-tf`."""
import sys

from refurbish_tf.demo import main

sys.exit(main())

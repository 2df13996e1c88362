"""The command `refurbish-tf`: a module for each subcommand, whose `run` it is.

    refurbish-tf demo
    refurbish-tf store PATH --verify
    refurbish-tf --version

What a subcommand needs beyond TensorFlow (Keras, TensorFlow Datasets, Matplotlib) is imported when it runs.
"""

"""The version of the package, which setup.cfg and `refurbish-tf --version` read without importing it."""

VERSION = "0.1.0"

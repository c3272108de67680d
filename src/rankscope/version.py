"""The version, alone in a file so that the build and `--version` read it without importing more."""

__version__ = "0.1.0"

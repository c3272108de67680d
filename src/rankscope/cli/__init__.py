"""The command line."""

from rankscope.cli.commands import app, main

__all__ = ["app", "main"]
